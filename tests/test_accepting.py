# SPDX-License-Identifier: AGPL-3.0-only
"""A reviewed list of accepted findings: only what is new fails, and no entry is passed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, tiny, write_checkpoint
from format_parsers import read_csv, read_github, read_junit, read_markdown, read_sarif, texts_of
from typer.testing import CliRunner, Result

from glm5inspect.accepting import MOST_BYTES, read_accepted
from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.errors import UsageError
from glm5inspect.render import Format
from glm5inspect.report import Waiver

if TYPE_CHECKING:
    from pathlib import Path

WAT = f"{TEXT}layers.4.self_attn.wat"
WHY = 'fused by our converter, see "notes" | 2026-11-03'
ACCEPTED = f"[[accept]]\ncode = 'unknown-tensor'\ntensor = '*.layers.[34].*.wat'\nreason = '{WHY}'\n"
UNUSED = "[[accept]]\ncode = 'layer-gap'\nreason = 'once there was one'\n"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A checkpoint with two names that no rule teaches, in layer 4 and outside the layers."""
    tensors = tiny()
    tensors[WAT] = tensors["model.waste"] = tensors["lm_head.weight"]
    return write_checkpoint(tmp_path / "odd", tensors)


def census(source: object, text: str, folder: Path, *options: str) -> Result:
    """Take a census with a list of accepted findings."""
    (folder / "accepted.toml").write_text(text)
    typed = ["census", str(source), "--accept", str(folder / "accepted.toml"), *options]
    return CliRunner().invoke(app, typed, catch_exceptions=False)


def report_of(source: object, text: str, folder: Path, *options: str) -> Any:  # noqa: ANN401 - plain data
    """Return the JSON report of such a census."""
    return json.loads(census(source, text, folder, "--format", "json", *options).stdout)


def test_only_what_is_new_fails(odd: Path, tmp_path: Path) -> None:
    """An accepted finding stays in the report with its reason and does not fail; the other one does."""
    report = report_of(odd, ACCEPTED, tmp_path)
    assert [finding["tensor"] for finding in report["findings"]] == ["model.waste"]
    ((tensor, code, reason),) = [(a["tensor"], a["code"], a["reason"]) for a in report["accepted"]]
    assert (tensor, code, reason) == (WAT, "unknown-tensor", WHY)
    assert report["summary"] == {"error": 1, "warning": 0, "note": 0, "waived": 0}
    assert not report["ok"]
    both = census(odd, ACCEPTED.replace("*.layers.[34].*.wat", "model.*"), tmp_path)
    assert both.exit_code == 0
    assert "\naccepted 2 findings, unknown-tensor on model.*: " in both.stdout
    assert both.stdout.splitlines()[-1].startswith("OK: ")
    assert "0 errors, 0 warnings, 0 notes, 2 accepted" in both.stdout.splitlines()[-1]


def test_an_entry_without_a_tensor_covers_its_code(odd: Path, tmp_path: Path) -> None:
    """All of it, whatever it is about."""
    report = report_of(odd, "[[accept]]\ncode = 'unknown-tensor'\nreason = 'x'\n", tmp_path)
    assert (report["findings"], len(report["accepted"]), report["ok"]) == ([], 2, True)


def test_unused_entries_are_reported(odd: Path, tmp_path: Path) -> None:
    """A note each, with the place of the entry: somebody should remove it."""
    report = report_of(odd, ACCEPTED + UNUSED, tmp_path)
    (unused,) = [finding for finding in report["findings"] if finding["code"] == "accept-unused"]
    assert unused["severity"] == "note"
    assert unused["message"] == f"{tmp_path}/accepted.toml: entry 2: covers nothing: no layer-gap was found"
    assert unused["actual"] == "once there was one"
    glob = ACCEPTED.replace("wat", "what")
    assert "no unknown-tensor on *.layers.[34].*.what was found" in census(odd, glob, tmp_path).stdout


def test_what_was_not_asked_for_is_not_called_unused(odd: Path, tmp_path: Path) -> None:
    """An entry about a finding that is there is used, though nobody hears of either."""
    assert report_of(odd, ACCEPTED, tmp_path, "--select", "accept-unused")["findings"] == []
    found = report_of(odd, UNUSED, tmp_path, "--select", "accept-unused")["findings"]
    assert [finding["code"] for finding in found] == ["accept-unused"]
    assert report_of(odd, UNUSED, tmp_path, "--select", "layer-gap")["findings"] == []
    waived = report_of(odd, UNUSED, tmp_path, "--ignore", "unknown-tensor", "--ignore", "accept-unused")
    assert (waived["findings"], waived["summary"]["waived"]) == ([], 3)


def test_nothing_is_called_unused_where_not_everything_was_read(odd: Path, tmp_path: Path) -> None:
    """The finding may be in the shard that could not be read; and no entry makes the answer complete."""
    shard = min(odd.glob("*.safetensors"))
    shard.write_bytes(b"no header at all")
    text = UNUSED + "".join(f"[[accept]]\ncode = '{code.value}'\nreason = 'x'\n" for code in Code)
    report = report_of(odd, text, tmp_path)
    assert (report["findings"], report["complete"], report["ok"]) == ([], False, False)


def test_the_first_entry_that_covers_a_finding_has_it(odd: Path, tmp_path: Path) -> None:
    """The second one is no less used; an --ignore goes before any."""
    report = report_of(odd, ACCEPTED + ACCEPTED.replace(WHY, "again"), tmp_path)
    assert [entry["reason"] for entry in report["accepted"]] == [WHY]
    assert [finding["code"] for finding in report["findings"]] == ["unknown-tensor"]
    ignored = report_of(odd, ACCEPTED, tmp_path, "--ignore", "unknown-tensor")
    assert (ignored["accepted"], ignored["summary"]["waived"], ignored["ok"]) == ([], 2, True)


@pytest.mark.parametrize("form", Format)
def test_every_format_tells_the_reason(odd: Path, tmp_path: Path, form: Format) -> None:
    """Nobody has to look for the list to know what was accepted, and why; an unused entry is told too."""
    text = census(odd, ACCEPTED + UNUSED, tmp_path, "--format", form).stdout_bytes.decode()
    readers = {
        Format.MARKDOWN: lambda text: "\n".join(read_markdown(text)[0]),
        Format.JUNIT: lambda text: texts_of(read_junit(text)),
        Format.GITHUB: lambda text: "\n".join(read_github(text)[1]),
        Format.CSV: lambda text: "\n".join(f"{row['row']} {row['reason']} {row['message']}" for row in read_csv(text)),
        Format.JSON: lambda text: str(json.loads(text)),
        Format.SARIF: lambda text: str(read_sarif(text)["results"]),
    }
    said = readers.get(form, str)(text)
    assert 'fused by our converter, see "notes" | 2026-11-03' in said.replace("&quot;", '"').replace("\\'", "'")
    assert "entry 2: covers nothing: no layer-gap was found" in said


def test_sarif_suppresses_what_was_accepted(odd: Path, tmp_path: Path) -> None:
    """Tools that read SARIF know accepted results as suppressed ones; the others say that they are not."""
    text = census(odd, ACCEPTED, tmp_path, "--format", "sarif").stdout
    results = {
        result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]: result["suppressions"]
        for result in read_sarif(text)["results"]
    }
    assert results == {
        WAT: [{"kind": "external", "status": "accepted", "justification": WHY}],
        "model.waste": [],
    }


def test_junit_of_verify_tells_unused_entries(odd: Path, tmp_path: Path) -> None:
    """They belong to no check, so they have a case of their own."""
    (tmp_path / "accepted.toml").write_text(UNUSED)
    typed = ["verify", str(odd), "--accept", f"{tmp_path}/accepted.toml", "-f", "junit"]
    suite = read_junit(CliRunner().invoke(app, typed).stdout)
    (case,) = suite.findall("testcase[@name='accept']")
    assert "entry 1: covers nothing" in texts_of(case)
    assert case.find("failure") is None


def test_several_lists(odd: Path, tmp_path: Path) -> None:
    """Each counts; one that accepts nothing yet, but for comments, is fine, and so is one with a byte order mark."""
    (tmp_path / "more.toml").write_text(
        "\ufeff[[accept]]\ncode = 'unknown-tensor'\ntensor = 'model.waste'\nreason = 'x'\n"
    )
    (tmp_path / "none.toml").write_text("# nothing is accepted\n")
    more = [word for name in ("more", "none") for word in ("--accept", f"{tmp_path}/{name}.toml")]
    report = report_of(odd, ACCEPTED, tmp_path, *more)
    assert (len(report["accepted"]), report["findings"], report["ok"]) == (2, [], True)


@pytest.mark.parametrize("option", ["--output={}", "--report=json={}"])
def test_the_list_is_not_written_over(odd: Path, tmp_path: Path, option: str) -> None:
    """A report in its place would be the end of it."""
    result = census(odd, ACCEPTED, tmp_path, option.format(tmp_path / "accepted.toml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing is written over the list" in " ".join(result.stderr.split())
    assert (tmp_path / "accepted.toml").read_text() == ACCEPTED


REFUSED = {
    "no TOML": ("[[accept]", "not TOML: "),
    "no UTF-8": (b"\xff", "not TOML: "),
    "too deep": ("a = " + "[" * 100_000, "not TOML: "),
    "another table": ("[[ignore]]\ncode = 'layer-gap'\n", "is to hold [[accept]] entries"),
    "one more table": (f"version = 1\n{UNUSED}", "is to hold [[accept]] entries"),
    "no list": ("[accept]\ncode = 'layer-gap'\nreason = 'x'\n", "is to hold [[accept]] entries"),
    "no table": ("accept = ['layer-gap']\n", "entry 1: needs code and reason"),
    "no reason": (f"{UNUSED}[[accept]]\ncode = 'layer-gap'\n", "entry 2: needs code and reason"),
    "no code": ("[[accept]]\nreason = 'x'\n", "entry 1: needs code and reason"),
    "misspelt key": (f"{UNUSED}tensors = '*'\n", "entry 1: has tensors; an entry has code, reason and perhaps tensor"),
    "empty reason": ("[[accept]]\ncode = 'layer-gap'\nreason = ' '\n", "entry 1: reason is not a text, or is empty"),
    "empty glob": (f"{UNUSED}tensor = ''\n", "entry 1: tensor is not a text, or is empty"),
    "a number": (f"{UNUSED}tensor = 3\n", "entry 1: tensor is not a text, or is empty"),
    "a check": ("[[accept]]\ncode = 'dsa'\nreason = 'x'\n", "entry 1: dsa is not a finding code; glm5inspect explain"),
    "a misspelt code": (
        "[[accept]]\ncode = 'dsa-shapes'\nreason = 'x'\n",
        "entry 1: dsa-shapes is not a finding code; did you mean dsa-shape?",
    ),
    "too long": ("#" * (MOST_BYTES + 1), "over 200,000 bytes"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_list_that_is_not_understood_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    """A line that says where and what, exit code 2, and nothing is checked; never a silently accepted finding."""
    path = tmp_path / "accepted.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    result = CliRunner().invoke(app, ["census", "snapshot:reference", "--accept", str(path)], env={"COLUMNS": "500"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}: " in result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "is empty"), ("nowhere.toml", "No such file"), ("\0", "null byte"), (".", "Is a directory")],
    ids=["empty", "not there", "NUL", "folder"],
)
def test_a_list_that_is_not_there_is_refused(name: str, said: str) -> None:
    """An unset variable in a script, or a wrong name, is no list that accepts nothing."""
    result = CliRunner().invoke(app, ["census", "snapshot:reference", "--accept", name], env={"COLUMNS": "500"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_what_is_read(tmp_path: Path) -> None:
    """Code, glob, reason and place, in the order of the file."""
    path = tmp_path / "a.toml"
    path.write_text(f"# reviewed by two\n{ACCEPTED}{UNUSED}")
    assert read_accepted(str(path)) == (
        Waiver(Code.UNKNOWN_TENSOR, "*.layers.[34].*.wat", WHY, f"{path}: entry 1"),
        Waiver(Code.LAYER_GAP, None, "once there was one", f"{path}: entry 2"),
    )
    with pytest.raises(UsageError, match="cannot be read"):
        read_accepted(str(tmp_path / "b.toml"))
