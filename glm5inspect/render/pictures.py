# SPDX-License-Identifier: AGPL-3.0-only
"""How a checkpoint is stored, as pictures: a map of layers and parts, and the bytes of each part.

An encoding has a letter beside its colour, and each picture says in words what it shows: nothing hangs on the colour.
"""

from __future__ import annotations

from itertools import chain, count
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect.render.markup import Markup, below, beside, element, scrolled
from glm5inspect.render.wording import size
from glm5inspect.report import layers_named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from glm5inspect.report import Report

COLOURS = 8
"""How many the style sheet has; a report with more encodings uses them again."""


class Mark(NamedTuple):
    """How an encoding is told apart: a letter, and the number of a colour."""

    letter: str
    colour: int


_USUAL = {
    "plain BF16": Mark("B", 0),
    "plain F32": Mark("F", 1),
    "plain F16": Mark("H", 2),
    "fp8": Mark("8", 3),
    "nvfp4": Mark("N", 4),
    "mxfp": Mark("X", 5),
    "int": Mark("I", 6),
    "gptq": Mark("G", 6),
    "awq": Mark("A", 6),
    "exl3": Mark("E", 7),
    "mlx": Mark("M", 7),
}
"""The letter and the colour of a family of encodings, the same in every report where it is free."""

_ROW, _CELL, _GAP, _HEAD, _NAMES = 26, 20, 2, 18, 116  # pixels, of the map
_MAIN = 15  # pixels of a cell that are left to its main encoding where it has several


class Stored(NamedTuple):
    """What of one part is stored in one encoding: its layers, none outside of them, and its bytes."""

    part: str
    encoding: str
    layers: tuple[int, ...]
    bytes: int


class Side(NamedTuple):
    """What one map shows, under a name; the name is empty where there is but one."""

    name: str
    rows: tuple[Stored, ...]


def sides_of(report: Report) -> tuple[Side, ...]:
    """Return what the answer of a report says of encodings: nothing, one checkpoint, or both sides of a difference."""
    answer: Any = report.answer
    rows = getattr(answer, "encodings", ())
    if not rows:
        return ()
    if report.topic == "diff":
        a = tuple(Stored(row.part, row.a, _numbers(row.layers), row.bytes_a) for row in rows)
        b = tuple(Stored(row.part, row.b, _numbers(row.layers), row.bytes_b) for row in rows)
        return (Side("A", a), Side("B", b))
    return (Side("", tuple(Stored(row.part, row.encoding, _numbers(row.layers), row.bytes) for row in rows)),)


def _numbers(layers: str | None) -> tuple[int, ...]:
    """Return the layers that ranges name."""
    ends = [part.partition("-") for part in layers.split(",")] if layers else []
    return tuple(chain.from_iterable(range(int(a), int(b or a) + 1) for a, _, b in ends))


def marks_of(sides: Iterable[Side]) -> dict[str, Mark]:
    """Give every encoding a letter of its own, and a colour of its own as long as there are some; most bytes first."""
    total: dict[str, int] = {}
    for row in chain.from_iterable(side.rows for side in sides):
        total[row.encoding] = total.get(row.encoding, 0) + row.bytes
    ordered = sorted(total, key=lambda name: (-total[name], name))
    usual = {name: next((mark for family, mark in _USUAL.items() if name.startswith(family)), None) for name in ordered}
    # The largest of each family goes first, before any other takes what is usual for a family.
    first = {mark: name for name in reversed(ordered) if (mark := usual[name])}
    marks: dict[str, Mark] = {}
    for name in sorted(ordered, key=lambda name: name not in first.values()):
        marks[name] = _free_mark(name, usual[name], marks.values())
    return {name: marks[name] for name in ordered}


def _free_mark(encoding: str, usual: Mark | None, taken: Collection[Mark]) -> Mark:
    letters = chain([usual.letter] if usual else [], filter(str.isalnum, encoding.upper()), ascii_uppercase)
    endless = chain(letters, map(str, count(1)))
    letter = next(letter for letter in endless if letter not in {mark.letter for mark in taken})
    first = usual.colour if usual else 0
    turned = [(first + step) % COLOURS for step in range(COLOURS)]
    return Mark(letter, next((colour for colour in turned if colour not in {mark.colour for mark in taken}), first))


def chip(encoding: str, mark: Mark) -> Markup:
    """Return the letter of an encoding on its colour, and its name."""
    return beside(element("span", mark.letter, class_=f"chip c{mark.colour}"), " ", encoding)


def legend(marks: dict[str, Mark]) -> Markup:
    """Return what the letters and colours stand for."""
    return element("ul", *(element("li", chip(name, mark)) for name, mark in marks.items()), class_="legend")


def layer_map(side: Side, marks: dict[str, Mark], key: str, name: str) -> Markup:
    """Return a map of one row a part and one column a layer, what is outside the layers in a column of its own.

    Args:
        side: What to show.
        marks: Of all its encodings.
        key: What the ids of its elements begin with.
        name: What it is called.
    """
    parts = tuple(_by_part(side))
    layers = sorted({layer for row in side.rows for layer in row.layers})
    columns: list[int | None] = [*layers, *([None] if any(not row.layers for row in side.rows) else [])]
    pitch = max(_CELL, 7 * len(str(layers[-1])) + 6) if layers else _CELL
    places = {column: number * pitch + _GAP for number, column in enumerate(columns)}
    cells: dict[tuple[str, int | None], list[str]] = {}
    for row in side.rows:
        for column in row.layers or (None,):
            cells.setdefault((row.part, column), []).append(row.encoding)
    height = _HEAD + _ROW * len(parts)
    drawn = [
        _cell(part, column, encodings, marks, (places[column], _HEAD + _ROW * parts.index(part), pitch - _GAP))
        for (part, column), encodings in cells.items()
    ]
    heads = [_letters("-" if c is None else str(c), x + (pitch - _GAP) / 2, 12, "head") for c, x in places.items()]
    width = pitch * len(columns) + 2 * _GAP
    picture = element(
        "svg",
        element("title", name, id=f"{key}-title"),
        element("desc", _in_words(side), id=f"{key}-desc"),
        *heads,
        below(*drawn),
        role="img",
        aria_labelledby=f"{key}-title",
        aria_describedby=f"{key}-desc",
        **_measures(width, height),
    )
    names = (
        element("text", part, x=_NAMES - 8, y=_HEAD + _ROW * number + 16, text_anchor="end")
        for number, part in enumerate(parts)
    )
    return element(
        "div",
        element("svg", *names, aria_hidden="true", **_measures(_NAMES, height)),
        scrolled(picture, name),
        class_="map",
    )


def _measures(width: int, height: int) -> dict[str, str | int]:
    return {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}


def _cell(
    part: str, layer: int | None, encodings: Sequence[str], marks: dict[str, Mark], place: tuple[int, int, int]
) -> Markup:
    """Draw the encodings of one part in one layer, the one with most bytes in the part above the others."""
    x, y, width = place
    height = _ROW - _GAP
    first, *others = [marks[encoding] for encoding in encodings]
    main = _MAIN if others else height
    share = width / len(others) if others else 0
    where = "outside the layers" if layer is None else f"layer {layer}"
    return element(
        "g",
        element("title", f"{part}, {where}: {', '.join(encodings)}"),
        *_patch(first, (x, y, width, main), "main"),
        *chain.from_iterable(
            _patch(mark, (x + number * share, y + main, share, height - main), "more")
            for number, mark in enumerate(others)
        ),
    )


def _patch(mark: Mark, place: tuple[float, float, float, float], kind: str) -> Iterator[Markup]:
    x, y, width, height = place
    sides = {"x": _short(x), "y": _short(y), "width": _short(width), "height": _short(height)}
    yield element("rect", class_=f"c{mark.colour}", **sides)
    yield _letters(mark.letter, x + width / 2, y + height / 2 + (4 if kind == "main" else 3), kind)


def _letters(said: str, x: float, y: float, kind: str) -> Markup:
    return element("text", said, x=_short(x), y=_short(y), class_=kind)


def _short(number: float) -> str:
    return f"{number:.5f}".rstrip("0").rstrip(".")


def _in_words(side: Side) -> str:
    """Say what a map shows, part by part."""

    def words(row: Stored) -> str:
        return f"{row.encoding} in {layers_named(row.layers)}" if row.layers else row.encoding

    return "; ".join(f"{part}: {', '.join(map(words, rows))}" for part, rows in _by_part(side).items()) + "."


def byte_table(side: Side, marks: dict[str, Mark], most: int) -> tuple[tuple[str, ...], Markup]:
    """Return the columns and the rows of a table: bytes, their share, a bar with a piece for each encoding, and these.

    Args:
        side: What to show; that of a difference is no whole, and has no shares.
        marks: Of all its encodings.
        most: The bytes that fill the width of a bar.
    """
    parts = _by_part(side)
    sums = {part: sum(row.bytes for row in rows) for part, rows in parts.items()}
    whole = 0 if side.name else sum(sums.values())
    columns = ("part", "size>", *(["share>"] if whole else []), "", "encodings")
    rows = (
        element(
            "tr",
            element("th", part, scope="row"),
            element("td", size(sums[part]), class_="n"),
            element("td", f"{sums[part] / whole:.2%}", class_="n") if whole else "",
            element("td", _bar(stored, most, marks), class_="drawn"),
            element("td", *_said(stored, marks), class_="kinds"),
        )
        for part, stored in parts.items()
    )
    return columns, below(*rows)


def most_bytes(sides: Iterable[Side]) -> int:
    """Return the bytes of the largest part, so that bars of several sides are to one scale."""
    return max(sum(row.bytes for row in rows) for side in sides for rows in _by_part(side).values())


def _by_part(side: Side) -> dict[str, list[Stored]]:
    parts: dict[str, list[Stored]] = {}
    for row in side.rows:
        parts.setdefault(row.part, []).append(row)
    return parts


def _said(rows: Sequence[Stored], marks: dict[str, Mark]) -> Iterator[Markup]:
    for row in rows:
        amount = beside(" ", size(row.bytes)) if len(rows) > 1 else ""
        yield element("span", chip(row.encoding, marks[row.encoding]), amount, class_="kind")


def _bar(rows: Sequence[Stored], most: int, marks: dict[str, Mark]) -> Markup:
    """Draw the encodings of a part side by side, as long as they are large; ``most`` bytes fill the width."""
    pieces, reached = [], 0
    for row in rows:
        at, length = (1000 * number / most if most else 0 for number in (reached, row.bytes))
        colour = f"c{marks[row.encoding].colour}"
        pieces.append(element("rect", x=_short(at), width=_short(length), height=10, class_=colour))
        reached += row.bytes
    return element("svg", *pieces, viewBox="0 0 1000 10", preserveAspectRatio="none", aria_hidden="true", class_="bar")
