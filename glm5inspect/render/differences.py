# SPDX-License-Identifier: AGPL-3.0-only
"""The report of `diff` for people: how much each side has; what differs is said by the findings below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.render.blocks import Grid, Lines
from glm5inspect.render.wording import size
from glm5inspect.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.difference import Difference, MtpSide, Side
    from glm5inspect.render.blocks import Block


def difference_blocks(answer: Difference) -> Iterator[Block]:
    """Yield what B is, the totals, and the roles of which the two have not the same."""
    other = answer.other
    revision = other.commit or other.revision
    where = f" ({other.repo}{f' at {revision}' if revision else ''})" if other.repo else ""
    mtp = [_mtp(side) for side in (answer.mtp.a, answer.mtp.b)]
    yield Lines(
        f"B is {other.name}{where}",
        f"A: {_total(answer.a)}",
        f"B: {_total(answer.b)}",
        f"multi-token prediction: {mtp[0]}" + (f" -> {mtp[1]}" if mtp[0] != mtp[1] else " in both"),
        "",
    )
    changed = [row for row in answer.roles if row.a != row.b]
    if changed:
        table = Grid("Roles", ("role", "tensors in A>", "tensors in B>", "size in A>", "size in B>"))
        for row in changed:
            sizes = (size(row.a.bytes), size(row.b.bytes))
            table.add(row.role or "unknown", row.a.tensors, row.b.tensors, *sizes)
        yield table


def difference_subject(answer: Difference) -> tuple[str, str]:
    """Say how the two compare, and what was not looked at."""
    if answer.rows or answer.encodings:
        changes = counted(len(answer.rows) + len(answer.encodings), "change")
        said = f"{counted(answer.a.tensors, 'tensor')} against {answer.b.tensors:,}, {changes}"
    elif answer.same is None:
        said = "no difference in what could be read"
    else:
        config = "" if answer.same else ", another config"
        said = f"the same inventory, {counted(answer.a.tensors, 'tensor')}{config}"
    return said, "tensor values"


def _total(side: Side) -> str:
    parameters = "" if side.parameters is None else f", {side.parameters:,} parameters"
    return f"{counted(side.tensors, 'tensor')}, {side.bytes:,} bytes ({size(side.bytes)}){parameters}"


def _mtp(side: MtpSide) -> str:
    encoding = f", {side.encoding}" if side.encoding else ""
    declared = "" if side.declared is None else f" ({side.declared} declared)"
    return f"layer {side.layers}{encoding}{declared}" if side.layers else f"none{declared}"
