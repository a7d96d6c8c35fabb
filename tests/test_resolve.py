# SPDX-License-Identifier: AGPL-3.0-only
"""What a SOURCE argument means, and what is said of one that means nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from checkpoints import tiny, write_checkpoint, write_shard

from glm5inspect.errors import SnapshotError, SourceError
from glm5inspect.resolve import open_source

INDEX = "model.safetensors.index.json"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, which is also the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "tensors"),
    [
        ("checkpoint", "directory", 271),
        ("./checkpoint/", "directory", 271),
        ("~/checkpoint", "directory", 271),
        (f"checkpoint/{INDEX}", "directory", 271),
        ("checkpoint/model-00001-of-00003.safetensors", "file", 37),
        ("snapshot:official-fp8", "snapshot", 76_108),
    ],
)
def test_forms(here: Path, text: str, kind: str, tensors: int) -> None:
    """A folder, an index, a shard and a bundled snapshot are sources; the report keeps what was typed."""
    write_checkpoint(here / "checkpoint", tiny())
    source = open_source(text)
    assert (source.info.kind, source.info.name) == (kind, text)
    assert len(source.inventory().tensors) == tensors


def test_absolute_path(checkpoint: Path) -> None:
    """A path from the root works from anywhere, and is what the source is resolved to."""
    info = open_source(str(checkpoint)).info
    assert (info.kind, info.resolved.rstrip("/")) == ("directory", str(checkpoint))


def test_snapshot_file(here: Path) -> None:
    """A snapshot file says which repository and commit it records."""
    bundled = Path(__file__).parents[1] / "snapshots" / "reference.json"
    (here / "mine.json").write_bytes(bundled.read_bytes())
    info = open_source("mine.json").info
    assert (info.kind, info.name, info.repo) == ("snapshot", "mine.json", "LibertAIDAI/GLM-5.3-Flash-NVFP4")
    assert (info.revision, info.commit) == (None, "9e0d74e3cef17f634e84fb8e2223707e02616290")


def test_given_index_is_used(here: Path) -> None:
    """An index given as SOURCE counts, whatever others lie beside it."""
    write_checkpoint(here, tiny())
    (here / INDEX).rename(here / "other.safetensors.index.json")
    (here / INDEX).write_text("no index at all")
    assert len(open_source("other.safetensors.index.json").inventory().tensors) == 271


@pytest.mark.parametrize("text", ["owner/name", "owner/name@main", "snapshot:reference"])
def test_an_existing_path_wins(here: Path, text: str) -> None:
    """A local folder of that name is meant before a repository or a bundled snapshot."""
    write_checkpoint(here / text, tiny())
    info = open_source(text).info
    assert (info.kind, info.name) == ("directory", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "SOURCE is empty"),
        (" \t\n", "SOURCE is empty"),
        ("nothing", "no such file or folder"),
        ("./owner/name", "no such file or folder"),
        ("../owner/name", "no such file or folder"),
        ("/owner/name", "no such file or folder"),
        ("~/owner/name", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("model.safetensors", "no such file or folder"),
        ("folder/model.safetensors", "no such file or folder"),
        ("folder/model.safetensors.index.json", "no such file or folder"),
        ("~nobody-of-that-name/x", "not a path"),
        ("nul\0byte", "no such file or folder|not a path"),
        ("long" * 5000, "File name too long|no such file or folder"),
        ("snapshot:refrence", r"did you mean snapshot:reference\?"),
        ("snapshot:Official-FP8", r"did you mean snapshot:official-fp8\?"),
        ("snapshot:qqq", "there are exl3-4bpw, glm-5.3-not-flash, libertai-w4a4, .*, w4a16-packed"),
        ("snapshot:", "there are exl3-4bpw"),
        ("snapshot:../snapshots/reference", "no such bundled snapshot"),
    ],
)
def test_nothing_there(here: Path, text: str, said: str) -> None:  # noqa: ARG001 - the working folder is empty
    """What cannot be found is an error in words, never a request to the Hub for a path."""
    with pytest.raises(SourceError, match=said):
        open_source(text)


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_broken_link(here: Path, target: str) -> None:
    """A link to nothing, or to itself, is named as one."""
    (here / "link").symlink_to(target)
    with pytest.raises(SourceError, match="link: a link that leads nowhere"):
        open_source("link")


def test_links_are_followed(here: Path) -> None:
    """A link to a checkpoint is the checkpoint."""
    write_checkpoint(here / "real", tiny())
    (here / "link").symlink_to("real")
    assert len(open_source("link").inventory().tensors) == 271


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.gguf", b"GGUF\x03\0\0\0", "a GGUF file"),
        ("model", b"GGUF\x03\0\0\0", "a GGUF file"),
        ("pytorch_model.bin", b"PK\x03\x04rest", "a ZIP archive"),
        ("old.pt", b"\x80\x02}q", "a Python pickle"),
        ("mine.json", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("old.pth", b"none of these", r"a file of another kind \(PyTorch \.pth\)"),
        ("weights", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("page.html", b"<!DOCTYPE html><html>", "an HTML page"),
        ("x.safetensors.incomplete", b"\x10\0", "unfinished download"),
        ("notes.txt", b"hello", "not a checkpoint"),
        ("empty", b"", "not a checkpoint"),
        ("adapter_model.safetensors", b"", "an adapter"),
    ],
)
def test_other_files(here: Path, name: str, content: bytes, said: str) -> None:
    """A file of another kind is named for what it is."""
    (here / name).write_bytes(content)
    with pytest.raises(SourceError, match=said):
        open_source(name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps({"model_type": "glm5_next"}), "config.json: not a snapshot; give the folder of a checkpoint"),
        ("[1]", "not a JSON object"),
        ("", "not a snapshot"),
    ],
)
def test_other_json(here: Path, content: str, said: str) -> None:
    """A JSON file that is no snapshot is refused as one."""
    (here / "config.json").write_text(content)
    with pytest.raises(SnapshotError, match=said):
        open_source("config.json")


@pytest.mark.parametrize("name", ["pipe", "pipe.json"])
def test_not_a_file(here: Path, name: str) -> None:
    """A pipe is not waited for."""
    os.mkfifo(here / name)
    with pytest.raises(SourceError, match="neither a folder nor a regular file"):
        open_source(name)


def test_unreadable_file() -> None:
    """A regular file that cannot be read, by root neither, says so."""
    with pytest.raises(SourceError, match="cannot be read: Input/output error"):
        open_source("/proc/self/mem")


@pytest.mark.parametrize("subfolder", ["weights", "weights/", "./weights", "weights/."])
def test_subfolder(here: Path, subfolder: str) -> None:
    """The model may lie below the root of a folder."""
    write_checkpoint(here / "root" / "weights", tiny())
    source = open_source("root", subfolder=subfolder)
    assert len(source.inventory().tensors) == 271
    assert source.info.name == "root"
    assert source.info.resolved.rstrip("/") == str(here / "root" / "weights")


@pytest.mark.parametrize(
    ("text", "subfolder", "said"),
    [
        ("root", "..", "not a path below root"),
        ("root", "../root", "not a path below root"),
        ("root", "weights/../../root", "not a path below root"),
        ("root", "/", "not a path below root"),
        ("root", "gone", "has no folder gone"),
        ("root", "one.safetensors", "has no folder one.safetensors"),
        ("root", "x" * 5000, "has no folder"),
        ("root", "nul\0", "has no folder"),
        ("root/one.safetensors", "weights", "no --subfolder weights in it"),
        ("snapshot:reference", "weights", "has no sub-folders"),
    ],
)
def test_subfolder_refused(here: Path, text: str, subfolder: str, said: str) -> None:
    """A sub-folder is a folder below the one given, and nothing else."""
    write_shard(here / "root" / "one.safetensors", tiny())
    with pytest.raises(SourceError, match=said):
        open_source(text, subfolder=subfolder)


def test_cached_snapshot(here: Path) -> None:
    """A snapshot folder of the Hub's cache tells repository and commit."""
    commit = "0127156789abcdef0127156789abcdef01271567"
    folder = here / "hub" / "models--owner--the-name" / "snapshots" / commit
    write_checkpoint(folder, tiny())
    info = open_source(str(folder)).info
    assert (info.kind, info.repo, info.commit) == ("directory", "owner/the-name", commit)
