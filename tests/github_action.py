# SPDX-License-Identifier: AGPL-3.0-only
"""The steps of our GitHub Action, taken out of action.yml and run as a runner does it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "actions" / "glm5inspect"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["id"]: step for step in ACTION["runs"]["steps"]}

_PROGRAM = """\
#!/bin/sh
printf '%s\\0' "$@" >"$RUNNER_TEMP/arguments"
exec {python} -P -m glm5inspect "$@"
"""
"""What is installed, as far as the action knows: it writes down with which arguments it was called."""


class Done(NamedTuple):
    """What came of the action.

    Attributes:
        code: The exit code of its step.
        log: What the step printed.
        outputs: What the action gives to the steps after it.
        summary: The summary of the job.
        arguments: Those of glm5inspect; empty where it was not called.
    """

    code: int
    log: str
    outputs: dict[str, str]
    summary: str
    arguments: list[str]


def evaluate(text: str, context: Mapping[str, str]) -> str:
    """Fill in the expressions of a text, each of which is a name of the context."""
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: context[found[1]], text)


def run_step(name: str, workspace: Path, runner: Path, context: Mapping[str, str]) -> tuple[int, str]:
    """Run a step of the action with nothing in its environment but what a runner and this machine's tests put there.

    Args:
        name: Its ``id``.
        workspace: Where it runs.
        runner: The folder of the runner, for what passes between it and the step.
        context: What ``${{ … }}`` stands for in the environment of the step.

    Returns:
        The exit code, and what was printed.
    """
    step = STEPS[name]
    script = runner / "step.sh"
    script.write_text(step["run"])
    environment = {
        name: os.environ[name]
        for name in ("HF_ENDPOINT", "HF_HOME", "GLM5INSPECT_CACHE", "HF_TOKEN")
        if name in os.environ
    } | {
        "PATH": os.defpath,
        "GITHUB_ACTION_PATH": str(FOLDER),
        "GITHUB_OUTPUT": str(runner / "output"),
        "GITHUB_STEP_SUMMARY": str(runner / "summary"),
        "RUNNER_TEMP": str(runner),
        **{name: evaluate(value, context) for name, value in step["env"].items()},
    }
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def run_action(workspace: Path, runner: Path, inputs: Mapping[str, str]) -> Done:
    """Run the action, but for the installation: the glm5inspect that is tested is what it runs.

    Args:
        workspace: Where it runs.
        runner: The folder of the runner; what an earlier step wrote to its ``summary`` is there.
        inputs: As a workflow gives them; the others have their defaults.
    """
    program = runner / "glm5inspect"
    program.write_text(_PROGRAM.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    assert inputs.keys() <= ACTION["inputs"].keys()
    given = {name: inputs.get(name, about.get("default", "")) for name, about in ACTION["inputs"].items()}
    context = {f"inputs.{name}": value for name, value in given.items()}
    code, log = run_step("run", workspace, runner, context | {"steps.install.outputs.program": str(program)})
    lines = _read(runner / "output").splitlines()
    written = {f"steps.run.outputs.{name}": value for name, _, value in (line.partition("=") for line in lines)}
    outputs = {name: evaluate(about["value"], written) for name, about in ACTION["outputs"].items()}
    return Done(code, log, outputs, _read(runner / "summary"), _read(runner / "arguments").split("\0")[:-1])


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
