# SPDX-License-Identifier: AGPL-3.0-only
"""What is cached is not fetched again: by the tool for itself, and by `huggingface_hub` for everybody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import BROKEN, Kind, shard_name, tiny, write_checkpoint, write_shard
from loopback_hub import Fault, LoopbackHub, Repo, is_lfs
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.sources.header_cache import HeaderCache

SHARDS = [shard_name(number, 3) for number in (1, 2, 3)]
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def repo(hub: LoopbackHub, checkpoint: Path) -> Repo:
    """The tiny checkpoint of three shards, as `owner/name`."""
    return hub.repos.setdefault("owner/name", Repo(checkpoint))


def run(*arguments: str | Path) -> tuple[int, object, str]:
    """Run a census of the repository; return the exit code, the report without its source, and the notes."""
    result = CliRunner().invoke(app, ["census", "owner/name", *map(str, arguments), "-f", "json"])
    report = json.loads(result.stdout)
    report.pop("source")
    return result.exit_code, report, result.stderr


def fetched(hub: LoopbackHub, *arguments: str | Path) -> tuple[int, list[str]]:
    """Run a census that succeeds in silence; return the number of requests, and the shards among them."""
    hub.asked.clear()
    code, _, notes = run(*arguments)
    assert (code, notes) == (0, "")
    return len(hub.requests()), hub.shards_asked()


def download(*names: str) -> list[Path]:
    """Put files of the repository into the cache of `huggingface_hub`, as its users do."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    return [Path(hf_hub_download("owner/name", name, revision="main")) for name in names]


def download_all() -> Path:
    """Put the whole repository into the cache of `huggingface_hub`, and return its folder."""
    return download("config.json", "model.safetensors.index.json", *SHARDS)[0].parent


@pytest.mark.usefixtures("repo")
def test_no_cache(hub: LoopbackHub, tmp_path: Path) -> None:
    """With --no-cache headers are fetched again and none is kept; the small files lie in the library's cache."""
    assert fetched(hub, "--no-cache") == (8, SHARDS)
    assert fetched(hub, "--no-cache") == (4, SHARDS)
    assert not (tmp_path / "headers").exists()
    assert fetched(hub) == (4, SHARDS)
    assert fetched(hub, "--no-cache", "--revision", COMMIT) == (4, SHARDS)
    assert fetched(hub) == (1, [])


@pytest.mark.usefixtures("repo")
def test_where_the_cache_is(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, the tool's variable and the desktop's each name a folder; each folder is a cache of its own."""
    assert fetched(hub, "--cache-dir", tmp_path / "a" / "b") == (8, SHARDS)
    assert fetched(hub) == (4, SHARDS)
    assert fetched(hub, "--cache-dir", tmp_path / "headers") == (1, [])
    monkeypatch.delenv("GLM5INSPECT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetched(hub) == (4, SHARDS)
    monkeypatch.setenv("GLM5INSPECT_CACHE", str(tmp_path / "a" / "b"))
    assert fetched(hub) == (1, [])
    for folder in ("a/b", "headers", "xdg/glm5inspect"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ["headers", "listings", "revisions"]


def test_a_header_is_known_by_its_blob(hub: LoopbackHub, repo: Repo) -> None:
    """The same shard in another repository, or under another name and commit, is not fetched again."""
    assert fetched(hub) == (8, SHARDS)
    other = shutil.copytree(repo.folder, repo.folder.parent / "other")
    write_shard(other / SHARDS[1], {"x": Kind("U8", (1,))})
    hub.repos["owner/name"] = Repo(other, "decade" + "0" * 34)
    hub.asked.clear()
    assert run()[0] == 1
    assert hub.shards_asked() == [SHARDS[1]]


def entries(folder: Path) -> list[Path]:
    """Return the files of a cache, the largest last."""
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "foreign", "empty", "of another"])
def test_damaged_entries(hub: LoopbackHub, repo: Repo, tmp_path: Path, damage: str) -> None:
    """Entries that are damaged or foreign are fetched anew, silently, and are then right again."""
    sound = run()
    files = entries(tmp_path / "headers")
    assert len(files) == 3 + 1 + 1
    first = files[0].read_bytes()
    for path in files:
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(
            {
                "flipped": content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :],
                "cut off": content[:middle],
                "foreign": BROKEN,
                "empty": b"",
                "of another": first,
            }[damage]
        )
    hub.asked.clear()
    assert run("--revision", repo.commit) == sound
    assert (len(hub.requests()), hub.shards_asked()) == (4, SHARDS)
    assert fetched(hub, "--revision", COMMIT) == (0, [])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"no JSON", b'["c0ffee", {"x": [1]}]', b"\xff", b'["c0ffee", {"x": null}]']
)
def test_a_listing_of_another_version(hub: LoopbackHub, repo: Repo, tmp_path: Path, content: bytes) -> None:
    """A whole entry that is no listing, as another version may write one, is fetched anew."""
    assert fetched(hub) == (8, SHARDS)
    HeaderCache(tmp_path / "headers").put(content, "listings", hub.endpoint, "owner/name", repo.commit)
    assert fetched(hub, "--revision", COMMIT) == (1, [])
    assert fetched(hub, "--revision", COMMIT) == (0, [])


def test_library_cache_comes_first(hub: LoopbackHub, repo: Repo) -> None:
    """Of a repository that was downloaded no file is asked for; the report is the same."""
    fresh = run("--no-cache")
    folder = download_all()
    assert folder.name == repo.commit
    assert fetched(hub) == (1, [])
    assert run() == fresh


@pytest.mark.usefixtures("repo")
def test_what_the_library_has_is_not_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    """Of a repository that was downloaded in part, the other part is fetched."""
    download(SHARDS[0], SHARDS[2], "config.json")
    assert fetched(hub) == (1 + 2 + 1, [SHARDS[1]])
    assert len(entries(tmp_path / "headers" / "headers")) == 1


def test_the_library_gets_the_small_files(hub: LoopbackHub, repo: Repo) -> None:
    """Index and configuration are left in the library's cache, where others find them; no shard is."""
    assert run()[0] == 0
    hub.asked.clear()
    config, index = download("config.json", "model.safetensors.index.json")
    assert [asked.method for asked in hub.requests()] == ["HEAD", "HEAD"]
    assert config.read_bytes() == (repo.folder / "config.json").read_bytes()
    assert sorted(path.name for path in index.parent.iterdir()) == ["config.json", "model.safetensors.index.json"]


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize("damage", ["dangling", "shorter", "longer", "empty", "gone", "incomplete", "closed"])
@pytest.mark.parametrize("name", [SHARDS[1], "config.json", "model.safetensors.index.json"])
def test_damage_in_the_library_cache(hub: LoopbackHub, damage: str, name: str) -> None:
    """A file that is not whole in the library's cache is fetched, and only that."""
    sound = run("--no-cache")
    path = download_all() / name
    blob = path.resolve()
    content = blob.read_bytes()
    if damage == "incomplete":
        path.unlink()
        blob.rename(f"{blob}.incomplete")
    elif damage == "gone":
        path.unlink()
    elif damage == "dangling":
        blob.unlink()
    elif damage == "closed":
        blob.unlink()
        blob.symlink_to(blob.name)
    else:
        blob.write_bytes({"shorter": content[:-1], "longer": content + b" ", "empty": b""}[damage])
    hub.asked.clear()
    assert run() == sound
    assert {asked.path.rpartition("/")[2] for asked in hub.requests("/resolve/")} <= {name}
    assert bool(hub.shards_asked()) == is_lfs(name)


def test_a_disk_that_fails(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is there and cannot be read is named, with what the system says of it."""

    def fail(*_: object) -> bytes:
        raise OSError(5, os.strerror(5))

    assert download_all().name == repo.commit
    monkeypatch.setattr(os, "pread", fail)
    code, report, _ = run()
    assert code == 3
    assert json.dumps(report).count("Input/output error") == 3


def test_changed_small_file_in_the_library_cache(hub: LoopbackHub, repo: Repo) -> None:
    """A small file of the right size whose content is another one's is fetched anew: its checksum is known."""
    blob = (download_all() / "config.json").resolve()
    content = blob.read_bytes()
    blob.write_bytes(content.replace(b'"kv_lora_rank": 16', b'"kv_lora_rank": 61'))
    assert blob.read_bytes() != content
    assert CliRunner().invoke(app, ["verify-dsa", "owner/name"]).exit_code == 0
    assert blob.read_bytes() == content == (repo.folder / "config.json").read_bytes()
    assert fetched(hub) == (1, [])


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize("place", ["file", "file/cache", "x" * 300])
def test_cache_that_cannot_be_written(hub: LoopbackHub, tmp_path: Path, place: str) -> None:
    """Without a place for headers the answer is the same, with one note on standard error."""
    sound = run("--no-cache")
    (tmp_path / "file").write_text("a file")
    hub.asked.clear()
    code, report, notes = run("--cache-dir", tmp_path / place)
    assert (code, report) == sound[:2]
    assert notes.count("\n") == 1
    assert "the header cache cannot be written" in notes
    assert hub.shards_asked() == SHARDS


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize("place", ["file", "file/cache"])
def test_library_cache_that_cannot_be_written(
    hub: LoopbackHub, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for the library's files the answer is the same, with one note on standard error."""
    from huggingface_hub import constants  # noqa: PLC0415

    sound = run()
    (tmp_path / "file").write_text("a file")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / place))
    code, report, notes = run()
    assert (code, report) == sound[:2]
    assert notes.count("\n") == 1
    assert "HF_HUB_CACHE" in notes
    assert len(hub.requests()) < 20


@pytest.mark.usefixtures("repo")
def test_a_second_run_resumes(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers fetched before something failed stay; the next run fetches the rest."""
    monkeypatch.setattr("glm5inspect.sources.hub_client._FIRST_PAUSE", 0.0)
    hub.faults = [Fault(503, SHARDS[1])]
    assert run()[0] == 3
    hub.faults = []
    assert fetched(hub) == (2, [SHARDS[1]])


def test_two_processes_at_once(hub: LoopbackHub, tmp_path: Path) -> None:
    """Two runs that begin with the same empty caches both answer right, and leave one whole cache."""
    folder = write_checkpoint(tmp_path / "x", tiny(), shards=12)
    hub.repos["owner/name"] = Repo(folder)
    command = [sys.executable, "-m", "glm5inspect", "census", "owner/name", "-f", "json"]
    pipes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    ends = [process.communicate(timeout=60) for process in pipes]
    assert [process.returncode for process in pipes] == [0, 0]
    assert [errors for _, errors in ends] == [b"", b""]
    assert ends[0][0] == ends[1][0]
    assert fetched(hub, "--revision", COMMIT) == (0, [])
    assert not [path for path in (tmp_path / "headers").rglob(".*") if path.is_file()]


@pytest.mark.usefixtures("repo")
def test_a_cache_is_not_for_others(tmp_path: Path) -> None:
    """What is kept of a repository that may be private is for its user alone."""
    assert run()[0] == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in entries(tmp_path / "headers") if os.name == "posix")
