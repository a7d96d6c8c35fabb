# SPDX-License-Identifier: AGPL-3.0-only
"""Which recorded inventory this is, or is nearest to, and what its config changes of the official one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from glm5inspect.catalogue import Code, Severity
from glm5inspect.geometry import text_config
from glm5inspect.report import Finding
from glm5inspect.snapshot import bundled_names, snapshot_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.inventory import Group

OFFICIAL = "official-bf16"
"""The snapshot whose config is the one to compare with."""

ESSENTIAL = frozenset(
    {"swiglu_limit", "hc_mult", "index_topk", "rms_norm_eps", "routed_scaling_factor", "scoring_func"}
)
"""Keys without which the model is built differently, or not at all."""

OWN_BUSINESS = frozenset({"model_type", "architectures", "dtype", "torch_dtype", "use_cache", "transformers_version"})
"""Keys that say nothing about what the weights mean."""

_MOST_SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The recorded inventory that is nearest.

    Attributes:
        snapshot: Its name; ``None`` when none has a row in common.
        exact: Whether pattern, dtype, shape and number of every tensor are the same.
        differing_rows: How many rows of pattern, dtype and shape differ; ``None`` without a snapshot.
    """

    snapshot: str | None
    exact: bool
    differing_rows: int | None


def fingerprint(groups: Iterable[Group]) -> Fingerprint:
    """Compare with every bundled snapshot, row by row, and return the nearest."""
    own: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for group in groups:
        own[group.pattern, group.dtype, group.shape] += len(group.tensors)
    best = Fingerprint(None, exact=False, differing_rows=None)
    for name in bundled_names():
        other = _rows(name)
        if not own.keys() & other.keys():
            continue
        differing = sum(own.get(key) != other.get(key) for key in own.keys() | other.keys())
        if best.differing_rows is None or differing < best.differing_rows:
            best = Fingerprint(name, exact=not differing, differing_rows=differing)
    return best


@lru_cache(maxsize=32)
def _bundled(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((snapshot_folder() / f"{name}.json").read_bytes())
    return content


@lru_cache(maxsize=32)
def _rows(name: str) -> dict[tuple[str, str, tuple[int, ...]], int]:
    """Return how many tensors each row of a bundled snapshot stands for."""
    return {
        (row["pattern"], row["dtype"], tuple(row["shape"])): _count(row.get("layers")) * _count(row.get("experts"))
        for row in _bundled(name)["rows"]
    }


def _count(ranges: str | None) -> int:
    """Return how many numbers ``a-b`` ranges stand for; 1 where a name has no such index."""
    ends = [run.split("-") for run in ranges.split(",")] if ranges else [["0"]]
    return sum(int(run[-1]) - int(run[0]) + 1 for run in ends)


def official_config() -> Mapping[str, object]:
    """Return ``config.json`` of the official release."""
    config: Mapping[str, object] = _bundled(OFFICIAL)["config"]
    return config


def differing_keys(config: Mapping[str, object], *, has_vision: bool) -> list[Finding]:
    """Report every key of the official config that is absent or different here."""
    official = official_config()
    findings = list(_compare("", text_config(config), text_config(official)))
    stated, known = config.get("vision_config"), official.get("vision_config")
    if isinstance(stated, dict) and isinstance(known, dict):
        findings += _compare("vision_config.", stated, known)
    elif has_vision:
        message = "config.json: vision_config is missing, and there is a vision tower"
        findings.append(Finding(Code.CONFIG_DIFFERS, message, weight=Severity.WARNING, expected="vision_config"))
    return findings


def _compare(where: str, stated: Mapping[str, object], official: Mapping[str, object]) -> Iterator[Finding]:
    for key, value in sorted(official.items()):
        if key in OWN_BUSINESS or (key in stated and stated[key] == value):
            continue
        wanted = _shown(value)
        actual = _shown(stated[key]) if key in stated else None
        told = f"is {actual}, and {wanted} in the official release" if actual else f"is missing; it is {wanted} there"
        weight = Severity.WARNING if actual is None and key in ESSENTIAL else None
        yield Finding(
            Code.CONFIG_DIFFERS, f"config.json: {where}{key} {told}", weight=weight, expected=wanted, actual=actual
        )


def _shown(value: object) -> str:
    try:
        return json.dumps(value)[:_MOST_SHOWN]
    except RecursionError:  # nested just as deeply as the parser bears
        return "a value nested too deeply"
