# SPDX-License-Identifier: AGPL-3.0-only
"""Every command and option of the command line: exit code, standard output and standard error apart."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from checkpoints import TEXT, Kind, edit_json, shard_name, tiny, write_checkpoint, write_raw
from typer.testing import CliRunner, Result

from glm5inspect import __version__
from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.errors import OutputError
from glm5inspect.options import Exit
from glm5inspect.output import write_file

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = "lm_head.weight"
UNKNOWN = f"{TEXT}layers.4.self_attn.wat"
MTP_HEAD = f"{TEXT}layers.5.eh_proj.weight"
DSA_BIAS = f"{TEXT}layers.3.self_attn.indexer.k_norm.bias"


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """Run a command line."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, catch_exceptions=False)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A readable checkpoint that no command finds healthy: a name too many, two too few, bytes too many."""
    tensors = {**tiny(), UNKNOWN: Kind("F32", (3,))}
    del tensors[MTP_HEAD], tensors[DSA_BIAS]
    folder = write_checkpoint(tmp_path / "damaged", tensors)
    with (folder / shard_name(3, 3)).open("ab") as shard:
        shard.write(b"x")
    return folder


@pytest.fixture
def unreadable(damaged: Path) -> Path:
    """The same, and one shard has no header."""
    write_raw(damaged / shard_name(3, 3), b"no JSON at all")
    return damaged


def lines(text: str) -> int:
    """Count the lines of a text that ends in a line feed."""
    assert not text or text.endswith("\n")
    return text.count("\n")


QUESTIONS = {
    "census": ["census", "SOURCE"],
    "classify --from": ["classify", "--from", "SOURCE"],
    "verify-dsa": ["verify-dsa", "SOURCE"],
    "find-mtp": ["find-mtp", "SOURCE"],
    "show": ["show", "SOURCE", UNKNOWN[:-1] + "?"],
    "record": ["record", "SOURCE", "--output", "OUTPUT"],
}
"""One question for every command that looks at a source; the damaged one gets *no* for an answer."""


def ask(command: str, source: Path, *options: str) -> Result:
    """Put the question of a command to a source."""
    places = {"SOURCE": str(source), "OUTPUT": str(source.parent / "snapshot.json")}
    return run(*(places.get(word, word) for word in QUESTIONS[command]), *options)


def verdict(result: Result) -> str:
    """Return the first word of the last line."""
    assert all(": not written" in line for line in result.stderr.splitlines())
    return result.stdout.splitlines()[-1].partition(":")[0]


@pytest.mark.parametrize("command", sorted(QUESTIONS.keys() - {"show"}))
def test_healthy(command: str, checkpoint: Path) -> None:
    """A healthy checkpoint: 0, and the last line says OK."""
    result = ask(command, checkpoint)
    assert result.exit_code == 0
    assert verdict(result) == "OK"


@pytest.mark.parametrize("command", sorted(QUESTIONS.keys() - {"show"}))
def test_findings(command: str, damaged: Path) -> None:
    """A checkpoint that is not what it should be: 1, and the last line says FAILED."""
    result = ask(command, damaged)
    assert result.exit_code == 1
    assert verdict(result) == "FAILED"


def test_show_answers_whether_there_is_such_a_name(checkpoint: Path, damaged: Path) -> None:
    """What matches nothing is *no*; a name without a role is none of this command's business."""
    assert (ask("show", checkpoint).exit_code, ask("show", damaged).exit_code) == (1, 0)


@pytest.mark.parametrize("options", [[], ["--exit-zero"], ["--ignore", "header-json"], ["--select", "dsa-none"]])
@pytest.mark.parametrize("command", QUESTIONS)
def test_could_not_answer(command: str, options: list[str], unreadable: Path) -> None:
    """A shard that cannot be read: a report and 3, whatever else was found and whatever is to be overlooked."""
    result = ask(command, unreadable, *options, "--format", "json")
    report = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (report["ok"], report["complete"]) == (False, False)
    assert ("header-json" in {finding["code"] for finding in report["findings"]}) == (options in ([], ["--exit-zero"]))
    assert verdict(ask(command, unreadable, *options)) == "INCOMPLETE"


@pytest.mark.parametrize("command", QUESTIONS)
def test_refused_before_anything_was_read(command: str, tmp_path: Path) -> None:
    """No such folder: nothing on standard output, one line on standard error, 3."""
    result = ask(command, tmp_path / "nowhere")
    assert (result.exit_code, result.stdout, lines(result.stderr)) == (3, "", 1)
    assert "nowhere: no such file or folder" in result.stderr


@pytest.mark.parametrize("blank", ["", "  ", "\t\n"], ids=["empty", "blank", "white"])
@pytest.mark.parametrize("command", QUESTIONS)
def test_an_unset_variable_is_a_usage_error(command: str, blank: str) -> None:
    """An empty SOURCE never means the current folder."""
    result = run(*(blank if word == "SOURCE" else word for word in QUESTIONS[command]))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is empty" in result.stderr


USAGE = {
    "no source": (["census"], "Missing argument 'SOURCE'"),
    "two sources": (["census", "a", "b"], "unexpected extra argument"),
    "empty against": (["census", "snapshot:reference", "--against", " "], "is empty"),
    "no output": (["record", "snapshot:reference"], "Missing option '--output'"),
    "output without a name": (["census", ".", "--output", ""], "is empty; give the name of a file"),
    "output is a dash": (["census", ".", "-o", "-"], "is no file name here"),
    "output is a shard": (["census", ".", "-o", "model.safetensors"], "nothing is written over one"),
    "waiver of an empty glob": (["census", ".", "--ignore", "dsa-shape:"], "has an empty GLOB"),
    "no subfolder": (["census", ".", "--subfolder", ""], "is empty; give the name of a folder"),
    "recorded some day": (
        ["record", ".", "-o", "x", "--recorded", "foo"],
        "'foo' does not match the formats",
    ),
    "no name": (["classify"], "give tensor names, - for standard input, or --from SOURCE"),
    "name and source": (["classify", KNOWN, "--from", "snapshot:reference"], "give tensor names, -"),
    "no such option": (["census", ".", "--nope"], "No such option: --nope"),
    "no such format": (["census", ".", "--format", "xml"], "'xml' is not one of 'table', 'json'"),
    "no such threshold": (["census", ".", "--fail-on", "note"], "'note' is not one of 'error', 'warning', 'never'"),
    "layer is a word": (["verify-dsa", ".", "--layer", "x"], "'x' is not a valid int"),
    "layer below 0": (["verify-dsa", ".", "--layer", "-1"], "-1 is not in the range"),
    "unknown select": (["census", ".", "--select", "unknown-tensr"], "did you mean unknown-tensor?"),
    "unknown ignore": (["census", ".", "--ignore", "dsa-shap:*"], "did you mean dsa-shape?"),
    "unlike any code": (["census", ".", "--ignore", "12345"], "glm5inspect explain lists them"),
    "unknown code": (["explain", "dsa-shap"], "did you mean dsa-shape?"),
    "before the path": (["census", "/nowhere", "--select", "nope"], "'nope' is not a finding code"),
    "misspelt command": (["cencus", "."], "Did you mean 'census'?"),
    "repository": (["owner/name"], "Did you mean: glm5inspect census owner/name"),
    "snapshot": (["snapshot:reference"], "Did you mean: glm5inspect census snapshot:reference"),
    "hostile": (["./\x1b[31m"], "Did you mean: glm5inspect census ./\\x1b[31m"),
    "empty command": ([""], "No such command ''"),
}


@pytest.mark.parametrize(("arguments", "message"), USAGE.values(), ids=USAGE)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    """2, nothing on standard output, and what was wrong."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_an_existing_folder_is_no_command(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name looks like any word is recognised as a source."""
    monkeypatch.chdir(checkpoint.parent)
    assert "Did you mean: glm5inspect census checkpoint" in run("checkpoint").stderr


UNANSWERED = {
    "path": ("./owner/name", "./owner/name: no such file or folder"),
    "snapshot": ("snapshot:referense", "did you mean snapshot:reference?"),
    "nul": ("a\0b", "a\\x00b: no such file"),
    "long": ("x" * 5000, "File name too long"),
}


@pytest.mark.parametrize(("source", "message"), UNANSWERED.values(), ids=UNANSWERED)
def test_a_source_that_is_nowhere(source: str, message: str) -> None:
    """3, with one line that says what to do."""
    result = run("census", source)
    assert (result.exit_code, result.stdout, lines(result.stderr)) == (3, "", 1)
    assert message in result.stderr
    assert result.stderr.startswith("glm5inspect: ")


FAIL_ON = {
    "": 0,
    "--fail-on error": 0,
    "--fail-on warning": 1,
    "--fail-on never": 0,
    "--fail-on warning --exit-zero": 0,
    "--fail-on warning --ignore index-total-size": 0,
    "--fail-on warning --select dsa-shape": 0,
}


@pytest.mark.parametrize(("options", "code"), FAIL_ON.items())
def test_fail_on_with_a_warning(options: str, code: int, checkpoint: Path) -> None:
    """The least severity that fails is the caller's to choose; `ok` says the same as the exit code."""
    edit_json(checkpoint / "model.safetensors.index.json", lambda index: index.pop("metadata"))
    result = run("census", checkpoint, "--format", "json", *options.split())
    assert result.exit_code == code
    assert json.loads(result.stdout)["ok"] == (code == 0)


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--fail-on", "never"], 0), (["--exit-zero"], 0)])
def test_fail_on_with_errors(options: list[str], code: int, damaged: Path) -> None:
    """Errors fail unless nothing shall; they are listed all the same."""
    result = run("census", damaged, *options)
    assert result.exit_code == code
    assert "error unknown-tensor" in result.stdout


SELECTION = {
    "all": ([], {"file-trailing": 1, "unknown-tensor": 1}, 0),
    "select one": (["--select", "file-trailing"], {"file-trailing": 1}, 0),
    "select both": (["--select", "file-trailing", "--select", "unknown-tensor"], None, 0),
    "select another": (["--select", "dsa-none"], {}, 0),
    "ignore one": (["--ignore", "file-trailing"], {"unknown-tensor": 1}, 1),
    "ignore by name": (["--ignore", "unknown-tensor:*.layers.4.*"], {"file-trailing": 1}, 1),
    "ignore another name": (["--ignore", "unknown-tensor:*.layers.5.*"], None, 0),
    "ignore both": (["--ignore", "file-trailing", "--ignore", "unknown-tensor:*wat"], {}, 2),
    "select and ignore": (["--select", "unknown-tensor", "--ignore", "unknown-tensor"], {}, 1),
}


@pytest.mark.parametrize(("options", "codes", "waived"), SELECTION.values(), ids=SELECTION)
def test_select_and_ignore(options: list[str], codes: dict[str, int] | None, waived: int, damaged: Path) -> None:
    """What is chosen is reported, counted and judged; what is waived is counted as waived."""
    result = run("census", damaged, "--format", "json", *options)
    report = json.loads(result.stdout)
    left = {"file-trailing": 1, "unknown-tensor": 1} if codes is None else codes
    assert {finding["code"]: finding["count"] for finding in report["findings"]} == left
    assert report["summary"] == {"error": len(left), "warning": 0, "note": 0, "waived": waived}
    assert result.exit_code == (1 if left else 0)


def test_quiet(damaged: Path) -> None:
    """Only findings and the verdict."""
    result = run("census", damaged, "--quiet")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["error", "error", "FAILED:"]
    assert run("classify", KNOWN, "-q").stdout == "OK: 1 name; 0 errors, 0 warnings, 0 notes\n"


@pytest.mark.parametrize("form", ["table", "json"])
def test_output_holds_what_would_be_printed(form: str, checkpoint: Path, tmp_path: Path) -> None:
    """`--output` writes the report to the file, replaces an old one, and prints nothing."""
    file = tmp_path / "report"
    file.write_text("old")
    printed = run("verify-dsa", checkpoint, "--format", form)
    written = run("verify-dsa", checkpoint, "--format", form, "--output", file)
    assert (written.exit_code, written.stdout, written.stderr) == (0, "", "")
    assert file.read_text() == printed.stdout
    assert {entry.name for entry in tmp_path.iterdir()} == {"checkpoint", "report"}


def test_a_failed_run_leaves_the_old_file(tmp_path: Path) -> None:
    """What could not be answered is not written; findings are an answer."""
    file = tmp_path / "report"
    file.write_text("old")
    assert run("census", tmp_path / "nowhere", "-o", file).exit_code == 3
    assert file.read_text() == "old"
    assert run("classify", UNKNOWN, "-o", file).exit_code == 1
    assert "FAILED" in file.read_text()


def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    """The old file stays as it is, and the new one's beginning goes away."""
    file = tmp_path / "report"
    file.write_text("old")
    with pytest.raises(OutputError, match="report: cannot be written: "):
        write_file(str(file), "no Unicode: \udcff")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report", "old")]


def test_a_caller_may_redirect_standard_output() -> None:
    """Standard output may be an object of another kind that takes text."""
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as exited:
        app(["classify", KNOWN, "--quiet"])
    assert (exited.value.code, printed.getvalue()) == (0, "OK: 1 name; 0 errors, 0 warnings, 0 notes\n")


def test_record_writes_a_source_that_says_the_same(checkpoint: Path, tmp_path: Path) -> None:
    """The snapshot file is a source; its census differs from the original's in nothing that a snapshot keeps."""
    file = tmp_path / "snapshot.json"
    assert run("record", checkpoint, "--output", file, "--repo", "me/mine").exit_code == 0
    assert run("census", file, "--against", checkpoint).exit_code == 0
    assert json.loads(run("census", file, "-f", "json").stdout)["source"]["repo"] == "me/mine"


@pytest.mark.parametrize("fixture", ["damaged", "unreadable"])
@pytest.mark.parametrize("old", ["old", None], ids=["old file", "no file"])
def test_record_writes_nothing_when_the_verdict_is_bad(
    fixture: str, old: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An old file survives, and no new one comes to be."""
    file = tmp_path / "snapshot.json"
    if old:
        file.write_text(old)
    assert run("record", request.getfixturevalue(fixture), "--output", file).exit_code in (1, 3)
    assert (file.read_text() if file.exists() else None) == old


def test_record_heeds_the_threshold(checkpoint: Path, tmp_path: Path) -> None:
    """A warning is written with, unless the caller says that it makes the verdict bad."""
    edit_json(checkpoint / "model.safetensors.index.json", lambda index: index.pop("metadata"))
    file = tmp_path / "snapshot.json"
    assert run("record", checkpoint, "--output", file, "--fail-on", "warning").exit_code == 1
    assert not file.exists()
    assert run("record", checkpoint, "--output", file).exit_code == 0
    assert file.exists()


NAMES = {
    "lines": f"{KNOWN}\n{MTP_HEAD}\n",
    "no line feed at the end": f"{KNOWN}\n{MTP_HEAD}",
    "windows": f"{KNOWN}\r\n{MTP_HEAD}\r\n",
    "blank lines": f"\n\n{KNOWN}\n  \n\r\n{MTP_HEAD}\n\t\n",
}


@pytest.mark.parametrize("stdin", NAMES.values(), ids=NAMES)
def test_classify_reads_names(stdin: str) -> None:
    """Names from standard input come one a line."""
    result = run("classify", "-", "--format", "json", stdin=stdin)
    assert result.exit_code == 0
    assert [entry["name"] for entry in json.loads(result.stdout)["classify"]["results"]] == [KNOWN, MTP_HEAD]


def test_classify_splits_at_line_feeds_only() -> None:
    """Other characters that Python calls line ends belong to the name."""
    result = run("classify", "-", "--format", "json", stdin="a\x0bb\x85c\u2028d\n".encode())
    assert [entry["name"] for entry in json.loads(result.stdout)["classify"]["results"]] == ["a\x0bb\x85c\u2028d"]


@pytest.mark.parametrize("stdin", [b"", b"\n \r\n\n", b"ok\n\xff\n"], ids=["nothing", "blank lines", "not UTF-8"])
def test_classify_refuses_what_holds_no_name(stdin: bytes) -> None:
    """Nothing to classify, or bytes that are no text: could not answer."""
    result = run("classify", "-", stdin=stdin)
    assert (result.exit_code, result.stdout, lines(result.stderr)) == (3, "", 1)


def test_classify_fails_for_one_unknown_name() -> None:
    """One unknown name among known ones makes the answer *no*."""
    assert run("classify", KNOWN, MTP_HEAD).exit_code == 0
    assert run("classify", KNOWN, UNKNOWN).exit_code == 1


@pytest.mark.parametrize(
    ("layers", "checked", "code"), [([3], [3], 0), ([5, 3], [3, 5], 0), ([0], [], 1), ([3, 9], [3], 1)], ids=str
)
def test_verify_dsa_of_some_layers(layers: list[int], checked: list[int], code: int, checkpoint: Path) -> None:
    """`--layer` restricts the check; a layer that is no DSA layer is an error."""
    options = [word for layer in layers for word in ("--layer", str(layer))]
    result = run("verify-dsa", checkpoint, "--format", "json", *options)
    assert result.exit_code == code
    assert [block["layer"] for block in json.loads(result.stdout)["verify-dsa"]["blocks"]] == checked


def test_explain() -> None:
    """Every code on a line of its own, or one with its meaning, cause and remedy."""
    listed = run("explain")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [code.value for code in Code]
    one = run("explain", "dsa-shape").stdout
    assert all(len(line) <= 80 for line in one.splitlines())
    assert [line.partition(":")[0] for line in one.splitlines() if line[:1].strip()] == [
        "dsa-shape (error)",
        "Meaning",
        "Cause",
        "Remedy",
    ]


def test_subfolder(checkpoint: Path) -> None:
    """A model below the root is found by `--subfolder`, and only below the root."""
    assert run("census", checkpoint.parent, "--subfolder", checkpoint.name).exit_code == 0
    assert run("census", checkpoint, "--subfolder", "..").exit_code == 3


@pytest.mark.parametrize("arguments", [["--version"], ["census", "--version"], ["--version", "nonsense"]], ids=" ".join)
def test_version(arguments: list[str]) -> None:
    """The version, wherever it is asked for."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (0, f"glm5inspect {__version__}\n")


def test_no_command() -> None:
    """A few lines say what it does and what to type."""
    result = run()
    assert 8 <= lines(result.stdout) <= 10
    assert all(f"glm5inspect {command} " in result.stdout for command in ("census", "verify-dsa", "find-mtp", "show"))


def test_help_names_the_exit_codes() -> None:
    """Every code but success and interruption is explained where one looks first."""
    for arguments in (["--help"], ["-h"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert all(f"{code.value} " in result.stdout for code in Exit)
