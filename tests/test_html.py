# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as pages: what they say is what the answer says, in words and in pictures, and they ask for nothing."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from html_reader import attribute, elements, only, read_html, rows_of, said
from typer.testing import CliRunner

from glm5inspect.catalogue import Code, Severity
from glm5inspect.cli import app
from glm5inspect.listing import Listing, Shown
from glm5inspect.render import Format, View, render
from glm5inspect.render.html_page import page
from glm5inspect.render.html_section import Place, section
from glm5inspect.render.markup import below, beside, element, text
from glm5inspect.render.pictures import COLOURS, Side, Stored, marks_of
from glm5inspect.report import Finding, Report, SourceInfo, Waiver

if TYPE_CHECKING:
    from justhtml import Node

SNAPSHOTS = ["snapshot:reference", "snapshot:nvidia-nvfp4"]
COMMANDS = {
    "verify": ["verify", "SOURCE"],
    "census": ["census", "SOURCE", "--patterns", "--layers"],
    "verify-dsa": ["verify-dsa", "SOURCE"],
    "find-mtp": ["find-mtp", "SOURCE"],
    "diff": ["diff", "SOURCE", "snapshot:official-fp8"],
    "show": ["show", "SOURCE", "*.layers.3.self_attn.*"],
    "classify": ["classify", "lm_head.weight", "SOURCE"],
    "explain": ["explain"],
    "record": ["record", "SOURCE", "--output", "OUTPUT", "--recorded", "2026-01-31"],
    "cache": ["cache", "info", "--cache-dir", "nowhere"],
}
"""One call of every command."""

PICTURED = [
    *(("verify", f"snapshot:{name}") for name in ("reference", "nvidia-nvfp4", "mlx-4bit", "mtp-extract")),
    *((command, source) for command in ("census", "find-mtp") for source in SNAPSHOTS),
]
"""Commands that say how parts are stored."""


@cache
def told(*typed: str) -> dict[str, str]:
    """Return what one run of a command line says, as a table, as JSON and as a page."""
    with TemporaryDirectory() as folder:
        places = {form: Path(folder, form) for form in ("table", "json", "html")}
        words = [word for form, file in places.items() for word in ("--report", f"{form}={file}")]
        CliRunner().invoke(app, [*typed, *words], catch_exceptions=False)
        return {form: file.read_bytes().decode() for form, file in places.items()}


def page_of(*typed: str) -> Node:
    """Return the page that a command line prints."""
    return read_html(told(*typed)["html"])


def encodings_of(command: str, *sources: str) -> list[dict[str, Any]]:
    """Return how each part is stored, as the JSON report has it."""
    rows: list[dict[str, Any]] = json.loads(told(command, *sources)["json"])[command]["encodings"]
    return rows


@pytest.mark.parametrize("source", SNAPSHOTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_of_every_command(command: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the rules of pages, is small, and has the verdict of the terminal, its word in the title too."""
    monkeypatch.chdir(tmp_path)
    typed = [{"SOURCE": source, "OUTPUT": "snapshot.json"}.get(word, word) for word in COMMANDS[command]]
    root = page_of(*typed)
    assert len(told(*typed)["html"].encode()) < 1_000_000
    title = said(only(root, "head > title"))
    assert title.startswith(f"glm5inspect {command}")
    if command not in ("explain", "cache"):
        word, _, sentence = told(*typed)["table"].splitlines()[-1].partition(": ")
        assert title.endswith(f": {word}")
        assert said(only(root, ".verdict")) == f"{word} {sentence}."


def stored(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the encodings of each part in each column of a map, by what JSON says."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for ends in (row["layers"] or "-").split(","):
            first, _, last = ends.partition("-")
            columns = [str(layer) for layer in range(int(first), int(last or first) + 1)] if first else ["-"]
            for column in columns:
                cells.setdefault((row["part"], column), []).append(row["encoding"])
    return cells


def drawn(root: Node) -> dict[tuple[str, str], list[str]]:
    """Return the same by what a map shows: place, letter and colour of each patch, against its margins and legend."""
    legend = {}
    for entry in root.query(".legend li"):
        letter, _, encoding = said(entry).partition(" ")
        legend[letter, attribute(only(entry, ".chip"), "class").removeprefix("chip ")] = encoding
    names, picture = only(root, ".map").query("svg")
    parts = {float(attribute(name, "y")): said(name) for name in names.query("text")}
    layers = {float(attribute(head, "x")): said(head) for head in picture.query(".head")}
    cells: dict[tuple[str, str], list[str]] = {}
    for group in picture.query("g"):
        patches = []
        for patch, mark in zip(group.query("rect"), group.query("text"), strict=True):
            x, y, width, height = (float(attribute(patch, side)) for side in ("x", "y", "width", "height"))
            assert x < float(attribute(mark, "x")) < x + width
            assert y < float(attribute(mark, "y")) < y + height
            patches.append((y, x, x + width, y + height, legend[said(mark), attribute(patch, "class")]))
        patches.sort()
        left, right = min(p[1] for p in patches), max(p[2] for p in patches)
        top, bottom = min(p[0] for p in patches), max(p[3] for p in patches)
        (part,) = [name for y, name in parts.items() if top < y < bottom]
        (column,) = [name for x, name in layers.items() if left < x < right]
        assert (part, column) not in cells
        cells[part, column] = [patch[4] for patch in patches]
        where = "outside the layers" if column == "-" else f"layer {column}"
        assert said(only(group, "title")) == f"{part}, {where}: {', '.join(cells[part, column])}"
    return cells


@pytest.mark.parametrize(("command", "source"), PICTURED)
def test_the_map_shows_what_is_stored(command: str, source: str) -> None:
    """Every part in every layer is a cell with all its encodings, the largest first, and there is no other cell."""
    rows = encodings_of(command, source)
    root = page_of(command, source)
    assert drawn(root) == stored(rows)
    words = said(only(root, "[role=img] > desc"))
    for row in rows:
        layers = f" in layer{'s' if re.search('[-,]', row['layers']) else ''} {row['layers']}" if row["layers"] else ""
        assert f"{row['encoding']}{layers}" in words


def test_a_map_tells_apart_what_is_mixed() -> None:
    """Of the quantized checkpoint: one encoding of the experts, two of the KDA mixer, all three of the MTP layer."""
    cells = drawn(page_of("verify", "snapshot:reference"))
    assert cells["routed experts", "3"] == ["nvfp4-modelopt"]
    assert cells["KDA", "0"] == ["plain BF16", "plain F32"]
    assert cells["MTP", "45"] == ["nvfp4-modelopt", "plain BF16", "plain F32"]
    assert ("KDA", "3") not in cells
    assert ("DSA", "3") in cells
    assert ("dense FFN", "3") not in cells


def test_a_difference_has_a_map_of_each_side() -> None:
    """What A and B store otherwise, each in its own encoding, and bars to one scale."""
    rows = encodings_of("diff", *SNAPSHOTS)
    root = page_of("diff", *SNAPSHOTS)
    for side, picture in zip(("a", "b"), root.query("[role=img]"), strict=True):
        titles = {said(title) for title in picture.query("g > title")}
        assert titles == {
            f"{part}, {'outside the layers' if layer == '-' else f'layer {layer}'}: {', '.join(encodings)}"
            for (part, layer), encodings in stored([{**row, "encoding": row[side]} for row in rows]).items()
        }
    check_bars(root, {(side, row["part"]): row[f"bytes_{side}"] for row in rows for side in ("a", "b")})


@pytest.mark.parametrize(("command", "source"), PICTURED)
def test_bars_are_as_long_as_the_bytes_are_many(command: str, source: str) -> None:
    """To one scale, piece by piece; the rows say the same in words."""
    rows = encodings_of(command, source)
    root = page_of(command, source)
    check_bars(root, {(row["part"], row["encoding"]): row["bytes"] for row in rows})
    (table,) = [table for table in root.query("table") if table.query(".bar")]
    total = sum(row["bytes"] for row in rows)
    for part, _, share, _, encodings in rows_of(table)[1:]:
        mine = [row for row in rows if row["part"] == part]
        assert share == f"{100 * sum(row['bytes'] for row in mine) / total:.2f}%"
        assert [row["encoding"] in encodings for row in mine] == [True] * len(mine)


def check_bars(root: Node, amounts: dict[tuple[str, str], int]) -> None:
    """Hold the bars of a page against the bytes that they stand for."""
    bars = [bar.query("rect") for bar in root.query(".bar")]
    widths = [float(attribute(piece, "width")) for pieces in bars for piece in pieces]
    assert len(widths) == len(amounts)
    longest = max(sum(float(attribute(piece, "width")) for piece in pieces) for pieces in bars)
    assert longest == pytest.approx(1000)
    scale = sum(widths) / sum(amounts.values())
    assert sorted(widths) == pytest.approx(sorted(number * scale for number in amounts.values()), abs=1e-3)
    for pieces in bars:
        reached = 0.0
        for piece in pieces:
            assert float(attribute(piece, "x")) == pytest.approx(reached, abs=1e-4)
            reached += float(attribute(piece, "width"))


@pytest.mark.parametrize("command", ["verify", "census", "verify-dsa", "find-mtp", "show", "explain"])
def test_a_page_has_the_tables_of_the_terminal(command: str) -> None:
    """Every cell of them, and every line beside them."""
    typed = [SNAPSHOTS[1] if word == "SOURCE" else word for word in COMMANDS[command]]
    root = page_of(*typed)
    terminal = re.sub(r"\s+", " ", told(*typed)["table"])
    tables = [table for table in root.query("table") if not table.query(".bar")]
    cells = {cell for table in tables for row in rows_of(table)[command == "explain" :] for cell in row}
    assert len(cells) > 10
    assert {cell for cell in cells if re.sub(r"\s+", " ", cell) not in terminal} == set()
    marked = f" {re.sub(r'[^!-~]+', ' ', ' '.join(map(said, [only(root, 'main')])))} "
    first = 2 if command != "explain" else 0  # where the source was found
    words = re.sub(r"[^!-~]+", " ", " ".join(told(*typed)["table"].splitlines()[first:])).split()
    assert {word for word in words if word.rstrip(":") not in marked} == set()


def test_all_findings_are_told() -> None:
    """One entry for each of the terminal, in its order, with its details; the filter counts them by severity."""
    root = page_of("verify", SNAPSHOTS[1])
    lines = told("verify", SNAPSHOTS[1], "--quiet")["table"].splitlines()[:-1]
    entries = root.query(".findings > li")
    shown = []
    for entry in entries:
        head, *details = map(said, entry.query("p"))
        severity, code, rest = head.split(" ", 2)
        assert attribute(entry, "data-severity") == severity
        shown += [f"{severity} {code}: {rest}", *(f"    {detail}" for detail in details)]
    assert shown == lines
    boxes = {attribute(only(label, "input"), "value"): said(label) for label in root.query("fieldset label")}
    assert boxes == {"error": " error (1)", "warning": " warning (8)", "note": " note (5)"}


def test_without_a_script_there_is_a_list_and_no_filter() -> None:
    """The filter is hidden until the script shows it, and no entry is."""
    root = page_of("verify", SNAPSHOTS[1])
    hidden = [node for node in elements(root) if "hidden" in (node.attrs or {})]
    assert [attribute(node, "role") for node in hidden] == ["search"]
    assert attribute(only(root, ".filter"), "data-filter") == attribute(only(root, ".findings"), "id")
    assert "aria-live" in (only(root, ".filter output").attrs or {})


def test_a_page_can_be_quiet() -> None:
    """Verdict and findings are left; nothing is said of the source."""
    root = page_of("verify", SNAPSHOTS[1], "--quiet")
    whole = page_of("verify", SNAPSHOTS[1])
    assert not [node for node in elements(root) if node.name in ("table", "svg", "nav")]
    assert not root.query(".source")
    for kept in (".verdict", ".findings"):
        assert said(only(root, kept)) == said(only(whole, kept))


def test_several_reports_stand_on_one_page() -> None:
    """Each is a part of its own, with links to all of them, a filter of its own, and no id of another."""
    root = page_of("verify", *SNAPSHOTS, "snapshot:nowhere")
    assert [said(node) for node in root.query("h1, article > header > h2")] == [
        *("glm5inspect verify", *SNAPSHOTS, "snapshot:nowhere")
    ]
    first, *others = root.query("article")
    assert [said(only(one, ".verdict strong")) for one in others] == ["OK", "FAILED", "INCOMPLETE"]
    assert said(only(first, ".verdict strong")) == "INCOMPLETE"
    assert [len(one.query("[role=img]")) for one in others] == [1, 1, 0]
    assert [said(link) for link in root.query("main > nav a")] == [*SNAPSHOTS, "snapshot:nowhere"]
    labels = [attribute(one, "aria-label") for one in root.query("section[aria-label], nav, [role=search]")]
    assert len(labels) == len({*labels})


def test_what_was_accepted_is_told_with_the_reason() -> None:
    """It is no finding, and does not count."""
    finding = Finding(Code.UNKNOWN_TENSOR, "x.wat: no rule", tensor="x.wat")
    waiver = Waiver(Code.UNKNOWN_TENSOR, "x.*", "an <old> marker", "accepted.toml: 1")
    report = Report(command="show", source=None, answer=Listing(()), accepted=((finding, waiver),))
    root = read_html(render(report, Format.HTML, View(quiet=True)))
    assert not root.query(".findings")
    assert [said(line) for line in root.query("li")] == ["accepted 1 finding, unknown-tensor on x.*: an <old> marker"]


def test_a_long_page_grows_line_by_line() -> None:
    """Each further tensor takes as many bytes as the one before it."""
    sizes = []
    for number in (1000, 2000, 3000):
        tensors = tuple(Shown(f"t.{i:06}", "BF16", (4, 4), 32, None, None, None, None) for i in range(number))
        sizes.append(len(render(Report(command="show", source=None, answer=Listing(tensors)), Format.HTML)))
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0


def test_the_prefix_is_all_that_ids_share() -> None:
    """Two sections of one report on one page keep the rules; with one prefix they would not."""
    finding = Finding(Code.UNKNOWN_TENSOR, "x: no rule")
    source = SourceInfo("directory", "a", "a")
    report = Report(command="show", source=source, answer=Listing(()), findings=(finding,))
    places = [Place("one"), Place("two", 2, ", second")]
    read_html(page("two", [section(report, place, quiet=False) for place in places]))
    with pytest.raises(AssertionError):
        read_html(page("two", [section(report, Place("one", level), quiet=False) for level in (1, 2)]))


def test_a_severity_that_is_not_there_has_no_box() -> None:
    """Nor is there a filter where nothing was found."""
    note = Finding(Code.UNKNOWN_TENSOR, "x", weight=Severity.NOTE)
    report = Report(command="show", source=None, answer=Listing(()), findings=(note,))
    assert [said(label) for label in read_html(render(report, Format.HTML)).query("fieldset label")] == [" note (1)"]
    nothing = read_html(render(Report(command="show", source=None, answer=Listing(())), Format.HTML))
    assert not nothing.query(".filter")


ENCODINGS = {
    "usual": (["plain BF16", "nvfp4-modelopt", "plain F32"], ["B0", "N4", "F1"]),
    "two of a family": (["mlx-affine 4-bit g64", "mlx-affine 8-bit g64", "plain F32"], ["M7", "L0", "F1"]),
    "one colour": (["gptq 4-bit g128", "awq 4-bit g128", "int8-channel"], ["G6", "A7", "I0"]),
    "never seen": (["b new", "plain BF16"], ["N1", "B0"]),
}
"""Encodings, the one with most bytes first, and their letters and colours."""


@pytest.mark.parametrize(("encodings", "expected"), ENCODINGS.values(), ids=ENCODINGS)
def test_encodings_are_told_apart(encodings: list[str], expected: list[str]) -> None:
    """Each has its usual letter and colour where they are free, whichever is larger, and free ones else."""
    rows = tuple(Stored("part", name, (0,), 100 - number) for number, name in enumerate(encodings))
    marks = marks_of([Side("", rows)])
    assert {name: f"{mark.letter}{mark.colour}" for name, mark in marks.items()} == dict(
        zip(encodings, expected, strict=True)
    )


def test_letters_do_not_run_out() -> None:
    """However many encodings there are, each has a letter or a number of its own; colours come again."""
    rows = tuple(Stored("part", f"mlx-affine {number}-bit g{number}", (number,), number) for number in range(60))
    marks = marks_of([Side("", rows)])
    assert len({mark.letter for mark in marks.values()}) == 60
    assert {mark.colour for mark in marks.values()} == {*range(COLOURS)}


def test_only_markup_is_markup() -> None:
    """Text is escaped wherever it goes, control and format characters are spelt out, and markup is left as it is."""
    evil = "<b>\"'&\x1b\u202e"
    safe = "&lt;b&gt;&quot;&#x27;&amp;\\x1b\\u202e"
    assert text(evil) == safe
    assert element("p", evil, text(evil), class_=evil, data_x=1, hidden="", id=None) == (
        f'<p class="{safe}" data-x="1" hidden>{safe}{safe}</p>'
    )
    assert element("input", type="search") == '<input type="search">'
    assert beside(evil, element("b", "x")) == f"{safe}<b>x</b>"
    assert below(element("b", "x"), "", evil) == f"\n<b>x</b>\n{safe}\n"


def test_letters_can_be_read_on_their_colours() -> None:
    """In light, in dark and on paper: 4.5 to 1 at least, for text on the page and for letters on colours."""
    style = files("glm5inspect.render").joinpath("page.css").read_text(encoding="utf-8")
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w]+): (#[0-9a-f]+);", scheme))
        grounds = [f"c{number}" for number in range(COLOURS)]
        assert {*grounds} <= colours.keys()
        pairs = [*(("ink", ground) for ground in (*grounds, "tint", "paper"))]
        pairs += [(name, "paper") for name in ("quiet", "link", "ok", "warning", "failed", "note")]
        weak = [pair for pair in pairs if contrast(*(colours[name] for name in pair)) < 4.5]
        assert weak == []


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, which is written with three or six digits."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
