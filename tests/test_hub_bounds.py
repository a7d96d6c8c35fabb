# SPDX-License-Identifier: AGPL-3.0-only
"""What a server, a cache or the environment may do is bounded, and is told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
from checkpoints import tiny, write_checkpoint
from loopback_hub import Fault, LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.sources import hub as hub_source
from glm5inspect.sources import hub_client

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repo(hub: LoopbackHub, tmp_path: Path) -> Repo:
    """A repository on the tests' Hub."""
    hub.repos["owner/name"] = Repo(write_checkpoint(tmp_path / "checkpoint", tiny()))
    return hub.repos["owner/name"]


def refused(*arguments: str) -> str:
    """Return the one line with which a census of the repository is refused."""
    result = CliRunner().invoke(app, ["census", "owner/name", *arguments])
    assert (result.exit_code, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    return line.removeprefix("glm5inspect: ")


@pytest.mark.usefixtures("repo")
def test_an_answer_without_end(hub: LoopbackHub) -> None:
    """An answer of the API is read as far as any listing goes."""
    hub.faults = [Fault("endless", "/api/models/")]
    assert refused().startswith("owner/name: answered more than 67,108,864 bytes")


@pytest.mark.usefixtures("repo")
def test_a_small_file_without_end(hub: LoopbackHub) -> None:
    """A download stops at the size that was listed."""
    hub.faults = [Fault("endless", "config.json", method="GET")]
    assert "config.json: is longer than the" in refused()


@pytest.mark.usefixtures("repo")
def test_a_small_file_that_takes_too_long(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the library tries again, a small file is waited for only so long."""
    monkeypatch.setattr(hub_source, "_LEAST_PATIENCE", 0.2)
    monkeypatch.setattr(hub_source, "_SLOWEST", 1 << 30)
    hub.faults = [Fault("stall", "config.json", method="")]
    assert refused("--timeout", "0.1") == "config.json: did not come within 1 s; try again"


@pytest.mark.parametrize(
    "content",
    [
        b'["x", {"model.safetensors": ["a", "b", 3]}]',
        b'["COMMIT", {"model.safetensors": ["a", "b", 3]}]',
        b'["COMMIT", {"../x": [3, "b", true]}]',
        b"[" * 100_000,
        b"{}",
        b"",
    ],
    ids=["other commit", "wrong types", "leads out", "nested", "other form", "empty"],
)
def test_a_sound_entry_that_is_no_listing(hub: LoopbackHub, repo: Repo, tmp_path: Path, content: bytes) -> None:
    """A listing in the cache is believed only as far as it makes sense."""
    source = f"owner/name@{repo.commit}"
    assert CliRunner().invoke(app, ["census", source]).exit_code == 0
    (entry,) = (tmp_path / "headers" / "listings").rglob("*/*")
    start = entry.read_bytes()[: len(b"glm5inspect\x001\n") + 32]
    entry.write_bytes(start + zlib.compress(content.replace(b"COMMIT", repo.commit.encode())))
    hub.asked = []
    assert CliRunner().invoke(app, ["census", source]).exit_code == 0
    assert [asked.path for asked in hub.requests("/api/models/")] == [f"/api/models/owner/name/revision/{repo.commit}"]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run a census of the repository in a process of its own."""
    command = [sys.executable, "-m", "glm5inspect", "census", "owner/name", "--format", "json"]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HF_HUB_ETAG_TIMEOUT": "soon"}, "huggingface_hub cannot be used"),
        ({"HF_ENDPOINT": ""}, "HF_ENDPOINT is ''"),
        ({"HF_ENDPOINT": "http://127.0.0.1:99999"}, "check"),
        ({"HF_TOKEN": "hf_\u00e9"}, "the token of HF_TOKEN or hf auth login has characters that no token has"),
        ({"HF_TOKEN_PATH": "/"}, "the token cannot be read"),
        ({"ALL_PROXY": "junk://x"}, "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"),
    ],
    ids=["timeout", "no endpoint", "port", "token", "token file", "proxy"],
)
def test_an_environment_that_cannot_work(environment: dict[str, str], said: str) -> None:
    """What is wrong with a variable is one line on standard error, and nothing on standard output."""
    done = run(**environment)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)
    assert said in done.stderr


def test_a_secret_in_an_address(hub: LoopbackHub, repo: Repo) -> None:
    """What somebody pasted with a token in it is not shown again."""
    assert repo.branches == ("main",)
    for source in (f"{hub.endpoint}/owner/name?token=hf_secret", f"{hub.endpoint}/owner/name#hf_secret"):
        result = CliRunner().invoke(app, ["census", source, "--format", "json"])
        assert json.loads(result.stdout)["source"]["name"] == f"{hub.endpoint}/owner/name"
    result = CliRunner().invoke(app, ["census", "https://me:hf_secret@huggingface.co/owner/name"])
    assert (result.exit_code, "secret" in result.output) == (3, False)


def test_many_branches(hub: LoopbackHub, repo: Repo) -> None:
    """Some of the branches are named, not all of thousands."""
    repo.branches = tuple(f"branch-{number}" for number in range(5000))
    assert hub.repos["owner/name"] is repo
    assert refused().endswith("branch-19 and 4,980 more")


@pytest.mark.usefixtures("repo")
def test_shards_with_one_fault_are_one_line(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that cannot be had for one reason fold."""
    monkeypatch.setattr(hub_client, "_FIRST_PAUSE", 0.0)
    hub.faults = [Fault(403, "/model-000")]
    result = CliRunner().invoke(app, ["census", "owner/name", "--quiet"])
    found = [line for line in result.stdout.splitlines() if line.startswith("error header-unreadable")]
    assert found == [
        "error header-unreadable: 3 shards: access is forbidden (403); check the rights of the token, or log in"
    ]


@pytest.mark.parametrize(
    "arguments",
    [["census", "owner/name", "--timeout", "nan"], ["show", "owner/name", ""]],
    ids=["timeout", "glob"],
)
def test_wrong_usage(arguments: list[str]) -> None:
    """What an unset variable or a slip leaves is wrong usage."""
    assert CliRunner().invoke(app, arguments).exit_code == 2
