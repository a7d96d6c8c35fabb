# SPDX-License-Identifier: AGPL-3.0-only
"""Offline, what is cached is read, what is missing is named, and nothing is asked of anybody."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import shard_name, tiny, write_checkpoint, write_shard
from loopback_hub import LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app

COMMIT = "c0ffee" + "0" * 34
LATER = "decade" + "0" * 34
INDEX = "model.safetensors.index.json"
SHARDS = [shard_name(number, 3) for number in (1, 2, 3)]
SMALL = ("config.json", INDEX)
SEEN = f"glm5inspect: offline: main of owner/name was last seen at {COMMIT}\n"


@pytest.fixture
def repo(hub: LoopbackHub, checkpoint: Path) -> Repo:
    """The tiny checkpoint of three shards, as `owner/name`."""
    return hub.repos.setdefault("owner/name", Repo(checkpoint))


def census(*arguments: str | Path) -> tuple[int, str, str]:
    """Take a census; return the exit code and what was written to either stream."""
    result = CliRunner().invoke(app, ["census", *map(str, arguments), "-f", "json"])
    return result.exit_code, result.stdout, result.stderr


def facts(stdout: str) -> dict[str, object]:
    """Return a report without its source."""
    report: dict[str, object] = json.loads(stdout)
    report.pop("source")
    return report


def download(*names: str, revision: str = "main") -> Path:
    """Put files of the repository into the cache of `huggingface_hub`, and return the folder of the commit."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    paths = [Path(hf_hub_download("owner/name", name, revision=revision)) for name in names]
    return paths[0].parents[names[0].count("/")]


@pytest.mark.parametrize("source", ["owner/name", f"owner/name@{COMMIT}"], ids=["branch", "commit"])
def test_after_a_run(hub: LoopbackHub, repo: Repo, source: str) -> None:
    """After one run everything that it needed is cached; a branch is where it was, which a note says."""
    code, online, _ = census(source)
    assert code == 0
    hub.asked.clear()
    assert census(source, "--offline") == (0, online, "" if COMMIT in source else SEEN)
    assert census(source, "--offline", "--revision", COMMIT)[0] == 0
    assert hub.asked == []
    repo.commit = LATER
    assert census(source, "--offline")[1] == online


@pytest.mark.parametrize("variable", ["1", "true", "ON"])
def test_variable(hub: LoopbackHub, repo: Repo, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """HF_HUB_OFFLINE says the same as --offline."""
    assert repo.commit == COMMIT
    online = census("owner/name")[1]
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", variable)
    command = [sys.executable, "-m", "glm5inspect", "census", "owner/name", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, online, SEEN)
    assert hub.asked == []


@pytest.mark.parametrize("how", ["--offline", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    "source", ["owner/name", f"owner/name@{COMMIT}", "owner/name@v1"], ids=["main", "commit", "tag"]
)
def test_nothing_cached(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, source: str, how: str) -> None:
    """With nothing cached one line says that, and what to do."""
    command = [sys.executable, "-m", "glm5inspect", "census", source]
    if how == "--offline":
        command.append(how)
    else:
        monkeypatch.setenv(how, "1")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith("glm5inspect: owner/name")
    assert "offline" in done.stderr
    assert "once online" in done.stderr
    assert hub.asked == []


def missing(stdout: str) -> list[str]:
    """Return the shards that a report could not read, all of them because they are not cached."""
    report = json.loads(stdout)
    assert report["complete"] is False
    assert {finding["code"] for finding in report["findings"] if finding["severity"] == "error"} == {
        "header-unreadable"
    }
    assert all("not in the cache, and offline" in finding["message"] for finding in report["findings"])
    return [finding["shard"] for finding in report["findings"]]


@pytest.mark.parametrize("listed", [True, False], ids=["known listing", "no listing"])
@pytest.mark.parametrize("there", [[], [1], [0, 2], [0, 1, 2]], ids=str)
def test_part_of_the_library_cache(
    hub: LoopbackHub,
    repo: Repo,
    tmp_path: Path,
    there: list[int],
    listed: bool,  # noqa: FBT001
) -> None:
    """Shards that nobody cached are named, whether or not a listing tells of them; those that are cached are read."""
    assert repo.commit == COMMIT
    online = census("owner/name", "--no-cache")[1]
    download(*SMALL, *(SHARDS[number] for number in there))
    if listed:
        census("owner/name")
        shutil.rmtree(tmp_path / "headers" / "headers", ignore_errors=True)
    hub.asked.clear()
    code, stdout, notes = census("owner/name", "--offline")
    assert (notes, hub.asked) == (SEEN, [])
    if len(there) == 3:
        assert (code, stdout) == (0, online)
    else:
        assert code == 3
        assert missing(stdout) == [name for number, name in enumerate(SHARDS) if number not in there]


def test_part_of_both_caches(hub: LoopbackHub, repo: Repo) -> None:
    """A header of ours and a shard of the library's make up for each other."""
    assert repo.commit == COMMIT
    assert census("owner/name")[0] == 0
    download(SHARDS[0]).joinpath(SHARDS[0]).resolve().unlink()
    hub.asked.clear()
    assert census("owner/name", "--offline")[0] == 0
    assert census("owner/name", "--offline", "--no-cache")[0] == 3
    assert hub.asked == []


@pytest.mark.parametrize("command", ["verify-dsa", "find-mtp", "show", "record"])
def test_other_commands(hub: LoopbackHub, repo: Repo, tmp_path: Path, command: str) -> None:
    """Every command works offline on what another one cached."""
    assert repo.commit == COMMIT
    assert census("owner/name")[0] == 0
    hub.asked.clear()
    more = ["-o", str(tmp_path / "snapshot.json")] if command == "record" else []
    result = CliRunner().invoke(app, [command, "owner/name", "--offline", *more])
    assert (result.exit_code, result.stderr, hub.asked) == (0, SEEN, [])


@pytest.mark.parametrize("option", [[], ["--no-cache"]], ids=["cache", "--no-cache"])
@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/3", COMMIT])
def test_only_the_library_cache(hub: LoopbackHub, repo: Repo, revision: str, option: list[str]) -> None:
    """A repository that was downloaded is read although this tool never saw it; the library knows its branches."""
    repo.branches = ("main", "v1", "refs/pr/3")
    online = census("owner/name", "--no-cache", "--revision", revision)[1]
    download(*SMALL, *SHARDS, revision=revision)
    hub.asked.clear()
    code, stdout, notes = census("owner/name", "--offline", *option, "--revision", revision)
    assert (code, stdout) == (0, online)
    assert notes == ("" if revision == COMMIT else SEEN.replace("main", revision))
    assert census("owner/name", "--offline", *option, "--revision", "other")[0] == 3
    assert hub.asked == []


SHAPES: dict[str, list[str]] = {
    "one file": ["model.safetensors"],
    "one file and config": ["config.json", "model.safetensors"],
    "no index": ["config.json", *SHARDS],
    "no config": [INDEX, *SHARDS],
    "shards only": [*SHARDS],
    "other index": ["config.json", "other.safetensors.index.json", *SHARDS],
    "a file more": [*SMALL, *SHARDS, "README.md"],
}


@pytest.mark.parametrize("names", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("below", ["", "a/weights"], ids=["root", "subfolder"])
def test_shapes_of_the_library_cache(hub: LoopbackHub, repo: Repo, names: list[str], below: str) -> None:
    """Whatever files were downloaded, a repository that they make whole is read as online, also below its root."""
    shutil.copy(repo.folder / INDEX, repo.folder / "other.safetensors.index.json")
    write_shard(repo.folder / "model.safetensors", tiny())
    (repo.folder / "README.md").write_text("read me")
    root = repo.folder.parent / "root"
    (root / below).mkdir(parents=True)
    for name in names:
        shutil.copy(repo.folder / name, root / below / name)
    hub.repos["owner/name"] = Repo(root)
    options = ["--subfolder", below] if below else []
    code, online, _ = census("owner/name", *options, "--no-cache")
    assert code == 0
    shutil.rmtree(root.parent / "hf", ignore_errors=True)
    download(*[f"{below}/{name}".lstrip("/") for name in names])
    hub.asked.clear()
    assert census("owner/name", *options, "--offline") == (0, online, SEEN)
    assert hub.asked == []


def test_many_shards_missing(hub: LoopbackHub, tmp_path: Path) -> None:
    """However many shards are missing, those that are cached are read."""
    hub.repos["owner/name"] = Repo(write_checkpoint(tmp_path / "x", tiny(), shards=24))
    names = [shard_name(number, 24) for number in range(1, 25)]
    download(*SMALL, *names[-2:])
    hub.asked.clear()
    code, stdout, _ = census("owner/name", "--offline", "--jobs", "1")
    assert (code, missing(stdout), hub.asked) == (3, names[:-2], [])


@pytest.mark.parametrize("name", [INDEX, "other.safetensors.index.json"])
def test_a_shard_that_only_the_index_knows(hub: LoopbackHub, repo: Repo, name: str) -> None:
    """Without a listing the index tells what is missing, whatever its name: not cached, rather than not there."""
    (repo.folder / INDEX).rename(repo.folder / name)
    download("config.json", name, SHARDS[0], SHARDS[2])
    hub.asked.clear()
    code, stdout, _ = census("owner/name", "--offline")
    assert (code, missing(stdout), hub.asked) == (3, [SHARDS[1]], [])


DAMAGES = [
    pytest.param(name, damage, listed, id=f"{name}-{damage}-{'listed' if listed else 'not listed'}")
    for name in (*SMALL, SHARDS[1])
    for damage in ("dangling", "cut off", "incomplete")
    for listed in (True, False)
    if listed or damage != "incomplete" or name == SHARDS[1]  # of others nobody could know
]


@pytest.mark.parametrize(("name", "damage", "listed"), DAMAGES)
def test_damage_is_not_taken_for_the_file(
    hub: LoopbackHub,
    repo: Repo,
    tmp_path: Path,
    name: str,
    damage: str,
    listed: bool,  # noqa: FBT001
) -> None:
    """Offline, a file that is not whole is an error of one line, or a shard that is named; never a good answer."""
    folder = download(*SMALL, *SHARDS)
    if listed:
        assert census("owner/name")[0] == 0
        shutil.rmtree(tmp_path / "headers" / "headers", ignore_errors=True)
    path = folder / name
    blob = path.resolve()
    if damage == "cut off":
        blob.write_bytes(blob.read_bytes()[: blob.stat().st_size // 2])
    elif damage == "incomplete":
        path.unlink()
        blob.rename(f"{blob}.incomplete")
    else:
        blob.unlink()
    hub.asked.clear()
    code, stdout, stderr = census("owner/name", "--offline")
    assert (code != 0, hub.asked) == (True, [])
    if stdout:
        assert any(finding["shard"] == name for finding in json.loads(stdout)["findings"])
    else:
        assert (code, stderr.removeprefix(SEEN).count("\n")) == (3, 1)
    assert repo.commit == COMMIT


def test_two_commits_are_kept_apart(hub: LoopbackHub, repo: Repo) -> None:
    """An old commit that was downloaded does not stand for the one that a branch is at now."""
    download(*SMALL, *SHARDS)
    repo.commit = LATER
    write_shard(repo.folder / SHARDS[1], {})
    assert census("owner/name")[0] == 1
    hub.asked.clear()
    assert census("owner/name", "--offline", "--revision", COMMIT)[0] == 0
    assert census("owner/name", "--offline", "--revision", LATER)[0] == 1
    assert hub.asked == []


def test_a_commit_that_is_not_cached(hub: LoopbackHub, repo: Repo) -> None:
    """A commit that nobody cached is named, whatever others are."""
    assert census("owner/name")[0] == 0
    hub.asked.clear()
    code, stdout, stderr = census("owner/name", "--offline", "--revision", LATER)
    assert (code, stdout) == (3, "")
    assert stderr.startswith(f"glm5inspect: owner/name@{LATER}: not in the cache, and offline")
    assert (repo.commit, hub.asked) == (COMMIT, [])
