# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as tables a person wants to read, with Rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from glm5inspect.catalogue import Severity
from glm5inspect.render.blocks import Lines
from glm5inspect.render.console import console_for, new_table, print_lines
from glm5inspect.render.content import blocks_of, folded, verdict_of
from glm5inspect.render.wording import accepted_lines, columns, source_lines
from glm5inspect.report import printable

if TYPE_CHECKING:
    from rich.console import Console

    from glm5inspect.render import View
    from glm5inspect.render.blocks import Block
    from glm5inspect.report import Report

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def render(report: Report, view: View) -> str:
    """Return the report as text, with the colours of the stream it is meant for."""
    console, out = console_for(view)
    for part in report.reports:
        _report(console, part, quiet=view.quiet, named=True)
        print_lines(console, "")
    _report(console, report, quiet=view.quiet)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _report(console: Console, report: Report, *, quiet: bool, named: bool = False) -> None:
    if named or not quiet:
        print_lines(console, *source_lines(report.command, report.source))
    if not quiet:
        for block in blocks_of(report):
            _draw(console, block)
    for entry in folded(report):
        style = _STYLES[entry.severity]
        head = Text.assemble(
            (entry.severity.name.lower(), style), " ", (entry.code.value, "bold"), f": {printable(entry.headline)}"
        )
        print_lines(console, head)
        print_lines(console, *(printable(detail) for detail in entry.details), indent=4)
    print_lines(console, *accepted_lines(report))
    word, colon, rest = (verdict_of(report) or "").partition(":")
    print_lines(console, Text.assemble((word, "bold green" if report.ok else "bold red"), colon + rest))


def _draw(console: Console, block: Block) -> None:
    if isinstance(block, Lines):
        title = [Text(block.title, "bold")] if block.title else []
        print_lines(console, *title, *map(printable, block.lines))
    elif block.plain:  # borders would cut long names into pieces on any usual screen
        print_lines(console, Text(block.title or "", "bold"))
        for line in [*columns(block.plain_rows()), ""]:
            console.print(line, soft_wrap=True)
    else:
        table = new_table(block.title, *block.columns)
        for row in block.texts():
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(table)
