# SPDX-License-Identifier: AGPL-3.0-only
"""Several sources at once: one table to choose by, the worst exit code, and a report for each of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import shard_name, tiny, write_checkpoint, write_raw
from format_parsers import read_csv, read_github, read_markdown, read_runs, read_suites, texts_of
from typer.testing import CliRunner, Result
from whole_model import CONFIG, whole

from glm5inspect.cli import app
from glm5inspect.render import Format

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE, NVIDIA, DRAFT = "snapshot:reference", "snapshot:nvidia-nvfp4", "snapshot:mtp-extract"


def verify(*typed: object) -> Result:
    """Verify some sources."""
    words = [str(word) for word in typed]
    return CliRunner().invoke(app, ["verify", *words], catch_exceptions=False, env={"COLUMNS": "500"})


def report_on(*typed: object) -> Any:  # noqa: ANN401 - plain data
    """Return the JSON report on some sources."""
    return json.loads(verify(*typed, "--format", "json").stdout)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A whole tiny model."""
    return write_checkpoint(tmp_path / "sound", whole(), config=CONFIG)


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A tiny checkpoint of which one shard has no header."""
    folder = write_checkpoint(tmp_path / "unreadable", tiny())
    write_raw(folder / shard_name(3, 3), b"no JSON at all")
    return folder


def test_the_table_to_choose_by() -> None:
    """A row a source, in the order typed: what is stored, how, whether the MTP layer is whole, and the verdict."""
    report = report_on(NVIDIA, REFERENCE, DRAFT, "snapshot:reap50-fp8", "snapshot:glm-5.3-not-flash")
    rows = report["verify"]["sources"]
    numbers = [
        (row["name"], row["tensors"], row["bytes"], row["parameters"], row["bits_per_parameter"]) for row in rows
    ]
    assert numbers[:2] == [
        (NVIDIA, 147_661, 204_418_524_996, 321_323_031_390, 5.089),
        (REFERENCE, 113_074, 194_644_803_576, 321_323_031_390, 4.846),
    ]
    assert [row["encodings"] for row in rows] == [
        ["nvfp4-modelopt", "plain BF16", "plain F32"],
        ["nvfp4-modelopt", "plain BF16", "plain F32"],
        ["plain BF16", "plain F32"],
        ["fp8-block 128x128", "plain BF16", "plain F32"],
        [],
    ]
    assert [(row["mtp"]["state"], row["mtp"]["as_declared"]) for row in rows] == [
        ("complete", False),
        ("complete", True),
        ("complete", True),
        ("none", True),
        ("unknown", True),
    ]
    assert [row["verdict"] for row in rows] == ["FAILED", "OK", "OK", "OK", "FAILED"]


def test_each_report_is_that_of_a_run_of_its_own(sound: Path) -> None:
    """Nothing is lost or mixed: the inner reports are those that each source gets alone."""
    both = report_on(NVIDIA, sound)
    assert both["reports"] == [report_on(NVIDIA), report_on(sound)]
    assert both.keys() == both["reports"][0].keys() | {"reports"}
    assert (both["source"], both["findings"], both["command"]) == (None, [], "verify")
    totals = {key: sum(part["summary"][key] for part in both["reports"]) for key in both["summary"]}
    assert both["summary"] == totals
    assert totals["error"] == 1


EXITS: dict[str, tuple[list[str], int]] = {
    "good": (["SOUND", DRAFT], 0),
    "one fails": (["SOUND", NVIDIA], 1),
    "the first fails": ([NVIDIA, "SOUND"], 1),
    "one cannot be read": (["SOUND", "UNREADABLE"], 3),
    "one is not there": (["SOUND", "./nowhere", DRAFT], 3),
    "3 over 1": (["./nowhere", NVIDIA], 3),
    "1 and no 3 for a waived one": (["SOUND", NVIDIA, "--ignore", "quant-undeclared"], 0),
    "never": ([NVIDIA, NVIDIA, "--fail-on", "never"], 0),
    "never does not cover what could not be read": ([NVIDIA, "UNREADABLE", "--fail-on", "never"], 3),
    "an empty one": (["SOUND", ""], 2),
    "a revision for all": (["SOUND", DRAFT, "--revision", "main"], 2),
    "none": ([], 2),
}


@pytest.mark.parametrize(("typed", "code"), EXITS.values(), ids=EXITS)
def test_the_worst_exit_code(typed: list[str], code: int, sound: Path, unreadable: Path) -> None:
    """3 over 1 over 0; what is wrong with the command itself is 2, before anything is looked at."""
    places = {"SOUND": str(sound), "UNREADABLE": str(unreadable)}
    result = verify(*(places.get(word, word) for word in typed))
    assert result.exit_code == code
    assert bool(result.stdout) == (code != 2)


def test_a_source_that_is_not_there_ends_nothing(sound: Path) -> None:
    """The others are looked at; it has a row and a report that say why there is no answer."""
    report = report_on("./nowhere", sound)
    assert [(row["verdict"], row["tensors"]) for row in report["verify"]["sources"]] == [
        ("INCOMPLETE", None),
        ("OK", len(whole())),
    ]
    nowhere, answered = report["reports"]
    assert nowhere["verify"] == {"unanswered": "./nowhere: no such file or folder"}
    assert (nowhere["complete"], nowhere["ok"], nowhere["source"]["kind"]) == (False, False, "unopened")
    assert answered["ok"]
    assert (report["complete"], report["ok"]) == (False, False)


def test_alone_it_is_refused_as_ever() -> None:
    """One source that is not there: one line on standard error, and no report."""
    result = verify("./nowhere")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "glm5inspect: ./nowhere: no such file or folder\n"


@pytest.mark.parametrize("quiet", [False, True], ids=["whole", "quiet"])
def test_the_table_format_ends_in_the_overview(quiet: bool, sound: Path) -> None:  # noqa: FBT001
    """Each report stands below what it is about, and the last lines are what one compares."""
    lines = verify(NVIDIA, sound, "./nowhere", *(["--quiet"] if quiet else [])).stdout.splitlines()
    heads = [line for line in lines if line.startswith("verify of ")]
    assert heads == [
        "verify of snapshot nvidia-nvfp4, bundled",
        f"verify of directory {sound}",
        "verify of unopened ./nowhere",
    ]
    verdicts = [line.split(":")[0] for line in lines if line.startswith(("OK:", "FAILED:", "INCOMPLETE:"))]
    assert verdicts == ["FAILED", "OK", "INCOMPLETE", "INCOMPLETE"]
    assert "INCOMPLETE: not looked at: ./nowhere: no such file or folder; 0 errors, 0 warnings, 0 notes" in lines
    assert lines[-1].startswith("INCOMPLETE: 3 sources: 1 OK, 1 FAILED, 1 INCOMPLETE; 1 error, ")
    overview = [line.split("  ")[0].strip() for line in lines if line.endswith(("FAILED", "OK", "INCOMPLETE"))]
    assert overview == ([] if quiet else [NVIDIA, str(sound), "./nowhere"])


def test_every_format_holds_every_report(sound: Path, tmp_path: Path) -> None:
    """Suites, runs, groups and rows of each source, and the overview; the same bytes twice."""
    typed = [NVIDIA, sound, "./nowhere"]
    texts = {}
    for turn in ("one", "two"):
        reports = [word for form in Format for word in ("--report", f"{form}={tmp_path / turn}.{form}")]
        assert verify(*typed, *reports).exit_code == 3
        texts[turn] = {form: (tmp_path / f"{turn}.{form}").read_bytes().decode() for form in Format}
    assert texts["one"] == texts["two"]
    said = texts["one"]

    suites = read_suites(said[Format.JUNIT])
    names = ["glm5inspect.verify of ./nowhere", "glm5inspect.verify"]
    assert [suite.attrib["name"] for suite in suites][2:] == names
    assert [int(suite.attrib["failures"]) for suite in suites] == [1, 0, 0, 0]
    assert [int(suite.attrib["errors"]) for suite in suites] == [0, 0, 1, 0]
    assert "./nowhere: no such file or folder" in texts_of(suites[2])
    assert "quant-undeclared" in texts_of(suites[0])

    runs = read_runs(said[Format.SARIF])
    assert [run["invocations"][0]["executionSuccessful"] for run in runs] == [True, True, False, False]
    assert [run["properties"]["source"] and run["properties"]["source"]["name"] for run in runs] == [
        NVIDIA,
        str(sound),
        "./nowhere",
        None,
    ]
    assert sum(len(run["results"]) for run in runs) == len(runs[0]["results"]) + len(runs[1]["results"]) > 14

    rows = read_csv(said[Format.CSV])
    assert {row["of"] for row in rows} == {NVIDIA, str(sound), "./nowhere", ""}
    compared = [row for row in rows if row["row"] == "compared"]
    assert [(row["name"], row["verdict"]) for row in compared] == [
        (NVIDIA, "FAILED"),
        (str(sound), "OK"),
        ("./nowhere", "INCOMPLETE"),
    ]
    assert [row["of"] for row in rows if row["row"] == "check"] == [NVIDIA] * 21 + [str(sound)] * 21

    commands, log = read_github(said[Format.GITHUB])
    assert commands[0].data.startswith(f"{NVIDIA}: model.language_model.layers.45.eh_proj: stored plain")
    assert len(commands) == 10
    assert commands[-1].data.startswith("INCOMPLETE: 3 sources: 1 OK, 1 FAILED, 1 INCOMPLETE; 1 error, ")
    assert sum(line.startswith("verify of ") for line in log) == 3

    _, tables = read_markdown(said[Format.MARKDOWN])
    assert [row[0] for row in tables[0]] == ["source", NVIDIA, str(sound), "./nowhere"]
    assert [row[-1] for row in tables[0]] == ["verdict", "FAILED", "OK", "INCOMPLETE"]
    assert len(tables) == 5


def test_an_accepted_finding_of_one_source_is_used(sound: Path, tmp_path: Path) -> None:
    """An entry is unused only if no source has such a finding; that belongs to none of them."""
    path = tmp_path / "accepted.toml"
    path.write_text(
        "[[accept]]\ncode = 'quant-undeclared'\nreason = 'overridden'\n[[accept]]\ncode = 'layer-gap'\nreason = 'x'\n"
    )
    report = report_on(NVIDIA, sound, "--accept", path)
    assert [finding["message"] for finding in report["findings"]] == [
        f"{path}: entry 2: covers nothing: no layer-gap was found"
    ]
    assert [len(part["accepted"]) for part in report["reports"]] == [1, 0]
    assert report["ok"]
    assert "1 accepted" in verify(NVIDIA, sound, "--accept", path, "-q").stdout.splitlines()[-1]


def test_no_source_is_written_over(sound: Path, tmp_path: Path) -> None:
    """A report is written over a part of none of them, nor over a snapshot file that was looked at."""
    snapshot = tmp_path / "mine.json"
    typed = ["record", REFERENCE, "--output", str(snapshot)]
    assert CliRunner().invoke(app, typed).exit_code == 0
    before = snapshot.read_text()
    (sound / "tokenizer.json").write_text("{}")
    places = {
        snapshot: "is the source itself",
        sound / "config.json": "is config.json of",
        sound / "tokenizer.json": "is tokenizer.json of",
    }
    for target, said in places.items():
        result = verify(sound, snapshot, "--output", target)
        assert (result.exit_code, result.stdout) == (3, "")
        assert said in result.stderr
    assert snapshot.read_text() == before
    (sound / "report.json").write_text("old")
    assert verify(sound, snapshot, "--output", sound / "report.json").exit_code == 0


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors.index.json"])
def test_nor_one_that_could_not_be_opened(broken: str, sound: Path, tmp_path: Path) -> None:
    """A damaged file of a checkpoint is somebody's all the same, and so is a snapshot that cannot be read."""
    (sound / broken).write_text("{bad")
    torn = tmp_path / "torn.json"
    torn.write_text("{bad")
    for target in (sound / "config.json", torn):
        before = target.read_text()
        result = verify(sound, torn, REFERENCE, "--output", target)
        assert result.exit_code == 3
        assert "nothing is written over it" in result.stderr
        assert target.read_text() == before


def test_a_source_that_is_named_twice_is_told_apart() -> None:
    """By a number, wherever parts of a report must have names of their own."""
    both = verify(DRAFT, DRAFT, "--format", "junit").stdout
    names = ["glm5inspect.verify of snapshot:mtp-extract", "glm5inspect.verify of snapshot:mtp-extract (2)"]
    assert [suite.attrib["name"] for suite in read_suites(both)] == [*names, "glm5inspect.verify"]
    runs = read_runs(verify(DRAFT, DRAFT, "--format", "sarif").stdout)
    assert [run["automationDetails"]["id"] for run in runs] == [
        "glm5inspect verify of snapshot:mtp-extract/",
        "glm5inspect verify of snapshot:mtp-extract (2)/",
        "glm5inspect verify/",
    ]
    lines, _ = read_markdown(verify(DRAFT, DRAFT, "--format", "markdown", "--quiet").stdout)
    assert [line for line in lines if line.startswith("glm5inspect verify")] == [
        "glm5inspect verify: OK",
        "glm5inspect verify of snapshot:mtp-extract: OK",
        "glm5inspect verify of snapshot:mtp-extract (2): OK",
    ]
