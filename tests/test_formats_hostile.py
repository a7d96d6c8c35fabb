# SPDX-License-Identifier: AGPL-3.0-only
"""Names from files are nobody's friends: whatever they hold, every format stays valid, and shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from checkpoints import Kind, tiny, write_checkpoint, write_shard
from format_parsers import read_csv, read_github, read_junit, read_markdown, read_sarif, texts_of
from html_reader import read_html, said
from typer.testing import CliRunner

from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.listing import Listing
from glm5inspect.render import Format, View, render
from glm5inspect.render.markdown import inline
from glm5inspect.report import Finding, Report, SourceInfo, printable

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    "plain.name",
    "a\x1b[31mred\x1b[0m",
    "nul\0nul",
    "bell\x07\x9bc1",
    "cdata]]>end",
    "--><!-- comment",
    "<script>alert(1)</script>",
    "</code></details>&amp;&#60;",
    "a|b",
    "back\\|slash\\",
    "`tick` ``two``",
    "\"double\" 'single'",
    "it's 'quoted",
    "--flag 'x`y|z' end",
    "\u202egpj.exe \u200f\u2066",
    "\u2028\u2029\x85",
    "line\r\n::error::injected",
    "::error title=x::injected",
    "::stop-commands::x",
    "##[error]injected",
    "%0A%0D%25",
    "a:b,c=d",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "  =1",
    "\uff1d1",
    "[link](http://evil.example)",
    "![image](http://evil.example/x.png)",
    "http://evil.example www.evil.example me@evil.example",
    "*em* _em_ **strong** ~~gone~~ $x$ :smile: @user #1",
    "# heading",
    "- item",
    "1. item",
    "1)",
    "---",
    "{0} {1}",
    "100%",
    "x" * 4000,
    "`|" * 2000,
    "\ufffe\uffff",
    "\U0001f600 \u05d0\u05d1",
)
"""Names that one format or another would take for something else."""

WHERE = "model.language_model.layers.4."
COMMANDS = (
    ["census", "SOURCE", "--patterns"],
    ["verify", "SOURCE"],
    ["show", "SOURCE"],
    ["classify", "--from", "SOURCE"],
)
SHARD = "we|ird `<b>` #1 %41 ]]>.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with every hostile name, bare and in a layer, in a shard with a hostile name of its own."""
    folder = write_checkpoint(tmp_path_factory.mktemp("hostile") / "source", tiny(), shards=1, index=False)
    write_shard(folder / SHARD, {f"{at}{name}": Kind("F32", (1,)) for at in ("", WHERE) for name in HOSTILE})
    return folder


def text_of(command: list[str], source: Path | str, form: str) -> str:
    """Return what a command prints, with its line ends as they are."""
    typed = [str(source) if word == "SOURCE" else word for word in command]
    return CliRunner().invoke(app, [*typed, "--format", form], catch_exceptions=False).stdout_bytes.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("form", Format)
def test_nothing_unprintable_comes_out(form: Format, command: list[str], source: Path) -> None:
    """Only line ends and what can be shown; so no terminal, no reader and no log is told anything by a name."""
    text = text_of(command, source, form)
    assert {character for character in text if not character.isprintable()} <= {"\r", "\n"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_junit(command: list[str], source: Path) -> None:
    """XML that can be parsed, with every name."""
    said = texts_of(read_junit(text_of(command, source, "junit")))
    if command[0] in ("census", "verify"):
        assert [name for name in HOSTILE if f"{printable(name)}: no rule says" not in said] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_sarif(command: list[str], source: Path) -> None:
    """Every name is a logical location, the shard a relative URI, and no message has a placeholder or a link."""
    results = read_sarif(text_of(command, source, "sarif"))["results"]
    if command[0] in ("census", "verify"):
        places = [place for result in results for place in result.get("locations", ())]
        names = {name["fullyQualifiedName"] for place in places for name in place.get("logicalLocations", ())}
        assert {printable(f"{at}{name}") for at in ("", WHERE) for name in HOSTILE} <= names
        uris = {place["physicalLocation"]["artifactLocation"]["uri"] for place in places if "physicalLocation" in place}
        assert "we%7Cird%20%60%3Cb%3E%60%20%231%20%2541%20%5D%5D%3E.safetensors" in uris


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_csv(command: list[str], source: Path) -> None:
    """One record a row, no formula, and every name in a cell of its own, behind an apostrophe where it needs one."""
    rows = read_csv(text_of(command, source, "csv"))
    cells = {cell.removeprefix("'") for row in rows for cell in row.values()}
    assert [name for name in HOSTILE if printable(name) not in cells] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_github(command: list[str], source: Path) -> None:
    """At most ten annotations, none of them of a name's making; all the rest is in the log."""
    commands, log = read_github(text_of(command, source, "github"))
    assert 1 <= len(commands) <= 10
    assert commands[-1].properties == {"title": f"glm5inspect {command[0]}"}
    assert {title.properties["title"] for title in commands[:-1]} <= {code.value for code in Code}
    if command[0] in ("census", "verify"):
        said = "\n".join(log).replace("##\\x5b", "##[")
        assert [name for name in HOSTILE if f"error unknown-tensor: {printable(name)}: " not in said] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_markdown(command: list[str], source: Path) -> None:
    """No markup but the report's, and every name readable in a line or a cell; runs of spaces do not count."""
    lines, tables = read_markdown(text_of(command, source, "markdown"))
    assert all(len(row) == len(table[0]) for table in tables for row in table)
    said = re.sub(" +", " ", "\n".join(lines))
    assert [name for name in HOSTILE if re.sub(" +", " ", printable(name)).strip() not in said] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_html(command: list[str], source: Path) -> None:
    """No element, attribute or script but the report's, and every name is text of the page."""
    root = read_html(text_of(command, source, "html"))
    assert len(root.query("script")) == 1
    told = said(root)
    assert [name for name in HOSTILE if printable(name) not in told] == []


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: printable(name[:20]))
def test_a_name_is_one_cell_of_a_markdown_table(name: str) -> None:
    """In a table a name is neither cut nor joined with its neighbour, by a reader that splits at every pipe even."""
    cell = inline(name)
    assert "|" not in cell
    _, ((_, row),) = read_markdown(f"| a | b |\n| --- | --- |\n| {cell} | {cell} |\n")
    assert [re.sub(" +", " ", text) for text in row] == [re.sub(" +", " ", printable(name)).strip()] * 2


WORDS = {
    "routed experts in layers 3-44, 0 errors": "routed experts in layers 3-44, 0 errors",
    "1.18 GiB (0.65%); 8-bit": "1.18 GiB (0.65%); 8-bit",
    "a.b_c: stored as BF16": "`a.b_c`: stored as `BF16`",
    "one_two three_four, five": "`one_two three_four`, five",
    "start with: --flags '{\"a b\": 1}'.": "start with: `--flags '{\"a b\": 1}'`.",
    "add `x` to": "add <code>&#96;x&#96;</code> to",
    "-": "-",
    "": "",
}


@pytest.mark.parametrize(("text", "expected"), WORDS.items(), ids=[text or "nothing" for text in WORDS])
def test_prose_stays_prose(text: str, expected: str) -> None:
    """Plain words are left alone; whatever is none stands in code, neighbours together, without the punctuation."""
    assert inline(text) == expected


@pytest.mark.parametrize("unit", [",", "1,", "a.", "-", "(", "'", " '", "--a ", "`", "|", "1-a"])
def test_no_name_is_too_long(unit: str) -> None:
    """A name as long as a header allows is told apart in one pass; this would not end otherwise."""
    name = f"1{unit * 200_000}!"
    said = inline(name)
    assert said.startswith(("`1", "<code>1", "1"))
    assert len(said) >= len(name.replace(" ", ""))


def about(*findings: Finding) -> Report:
    """Make a report that has nothing but findings."""
    return Report(command="show", source=None, answer=Listing(()), findings=findings)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: printable(name[:20]))
def test_an_annotation_says_what_the_finding_says(name: str) -> None:
    """Message and hint come out of the runner's reading as they went in, a percent sign included."""
    report = about(Finding(Code.NO_MATCH, f"{name}: x", hint=f"%0A{name}"))
    ((kind, properties, data), _), _ = read_github(render(report, Format.GITHUB))
    assert (kind, properties) == ("error", {"title": "no-match"})
    assert data == f"{printable(name)}: x\n%0A{printable(name)}"


def test_twins_are_two_results() -> None:
    """Two findings about one thing have two fingerprints, and the first keeps its own when the second goes."""
    one, twin = (Finding(Code.DSA_SHAPE, message, tensor="t", layer=3) for message in ("one", "two"))
    both, alone = (read_sarif(render(about(*found), Format.SARIF))["results"] for found in ((one, twin), (one,)))
    assert both[0]["partialFingerprints"] == alone[0]["partialFingerprints"]
    assert both[0]["partialFingerprints"] != both[1]["partialFingerprints"]


@pytest.mark.parametrize("form", Format)
def test_a_source_or_a_repository_is_no_better(form: Format) -> None:
    """What a snapshot file says of its origin, and what was typed, are as harmless as a name."""
    evil = "::error::x|`]]>\n##[error]y\0=1"
    finding = Finding(Code.HEADER_JSON, f"{evil}: broken", hint=evil, shard=evil, expected=evil, actual=[evil])
    origin = SourceInfo("snapshot", evil, evil, evil, evil, evil)
    report = Report(command="show", source=origin, answer=Listing(()), findings=(finding,), complete=False)
    text = render(report, form, View())
    readers = {"junit": read_junit, "sarif": read_sarif, "csv": read_csv, "github": read_github, "html": read_html}
    readers.get(form, read_markdown if form is Format.MARKDOWN else str.split)(text)
    assert "\0" not in text
    if form not in (Format.TABLE, Format.JUNIT):  # which are no logs of a workflow
        assert not re.search(r"^\s*(::error::x|##\[)", text, re.MULTILINE)
