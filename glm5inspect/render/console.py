# SPDX-License-Identifier: AGPL-3.0-only
"""A console that fits where the report goes, and what is drawn on it: lines and tables.

Markup, highlighting and emoji are off: a name such as ``a[red]b`` must come out as it is. Off a terminal nothing is cut
or wrapped, unless ``COLUMNS`` asks for it.
"""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from rich.text import Text

    from glm5inspect.render import View

_NO_EDGE = 1 << 20  # columns of a console that never wraps
_LEAST_WIDTH = 72  # below it, Rich would crop numbers
_USUAL_WIDTH = 80  # of a terminal that does not tell
_MOST_DIGITS = 6  # of a number of columns


class _Memory(StringIO):
    """A text in memory that is bound for a stream of some encoding: Rich draws its lines with what that can hold."""

    encoding = "utf-8"

    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        if encoding:
            self.encoding = encoding


def console_for(view: View) -> tuple[Console, StringIO]:
    """Make a console that writes to memory what would suit the stream."""
    out = _Memory(getattr(view.stream, "encoding", None))
    width = width_of(view.stream)
    target = Console(file=view.stream or StringIO(), width=width)
    console = Console(
        file=out,
        force_terminal=target.is_terminal,
        color_system=target.color_system,  # type: ignore[arg-type] # the name of one, as Rich itself reports it
        no_color=target.no_color,
        width=width,
        height=25,  # Rich would else look at COLUMNS itself
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    return console, out


def width_of(stream: TextIO | None) -> int:
    """Return the columns to fill: as many as COLUMNS says or the terminal has, else there is no edge.

    Never fewer than a table of numbers needs; a terminal narrower than that wraps by itself.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and len(columns) < _MOST_DIGITS and int(columns):
        return max(int(columns), _LEAST_WIDTH)
    try:
        width = os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH if stream else _NO_EDGE
    except OSError:  # not a terminal, or no file at all
        return _NO_EDGE
    return max(width, _LEAST_WIDTH)


def print_lines(console: Console, *lines: Text | str, indent: int = 0) -> None:
    """Print lines, wrapped between words on a terminal, and anywhere else whole, for whoever greps a name."""
    for line in lines:
        if console.is_terminal:
            console.print(Padding(line, (0, 0, 0, indent), expand=False) if indent else line)
        else:
            console.file.write(f"{' ' * indent}{line}\n")


def new_table(title: str | None, *names: str) -> Table:
    """Make a table; a column whose name ends in ``>`` is aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in names:
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table
