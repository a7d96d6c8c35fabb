# SPDX-License-Identifier: AGPL-3.0-only
"""What the command line says of itself: examples that work, exit codes, explanations."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import write_checkpoint
from loopback_hub import LoopbackHub, Repo
from readme import COMMANDS, README, help_of
from typer.testing import CliRunner
from whole_model import CONFIG, whole

import glm5inspect
from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.explain import explain
from glm5inspect.explanations import EXPLANATIONS
from glm5inspect.options import Exit
from glm5inspect.render import Format, View, render

LOCAL = ("GLM-5.3-Flash-NVFP4", "mine")
"""The folders that examples name."""

PUBLIC = "zai-org/GLM-5.3-Flash"
"""The repository that they name."""


def examples(command: str) -> list[str]:
    """Return the lines at the end of the help of a command."""
    _, heading, tail = help_of(command).partition("\n  Examples:\n")
    assert heading, command
    return [line.strip() for line in tail.splitlines()]


EXAMPLES = [example for command in COMMANDS for example in examples(command)]


def test_every_command_is_known() -> None:
    """The list of commands that is walked here has each of them."""
    assert {"verify", "census", "diff", "classify", "verify-dsa", "find-mtp", "show", "record", "explain"} <= {
        *COMMANDS
    }
    assert {"cache info", "cache clear"} <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 40])
def test_help_ends_with_two_examples(command: str, columns: int) -> None:
    """Two lines to paste, of this command, whole on a narrow terminal too."""
    _, _, tail = help_of(command, columns).partition("\n  Examples:\n")
    lines = tail.splitlines()
    assert len(lines) == 2
    assert all(re.match(rf"    glm5inspect {command}( |$)", line) for line in lines)
    assert lines == help_of(command).splitlines()[-2:]
    assert max(map(len, lines)) <= 80


@pytest.fixture
def place(hub: LoopbackHub, tmp_path: Path) -> Path:
    """A folder that has what examples name."""
    for name in LOCAL:
        write_checkpoint(tmp_path / name, whole(), config=CONFIG)
    hub.repos[PUBLIC] = Repo(tmp_path / LOCAL[0])
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_written(example: str, place: Path) -> None:
    """It answers yes or no; it is no wrong usage, and finds what it names."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", example],
        cwd=place,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (Exit.OK, Exit.FINDINGS), done.stderr


def test_summaries_are_not_cut() -> None:
    """Each command has a line that fits, in the help of the program and of `cache`."""
    for group in ("", "cache"):
        assert "..." not in help_of(group).partition("Commands:")[2]


def test_both_manuals_have_every_exit_code() -> None:
    """The README and the help name exactly the exit codes that there are, in their order, and once."""
    told = help_of("").partition("Exit codes:\n")[2]
    assert re.findall(r"^    (\d+) +\w", told, flags=re.MULTILINE) == [str(code.value) for code in Exit]
    assert README.read_text().count("\n## Exit codes\n") == 1
    section = README.read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \| \w", section, flags=re.MULTILINE) == [str(code.value) for code in Exit]


def test_what_it_does_is_said_in_ten_lines() -> None:
    """Without a command, each question that can be put to a source or about a name has its line."""
    told = CliRunner().invoke(app, []).stdout.splitlines()
    assert len(told) <= 10
    named = {match[1] for line in told if (match := re.match(r"  glm5inspect (\S+) [A-Z]", line))}
    assert named == {*COMMANDS} - {"record", "cache info", "cache clear"}


def test_the_tree_has_every_module() -> None:
    """The README's tour of the package leaves none out, and names none that is not there."""
    tree = README.read_text().partition("\n## Changing it\n")[2].partition("```\n")[2].partition("```")[0]
    tour = tree.partition("\nsnapshots/")[0]
    package = Path(glm5inspect.__file__).parent
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    packages = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    below = {path.name for path in package.glob("*/*.py")}
    assert modules - {*re.findall(r"\w+\.py", tour)} == set()
    assert packages - {*re.findall(r"\w+/", tour)} == set()
    assert {*re.findall(r"\w+\.py", tour)} <= modules | below


@pytest.mark.parametrize("mistyped", ["dsa-shap", "DSA-SHAPE", "dsa_shape", "das-shape"])
def test_a_mistyped_code_is_guessed(mistyped: str) -> None:
    """What was probably meant is said."""
    result = CliRunner().invoke(app, ["explain", mistyped])
    assert result.exit_code == Exit.USAGE
    assert "did you mean dsa-shape?" in result.stderr


def words(text: str) -> str:
    """Return the words of a text, whatever a format puts around and between them."""
    return " ".join(re.findall(r"[A-Za-z0-9]+", html.unescape(re.sub(r"<[^>]*>", " ", text))))


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("code", Code)
def test_an_explanation_is_whole_in_every_format(code: Code, form: Format) -> None:
    """Title, meaning, cause and remedy of each finding are in every form."""
    text = words(render(explain([code]), form, View(None, quiet=False)))
    assert all(words(part) in text for part in (code.value, code.title, *EXPLANATIONS[code]))
