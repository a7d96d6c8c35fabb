# SPDX-License-Identifier: AGPL-3.0-only
"""What the tabulator does, in a real bash; what zsh and fish are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from readme import README
from terminals import Bash
from typer.core import TyperGroup
from typer.main import get_command

from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.completion import OFFERS
from glm5inspect.snapshot import bundled_names

if TYPE_CHECKING:
    from collections.abc import Iterator

SET_UP = "source <(glm5inspect --show-completion)"
WHOLE_COLONS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"
"""As some people have it in their `.bashrc`: a colon does not end a word."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with paths of all sorts."""
    place = tmp_path_factory.mktemp("place")
    (place / "GLM-model").mkdir()
    for name in ("snap.json", "two words.md", "report.md", ".hidden", "snap\tped.json"):
        (place / name).touch()
    return place


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    """What a shell has that is set up for nobody, and this glm5inspect in its path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(place), "TERM": "dumb", "COLUMNS": "120", "LC_ALL": "C.UTF-8"}


def say(words: dict[str, str], environment: dict[str, str], folder: Path, *, code: str | None = None) -> str:
    """Ask as the script of a shell does, with its variables."""
    program = ["glm5inspect"] if code is None else [sys.executable, "-c", code, "glm5inspect"]
    done = subprocess.run(
        program,
        env=environment | words,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stderr == ""
    return done.stdout


def zsh(typed: str) -> dict[str, str]:
    """Return the variables that zsh sets."""
    return {"_GLM5INSPECT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"glm5inspect {typed}"}


def fish(typed: str, action: str = "get-args") -> dict[str, str]:
    """Return the variables that fish sets."""
    return {
        "_GLM5INSPECT_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": f"glm5inspect {typed}",
        "_TYPER_COMPLETE_FISH_ACTION": action,
    }


@pytest.fixture(scope="module", params=["", WHOLE_COLONS], ids=["as it comes", "whole colons"])
def bash(request: pytest.FixtureRequest, place: Path, environment: dict[str, str]) -> Iterator[Bash]:
    """A bash that was told what the README says."""
    assert SET_UP in README.read_text()
    with Bash(f"{SET_UP}\n{request.param}", place, environment) as bash:
        yield bash


LINES = {
    "ver": "verify",
    "cache in": "cache info ",
    "verify snapshot:ref": "verify snapshot:reference ",
    "verify snapshot:off": "verify snapshot:official-",
    "verify snapshot:": "verify snapshot:",
    "verify sna": "verify snap",
    "verify snaps": "verify snapshot:",
    "verify 'snapshot:ref": "verify 'snapshot:reference' ",
    "verify GL": "verify GLM-model/",
    "verify ./GL": "verify ./GLM-model/",
    "verify two": "verify two\\ words.md ",
    "verify GLM-model snapshot:ref": "verify GLM-model snapshot:reference ",
    "diff snapshot:ref": "diff snapshot:reference ",
    "diff GLM-model snapshot:ref": "diff GLM-model snapshot:reference ",
    "census GLM-model --against snapshot:ref": "census GLM-model --against snapshot:reference ",
    "census GLM-model --against=snapshot:ref": "census GLM-model --against=snapshot:reference ",
    "census GLM-model --against=snaps": "census GLM-model --against=snapshot:",
    "census --against=./GL": "census --against=./GLM-model/",
    "census x --against snapshot:reference --dialect ml": "census x --against snapshot:reference --dialect mlx ",
    "classify --from snapshot:ref": "classify --from snapshot:reference ",
    "explain dsa-sha": "explain dsa-shape ",
    "verify x --select quant-conf": "verify x --select quant-conf",
    "verify x --select encodings": "verify x --select encodings ",
    "census x --select quant-conf": "census x --select quant-conflict ",
    "verify x --ignore moe": "verify x --ignore moe ",
    "census x --ignore dsa-sha": "census x --ignore dsa-shape ",
    "verify x --dialect trans": "verify x --dialect transformers ",
    "verify x --require m": "verify x --require mtp ",
    "verify x --require mtp,": "verify x --require mtp,vision ",
    "verify x --report markd": "verify x --report markdown=",
    "verify x --report=markd": "verify x --report=markdown=",
    "verify x --report markdown=rep": "verify x --report markdown=report.md ",
    "verify x --format sar": "verify x --format sarif ",
    "verify x --scope r": "verify x --scope reference ",
    "verify x --require=mt": "verify x --require=mtp ",
    "GLM-model/ ver": "GLM-model/ verify",
}
"""What is typed before the tabulator, and what stands there after it."""


@pytest.mark.parametrize("typed", LINES)
def test_the_tabulator_in_bash(typed: str, bash: Bash) -> None:
    """Words are completed as far as they are certain, and a blank follows where nothing can be added."""
    assert bash.complete(f"glm5inspect {typed}").line == f"glm5inspect {LINES[typed]}"


def test_bash_lists_snapshots_and_paths_together(bash: Bash) -> None:
    """Where a SOURCE belongs, an empty word may become any of them; hidden files stay hidden."""
    listed = bash.complete("glm5inspect verify ").listed
    assert all(f"snapshot:{name}" in listed for name in bundled_names())
    assert all(name in listed for name in ("GLM-model/", "report.md", "snap.json", "two words.md"))
    assert ".hidden" not in listed
    assert "ped.json" not in listed  # a name with a tabulator in it would be two words


def test_asking_for_the_version_ends_no_completion(bash: Bash) -> None:
    """What is typed is looked at, not run."""
    assert "glm5inspect 0" not in bash.complete("glm5inspect verify --version snapshot:off").listed


def test_zsh_is_told_words_and_whether_to_add_paths(environment: dict[str, str], place: Path) -> None:
    """Its commands: words with their help texts, what goes on without a blank, and paths where nothing else fits."""
    asked = {
        "verify snapshot:ref": "local -a offered=('snapshot\\:reference'); _describe '' offered",
        "verify GL": "_files",
        "census x --against=snapshot:off": (
            "compset -P '*='; local -a offered=('snapshot\\:official-bf16' 'snapshot\\:official-fp8'); "
            "_describe '' offered"
        ),
        "verify x --report markd": "local -a offered=('markdown='); _describe '' offered -S ''",
        "verify x --report markdown=": "compset -P '*='; _files",
        "explain dsa-sha": f"local -a offered=('dsa-shape:{Code.DSA_SHAPE.title}'); _describe '' offered",
    }
    assert {typed: say(zsh(typed), environment, place).strip() for typed in asked} == asked


def test_fish_is_told_words_and_whether_to_add_paths(environment: dict[str, str], place: Path) -> None:
    """Its lines: a word, and after a tab its help text; an option stays before its value."""
    asked = {
        "verify snapshot:off": "snapshot:official-bf16\nsnapshot:official-fp8",
        "census x --against=snapshot:ref": "--against=snapshot:reference",
        "verify x --report markd": "markdown=",
        "explain dsa-sha": f"dsa-shape\t{Code.DSA_SHAPE.title}",
    }
    assert {typed: say(fish(typed), environment, place).strip() for typed in asked} == asked
    say(fish("verify snapshot:off", "is-args"), environment, place)
    with pytest.raises(subprocess.CalledProcessError):
        say(fish("verify GL", "is-args"), environment, place)


@pytest.mark.parametrize(
    "typed", ["", "verify ", "verify snapshot:", "verify x --", "explain ", "verify x --select ", "cache "]
)
def test_completion_is_cheap(typed: str, environment: dict[str, str], place: Path) -> None:
    """Nothing heavy is imported for it, help texts included, and no snapshot is opened to tell its name."""
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
try:
    sys.argv[0] = sys.argv.pop(1)
    from glm5inspect.__main__ import main
    main()
finally:
    heavy = {"huggingface_hub", "numpy", "rich", "safetensors"} & {*sys.modules}
    print("did", *sorted(heavy), *(path for path in opened if path.endswith(".json")))
"""
    told = say(zsh(typed), environment, place, code=code).splitlines()
    assert told[-1] == "did"
    assert told[0] != "_files"


def test_nothing_is_offered_for_what_is_not_there() -> None:
    """Each name of a value that has an offer is the name of a value in some help."""
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    metavars = {getattr(param, "metavar", None) for command in program.commands.values() for param in command.params}
    assert {*OFFERS} <= metavars
