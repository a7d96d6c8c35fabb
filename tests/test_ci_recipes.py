# SPDX-License-Identifier: AGPL-3.0-only
"""What people put into their pipelines: the GitHub Action, the pre-commit hooks, and every snippet of the README."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from checkpoints import write_checkpoint
from github_action import ACTION, FOLDER, ROOT, STEPS, evaluate, run_action, run_step
from loopback_hub import TOKEN, LoopbackHub, Repo
from readme import COMMIT, PUBLISHED, README
from whole_model import CONFIG, trunk, whole

if TYPE_CHECKING:
    from github_action import Done

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the action is for runners with Bash")

BIN = Path(sys.executable).parent
HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
}
SECTION = README.read_text().partition("\n## Use in CI\n")[2].partition("\n## ")[0]
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", SECTION, flags=re.DOTALL | re.MULTILINE)
PLAIN, WORKFLOW, STEP, PRE_COMMIT, GITLAB = (text for _, text in BLOCKS)
REPORTS = {"junit": "a b/tests.xml", "sarif": "a b/results.sarif", "json": "a b/report.json", "html": "a b/page.html"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Where a job runs: a folder with a healthy `checkpoint`, one `without mtp` and one that is `malformed`."""
    folder = tmp_path / "work space"
    write_checkpoint(folder / "checkpoint", whole(), config=CONFIG)
    write_checkpoint(folder / "without mtp", trunk(), config=CONFIG)
    write_checkpoint(folder / "malformed", whole(), config=CONFIG)
    min((folder / "malformed").glob("*.safetensors")).write_bytes(b"{}")
    return folder


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """The folder of a runner, where an earlier step has begun a summary."""
    folder = tmp_path / "run ner"
    folder.mkdir()
    (folder / "summary").write_text("Earlier.\n")
    return folder


def act(workspace: Path, runner: Path, **inputs: str) -> Done:
    """Run the action on the healthy checkpoint, unless another source is given."""
    return run_action(workspace, runner, {"source": "checkpoint"} | inputs)


def tool(*arguments: str, given: str | None = None, **extra: str) -> None:
    """Run a checker that is installed beside Python; that it finds nothing is the test."""
    command = [str(BIN / arguments[0]), *arguments[1:]]
    environment = {**os.environ, **extra}
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, done.stdout + done.stderr)


def bash(script: str, workspace: Path, **extra: str) -> int:
    """Run lines of a job, with glm5inspect on the path; return the exit code."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **extra}
    command = ["/bin/bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=workspace, env=environment, capture_output=True, check=False).returncode


def without_installation(lines: str) -> str:
    """Return the lines of a step but for the one that installs glm5inspect, which is the one tested."""
    kept = [line for line in lines.splitlines() if not re.match("pipx? install git", line)]
    assert len(kept) == len(lines.splitlines()) - 1
    return "\n".join(kept)


def test_the_action_is_one() -> None:
    """Runners understand action.yml, and its scripts are in order."""
    tool("check-jsonschema", "--builtin-schema", "vendor.github-actions", str(FOLDER / "action.yml"))
    tool("shellcheck", str(FOLDER / "glm5inspect.sh"))
    for step in STEPS.values():
        tool("shellcheck", "--shell=bash", "-", given=step["run"])


def test_inputs_reach_a_step_in_its_environment_only() -> None:
    """What a caller gives is nowhere put into a script, and every input arrives."""
    assert all("${{" not in step["run"] for step in STEPS.values())
    arriving = [value for step in STEPS.values() for value in step["env"].values()]
    assert sorted(arriving) == sorted(
        [*(f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]), "${{ steps.install.outputs.program }}"]
    )


NO_ANSWER = "no report was written, so nothing is known"
VERDICTS: dict[str, tuple[dict[str, str], int, str, str]] = {
    "healthy": ({}, 0, "ok", "::notice title=glm5inspect verify::OK: "),
    "another command": ({"command": "find-mtp"}, 0, "ok", "::notice title=glm5inspect find-mtp::OK: "),
    "findings": ({"source": "without mtp"}, 1, "failed", "::error title=mtp-missing::"),
    "forgiven": ({"source": "without mtp", "args": "--exit-zero"}, 0, "ok", "::notice title=glm5inspect verify::OK: "),
    "malformed": ({"source": "malformed"}, 3, "incomplete", "::error title=header-length::"),
    "not there": ({"source": "nowhere"}, 3, "incomplete", "nowhere: no such file or folder"),
    "no source": ({"source": ""}, 2, "incomplete", "Missing argument"),
    "no command": ({"command": ""}, 2, "incomplete", "No such command"),
    "no option": ({"args": "--requires=mtp"}, 2, "incomplete", "No such option: --requires"),
    "asked for help": ({"args": "--help"}, 3, "incomplete", NO_ANSWER),
    "asked for the version": ({"args": "--version"}, 3, "incomplete", NO_ANSWER),
}


@pytest.mark.parametrize(("inputs", "code", "verdict", "logged"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(inputs: dict[str, str], code: int, verdict: str, logged: str, workspace: Path, runner: Path) -> None:
    """The step ends with the code of glm5inspect and says it; where nothing was looked at, nothing is well."""
    done = act(workspace, runner, **inputs)
    assert (done.code, done.outputs) == (code, {"exit-code": str(code), "verdict": verdict})
    assert logged in done.log


def test_a_program_that_does_not_start(workspace: Path, runner: Path) -> None:
    """An installation that is broken says nothing about the checkpoint, although Python ends with 1."""
    context = {f"inputs.{name}": about.get("default", "") for name, about in ACTION["inputs"].items()}
    code, log = run_step("run", workspace, runner, context | {"steps.install.outputs.program": "/bin/false"})
    assert code == 3
    assert NO_ANSWER in log
    assert (runner / "output").read_text() == "exit-code=3\nverdict=incomplete\n"


@pytest.mark.parametrize("source", ["checkpoint", "without mtp"])
def test_the_summary_is_appended_to(source: str, workspace: Path, runner: Path) -> None:
    """What others wrote stays, and the report is there in good days and bad; nothing is left lying about."""
    before = {path.name for path in runner.iterdir()}
    word = {"checkpoint": "OK", "without mtp": "FAILED"}[source]
    assert act(workspace, runner, source=source).summary.startswith(f"Earlier.\n## glm5inspect verify: {word}\n")
    assert {path.name for path in runner.iterdir()} - before == {"step.sh", "output", "glm5inspect", "arguments"}


def test_no_summary(workspace: Path, runner: Path) -> None:
    """It may be left out."""
    assert act(workspace, runner, summary="false").summary == "Earlier.\n"


def test_reports(workspace: Path, runner: Path) -> None:
    """One run writes every report that is asked for, each in its format, in a folder with a space in its name."""
    (workspace / "a b").mkdir()
    assert act(workspace, runner, source="without mtp", **REPORTS).code == 1
    texts = {form: (workspace / path).read_text() for form, path in REPORTS.items()}
    assert ET.fromstring(texts["junit"]).tag == "testsuites"  # noqa: S314 - ours
    assert json.loads(texts["sarif"])["version"] == "2.1.0"
    assert json.loads(texts["json"])["command"] == "verify"
    assert texts["html"].lower().startswith("<!doctype html>")


def test_several_sources(workspace: Path, runner: Path) -> None:
    """Each line is a source, and one that is wrong makes the whole wrong; empty lines are none."""
    done = act(workspace, runner, source="checkpoint\n\nwithout mtp\n")
    assert done.arguments[-3:] == ["--", "checkpoint", "without mtp"]
    assert (done.code, done.outputs["verdict"]) == (1, "failed")
    assert "2 sources" in done.log


def test_an_accepted_finding(workspace: Path, runner: Path) -> None:
    """A reviewed list takes the finding away."""
    (workspace / "the list.toml").write_text('[[accept]]\ncode = "mtp-missing"\nreason = "Text only."\n')
    done = act(workspace, runner, source="without mtp", command="find-mtp", accept="the list.toml")
    assert (done.code, done.outputs["verdict"]) == (0, "ok")


def test_the_token(hub: LoopbackHub, workspace: Path, runner: Path) -> None:
    """It reaches the Hub, and neither the log nor an argument, where anybody could read it."""
    hub.repos["owner/name"] = Repo(workspace / "checkpoint", closed="private")
    done = act(workspace, runner, source="owner/name", token=TOKEN)
    assert done.code == 0
    assert {asked.token for asked in hub.asked} == {TOKEN}
    assert TOKEN not in "\n".join([done.log, done.summary, *done.arguments])


def test_the_token_of_the_job(hub: LoopbackHub, workspace: Path, runner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token of its own the action leaves the HF_TOKEN that a job may have."""
    hub.repos["owner/name"] = Repo(workspace / "checkpoint", closed="private")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert act(workspace, runner, source="owner/name").code == 0


HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "; touch x #",
    "' ; touch x; '",
    '" ; touch x; "',
    "&& touch x",
    "a\ntouch x",
    "*",
]
OPTIONS = ["-h", "--help", "--version", "--exit-zero", "-"]


@pytest.mark.parametrize("name", ["source", "command", "args", "accept"])
@pytest.mark.parametrize("text", [*HOSTILE, *OPTIONS])
def test_a_hostile_input(name: str, text: str, workspace: Path, runner: Path) -> None:
    """Whatever an input holds, it is no command and does not spread; nothing but a checkpoint gives a good verdict."""
    before = sorted(workspace.iterdir())
    done = act(workspace, runner, **{name: text})
    assert sorted(workspace.iterdir()) == before
    assert done.outputs["verdict"] == ("ok" if (name, text) == ("args", "--exit-zero") else "incomplete")
    prefix = "--accept=" if name == "accept" else ""
    for part in text.splitlines() if name in ("source", "args") else [prefix + text]:
        assert part in done.arguments


@pytest.mark.parametrize("text", [*HOSTILE, "-h"])
def test_a_hostile_name_of_a_report(text: str, workspace: Path, runner: Path) -> None:
    """It is the name of a file and nothing else."""
    before = set(workspace.iterdir())
    assert act(workspace, runner, json=text).code == 0
    assert set(workspace.iterdir()) - before == {workspace / text}


def test_installing_runs_nothing_of_the_workspace(workspace: Path, runner: Path) -> None:
    """Neither what a caller gives nor modules that lie in the workspace are run; a package that is none fails."""
    for name in ("venv.py", "ensurepip.py", "pip.py"):
        (workspace / name).write_text("open('x', 'w')\n")
    before = sorted(workspace.iterdir())
    for python, package in ((sys.executable, "-r; $(touch x)"), ("$(touch x)", "six")):
        code, _ = run_step("install", workspace, runner, {"inputs.python": python, "inputs.package": package})
        assert code != 0
    assert sorted(workspace.iterdir()) == before
    assert (runner / "glm5inspect" / "bin" / "python").exists()
    assert not (runner / "output").exists()


def test_the_hooks_are_some(tmp_path: Path) -> None:
    """They are defined as pre-commit asks for."""
    tool("pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml"), PRE_COMMIT_HOME=str(tmp_path))


PARTS = {
    "model-00001-of-00120.safetensors": True,
    "checkpoint/model.safetensors.index.json": True,
    "checkpoint/config.json": True,
    "config.json": True,
    "hf_quant_config.json": True,
    "generation_config.json": False,
    "config.json.md": False,
    "model_safetensors": False,
    "tokenizer.json": False,
}


@pytest.mark.parametrize(("path", "wanted"), PARTS.items(), ids=PARTS)
@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_hook_is_about(hook: str, path: str, wanted: bool) -> None:  # noqa: FBT001
    """A change of what the checks read starts a hook, and no other."""
    assert bool(re.search(HOOKS[hook]["files"], path)) is wanted


def run_hook(name: str, workspace: Path, arguments: list[str] | None = None) -> int:
    """Run a hook as pre-commit does, with its own arguments unless others are given; return the exit code."""
    hook = HOOKS[name]
    assert hook["pass_filenames"] is False
    return bash(shlex.join([*shlex.split(hook["entry"]), *(arguments or hook["args"])]), workspace)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook(hook: str, workspace: Path) -> None:
    """Without arguments the repository is the checkpoint."""
    assert run_hook(hook, workspace / "checkpoint") == 0
    assert run_hook(hook, workspace / "malformed") == 3


def use(workspace: Path, which: str) -> None:
    """Let another checkpoint be the one that recipes look at."""
    if which != "checkpoint":
        (workspace / "checkpoint").rename(workspace / "unused")
        (workspace / which).rename(workspace / "checkpoint")


def test_every_snippet_is_tested() -> None:
    """There is no snippet in the README that the tests below do not take."""
    assert [kind for kind, _ in BLOCKS] == ["sh", "yaml", "yaml", "yaml", "yaml"]


def test_the_plain_lines(workspace: Path, reference: Path) -> None:
    """The first lines run as written, on the checkpoint that they are about."""
    (workspace / "reference").symlink_to(reference)
    use(workspace, "reference")
    assert bash(PLAIN, workspace) == 0
    assert ET.parse(workspace / "glm5inspect.xml").getroot().tag == "testsuites"  # noqa: S314 - ours


def test_the_workflow(
    hub: LoopbackHub, workspace: Path, reference: Path, runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow with the action: it is valid, runs as written, and a second job finds the headers of the first."""
    file = tmp_path / "workflow.yml"
    file.write_text(WORKFLOW)
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(file))
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    cache, action, upload = job["steps"]
    assert action["uses"].endswith(f"/{FOLDER.relative_to(ROOT)}@REVISION")
    context = {f"env.{name}": value for name, value in job["env"].items()} | {"secrets.HF_TOKEN": TOKEN}
    assert workspace / evaluate(cache["with"]["path"], context) == workspace / job["env"]["GLM5INSPECT_CACHE"]
    assert COMMIT in evaluate(cache["with"]["key"], context)
    inputs = {name: evaluate(value, context) for name, value in action["with"].items()}

    hub.repos[PUBLISHED] = Repo(reference, commit=COMMIT, closed="private")
    for name, value in job["env"].items():
        monkeypatch.setenv(name, value)
    first = run_action(workspace, runner, inputs)
    assert (first.code, first.outputs["verdict"]) == (0, "ok")
    assert [path.name for path in workspace.glob(upload["with"]["path"])] == ["glm5inspect.xml"]
    assert any(asked.span for asked in hub.asked)
    hub.asked.clear()
    assert run_action(workspace, runner, inputs).code == 0
    assert not any(asked.span for asked in hub.asked)


@pytest.mark.parametrize(("which", "code"), [("checkpoint", 0), ("without mtp", 1)])
def test_a_step_of_ones_own(which: str, code: int, workspace: Path, runner: Path, tmp_path: Path) -> None:
    """The step without the action is valid and runs as written, but for the installation."""
    file = tmp_path / "workflow.yml"
    file.write_text(json.dumps({"on": "push", "jobs": {"a": {"runs-on": "b", "steps": yaml.safe_load(STEP)}}}))
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(file))
    use(workspace, which)
    (step,) = yaml.safe_load(STEP)
    summary = runner / "summary"
    assert bash(without_installation(step["run"]), workspace, GITHUB_STEP_SUMMARY=str(summary)) == code
    assert summary.read_text().startswith("## glm5inspect verify")
    assert (workspace / "glm5inspect.xml").exists()


@pytest.mark.parametrize(("which", "code"), [("checkpoint", 0), ("without mtp", 1)])
def test_the_pre_commit_config(which: str, code: int, workspace: Path, tmp_path: Path) -> None:
    """The README's use of the hook is valid and runs as written."""
    file = tmp_path / "config.yaml"
    file.write_text(PRE_COMMIT)
    tool("pre-commit", "validate-config", str(file), PRE_COMMIT_HOME=str(tmp_path / "home"))
    use(workspace, which)
    ((hook,),) = (repo["hooks"] for repo in yaml.safe_load(PRE_COMMIT)["repos"])
    assert run_hook(hook["id"], workspace, hook["args"]) == code
    named = set(re.findall(r"`(glm5inspect-\w+)`", SECTION))
    assert named == HOOKS.keys()


@pytest.mark.parametrize(("which", "code"), [("checkpoint", 0), ("without mtp", 1), ("malformed", 3)])
def test_the_gitlab_job(which: str, code: int, workspace: Path, tmp_path: Path) -> None:
    """The job is valid, runs as written, but for the installation, and has what it keeps whatever the verdict is."""
    file = tmp_path / ".gitlab-ci.yml"
    file.write_text(GITLAB)
    tool("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", str(file))
    (job,) = yaml.safe_load(GITLAB).values()
    without_installation("\n".join(job["before_script"]))
    assert job["cache"]["paths"] == [job["variables"]["GLM5INSPECT_CACHE"]]
    use(workspace, which)
    assert bash("\n".join(job["script"]), workspace, **job["variables"]) == code
    assert job["artifacts"]["when"] == "always"
    for name in [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()]:
        assert (workspace / name).stat().st_size


def test_the_line_for_jenkins(workspace: Path) -> None:
    """The line runs as written, and its report is the one that Jenkins is told of."""
    (line,) = re.findall(r"`sh '(.*?)'`", SECTION)
    (report,) = re.findall(r"`junit '(.*?)'`", SECTION)
    use(workspace, "without mtp")
    assert bash(line, workspace) == 1
    assert (workspace / report).exists()
