# SPDX-License-Identifier: AGPL-3.0-only
"""The README says what the product does: its catalogue, its examples, its contract."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loopback_hub import LoopbackHub, Repo
from readme import COMMIT, PUBLISHED, README, SESSION, publishable, run_session, with_generated

if TYPE_CHECKING:
    from pathlib import Path

TEXT = README.read_text()
SESSIONS = SESSION.findall(TEXT)


def test_the_generated_parts_are_current() -> None:
    """Every finding has its section, as `explain` prints it, and every command its help; mend with tests/readme.py."""
    assert with_generated(TEXT) == TEXT


def test_there_are_sessions() -> None:
    """The sessions are found, one for each command at least."""
    commands = {line.split()[2] for session in SESSIONS for line in session.splitlines() if line.startswith("$ glm5")}
    assert {"census", "classify", "verify-dsa", "find-mtp", "show", "record", "explain"} <= commands


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sessions find on the Hub."""
    return publishable(tmp_path_factory.mktemp("published") / "stand-in")


@pytest.mark.parametrize("session", SESSIONS, ids=[session.splitlines()[0] for session in SESSIONS])
def test_a_session_runs_as_written(session: str, hub: LoopbackHub, published: Path, tmp_path: Path) -> None:
    """Typing a session's commands prints what the README shows, on standard output and standard error together."""
    hub.repos[PUBLISHED] = Repo(published, commit=COMMIT)
    assert run_session(session, tmp_path) == session


def test_the_two_lines_set_everything_up() -> None:
    """The first line to run and the first line to test each begin with nothing but Python."""
    start = "python3 -m venv .venv && .venv/bin/pip install -q '.[dev]' && .venv/bin/"
    assert f"{start}glm5inspect census snapshot:reference\n" in TEXT
    assert f"{start}pytest\n" in TEXT


def test_no_python_example_is_wrong() -> None:
    """The library examples run as written."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, stdout=subprocess.DEVNULL)
