# SPDX-License-Identifier: AGPL-3.0-only
"""`--report FORMAT=FILE`: one run, several renderings, each of them whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoints import shard_name
from typer.testing import CliRunner, Result

from glm5inspect.cli import app
from glm5inspect.render import Format

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str | Path) -> Result:
    """Run a command line."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def test_a_report_is_what_would_be_printed(checkpoint: Path, tmp_path: Path) -> None:
    """Every format at once, beside what goes to standard output; each file has what `--format` prints."""
    options = [word for form in Format for word in ("--report", f"{form}={tmp_path / form}")]
    result = run("census", checkpoint, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run("census", checkpoint).stdout
    for form in Format:
        assert (tmp_path / form).read_bytes() == run("census", checkpoint, "--format", form).stdout_bytes
    assert {entry.name for entry in tmp_path.iterdir()} == {"checkpoint", *Format}


def test_a_report_beside_an_output(checkpoint: Path, tmp_path: Path) -> None:
    """With `--output` nothing is printed; an old file is replaced, and a name may hold an equals sign."""
    (tmp_path / "a=b").write_text("old")
    result = run("find-mtp", checkpoint, "-o", tmp_path / "table", "--report", f"json={tmp_path / 'a=b'}")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "table").read_text() == run("find-mtp", checkpoint).stdout
    assert (tmp_path / "a=b").read_text() == run("find-mtp", checkpoint, "-f", "json").stdout


@pytest.mark.parametrize("command", [["explain"], ["cache", "info"], ["classify", "nonsense"]], ids=" ".join)
def test_every_command_has_the_option(command: list[str], tmp_path: Path) -> None:
    """A command without a source writes reports as well, and a bad verdict is written like a good one."""
    result = run(*command, "--report", f"junit={tmp_path / 'x.xml'}")
    assert result.exit_code == (1 if "nonsense" in command else 0)
    assert (tmp_path / "x.xml").read_text().startswith("<?xml")


USAGE = {
    "no file": ("json", "is empty; give the name of a file"),
    "empty file": ("json=", "is empty; give the name of a file"),
    "no such format": ("xml=x", "'xml=x' is not FORMAT=FILE with one of table, json, markdown, junit, github"),
    "no format": ("=x", "is not FORMAT=FILE"),
    "nothing": ("", "is not FORMAT=FILE"),
    "a dash": ("json=-", "is no file name here"),
    "a shard": ("csv=model.safetensors", "nothing is written over one"),
    "hostile": ("\x1b[31m=x", "\\x1b[31m"),
}


@pytest.mark.parametrize(("value", "message"), USAGE.values(), ids=USAGE)
def test_wrong_usage(value: str, message: str) -> None:
    """2, before anything is looked at."""
    result = run("census", "/nowhere", "--report", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'--report'" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    "options",
    [["--report", "csv=./x", "--report", "json=x"], ["-o", "x", "--report", "csv=x"]],
    ids=["two reports", "output"],
)
def test_two_reports_in_one_file(options: list[str]) -> None:
    """One would be lost."""
    result = run("explain", *options)
    assert result.exit_code == 2
    assert "two reports cannot have one file" in result.stderr


def test_a_report_and_a_snapshot_in_one_file(checkpoint: Path, tmp_path: Path) -> None:
    """The file of `record` is the snapshot."""
    file = tmp_path / "mine.json"
    assert run("record", checkpoint, "-o", file, "--report", f"json={file}").exit_code == 2
    assert not file.exists()
    assert run("record", checkpoint, "-o", file, "--report", f"json={tmp_path / 'report.json'}").exit_code == 0
    assert run("census", file).exit_code == 0


def test_no_part_of_the_checkpoint_is_written_over(checkpoint: Path, tmp_path: Path) -> None:
    """By whatever name: one line, 3; what else was asked for is written."""
    link = tmp_path / "link"
    link.symlink_to(checkpoint / shard_name(1, 3))
    before = link.read_bytes()
    options = ["--report", f"csv={link}", "--report", f"json={tmp_path / 'good.json'}"]
    result = run("census", checkpoint, *options)
    assert result.exit_code == 3
    assert "of the checkpoint; nothing is written over it" in result.stderr
    assert result.stdout == run("census", checkpoint).stdout
    assert link.read_bytes() == before
    assert (tmp_path / "good.json").exists()


def test_one_that_cannot_be_written_keeps_no_other(checkpoint: Path, tmp_path: Path) -> None:
    """The exit code is 3, each failure has its line, and the other renderings are there."""
    options = [f"markdown={tmp_path}/no/where", f"csv={tmp_path}/nor/here", f"junit={tmp_path}/good.xml"]
    result = run("census", checkpoint, *(word for option in options for word in ("--report", option)))
    assert result.exit_code == 3
    assert [line.partition(": ")[2] for line in result.stderr.splitlines()] == [
        f"{tmp_path}/no/where: cannot be written: No such file or directory",
        f"{tmp_path}/nor/here: cannot be written: No such file or directory",
    ]
    assert result.stdout.splitlines()[-1].startswith("OK: ")
    assert (tmp_path / "good.xml").exists()


def test_quiet_is_for_people(checkpoint: Path, tmp_path: Path) -> None:
    """`--quiet` shortens what people read; what programs read is always whole."""
    for form, shorter in {"markdown": True, "table": True, "csv": False, "sarif": False, "junit": False}.items():
        sizes = []
        for options in ([], ["--quiet"]):
            run("census", checkpoint, "--report", f"{form}={tmp_path / form}", *options)
            sizes.append((tmp_path / form).stat().st_size)
        assert (sizes[1] < sizes[0]) == shorter, form
