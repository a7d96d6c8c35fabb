# SPDX-License-Identifier: AGPL-3.0-only
"""The header cache: what is put in comes out, nothing else does, and clearing it removes nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.errors import UsageError
from glm5inspect.sources.header_cache import HeaderCache, Usage, cache_folder

CONTENT = b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}' * 40
KEY = ("headers", "https://huggingface.co", "c0ffee", "4711")
START = 14 + 32
"""Where the compressed part of an entry begins, after a mark and a digest of the key."""

UNUSED = (START + 1, -5)
"""Bytes of which some bits mean nothing: how hard was tried to compress, and what fills the last byte."""


@pytest.fixture
def cache(tmp_path: Path) -> HeaderCache:
    """A cache in a folder that is not there yet, which fails when it has something to say."""
    return HeaderCache(tmp_path / "deep" / "cache", pytest.fail)


def entry(cache: HeaderCache, content: bytes = CONTENT, key: tuple[str, ...] = KEY) -> Path:
    """Put something in, and return its only new file."""
    before = set(cache.folder.rglob("*"))
    cache.put(content, *key)
    (path,) = (path for path in set(cache.folder.rglob("*")) - before if path.is_file())
    return path


@pytest.mark.parametrize("content", [b"", b"x", CONTENT, bytes(range(256)) * 99, bytes(3 << 20)], ids=len)
def test_what_goes_in_comes_out(cache: HeaderCache, content: bytes) -> None:
    """An entry is kept whole under its key, in this object and in another one on the same folder."""
    assert cache.get(*KEY) is None
    cache.put(content, *KEY)
    assert cache.get(*KEY) == content
    assert HeaderCache(cache.folder).get(*KEY) == content
    cache.put(b"other", *KEY)
    assert cache.get(*KEY) == b"other"


def test_keys_are_kept_apart(cache: HeaderCache) -> None:
    """An entry is found under the whole of its key only, whatever characters are in it."""
    keys = [
        KEY,
        ("listings", *KEY[1:]),
        ("headers", "https://hub.example", *KEY[2:]),
        (*KEY[:3], "4712"),
        KEY[:3],
        ("headers", "../../x", "/etc/passwd", "größe"),
        ("headers", "ab", "c"),
        ("headers", "a", "bc"),
    ]
    for number, key in enumerate(keys):
        assert cache.get(*key) is None
        cache.put(b"%d" % number, *key)
    assert [cache.get(*key) for key in keys] == [b"%d" % number for number in range(len(keys))]
    assert {path.name for path in cache.folder.iterdir()} == {"headers", "listings"}


def test_entries_are_small_and_private(cache: HeaderCache) -> None:
    """What repeats itself, as headers do, is compressed; other users have no look at it; nothing unfinished is left."""
    path = entry(cache)
    assert path.stat().st_size < len(CONTENT) / 4
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert [path.name for path in cache.folder.rglob(".*")] == []


@pytest.mark.parametrize("position", [0, 6, 11, 13, 14, 30, START - 1, START, START + 1, START + 9, -5, -4, -1])
@pytest.mark.parametrize("bit", [1, 128])
def test_a_flipped_bit(cache: HeaderCache, position: int, bit: int) -> None:
    """An entry in which a single bit is wrong, wherever, is none; a new one takes its place."""
    path = entry(cache)
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= bit
    path.write_bytes(damaged)
    assert cache.get(*KEY) in (None, *([CONTENT] if position in UNUSED else []))
    cache.put(CONTENT, *KEY)
    assert cache.get(*KEY) == CONTENT


@pytest.mark.parametrize("length", [0, 1, 13, 14, 40, START, START + 1, START + 5, -5, -4, -1])
def test_an_entry_cut_off(cache: HeaderCache, length: int) -> None:
    """A part of an entry is none."""
    path = entry(cache)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(*KEY) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=200), st.sampled_from([0, 14, START]))
def test_foreign_bytes(cache: HeaderCache, foreign: bytes, kept: int) -> None:
    """Whatever stands in the place of an entry, after no matter how much of a right start, is none."""
    cache.put(CONTENT, *KEY)
    (path,) = (path for path in cache.folder.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:kept] + foreign)
    assert cache.get(*KEY) is None


def test_bytes_after_the_end(cache: HeaderCache) -> None:
    """An entry with something behind it is none."""
    path = entry(cache)
    path.write_bytes(path.read_bytes() + b"\0")
    assert cache.get(*KEY) is None


def test_an_entry_in_the_place_of_another(cache: HeaderCache) -> None:
    """A whole entry, copied to where that of another key would be, is not taken for it."""
    other = (*KEY[:2], "decade", KEY[3])
    mine, theirs = entry(cache), entry(cache, b"theirs", other)
    shutil.copy(theirs, mine)
    assert (cache.get(*KEY), cache.get(*other)) == (None, b"theirs")


def test_a_bomb(cache: HeaderCache) -> None:
    """What unpacks to more than a header can be is none, and is not unpacked to its end."""
    path = entry(cache)
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(101)) + packer.flush()
    path.write_bytes(path.read_bytes()[:START] + bomb)
    assert cache.get(*KEY) is None


@pytest.mark.parametrize("thing", ["folder", "link to nothing", "link to itself"])
def test_something_else_in_the_place_of_an_entry(cache: HeaderCache, thing: str) -> None:
    """A folder or a broken link in the place of an entry is none."""
    path = entry(cache)
    path.unlink()
    if thing == "folder":
        path.mkdir()
    elif thing == "link to nothing":
        path.symlink_to("nowhere")
    else:
        path.symlink_to(path.name)
    assert cache.get(*KEY) is None


def blocked(tmp_path: Path, place: str) -> Path:
    """Return a cache folder that cannot be made, whoever asks."""
    (tmp_path / "file").write_text("a file")
    return {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file" / "cache",
        "too long": tmp_path / ("x" * 300),
        "link to itself": tmp_path / "link",
        "no file system": Path("/proc/self/cache"),
    }[place]


@pytest.mark.parametrize("place", ["file", "below a file", "too long", "link to itself", "no file system"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    """That nothing can be kept is said once, with the reason, and is no error."""
    (tmp_path / "link").symlink_to("link")
    notes: list[str] = []
    cache = HeaderCache(blocked(tmp_path, place), notes.append)
    for number in range(3):
        cache.put(CONTENT, *KEY, str(number))
        assert cache.get(*KEY, str(number)) is None
    (note,) = notes
    assert note.startswith(f"{cache.folder}: the header cache cannot be written (")
    assert note.endswith("); going on without it")
    assert "None" not in note
    assert cache.usage("headers") == Usage(0, 0)
    HeaderCache(cache.folder).put(CONTENT, *KEY)  # with nobody to tell


def test_an_entry_that_cannot_be_written(tmp_path: Path) -> None:
    """When somebody's folder has the place of an entry, that entry alone is not kept, and nothing is left beside it."""
    notes: list[str] = []
    cache = HeaderCache(tmp_path, notes.append)
    path = entry(cache)
    path.unlink()
    (path / "something").mkdir(parents=True)
    cache.put(CONTENT, *KEY)
    assert list(path.parent.iterdir()) == [path]
    cache.put(CONTENT, KEY[0], "another key")
    assert (notes, cache.get(KEY[0], "another key")) == ([], CONTENT)


def test_told_once_by_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another thread finds out in the middle of it, the note is not repeated."""
    notes: list[str] = []
    cache = HeaderCache(tmp_path, notes.append)

    def full(**_: object) -> None:
        monkeypatch.setattr(tempfile, "mkstemp", lambda **_: Path("/proc/self/nothing").touch())
        cache.put(CONTENT, *KEY)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    cache.put(CONTENT, *KEY)
    assert len(notes) == 1


def test_many_at_once(cache: HeaderCache) -> None:
    """Threads that write and read the same few entries see whole ones only."""

    def work(number: int) -> bool:
        key, content = (*KEY, str(number % 3)), b"%d" % (number % 3) * 50_000
        cache.put(content, *key)
        return cache.get(*key) == content

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(200)))
    assert cache.usage("headers").entries == 3


FOLDERS = [
    ({"GLM5INSPECT_CACHE": "/a", "XDG_CACHE_HOME": "/x"}, "/chosen", "/chosen"),
    ({"GLM5INSPECT_CACHE": "/a", "XDG_CACHE_HOME": "/x"}, None, "/a"),
    ({"GLM5INSPECT_CACHE": "", "XDG_CACHE_HOME": "/x"}, None, "/x/glm5inspect"),
    ({"GLM5INSPECT_CACHE": " ", "XDG_CACHE_HOME": " "}, None, "/home/me/.cache/glm5inspect"),
    ({}, None, "/home/me/.cache/glm5inspect"),
    ({"GLM5INSPECT_CACHE": "~/c"}, None, "/home/me/c"),
    ({}, "~/c", "/home/me/c"),
    ({}, "relative", "relative"),
]


@pytest.mark.parametrize(("environment", "chosen", "folder"), FOLDERS)
def test_which_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], chosen: str | None, folder: str
) -> None:
    """The option comes before the tool's variable, that before the desktop's, that before the home folder."""
    for name in ("GLM5INSPECT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder(chosen) == Path(folder)


def test_an_unfinished_entry_that_vanishes(cache: HeaderCache) -> None:
    """What another process moves away while it is counted has no size, and clearing does not miss it."""
    path = entry(cache).with_name(".new-x")
    path.symlink_to("nowhere")
    assert cache.usage("headers").entries == 2
    cache.clear()
    assert cache.usage("headers") == Usage(0, 0)


@pytest.mark.parametrize("variable", ["GLM5INSPECT_CACHE", "XDG_CACHE_HOME"])
def test_nobodys_home(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A home folder that nobody has is wrong usage, and nothing is made of that name."""
    monkeypatch.delenv("GLM5INSPECT_CACHE", raising=False)
    monkeypatch.setenv(variable, "~nobody-of-that-name/x")
    with pytest.raises(UsageError, match="no folder for the header cache; name one with --cache-dir or GLM5INSPECT"):
        cache_folder(None)
    assert CliRunner().invoke(app, ["cache", "info"]).exit_code == 2


def command(*arguments: str | Path) -> dict[str, object]:
    """Run `cache` for JSON and return its answer."""
    result = CliRunner().invoke(app, ["cache", *map(str, arguments), "-f", "json"])
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["command"], report["complete"], report["source"]) == ("cache", True, None)
    answer: dict[str, object] = report["cache"]
    return answer


def state(folder: Path, headers: int, listings: int, revisions: int, *, cleared: bool) -> dict[str, object]:
    """Return the answer for so many entries of 100 bytes each."""
    counts = {"headers": headers, "listings": listings, "revisions": revisions, "values": 0}
    usage = {kind: {"entries": count, "bytes": 100 * count} for kind, count in counts.items()}
    return {"folder": str(folder), **usage, "cleared": cleared}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with 3 headers, 2 listings and a branch, padded to 100 bytes each."""
    cache = HeaderCache(tmp_path / "filled")
    for kind, count in (("headers", 3), ("listings", 2), ("revisions", 1)):
        for number in range(count):
            path = entry(cache, b"x", (kind, str(number)))
            path.write_bytes(path.read_bytes().ljust(100))
    return cache.folder


def test_info(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cache info` counts the entries of each kind, in the folder of the option or of the environment."""
    assert command("info", "--cache-dir", filled) == state(filled, 3, 2, 1, cleared=False)
    monkeypatch.setenv("GLM5INSPECT_CACHE", str(filled))
    assert command("info") == state(filled, 3, 2, 1, cleared=False)
    assert command("clear") == state(filled, 0, 0, 0, cleared=True)


def test_clear_leaves_what_is_not_ours(filled: Path) -> None:
    """`cache clear` removes entries, unfinished ones too, and their folders; any other file stays, and counts not."""
    (inside,) = (path for path in (filled / "revisions").rglob("*") if path.is_file())
    unfinished = inside.with_name(".new-a1b2c3d4")
    unfinished.write_bytes(b"glm5inspect")
    foreign = [filled / name for name in ("notes.txt", "headers/notes.txt", "headers/ab/.hidden", "other/ab/x")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    outside = filled.parent / "outside"
    outside.mkdir()
    shutil.copy(inside, outside / "entry")
    (filled / "headers" / "ab" / "link").symlink_to(outside / "entry")
    (filled / "headers" / "ab" / "broken link").symlink_to("nowhere")
    (filled / "headers" / "ab" / ".hidden folder").mkdir()

    assert command("clear", "--cache-dir", filled) == state(filled, 0, 0, 0, cleared=True)
    assert [path.read_text() for path in foreign] == ["mine"] * 4
    assert (outside / "entry").is_file()
    assert not (filled / "listings").exists()
    assert not unfinished.exists()


@pytest.mark.parametrize("place", ["missing", "empty", "file", "file/x", "x" * 300])
@pytest.mark.parametrize("verb", ["info", "clear"])
def test_nothing_there(tmp_path: Path, place: str, verb: str) -> None:
    """A folder that is missing, empty or none has no entries, and none is made."""
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty").mkdir()
    folder = tmp_path / place
    assert command(verb, "--cache-dir", folder) == state(folder, 0, 0, 0, cleared=verb == "clear")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_table(filled: Path) -> None:
    """As a table, folder, counts and sizes are there to be read; clearing says so."""
    results = [CliRunner().invoke(app, ["cache", verb, "--cache-dir", str(filled)]) for verb in ("info", "clear")]
    assert [result.exit_code for result in results] == [0, 0]
    for result, counts in zip(results, ([3, 2, 1], [0, 0, 0]), strict=True):
        assert str(filled) in result.stdout.replace("\n", "")
        for kind, count in zip(("headers", "listings", "revisions"), counts, strict=True):
            (line,) = (line for line in result.stdout.splitlines() if kind in line)
            assert str(count) in line
    assert results[1].stdout.startswith("cleared ")


def test_an_entry_that_cannot_be_removed(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that stays is named, and the exit code says that the command could not do its work."""

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, os.strerror(13), str(path)) if missing_ok else AssertionError

    monkeypatch.setattr(Path, "unlink", refuse)
    result = CliRunner().invoke(app, ["cache", "clear", "--cache-dir", str(filled)])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert "cannot be removed: Permission denied" in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--cache-dir", ""], ["info", "--cache-dir", " "], ["info", "x"], ["shrink"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    """The command wants `info` or `clear`, and a folder that is one."""
    assert CliRunner().invoke(app, ["cache", *arguments]).exit_code == 2
