# SPDX-License-Identifier: AGPL-3.0-only
"""What a report for people is made of, before a format draws it: lines and tables."""

from __future__ import annotations


class Lines:
    """Lines of text, an empty one for a pause.

    Attributes:
        lines: The lines.
        title: A heading above them.
        drawn: Whether they are a drawing, in which every column counts.
        wrapped: Whether they are paragraphs with a label, to be wrapped.
    """

    def __init__(self, *lines: str, title: str | None = None, drawn: bool = False, wrapped: bool = False) -> None:
        self.lines = lines
        self.title = title
        self.drawn = drawn
        self.wrapped = wrapped


class Grid:
    """A table.

    Attributes:
        title: A heading above it.
        columns: Their names; one that ends in ``>`` is aligned to the right.
        rows: The cells, numbers as numbers.
        plain: Whether it may have many rows of long names: it is drawn without borders then, a line a row.
        headed: Whether a plain one has its column names above it.
    """

    def __init__(
        self, title: str | None, columns: tuple[str, ...], *, plain: bool = False, headed: bool = True
    ) -> None:
        self.title = title
        self.columns = columns
        self.rows: list[tuple[str | int, ...]] = []
        self.plain = plain
        self.headed = headed

    def add(self, *cells: str | int) -> None:
        """Add a row."""
        self.rows.append(cells)

    def texts(self) -> list[tuple[str, ...]]:
        """Return the rows as text; numbers get their thousands separated."""
        return [tuple(cell if isinstance(cell, str) else f"{cell:,}" for cell in row) for row in self.rows]

    def plain_rows(self) -> list[tuple[str, ...]]:
        """Return the rows as text, below the names of the columns if it has any."""
        return [tuple(name.rstrip(">") for name in self.columns), *self.texts()] if self.headed else self.texts()


Block = Lines | Grid
