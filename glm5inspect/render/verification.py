# SPDX-License-Identifier: AGPL-3.0-only
"""The report of `verify` for people: what there is, how each part is stored, and how each check ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.render.console import add_row, new_table, print_lines, size
from glm5inspect.report import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from glm5inspect.verify import Verification

_MTP = {
    "complete": "complete",
    "incomplete": "not whole",
    "missing": "declared, and not here",
    "none": "none, and none declared",
    "unknown": "not known",
}


def show_verification(console: Console, answer: Verification) -> None:
    """Print the summary, the encodings of each part, and the table of checks."""
    print_lines(console, *(printable(line) for line in _summary(answer)), "")
    if answer.encodings:
        parts = new_table("Parts", "part", "encoding", "layers", "modules>", "size>", "bits per parameter>")
        for row in answer.encodings:
            where = (row.layers or "-").replace(",", ", ")  # so that a narrow column breaks between layers
            bits = f"{row.bits_per_parameter:.3f}"
            add_row(parts, row.part, row.encoding, where, row.modules, size(row.bytes), bits)
        console.print(parts)
    checks = new_table("Checks", "check", "subjects>", "findings>", "status")
    for check in answer.checks:
        add_row(checks, check.name, check.subjects, check.findings, check.status)
    console.print(checks)


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
    where = f" in layer {found.layer}, {found.encoding}" if found.layer else ""
    declared = "" if found.as_declared else ", not loadable as declared"
    draft = "; a draft tree" if answer.draft else ""
    yield f"multi-token prediction: {_MTP[found.state]}{where}{declared}{draft}"
    known = answer.fingerprint
    if known.snapshot:
        same = "the same inventory as" if known.exact else f"{known.differing_rows:,} rows differ from"
        yield f"fingerprint: {same} snapshot:{known.snapshot}"
    yield f"not read: {', '.join(answer.not_read)}"


def verification_subject(answer: Verification) -> tuple[str, str]:
    """Say what was looked at, and what was not."""
    ran = [check for check in answer.checks if check.status in ("passed", "failed")]
    failed = [check.name for check in ran if check.status == "failed"]
    how = f"{len(failed)} failed ({', '.join(failed)})" if failed else "all passed"
    return f"{counted(answer.tensors, 'tensor')}, {counted(len(ran), 'check')}, {how}", ", ".join(answer.not_read)
