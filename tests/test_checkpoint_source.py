# SPDX-License-Identifier: AGPL-3.0-only
"""Folders and files on disk as a checkpoint: what is read, what is refused, and that no data is ever touched."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from checkpoints import (
    TEXT,
    TINY_CONFIG,
    Kind,
    WatchedSource,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_index,
    write_raw,
    write_shard,
)

from glm5inspect.census import take_census
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.errors import ConfigError, IndexFileError, SourceError
from glm5inspect.header import SNIFF_BYTES
from glm5inspect.integrity import integrity
from glm5inspect.resolve import open_source
from glm5inspect.sources.local import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from glm5inspect.inventory import Inventory

COMMIT = "9e0d74e3cef17f634e84fb8e2223707e02616290"
INDEX = "model.safetensors.index.json"
SMALL = {"lm_head.weight": Kind("BF16", (8, 4))}


def inventory(source: Path, subfolder: str | None = None) -> Inventory:
    """Take the inventory of a path."""
    return open_source(str(source), subfolder=subfolder).inventory()


def codes(source: Path) -> list[str]:
    """Return the codes of what is wrong with the files."""
    return sorted(finding.code.value for finding in integrity(inventory(source)))


@contextmanager
def unprivileged() -> Iterator[None]:
    """Act as somebody whom file modes bind, which root is not."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_folder(checkpoint: Path) -> None:
    """A folder with an index is read whole: every shard, every tensor once, index and config."""
    found = inventory(checkpoint)

    assert found.tensors.keys() == tiny().keys()
    assert {name: (t.dtype, t.shape, t.nbytes) for name, t in found.tensors.items()} == {
        name: (kind.dtype, kind.shape, kind.nbytes) for name, kind in tiny().items()
    }
    assert list(found.headers) == [shard_name(n, 3) for n in (1, 2, 3)]
    assert (found.shards, found.complete, found.partial) == (3, True, False)
    assert open_source(str(checkpoint)).config() == TINY_CONFIG
    assert found.index is not None
    assert (found.info.kind, found.info.name, found.info.resolved) == ("directory", str(checkpoint), str(checkpoint))
    assert (found.info.repo, found.info.revision, found.info.commit) == (None, None, None)


def test_folder_without_an_index(checkpoint: Path) -> None:
    """Without an index, all shards of the folder are read; without a config there is none."""
    (checkpoint / INDEX).unlink()
    (checkpoint / "config.json").unlink()
    found = inventory(checkpoint)

    assert found.tensors.keys() == tiny().keys()
    assert (found.index, found.shards) == (None, 3)
    assert open_source(str(checkpoint)).config() is None
    assert codes(checkpoint) == []


def test_relative_path(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is reported as typed, and resolved to an absolute one."""
    monkeypatch.chdir(checkpoint.parent)

    assert open_source("checkpoint").info.name == "checkpoint"
    assert open_source("checkpoint").info.resolved == str(checkpoint)


def test_hidden_files(checkpoint: Path) -> None:
    """Files that loaders' globs pass over, such as those of other systems, are no shards."""
    (checkpoint / f"._{shard_name(1, 3)}").write_bytes(b"\0\5\x16\7")

    assert codes(checkpoint) == []
    assert inventory(checkpoint).shards == 3


def test_shards_in_folders(tmp_path: Path) -> None:
    """Shards that an index names in sub-folders are read, and others beside them are seen."""
    write_shard(tmp_path / "weights" / "x.safetensors", SMALL)
    write_shard(tmp_path / "a" / "b" / "y.safetensors", {"y": Kind("U8", (3,))})
    write_index(tmp_path, {"lm_head.weight": "weights/x.safetensors", "y": "a/b/y.safetensors"}, 67)
    found = inventory(tmp_path)

    assert (list(found.headers), codes(tmp_path)) == (["a/b/y.safetensors", "weights/x.safetensors"], [])

    write_shard(tmp_path / "weights" / "z.safetensors", {"z": Kind("U8", (1,))})

    assert inventory(tmp_path).unlisted == ("weights/z.safetensors",)
    assert codes(tmp_path) == ["index-unlisted-shard"]


def test_subfolder(checkpoint: Path) -> None:
    """A model below the root is read where it is said to be, and its own index counts."""
    assert inventory(checkpoint.parent, "checkpoint").tensors.keys() == tiny().keys()


@pytest.mark.parametrize("below", ["/", "..", "a/../..", "absent", "config.json"])
def test_subfolder_refused(checkpoint: Path, below: str) -> None:
    """A sub-folder that is not there, is no folder or is not below is refused."""
    with pytest.raises(SourceError):
        open_source(str(checkpoint), subfolder=below)


def cache(tmp_path: Path) -> Path:
    """Write a snapshot of the Hub's cache: links into a folder of blobs."""
    blobs = write_checkpoint(tmp_path / "models--LibertAIDAI--GLM-5.3-Flash-NVFP4" / "blobs", tiny())
    snapshot = blobs.parent / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        blob = path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


@pytest.mark.parametrize("typed", ["absolute", "relative", "file", "index"])
def test_hub_cache(tmp_path: Path, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of the Hub's cache is read through its links, and tells its repository and commit."""
    snapshot = cache(tmp_path)
    monkeypatch.chdir(snapshot)
    text = {"absolute": str(snapshot), "relative": ".", "file": shard_name(1, 3), "index": INDEX}[typed]
    source = open_source(text)

    assert (source.info.repo, source.info.commit) == ("LibertAIDAI/GLM-5.3-Flash-NVFP4", COMMIT)
    assert source.inventory().tensors.keys() == tiny().keys() or typed == "file"
    assert source.inventory().complete


def test_hub_cache_incomplete(tmp_path: Path) -> None:
    """A link whose blob was never fetched is a missing shard, named, and the answer is complete."""
    snapshot = cache(tmp_path)
    (snapshot / shard_name(2, 3)).resolve().unlink()
    found = inventory(snapshot)

    assert found.missing == {shard_name(2, 3): "a link to nothing"}
    assert (found.complete, codes(snapshot)) == (True, ["index-missing-shard"])

    (snapshot / INDEX).unlink()

    assert codes(snapshot) == ["header-unreadable"]


def test_hub_cache_root(tmp_path: Path) -> None:
    """The cache's folder of a repository is not a checkpoint; what to give instead is said."""
    with pytest.raises(SourceError, match="one of the folders below its snapshots/"):
        inventory(cache(tmp_path).parent.parent)


def test_no_other_path_is_a_cache(tmp_path: Path) -> None:
    """A folder that only looks a little like a cache tells no repository."""
    folder = write_checkpoint(tmp_path / "models--o--n" / "snapshots" / "main", SMALL)

    assert (open_source(str(folder)).info.repo, open_source(str(folder)).info.commit) == (None, None)


def test_single_file(checkpoint: Path) -> None:
    """One shard alone is read alone, with the config beside it; that it is one of several is said."""
    path = checkpoint / shard_name(2, 3)
    found = inventory(path)

    assert (list(found.headers), found.shards, found.index) == ([path.name], 1, None)
    assert (found.info.kind, found.info.resolved) == ("file", str(path))
    assert open_source(str(path)).config() == TINY_CONFIG
    (finding,) = integrity(found)
    assert (finding.code.value, finding.expected, finding.actual, finding.count) == ("shard-numbering", 3, 1, 2)
    assert finding.message.endswith(": one shard of 3; give the folder that holds them all")


def test_index_file(checkpoint: Path) -> None:
    """An index given as SOURCE is the one used, though the usual one lies beside it."""
    other = checkpoint / "other.safetensors.index.json"
    (checkpoint / INDEX).rename(other)
    write_index(checkpoint, {}, 1)
    found = inventory(other)

    assert found.index is not None
    assert (found.index.name, found.info.kind, found.info.resolved) == (other.name, "directory", str(other))
    assert codes(other) == []
    assert [code for code in codes(checkpoint) if code != "index-total-size"] == ["index-unlisted-shard"] * 3


def test_index_of_another_name(checkpoint: Path) -> None:
    """The only index of a folder is used whatever its name; of several without the usual one, none is guessed."""
    (checkpoint / INDEX).rename(checkpoint / "a.safetensors.index.json")
    found = inventory(checkpoint)

    assert found.index is not None
    assert found.index.name == "a.safetensors.index.json"

    (checkpoint / "b.safetensors.index.json").write_text("{}")
    with pytest.raises(SourceError, match=r"several index files \(a\.safetensors\.index\.json, b"):
        open_source(str(checkpoint))


def fifo(path: Path) -> None:
    """Make a pipe, which blocks whoever opens it for reading."""
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    """Make a socket; its name is bound from its own folder, since it must be short."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (fifo, "a pipe, not a regular file"),
    "socket": (unix_socket, "a socket, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a character device, not a regular file"),
    "folder": (lambda path: path.mkdir(), "a directory, not a regular file"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "a link to nothing"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.mark.parametrize(("make", "fault"), SPECIAL.values(), ids=SPECIAL)
def test_special_file(tmp_path: Path, make: Callable[[Path], object], fault: str) -> None:
    """What is named like a shard but is no regular file is never waited for: the shard is refused, the rest is read."""
    write_shard(tmp_path / "y.safetensors", SMALL)
    make(tmp_path / "x.safetensors")
    found = inventory(tmp_path)

    assert [(e.code.value, e.reason) for e in found.refused.values()] == [("header-unreadable", fault)]
    assert (list(found.tensors), found.complete) == (list(SMALL), False)


def test_pipe_as_source(tmp_path: Path) -> None:
    """A pipe given as SOURCE is not waited for either."""
    os.mkfifo(tmp_path / "x.safetensors")
    os.mkfifo(tmp_path / "x.json")

    assert codes(tmp_path / "x.safetensors") == ["header-unreadable"]
    with pytest.raises(SourceError, match="neither a folder nor a regular file"):
        open_source(str(tmp_path / "x.json"))


CHANGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "became a pipe": (fifo, "header-unreadable", "not a regular file"),
    "became a folder": (lambda path: path.mkdir(), "header-unreadable", "not a regular file"),
    "went away": (lambda _: None, "header-unreadable", "No such file or directory"),
    "was cut inside its header": (
        lambda path: write_raw(path, b"{}", length=90),
        "header-length",
        "ends after 2 of the 90",
    ),
}


@pytest.mark.parametrize(("make", "code", "reason"), CHANGES.values(), ids=CHANGES)
def test_change_since_listing(tmp_path: Path, make: Callable[[Path], object], code: str, reason: str) -> None:
    """A file that changes between being listed and being read is refused, neither waited for nor a crash."""
    path = write_shard(tmp_path / "x.safetensors", SMALL)
    source = open_source(str(tmp_path))
    path.unlink()
    make(path)
    (error,) = source.inventory().refused.values()

    assert (error.code.value, error.shard) == (code, "x.safetensors")
    assert error.reason.startswith(reason)


@pytest.fixture
def locked(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkpoint to be closed in part; go there, since others may not pass through a test's folder."""
    monkeypatch.chdir(checkpoint)
    checkpoint.chmod(0o755)
    (checkpoint / "sub").mkdir()
    yield checkpoint
    for path in (checkpoint, *checkpoint.iterdir()):
        path.chmod(0o755)


def test_unreadable_shard(locked: Path) -> None:
    """A shard that may not be read is refused by itself, and the answer is incomplete."""
    (locked / shard_name(1, 3)).chmod(0)
    with unprivileged():
        found = open_source(".").inventory()

    assert {shard: (e.code.value, e.reason) for shard, e in found.refused.items()} == {
        shard_name(1, 3): ("header-unreadable", "Permission denied")
    }
    assert len(found.headers) == 2


def test_unreadable_folder(locked: Path) -> None:
    """A folder that may not be listed is refused, as SOURCE and as one that the index names."""
    (locked / "sub").chmod(0)
    edit_json(locked / INDEX, lambda index: index["weight_map"].update(x="sub/x.safetensors"))
    with unprivileged():
        for source in ("sub", "."):
            with pytest.raises(SourceError, match="the folder cannot be listed: Permission denied"):
                open_source(source).inventory()


def test_folder_that_may_be_listed_only(locked: Path) -> None:
    """Where names may be seen but no file looked at, each shard is unreadable."""
    (locked / INDEX).unlink()
    (locked / "config.json").unlink()
    write_shard(locked / "sub" / "x.safetensors", SMALL)
    (locked / "sub").chmod(0o644)
    with unprivileged():
        found = open_source("sub").inventory()

    assert [(e.code.value, e.reason) for e in found.refused.values()] == [("header-unreadable", "Permission denied")]


@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_unreadable_side_file(locked: Path, name: str) -> None:
    """An index or a config that may not be read is refused, never taken for absent."""
    (locked / name).chmod(0)
    with unprivileged(), pytest.raises(SourceError, match=f"{name}: Permission denied"):
        take_census(open_source("."))


@pytest.mark.parametrize(("name", "error"), [(INDEX, IndexFileError), ("config.json", ConfigError)])
def test_side_file_that_is_no_file(checkpoint: Path, name: str, error: type[Exception]) -> None:
    """So is one that is a link to nothing or a pipe, or longer than any real one."""
    most = {INDEX: 128 << 20, "config.json": 16 << 20}[name]
    path = checkpoint / name
    for make, reason in ((SPECIAL["link to nothing"][0], "a link to nothing"), (fifo, "a pipe")):
        path.unlink()
        make(path)
        with pytest.raises(error, match=f"{name}: cannot be read: {reason}"):
            take_census(open_source(str(checkpoint)))
    path.unlink()
    with path.open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(error, match="over the limit"):
        take_census(open_source(str(checkpoint)))


def test_longest_config(checkpoint: Path) -> None:
    """A config of exactly 16 MiB is still read, and judged by what it says."""
    with (checkpoint / "config.json").open("wb") as file:
        file.truncate(16 << 20)
    with pytest.raises(ConfigError, match=r"^config\.json: not "):
        open_source(str(checkpoint)).config()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":' * 100_000, '{"a":1}\0'], ids=lambda text: repr(text[:9]))
def test_malformed_config(checkpoint: Path, text: str) -> None:
    """A config that is no JSON object is refused before any header is read."""
    (checkpoint / "config.json").write_text(text)
    watched = WatchedSource(checkpoint)

    with pytest.raises(ConfigError, match=r"^config\.json: (not |holds values nested too deeply)"):
        take_census(Checkpoint(watched))
    assert watched.opened() == []


OTHERS: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "nothing like it"),
    "text": (["README.md"], "nothing like it"),
    "pickles": (["pytorch_model.bin", "b.pt", "c.pth"], "only PyTorch .bin (1), PyTorch .pt (1), PyTorch .pth (1)"),
    "gguf": (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "only GGUF (2)"),
    "unfinished": (["x.safetensors.incomplete"], "only unfinished download (1)"),
    "index": ([INDEX], "only shard index (1)"),
    "hidden": ([".x.safetensors"], "nothing like it"),
}


@pytest.mark.parametrize(("names", "there"), OTHERS.values(), ids=OTHERS)
def test_no_shards(tmp_path: Path, names: list[str], there: str) -> None:
    """A folder without shards is refused, and what it holds instead is said."""
    for name in names:
        (tmp_path / name).write_text('{"weight_map":{}}')

    with pytest.raises(SourceError) as caught:
        inventory(tmp_path)

    assert str(caught.value) == (
        f"{tmp_path}: no .safetensors file there, {there}; give the folder that holds the shards"
    )


def test_adapter(tmp_path: Path) -> None:
    """An adapter is named as what it is, given as folder and as file; beside a model it is just a shard."""
    path = write_shard(tmp_path / "adapter_model.safetensors", SMALL)
    for source in (tmp_path, path):
        with pytest.raises(SourceError, match="an adapter \\(LoRA\\), not a checkpoint"):
            inventory(source)

    with pytest.raises(SourceError, match="an adapter"):
        Checkpoint(LocalSource(tmp_path, typed="x", sole_shard=path.name)).inventory()
    write_shard(tmp_path / "model.safetensors", {"m": Kind("U8", (1,))})
    assert inventory(tmp_path).shards == 2


def test_cost(tmp_path: Path) -> None:
    """A header takes two small reads, at its place; of the data no byte is read, whatever the size of the shard."""
    huge = {"lm_head.weight": Kind("F64", (1 << 20, 1 << 14)), "y": Kind("U8", (1,))}
    folder = write_checkpoint(tmp_path / "c", {}, parts=[huge, SMALL | {"z": Kind("U8", (5,))}], index=False)
    watched = WatchedSource(folder)
    source = Checkpoint(watched)
    assert watched.reads == []

    headers = source.inventory().headers
    source.inventory()
    reads = [read for read in watched.reads if read[0] in headers]

    assert sorted(reads) == sorted(
        span for shard, header in headers.items() for span in ((shard, 0, SNIFF_BYTES), (shard, 8, header.data_start))
    )
    assert (folder / shard_name(1, 2)).stat().st_size > 1 << 37
    assert all(header.data_start > SNIFF_BYTES for header in headers.values())


def test_laziness(tmp_path: Path) -> None:
    """With an index, only the shards that a question is about are opened, and each at most once."""
    folder = write_checkpoint(tmp_path / "c", {}, parts=parts_by_layer(tiny()))
    watched = WatchedSource(folder)
    source = Checkpoint(watched)
    steps: list[tuple[int, int]] = []
    found = source.inventory(
        lambda names: {n for n in names if ".layers.5." in n}, lambda *step: steps.append(step[:2])
    )

    assert (watched.opened(), list(found.headers), steps) == ([6], [shard_name(6, 7)], [(1, 1)])
    assert (found.partial, found.shards, found.complete) == (True, 7, True)
    assert f"{TEXT}layers.0.self_attn.A_log" in found.unseen

    whole = source.inventory(progress=lambda *step: steps.append(step[:2]))

    assert steps == [(1, 1), *((n, 6) for n in range(1, 7))]
    assert whole.tensors.keys() == tiny().keys()
    assert (whole.partial, len(whole.unseen)) == (False, 0)
    assert watched.opened() == [1, 2, 3, 4, 5, 6, 7]


def test_laziness_given_up(tmp_path: Path) -> None:
    """When an opened shard lacks what the index puts there, all are read: the tensor may be elsewhere."""
    folder = write_checkpoint(tmp_path / "c", {}, parts=parts_by_layer(tiny()))
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": shard_name(1, 7)}))
    found = open_source(str(folder)).inventory(lambda _: {"lm_head.weight"})

    assert (len(found.headers), found.partial) == (7, False)
    assert found.tensors["lm_head.weight"].shard == shard_name(7, 7)
