# SPDX-License-Identifier: AGPL-3.0-only
"""One report as a part of a page: verdict, source, pictures, findings with a filter, and the tables of every format.

The ids of its elements begin with a prefix, so that several reports can stand on one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.catalogue import Severity
from glm5inspect.render.blocks import Lines
from glm5inspect.render.content import blocks_of, folded, verdict_of
from glm5inspect.render.markup import Markup, below, beside, element, scrolled, text
from glm5inspect.render.pictures import byte_table, layer_map, legend, marks_of, most_bytes, sides_of
from glm5inspect.render.wording import accepted_lines, source_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5inspect.render.blocks import Block, Grid
    from glm5inspect.render.pictures import Mark, Side
    from glm5inspect.render.wording import Folded
    from glm5inspect.report import Report

_LABEL = 30  # characters that a line may have before its colon for them to be a label
_SHORT, _NAME = 32, 120  # characters of a cell that is one line, and of one that is broken between words only


class _Piece(NamedTuple):
    """A part of a section with a heading of its own; the key ends its id."""

    key: str
    title: str
    body: Markup


class Place(NamedTuple):
    """Where a section stands on its page.

    Attributes:
        prefix: What the ids of its elements begin with.
        level: The level of its heading.
        suffix: What tells its regions from those of the page's first section; empty for that one.
    """

    prefix: str
    level: int = 1
    suffix: str = ""


def section(report: Report, place: Place, *, quiet: bool) -> Markup:
    """Return one report.

    Args:
        report: What to show.
        place: Where on the page.
        quiet: Whether to leave out everything but the verdict and the findings.
    """
    name = report.source.name if report.source and place.suffix else f"glm5inspect {report.command}"
    pieces = list(_pieces(report, place, quiet=quiet))
    title = f"{place.prefix}-title"
    links = [element("li", element("a", piece.title, href=f"#{place.prefix}-{piece.key}")) for piece in pieces]
    head = below(
        element(f"h{place.level}", name, id=title),
        *_verdict(report),
        *([] if quiet else [_source(report)]),
        element("nav", element("ul", *links), aria_label=f"Contents{place.suffix}") if len(links) > 1 else "",
    )
    body = (
        element(
            "section",
            below(element(f"h{place.level + 1}", piece.title, id=f"{place.prefix}-{piece.key}"), piece.body),
        )
        for piece in pieces
    )
    return element("article", below(element("header", head), *body), aria_labelledby=title)


def _verdict(report: Report) -> Iterator[Markup]:
    word, _, rest = (verdict_of(report) or "").partition(": ")
    if word:
        yield element("p", element("strong", word, class_=word.lower()), " ", f"{rest}.", class_="verdict")


def _source(report: Report) -> Markup:
    lines = (element("span", line) for line in source_lines(report.command, report.source, typed=True))
    said = below(*lines)
    return element("p", said, class_="source") if said.strip() else Markup("")


def _pieces(report: Report, place: Place, *, quiet: bool) -> Iterator[_Piece]:
    """Yield the parts of a section: what is seen at a glance, what was found, and then the details."""
    blocks = [] if quiet else list(blocks_of(report))
    loose = [block for block in blocks if isinstance(block, Lines) and not block.drawn]
    sides = () if quiet else sides_of(report)
    if loose:
        yield _Piece("summary", "Summary", element("ul", below(*_facts(loose)), class_="facts"))
    marks = marks_of(sides)
    if sides:
        maps = (_map(side, marks, place) for side in sides)
        yield _Piece("map", "Layers and parts", below(_map_note(report), legend(marks), *maps))
    entries = folded(report)
    if entries:
        yield _Piece("findings", "Findings", _findings(entries, place))
    if accepted := accepted_lines(report):
        lines = (element("li", line) for line in accepted)
        yield _Piece("accepted", "Accepted", element("ul", below(*lines), class_="facts"))
    for side in sides:
        title = f"Bytes of these parts in {side.name}" if side.name else "Bytes of each part"
        key = f"bytes{side.name}"
        columns, rows = byte_table(side, marks, most_bytes(sides))
        yield _Piece(key, title, _table(columns, rows, f"{place.prefix}-{key}", f"{title}{place.suffix}"))
    yield from _tables([block for block in blocks if block not in loose], place)


def _map(side: Side, marks: dict[str, Mark], place: Place) -> Markup:
    name = f"Map of {side.name}" if side.name else "Map"
    drawn = layer_map(side, marks, f"{place.prefix}-map{side.name}", f"{name}{place.suffix}")
    return beside(element(f"h{place.level + 2}", name), drawn) if side.name else drawn


def _map_note(report: Report) -> Markup:
    what = "Only modules that A and B store otherwise. " if report.topic == "diff" else ""
    said = "Columns are layers, and - is outside of them. The large letter is the encoding with most bytes of the part."
    return element("p", f"{what}{said}", class_="note")


def _facts(blocks: Iterable[Lines]) -> Iterator[Markup]:
    for line in (line for block in blocks for line in (block.title, *block.lines) if line):
        label, colon, rest = line.partition(":")
        if rest.startswith(" ") and len(label) <= _LABEL:
            yield element("li", element("b", f"{label}{colon}"), " ", rest.strip())
        else:
            yield element("li", line)


def _tables(blocks: Iterable[Block], place: Place) -> Iterator[_Piece]:
    """Yield a piece for each title, with the blocks below it; what comes before any is the answer."""
    titled: dict[str, list[Block]] = {}
    title = "Answer"
    for block in blocks:
        title = block.title or title
        titled.setdefault(title, []).append(block)
    for number, (title, members) in enumerate(titled.items(), 1):
        key = f"table{number}"
        drawn = (_drawn(block, f"{place.prefix}-{key}", f"{title}{place.suffix}") for block in members)
        yield _Piece(key, title, below(*drawn))


def _drawn(block: Block, heading: str, name: str) -> Markup:
    if not isinstance(block, Lines):
        return _table(block.columns, _rows(block), heading, name, "plain" if block.plain else None)
    lines = beside(*(beside(line, Markup("\n")) for line in block.lines))
    return scrolled(element("pre", lines), f"{name}, drawn")


def _table(columns: Iterable[str], rows: Markup, heading: str, name: str, kind: str | None = None) -> Markup:
    heads = (
        element("th", column.rstrip(">"), scope="col", class_="n" if column.endswith(">") else None)
        if column
        else element("td")
        for column in columns
    )
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", rows),
        aria_labelledby=heading,
        class_=kind,
    )
    return scrolled(table, name)


def _rows(grid: Grid) -> Markup:
    right = [name.endswith(">") for name in grid.columns]
    return below(*(element("tr", *_cells(cells, right)) for cells in grid.texts()))


def _cells(cells: tuple[str, ...], right: list[bool]) -> Iterator[Markup]:
    for number, cell in enumerate(cells):
        kind = "n" if right[number] else None
        said = text(cell)
        if len(cell) > _SHORT:  # a list of layers has no space after a comma
            kind, said = "endless" if len(cell) > _NAME else "long", Markup(said.replace(",", ",<wbr>"))
        yield element("td", said, class_=kind) if number else element("th", said, scope="row", class_=kind)


def _findings(entries: list[Folded], place: Place) -> Markup:
    """Return all findings as a list, and a filter that shows itself where a script may run."""
    key = f"{place.prefix}-list"
    severities = [s for s in reversed(Severity) if any(entry.severity is s for entry in entries)]
    boxes = (_box(s, sum(entry.severity is s for entry in entries), place) for s in severities)
    words = element("label", "Text ", element("input", type="search", name=f"{place.prefix}-text"))
    form = element(
        "div",
        below(
            element("fieldset", below(element("legend", "Severity"), *boxes)),
            words,
            element("output", "", aria_live="polite"),
        ),
        hidden="",
        role="search",
        aria_label=f"Filter of the findings{place.suffix}",
        class_="filter",
        data_filter=key,
    )
    return below(form, element("ul", below(*map(_entry, entries)), id=key, class_="findings"))


def _box(severity: Severity, number: int, place: Place) -> Markup:
    name = severity.name.lower()
    box = element("input", type="checkbox", name=f"{place.prefix}-{name}", value=name, checked="")
    return element("label", box, f" {name} ({number:,})")


def _entry(entry: Folded) -> Markup:
    name = entry.severity.name.lower()
    head = beside(element("b", name, class_="severity"), " ", element("code", entry.code.value), " ", entry.headline)
    details = (element("p", detail) for detail in entry.details)
    return element("li", element("p", head), *details, data_severity=name)
