# SPDX-License-Identifier: AGPL-3.0-only
"""The tensors whose names match, with everything their headers say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code, Severity
from glm5inspect.integrity import emptiness, placement_of, refusals
from glm5inspect.report import Finding, Report, in_order
from glm5inspect.roles import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Inventory, Progress, Source


@dataclass(frozen=True, slots=True)
class Shown:
    """One tensor.

    Attributes:
        name: As stored.
        dtype: As stored.
        shape: In elements.
        bytes: Stored.
        role: ``None`` for a name that no rule teaches.
        shard: ``None`` for a snapshot.
        start: First byte in the shard file, counted from the start of the file; ``None`` for a snapshot.
        stop: One past the last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    role: str | None
    shard: str | None
    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The tensors that match, by name and shard; a name that stands in two shards is listed twice."""

    tensors: tuple[Shown, ...]


def show(source: Source, globs: Sequence[str] = (), *, progress: Progress | None = None) -> Report:
    """List the tensors that match any of the globs, or all of them.

    Args:
        source: What to look at; with an index only the shards that hold matching names are opened, unless none does.
        globs: Matched against whole names, upper and lower case apart.
        progress: Called after each header.
    """
    patterns = {glob: re.compile(translate(glob)) for glob in globs}

    def matching(names: Iterable[str]) -> set[str]:
        return {name for name in names if not patterns or any(pattern.match(name) for pattern in patterns.values())}

    inventory = source.inventory(matching if patterns else None, progress)
    if inventory.partial and any(not any(map(pattern.match, inventory.tensors)) for pattern in patterns.values()):
        inventory = source.inventory(progress=progress)
    names = matching(inventory.tensors)
    copies = [copy for copy in inventory.superseded if copy.name in names]
    records = sorted([*(inventory.tensors[name] for name in names), *copies], key=lambda t: (t.name, t.shard or ""))
    unseen = matching(inventory.unseen)
    idle = [glob for glob, pattern in patterns.items() if not any(map(pattern.match, names | unseen))]
    severity = Severity.WARNING if records else Severity.ERROR
    findings = [Finding(Code.NO_MATCH, f"{glob}: no tensor name matches", severity, expected=glob) for glob in idle]
    if unseen:
        findings += placement_of(inventory, unseen)
    if not patterns:
        findings += emptiness(inventory)
    return Report(
        command="show",
        source=inventory.info,
        answer=Listing(tuple(_shown(record, inventory) for record in records)),
        findings=in_order([*findings, *refusals(inventory)]),
        complete=inventory.complete,
    )


def _shown(record: TensorRecord, inventory: Inventory) -> Shown:
    role = classify(record.name)
    data_start = None if record.shard is None else inventory.headers[record.shard].data_start
    return Shown(
        name=record.name,
        dtype=record.dtype,
        shape=record.shape,
        bytes=record.nbytes,
        role=role and role.value,
        shard=record.shard,
        start=None if data_start is None else data_start + record.start,
        stop=None if data_start is None else data_start + record.stop,
    )
