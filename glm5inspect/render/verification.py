# SPDX-License-Identifier: AGPL-3.0-only
"""The report of `verify` for people: what there is, how each part is stored, and how each check ended.

Of several sources, one table puts them side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.render.blocks import Grid, Lines
from glm5inspect.render.wording import size
from glm5inspect.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.overview import Overview
    from glm5inspect.render.blocks import Block
    from glm5inspect.values.statistics import KindRow, PairRow
    from glm5inspect.verification import MtpState, Verification

_MTP = {
    "complete": "complete",
    "incomplete": "not whole",
    "missing": "declared, and not here",
    "none": "none, and none declared",
    "unknown": "not known",
}


def verification_blocks(answer: Verification) -> Iterator[Block]:
    """Yield the summary, the encodings of each part, and the table of checks."""
    yield Lines(*_summary(answer), "")
    if answer.encodings:
        parts = Grid("Parts", ("part", "encoding", "layers", "modules>", "size>", "bits per parameter>"))
        for row in answer.encodings:
            where = (row.layers or "-").replace(",", ", ")  # so that a narrow column breaks between layers
            parts.add(row.part, row.encoding, where, row.modules, size(row.bytes), f"{row.bits_per_parameter:.3f}")
        yield parts
    checks = Grid("Checks", ("check", "subjects>", "findings>", "status"))
    for check in answer.checks:
        checks.add(check.name, check.subjects, check.findings, check.status)
    yield checks
    if answer.scale_pairs:
        yield _pairs(answer.scale_pairs)
    if answer.statistics:
        yield _statistics(answer.statistics)


def _pairs(rows: tuple[PairRow, ...]) -> Grid:
    names = ("scale", "pairs>", "of>", "unequal>", "median>", "p99>", "max>", "layers")
    table = Grid("Scales of gate and up, larger over smaller", names)
    for row in rows:
        ratios = (_number(ratio) for ratio in (row.median, row.p99, row.max))
        table.add(row.scale, row.pairs, row.of, row.unequal, *ratios, (row.layers or "-").replace(",", ", "))
    return table


def _statistics(rows: tuple[KindRow, ...]) -> Grid:
    table = Grid("Values", ("kind", "read>", "of>", "values>", "min>", "median>", "max>", "finite>"))
    for row in rows:
        measures = (_number(measure) for measure in (row.min, row.median, row.max))
        table.add(row.kind, row.tensors, row.of, row.values, *measures, f"{row.finite:.2%}" if row.values else "-")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _summary(answer: Verification) -> Iterator[str]:
    shards = "unknown number of shards" if answer.shards is None else counted(answer.shards, "shard")
    yield f"{shards}, {counted(answer.tensors, 'tensor')}, {answer.bytes:,} bytes ({size(answer.bytes)})"
    if answer.parameters and answer.bits_per_parameter is not None:
        pruned = f", pruned: {answer.pruned.experts} of {answer.pruned.of} experts" if answer.pruned else ""
        yield f"{answer.parameters:,} parameters, {answer.bits_per_parameter:.3f} bits each{pruned}"
    if answer.dialect not in (None, "released"):
        yield f"names: {answer.dialect}"
    if answer.largest_shard:
        yield f"largest shard: {answer.largest_shard.name}, {size(answer.largest_shard.bytes)}"
    found = answer.mtp
    where = f" in layer {found.layer}, {found.encoding}" if found.layer is not None else ""
    draft = "; a draft tree" if answer.draft else ""
    yield f"multi-token prediction: {_MTP[found.state]}{where}{_as_declared(found)}{draft}"
    known = answer.fingerprint
    if known.snapshot:
        same = "the same inventory as" if known.exact else f"{known.differing_rows:,} rows differ from"
        yield f"fingerprint: {same} snapshot:{known.snapshot}"
    if read := answer.values:
        share = f"{read.tensors:,} of {counted(read.of, 'small tensor')}"
        if read.block_scales_of:
            share += f" and {read.block_scales:,} of {counted(read.block_scales_of, 'block scale')}"
        asked = f", in {counted(read.requests, 'request')}" if read.requests else ""
        yield f"values: {share} read, {counted(read.bytes, 'byte')}{asked}"
    yield f"not read: {', '.join(answer.not_read)}"


def verification_subject(answer: Verification) -> tuple[str, str]:
    """Say what was looked at, and what was not."""
    ran = sum(check.status in ("passed", "failed") for check in answer.checks)
    return f"{counted(answer.tensors, 'tensor')}, {counted(ran, 'check')}", ", ".join(answer.not_read)


def _as_declared(found: MtpState) -> str:
    return "" if found.as_declared else ", not loadable as declared"


def overview_blocks(answer: Overview) -> Iterator[Block]:
    """Yield the table that has one source a row."""
    names = ("source", "tensors>", "size>", "bits per parameter>", "encodings", "MTP", "verdict")
    table = Grid("Sources", names)
    for row in answer.sources:
        bits = "-" if row.bits_per_parameter is None else f"{row.bits_per_parameter:.3f}"
        layer = f"{row.mtp.state}{_as_declared(row.mtp)}" if row.mtp else "-"
        tensors = "-" if row.tensors is None else row.tensors
        nbytes = "-" if row.bytes is None else size(row.bytes)
        table.add(row.name, tensors, nbytes, bits, ", ".join(row.encodings) or "-", layer, row.verdict)
    yield table


def overview_subject(answer: Overview) -> tuple[str, str]:
    """Say how many sources ended how."""
    verdicts = [row.verdict for row in answer.sources]
    told = [f"{verdicts.count(word)} {word}" for word in ("OK", "FAILED", "INCOMPLETE") if word in verdicts]
    return f"{counted(len(verdicts), 'source')}: {', '.join(told)}", ""
