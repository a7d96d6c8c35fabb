# SPDX-License-Identifier: AGPL-3.0-only
"""What names are for, one by one, without opening a checkpoint (or with the names of one)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glm5inspect.families import unknown_tensor
from glm5inspect.report import Report, in_order
from glm5inspect.roles import classify, is_mtp_only_name, is_norm, is_text_model, layer_index, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5inspect.inventory import Progress, Source
    from glm5inspect.report import SourceInfo


@dataclass(frozen=True, slots=True)
class Classified:
    """What one name amounts to; for an unknown one `role` is ``None`` and the predicates are false."""

    name: str
    role: str | None
    norm: bool
    text_model: bool
    mtp_only: bool
    layer: int | None
    normalized: str


@dataclass(frozen=True, slots=True)
class Classification:
    """The names asked for, in the order asked, or sorted when they are those of a source."""

    results: tuple[Classified, ...]


def classify_names(names: Iterable[str], *, source: SourceInfo | None = None) -> Report:
    """Classify names; each unknown one is an error, reported once."""
    results = tuple(_classify(name) for name in names)
    unknown = {result.name: result.layer for result in results if result.role is None}
    return Report(
        command="classify",
        source=source,
        answer=Classification(results),
        findings=in_order(unknown_tensor(name, layer) for name, layer in unknown.items()),
    )


def classify_source(source: Source, *, progress: Progress | None = None) -> Report:
    """Classify every name that a source holds."""
    from glm5inspect.integrity import emptiness, placement_of, refusals  # noqa: PLC0415 - plain names do not need it

    inventory = source.inventory(progress=progress)
    report = classify_names(sorted(inventory.tensors), source=inventory.info)
    # Names that could not be seen were not classified either.
    unseen = placement_of(inventory, inventory.unseen)
    findings = in_order([*report.findings, *refusals(inventory), *emptiness(inventory), *unseen])
    return replace(report, findings=findings, complete=inventory.complete)


def _classify(name: str) -> Classified:
    role = classify(name)
    return Classified(
        name=name,
        role=role and role.value,
        norm=role is not None and is_norm(role),
        text_model=role is not None and is_text_model(role),
        mtp_only=is_mtp_only_name(name),
        layer=layer_index(name),
        normalized=normalize(name),
    )
