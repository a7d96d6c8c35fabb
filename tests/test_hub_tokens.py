# SPDX-License-Identifier: AGPL-3.0-only
"""A token is shown to nobody but the Hub; an interrupt waits for nobody. Some of it as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import pytest
from checkpoints import shard_name
from huggingface_hub import constants
from loopback_hub import TOKEN, Fault, LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.errors import Glm5InspectError
from glm5inspect.resolve import open_source
from glm5inspect.sources.hub_options import HubOptions

if TYPE_CHECKING:
    from pathlib import Path

API = "/api/models/"
SECOND = shard_name(2, 3)
LAST = shard_name(3, 3)
COMMAND = [sys.executable, "-m", "glm5inspect", "census", "owner/name"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pauses between attempts."""
    monkeypatch.setattr("glm5inspect.sources.hub_client._FIRST_PAUSE", 0.0)


@pytest.fixture
def repo(hub: LoopbackHub, checkpoint: Path) -> Repo:
    """The tiny checkpoint of three shards, as `owner/name`, which is private."""
    return hub.repos.setdefault("owner/name", Repo(checkpoint, closed="private"))


def census(*options: str) -> tuple[int, str]:
    """Take a census of the repository; return the exit code, and what was written to either stream."""
    result = CliRunner().invoke(app, ["census", "owner/name", "--timeout", "0.2", *options])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def tokens(hub: LoopbackHub) -> dict[str, set[str | None]]:
    """Return the tokens that came with the requests, by the name of the host they were sent to."""
    found: dict[str, set[str | None]] = {}
    for asked in hub.asked:
        found.setdefault(asked.host.partition(":")[0], set()).add(asked.token)
    return found


@pytest.mark.parametrize("how", ["option", "variable", "file"])
@pytest.mark.parametrize("redirect", [True, False], ids=["elsewhere", "here"])
def test_where_the_token_goes(
    hub: LoopbackHub, repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, redirect: bool, how: str
) -> None:
    """The Hub gets it with every request; the host that keeps the shards, to which it sends on, never does."""
    hub.redirect = redirect
    if how == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    elif how == "file":
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    code, said = census("-f", "json", *(["--token", TOKEN] if how == "option" else []))
    assert code == 0
    assert TOKEN not in said
    assert tokens(hub) == {"127.0.0.1": {TOKEN}} | ({"localhost": {None}} if redirect else {})
    assert len(hub.requests("/owner/name/resolve/")) == 4 + 3
    shards = [path.name for path in sorted(repo.folder.glob("*.safetensors"))]
    assert sorted(asked.path.rpartition("/")[2] for asked in hub.asked if "/cdn/" in asked.path) == shards * redirect


@pytest.mark.parametrize(
    ("match", "there"),
    [(API, f"{API}owner/name/revision/main"), ("config.json", "/cdn/owner/name/config.json")],
    ids=["listing", "small file"],
)
def test_other_requests_that_are_sent_on(hub: LoopbackHub, repo: Repo, match: str, there: str) -> None:
    """A listing or a small file that is to be had elsewhere is asked for there without the token."""
    repo.closed = None
    hub.faults = [Fault(302, match, 1, {"Location": f"http://localhost:{hub.port}{there}"})]
    assert census("--token", TOKEN)[0] == 0
    assert tokens(hub) == {"127.0.0.1": {TOKEN}, "localhost": {None}}


FAULTS = {
    "reset": Fault("reset", SECOND),
    "whole shards of another size": Fault("grown", SECOND),
    "fault of the server": Fault(500, API),
    "refused": Fault(401, API),
    "forbidden": Fault(403, API, body=TOKEN.encode(), headers={"X-Error-Message": f"{TOKEN} may not"}),
    "gated": Fault(403, "/resolve/", headers={"X-Error-Code": "GatedRepo", "X-Error-Message": TOKEN}),
    "bad request": Fault(400, API, body=TOKEN.encode()),
    "no listing": Fault(200, API, body=json.dumps({"error": TOKEN}).encode()),
    "circle": Fault("circle", API),
    "sent to nobody": Fault(302, API, headers={"Location": f"http://127.0.0.1:1/{TOKEN}"}),
    "no small file": Fault(404, "config.json", headers={"X-Error-Code": "EntryNotFound"}, method=""),
}
"""Faults, some of which say the token back."""


def what_is_raised(options: HubOptions) -> str:
    """Read the repository, and return the exceptions that come of it, with tracebacks and all that caused them."""
    errors: list[Glm5InspectError] = []
    try:
        source = open_source("owner/name", hub=options)
        source.config()
        errors += source.inventory().refused.values()
    except Glm5InspectError as error:
        errors.append(error)
    return "".join(line for error in errors for line in (repr(error), *traceback.format_exception(error)))


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_token_is_not_shown(hub: LoopbackHub, fault: Fault) -> None:
    """Whatever fails, the token is in no report, no line on standard error, and no exception."""
    hub.faults = [fault]
    for form in ("json", "table"):
        code, said = census("--token", TOKEN, "-f", form)
        assert code == 3
        assert TOKEN not in said
    options = HubOptions(token=TOKEN, use_cache=False)
    assert TOKEN not in repr(options)
    raised = what_is_raised(options)
    assert "Error: " in raised
    assert TOKEN not in raised
    assert tokens(hub)["127.0.0.1"] == {TOKEN}


@pytest.mark.parametrize("closed", ["private", None])
def test_a_wrong_token_is_not_shown(hub: LoopbackHub, repo: Repo, closed: str | None) -> None:
    """Neither is one that the Hub refuses."""
    repo.closed = closed
    code, said = census("--token", "hf_wrongButStillSecret")
    assert code == 3
    assert "the token was refused (401)" in said
    assert "hf_wrong" not in said
    assert tokens(hub) == {"127.0.0.1": {"hf_wrongButStillSecret"}}


@pytest.mark.parametrize("token", ["", "  ", "hf_a b", "hf_a\nb", "hf_\u00fc", "hf_\x7f", "hf_a\tb"], ids=repr)
def test_what_is_no_token(hub: LoopbackHub, token: str) -> None:
    """A token that is empty, or that no header may hold, is wrong usage; it is not shown, and nothing is asked."""
    code, said = census("--token", token)
    assert code == 2
    assert "Invalid value for '--token': is empty, or has characters that no token has" in said
    assert "hf_" not in said
    assert hub.asked == []


def test_a_process(hub: LoopbackHub, repo: Repo) -> None:
    """As a process: the same answer as from the folder, and nothing on standard error."""
    repo.closed = None
    remote = subprocess.run([*COMMAND, "-f", "json"], capture_output=True, check=False)
    local = subprocess.run([*COMMAND[:-1], repo.folder, "-f", "json"], capture_output=True, check=False)
    assert (remote.returncode, remote.stderr) == (0, b"")
    answers = [json.loads(done.stdout) for done in (remote, local)]
    assert [answer.pop("source")["kind"] for answer in answers] == ["hub", "directory"]
    assert answers[0] == answers[1]
    assert tokens(hub) == {"127.0.0.1": {None}}


@pytest.mark.usefixtures("repo")
def test_a_process_that_is_refused(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process: what the Hub refuses is one line, and no traceback."""
    monkeypatch.setenv("HF_TOKEN", "hf_wrongButStillSecret")
    done = subprocess.run(COMMAND, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"glm5inspect: owner/name: the token was refused (401)")
    assert done.stderr.count(b"\n") == 1
    assert b"hf_wrong" not in done.stderr
    assert tokens(hub) == {"127.0.0.1": {"hf_wrongButStillSecret"}}


def test_a_process_and_a_shard_that_cannot_be_had(hub: LoopbackHub, repo: Repo) -> None:
    """As a process: a shard that the server refuses is named in the report, and nothing is on standard error."""
    repo.closed = None
    hub.faults = [Fault(416, SECOND)]
    done = subprocess.run([*COMMAND, "-f", "json"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["code"], finding["message"].partition(":")[0]) == ("header-unreadable", SECOND)


INTERRUPTED = {
    "listing": (Fault("stall", API), []),
    "small file": (Fault("stall", "config.json", method="HEAD"), []),
    "shard": (Fault("stall", LAST), [LAST]),
    "pause": (Fault(429, LAST, headers={"Retry-After": "100"}), [LAST]),
}
"""What a run waits for, for far longer than the test does, and the shards that are left for the next run."""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("fault", "left"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt(hub: LoopbackHub, repo: Repo, fault: Fault, left: list[str]) -> None:
    """Ctrl-C while the Hub is silent ends the run, quietly; what is cached by then is good."""
    repo.closed = None
    hub.faults = [Fault(fault.mode, fault.match, headers=fault.headers, method=fault.method)]
    process = subprocess.Popen(
        [*COMMAND, "--jobs", "1", "--timeout", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert hub.struck.wait(60)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=8)
    assert (process.returncode, stdout, stderr) == (130, b"", b"")
    hub.faults, hub.asked = [], []
    assert census()[0] == 0
    assert hub.shards_asked() == (left or [path.name for path in sorted(repo.folder.glob("*.safetensors"))])
