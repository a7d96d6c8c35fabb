# SPDX-License-Identifier: AGPL-3.0-only
"""Every command in every format: each is what its readers accept, says what the others say, and says it twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind, shard_name, tiny, write_checkpoint, write_raw
from format_parsers import read_csv, read_github, read_junit, read_markdown, read_sarif, texts_of
from html_reader import read_html
from typer.testing import CliRunner, Result
from whole_model import CONFIG, whole

from glm5inspect.cli import app
from glm5inspect.render import FORMATS, Format, junit
from glm5inspect.render.content import CONTENT
from glm5inspect.render.flat_csv import TABLES
from glm5inspect.render.junit import SUBJECTS
from glm5inspect.scope import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNKNOWN = f"{TEXT}layers.4.self_attn.wat"
COMMANDS = {
    "verify": ["verify", "SOURCE"],
    "census": ["census", "SOURCE", "--patterns", "--layers"],
    "verify-dsa": ["verify-dsa", "SOURCE"],
    "find-mtp": ["find-mtp", "SOURCE"],
    "show": ["show", "SOURCE"],
    "classify": ["classify", "--from", "SOURCE"],
    "diff": ["diff", "SOURCE", "OTHER"],
    "record": ["record", "SOURCE", "--output", "OUTPUT", "--recorded", "2026-01-31"],
    "explain": ["explain"],
    "cache": ["cache", "info", "--cache-dir", "CACHE"],
}
"""One call of every command."""

SEVERAL = {"sources", "unanswered"}
"""What an answer about several sources may be, see test_overview.py."""

SOURCES = ["snapshot:nvidia-nvfp4", "damaged", "unreadable"]

READERS: dict[str, Callable[[str], object]] = {
    "table": str.splitlines,
    "json": json.loads,
    "markdown": read_markdown,
    "junit": read_junit,
    "github": read_github,
    "sarif": read_sarif,
    "csv": read_csv,
    "html": read_html,
}


def run(command: str, source: Path | str, form: str, *options: str) -> Result:
    """Run a command on a source, in a format."""
    here = "." if isinstance(source, str) else source.parent
    places = {
        "SOURCE": str(source),
        "OUTPUT": f"{here}/snapshot.json",
        "CACHE": f"{here}/cache",
        "OTHER": f"{here}/other",
    }
    typed = [places.get(word, word) for word in COMMANDS[command]]
    return CliRunner().invoke(app, [*typed, "--format", form, *options], catch_exceptions=False)


def text_of(command: str, source: Path | str, form: str, *options: str) -> str:
    """Return what a command prints, with its line ends as they are; that of a snapshot is remembered."""
    if isinstance(source, str) and source in SOURCES:
        return _remembered(command, source, form, *options)
    return run(command, source, form, *options).stdout_bytes.decode()


@cache
def _remembered(command: str, source: str, form: str, *options: str) -> str:
    return run(command, source, form, *options).stdout_bytes.decode()


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A checkpoint with nothing wrong in it."""
    write_checkpoint(tmp_path / "other", {**tiny(), UNKNOWN: Kind("F32", (3,))})
    return write_checkpoint(tmp_path / "sound", whole(), config=CONFIG)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A checkpoint with a name too many and two too few."""
    write_checkpoint(tmp_path / "other", tiny())
    tensors = {**whole(), UNKNOWN: Kind("F32", (3,))}
    del tensors[f"{TEXT}layers.5.eh_proj.weight"], tensors[f"{TEXT}layers.3.self_attn.indexer.k_norm.bias"]
    return write_checkpoint(tmp_path / "damaged", tensors, config=CONFIG)


@pytest.fixture
def unreadable(damaged: Path) -> Path:
    """The same, and one shard has no header."""
    write_raw(damaged / shard_name(3, 3), b"no JSON at all")
    return damaged


def test_every_format_and_every_command_has_its_place() -> None:
    """The enumeration, the renderers and the readers here name the same formats; all tables name the same commands."""
    assert {*Format} == {*FORMATS} == READERS.keys()
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {*COMMANDS} == commands | {"cache"} == CONTENT.keys() - SEVERAL
    assert {"verify", *SUBJECTS} == CONTENT.keys()
    assert TABLES.keys() <= CONTENT.keys()


def all_of(command: str, source: Path | str, folder: Path) -> dict[str, str]:
    """Return what one run of a command writes in every format."""
    folder.mkdir()
    run(command, source, "table", *(word for form in READERS for word in ("--report", f"{form}={folder / form}")))
    return {form: (folder / form).read_bytes().decode() for form in READERS}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fixture", ["sound", "damaged", "unreadable"])
def test_every_command_has_every_format(
    command: str, fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is well-formed whatever was found, the same when asked for again, and names no place but SOURCE."""
    source = request.getfixturevalue(fixture)
    monkeypatch.chdir(source.parent)
    texts = all_of(command, source.name, source.parent / "first")
    for form, text in texts.items():
        assert text
        READERS[form](text)
        if form != "table" and command != "cache":
            assert str(source.parent) not in text
    assert texts == all_of(command, source.name, source.parent / "second")


@pytest.mark.parametrize("command", ["verify", "census", "verify-dsa", "find-mtp"])
def test_the_reference_in_every_format(command: str, tmp_path: Path) -> None:
    """A full-size inventory is well-formed, and well, in every format."""
    texts = all_of(command, "snapshot:reference", tmp_path / "all")
    for form, text in texts.items():
        READERS[form](text)
    assert {json.loads(texts["json"])["ok"], "OK: " in texts["table"], ": OK" in texts["markdown"]} == {True}
    assert read_junit(texts["junit"]).attrib["failures"] == "0"
    assert read_github(texts["github"])[0][-1].data.startswith("OK: ")


def test_two_processes_write_the_same(damaged: Path, tmp_path: Path) -> None:
    """Nor does the order of a set or the time of the day show."""
    found = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        words = [word for form in READERS for word in ("--report", f"{form}={folder / form}")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "glm5inspect", "verify", str(damaged), *words]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (1, b"")
        found.append({form: (folder / form).read_bytes() for form in READERS})
    assert found[0] == found[1]


@pytest.mark.parametrize("form", sorted(READERS.keys() - {"table"}))
def test_a_format_costs_what_it_needs(form: str, sound: Path) -> None:
    """Nothing heavy is imported, and of the renderings only the one asked for."""
    code = """
import sys
from glm5inspect.__main__ import main
try:
    main()
except SystemExit:
    print(*sorted(sys.modules), file=sys.stderr)
"""
    command = [sys.executable, "-c", code, "census", str(sound), "--format", form]
    loaded = {*subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()}
    assert FORMATS[Format(form)] in loaded
    assert not {"rich", "huggingface_hub", "numpy"} & loaded
    shared = {"glm5inspect.render.json_report"}  # what an answer is as plain data
    assert {*FORMATS.values()} & loaded <= {FORMATS[Format(form)], *shared}


def findings(command: str, source: Path | str) -> list[dict[str, Any]]:
    """Return the findings as JSON has them."""
    found: list[dict[str, Any]] = json.loads(text_of(command, source, "json"))["findings"]
    return found


@pytest.fixture(params=SOURCES)
def faulty(request: pytest.FixtureRequest) -> Path | str:
    """A source with findings: a published one, a damaged one, and one that could not be read whole."""
    source: Path | str = request.param
    return source if ":" in str(source) else request.getfixturevalue(str(source))


def test_no_finding_is_lost(faulty: Path | str, tmp_path: Path) -> None:
    """Every code is in every format; in those that do not fold, every finding."""
    texts = all_of("verify", faulty, tmp_path / "all")
    found = json.loads(texts["json"])["findings"]
    assert found
    for code in {finding["code"] for finding in found}:
        assert all(code in text for text in texts.values()), code
    results = read_sarif(texts["sarif"])["results"]
    assert [(r["ruleId"], r["level"]) for r in results] == [(f["code"], f["severity"]) for f in found]
    rows = [row for row in read_csv(texts["csv"]) if row["row"] == "finding"]
    for row, finding in zip(rows, found, strict=True):
        assert {key: row[key] for key in ("code", "severity", "message", "hint", "tensor", "shard")} == {
            key: finding[key] or "" for key in ("code", "severity", "message", "hint", "tensor", "shard")
        }
        assert (row["layer"], row["count"]) == (str(finding["layer"] or ""), str(finding["count"]))


POLICIES: dict[str, list[str]] = {
    "usual": [],
    "warnings": ["--fail-on", "warning"],
    "never": ["--fail-on", "never"],
    "waived": ["--ignore", "unknown-tensor", "--ignore", "quant-undeclared"],
}


JUDGED = [("verify", source) for source in SOURCES] + [
    (command, source) for command in ("census", "find-mtp", "show") for source in SOURCES[1:]
]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(("command", "faulty"), JUDGED, indirect=["faulty"])
def test_junit_agrees_with_the_exit_code(command: str, faulty: Path | str, policy: list[str]) -> None:
    """A test fails exactly when findings make the exit code 1, and one has an error exactly when it is 3."""
    result = run(command, faulty, "junit", *policy)
    suite = read_junit(result.stdout)
    failures, errors = int(suite.attrib["failures"]), int(suite.attrib["errors"])
    assert result.exit_code == (3 if errors else 1 if failures else 0)
    assert errors == (suite.find("testcase[@name='complete']/error") is not None)


def test_junit_has_a_case_for_every_check(damaged: Path) -> None:
    """The checks in their order and a last case; the failed ones fail, and those without a subject are skipped."""
    checks = json.loads(text_of("verify", damaged, "json"))["verify"]["checks"]
    cases = read_junit(text_of("verify", damaged, "junit")).findall("testcase")
    assert [case.attrib["name"] for case in cases] == [*CHECKS, "complete"]
    ended = [
        "failed" if c.find("failure") is not None else "skipped" if c.find("skipped") is not None else "" for c in cases
    ]
    assert ended[:-1] == [
        "failed" if c["status"] == "failed" else "skipped" if c["status"] != "passed" else "" for c in checks
    ]
    assert {"failed", "skipped", ""} == {*ended}
    assert UNKNOWN in texts_of(cases[CHECKS.index("classify")])
    assert cases[CHECKS.index("dsa")].find("failure[@type='dsa-missing']") is not None


def test_junit_skips_what_had_no_subject(sound: Path) -> None:
    """A command that looked at nothing has not passed, even if nothing was found."""
    suite = read_junit(text_of("verify-dsa", sound, "junit", "--layer", "0", "--ignore", "dsa-not-a-layer"))
    assert suite.find("testcase[@name='verify-dsa']/skipped") is not None


def test_junit_of_very_long_answers_is_cut(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of XML take only so much of one text; how much is left out is told."""
    whole_text = read_junit(text_of("show", sound, "junit")).findtext("system-out") or ""
    monkeypatch.setattr(junit, "MOST_TEXT", 5000)
    cut = read_junit(run("show", sound, "junit").stdout).findtext("system-out") or ""
    *kept, last = cut.rstrip().splitlines()
    assert whole_text.startswith("\n".join(kept))
    assert len(cut) < 5100
    assert last == f"{len(whole_text.rstrip().splitlines()) - len(kept)} more lines: see another format"


def test_warnings_go_to_the_output_of_their_case() -> None:
    """What does not fail is told, and is no failure."""
    suite = read_junit(text_of("verify", "snapshot:nvidia-nvfp4", "junit"))
    told = suite.findtext("testcase[@name='encodings']/system-out") or ""
    assert "warning precision-narrowed: model.language_model.layers.N.hc_attn_base" in told
    assert [case.attrib["name"] for case in suite.findall("testcase") if case.find("failure") is not None] == [
        "quant-config"
    ]


def test_ten_annotations_tell_the_story() -> None:
    """The errors first, nine at most, then the verdict with the number of those that stand in the log only."""
    text = text_of("verify", "snapshot:nvidia-nvfp4", "github")
    commands, log = read_github(text)
    assert [command.name for command in commands] == ["error", *["warning"] * 8, "error"]
    assert commands[0].properties == {"title": "quant-undeclared"}
    assert commands[0].data.startswith("model.language_model.layers.45.eh_proj: stored plain but declared NVFP4 g16")
    assert "\nAdd to `ignore` of config.json" in commands[0].data
    assert commands[-1].properties == {"title": "glm5inspect verify"}
    assert commands[-1].data.startswith("FAILED: 147,661 tensors")
    assert commands[-1].data.endswith("; 5 more of these 14 in the log")
    assert sum(line.startswith(("error ", "warning ", "note ")) for line in log) == 14


def test_an_annotation_says_that_all_is_well(sound: Path) -> None:
    """Without a finding there is one notice, the verdict."""
    ((name, _, data),) = read_github(text_of("census", sound, "github"))[0]
    assert (name, data[:3]) == ("notice", "OK:")


TABLE_TITLES = {
    "verify": ["part", "check"],
    "census": ["role", "layers", "pattern"],
    "verify-dsa": ["layer"],
    "find-mtp": ["role"],
    "show": ["name"],
    "classify": ["name"],
    "explain": ["code"],
}


@pytest.mark.parametrize("command", TABLE_TITLES)
def test_markdown_has_the_tables_of_the_terminal(command: str, sound: Path) -> None:
    """The same tables with the same cells, and the verdict in the heading."""
    text = text_of(command, sound, "markdown")
    lines, tables = read_markdown(text)
    terminal = text_of(command, sound, "table")
    word = terminal.splitlines()[-1].partition(":")[0]
    assert lines[0] == (f"glm5inspect {command}" if command == "explain" else f"glm5inspect {command}: {word}")
    assert [table[0][0] for table in tables] == TABLE_TITLES[command]
    cells = {cell for table in tables for row in table[command == "explain" :] for cell in row}
    assert len(cells) > 10
    assert {cell for cell in cells if cell not in terminal} == set()


def test_markdown_folds_as_the_terminal_does() -> None:
    """One item for each entry of the terminal, its details below it."""
    lines, _ = read_markdown(text_of("verify", "snapshot:nvidia-nvfp4", "markdown"))
    terminal = text_of("verify", "snapshot:nvidia-nvfp4", "table", "--quiet").splitlines()[:-1]
    assert [line.strip() for line in terminal] == lines[lines.index("Findings") + 1 :]


def test_markdown_can_be_quiet(damaged: Path) -> None:
    """Heading, verdict and findings are left."""
    lines, tables = read_markdown(text_of("census", damaged, "markdown", "--quiet"))
    assert tables == []
    assert [line.partition(":")[0] for line in lines][2:] == ["Findings", "error unknown-tensor"]


def test_sarif_rules_say_what_explain_says(damaged: Path) -> None:
    """The rules are those of the results, with the texts of the catalogue."""
    (rule,) = read_sarif(text_of("census", damaged, "sarif"))["tool"]["driver"]["rules"]
    entries = json.loads(text_of("explain", damaged, "json"))["explain"]["entries"]
    (entry,) = [entry for entry in entries if entry["code"] == "unknown-tensor"]
    assert rule["id"] == "unknown-tensor"
    assert rule["help"]["text"] == (f"{entry['meaning']}\n\nUsual cause: {entry['cause']}\n\nRemedy: {entry['remedy']}")


def test_sarif_says_where(damaged: Path) -> None:
    """The tensor is a logical location, its shard an artifact below the checkpoint."""
    (result,) = read_sarif(text_of("census", damaged, "sarif"))["results"]
    (location,) = result["locations"]
    assert location["logicalLocations"] == [{"fullyQualifiedName": UNKNOWN, "kind": "tensor"}]
    uri = location["physicalLocation"]["artifactLocation"]
    assert uri == {"uri": findings("census", damaged)[0]["shard"], "uriBaseId": "CHECKPOINT"}


def test_sarif_has_a_place_for_what_is_in_no_shard() -> None:
    """What is about the checkpoint as a whole is anchored at its config."""
    results = read_sarif(text_of("verify", "snapshot:nvidia-nvfp4", "sarif"))["results"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert uris == {"config.json"}


def test_fingerprints_do_not_depend_on_how_the_tensors_are_cut(tmp_path: Path) -> None:
    """The same fault in another shard is the same result."""
    prints = []
    for shards in (1, 4):
        folder = write_checkpoint(tmp_path / str(shards), {**tiny(), UNKNOWN: Kind("F32", (3,))}, shards=shards)
        (result,) = read_sarif(text_of("census", folder, "sarif"))["results"]
        prints.append(result["partialFingerprints"])
    assert prints[0] == prints[1]
    assert prints[0].keys() == {"glm5inspect/v1"}


@pytest.mark.parametrize("command", ["show", "classify", "explain", "cache", "record"])
@pytest.mark.parametrize("form", ["junit", "github"])
def test_the_answer_is_told_where_there_is_no_table_for_it(form: str, command: str, sound: Path) -> None:
    """The lines that a terminal gets stand in the output of the suite, and in the group of the log."""
    text = text_of(command, sound, form)
    said = texts_of(read_junit(text)) if form == "junit" else "\n".join(read_github(text)[1])
    lines = text_of(command, sound, "table").splitlines()
    skipped = 0 if command in ("explain", "cache") else 1  # where the source was found
    assert len(lines) > 2
    assert [line for line in lines[skipped : len(lines) - skipped] if line not in said] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_csv_columns_do_not_depend_on_the_answer(command: str, sound: Path, unreadable: Path) -> None:
    """A command has the same columns always, and every key of its JSON answer is among its rows."""
    texts = [text_of(command, source, "csv") for source in (sound, unreadable)]
    assert texts[0].splitlines()[0] == texts[1].splitlines()[0]
    answer = json.loads(text_of(command, sound, "json"))[command]
    rows = read_csv(texts[0])
    facts = {row["fact"].partition(".")[0] for row in rows if row["row"] == "fact"}
    for key, value in answer.items():
        if key in TABLES.get(command, {}):
            kind, _ = TABLES[command][key]
            assert sum(row["row"] == kind for row in rows) == len(value)
        else:
            assert key in facts or value in ([], {})


def test_csv_holds_the_numbers(sound: Path) -> None:
    """A row of the pattern table, cell by cell; several values in one cell are JSON."""
    rows = read_csv(text_of("census", sound, "csv"))
    (row,) = [row for row in rows if row["pattern"] == f"{TEXT}layers.N.mlp.experts.E.down_proj.weight"]
    assert {key: value for key, value in row.items() if value} == {
        "row": "pattern",
        "pattern": f"{TEXT}layers.N.mlp.experts.E.down_proj.weight",
        "role": "MoeExpert",
        "dtype": "BF16",
        "shape": "[64,32]",
        "layers": "3-5",
        "experts": "0-3",
        "tensors": "12",
        "bytes": "49152",
    }
