# SPDX-License-Identifier: AGPL-3.0-only
"""A checkpoint in a folder of this machine, Hugging Face cache snapshots included."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from glm5inspect.errors import SourceError
from glm5inspect.report import SourceInfo
from glm5inspect.sources.base import FileEntry, find_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_CACHE_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/|$)")

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class LocalSource:
    """A folder on disk, or one shard in it.

    Links are followed: the Hugging Face cache is made of them. Only what an index says is kept inside the tree.
    """

    def __init__(self, folder: Path, *, typed: str, index: str | None = None, sole_shard: str | None = None) -> None:
        """Look at a folder.

        Args:
            folder: The folder that holds the checkpoint.
            typed: The SOURCE argument, for the report.
            index: The index file to use instead of the one found by its usual name.
            sole_shard: Look at this one file of the folder only.

        Raises:
            SourceError: The folder cannot be listed, or holds several index files and none of the usual name.
        """
        self._folder = folder
        self.sole_shard = sole_shard
        self._top = self._list("")
        self.index_name = None if sole_shard else index or find_index(self._top, str(folder))
        try:
            place = folder.absolute()
        except OSError as error:
            raise SourceError(f"{typed}: the current folder is not there any more") from error
        cached = _CACHE_SNAPSHOT.search(str(place))
        self.info = SourceInfo(
            kind="file" if sole_shard else "directory",
            name=typed,
            resolved=str(place / (sole_shard or index or "")),
            repo=f"{cached[1]}/{cached[2]}" if cached else None,
            commit=cached[3] if cached else None,
        )

    def listing(self, folder: str = "") -> Mapping[str, FileEntry]:
        """Return the files of a folder; one that does not exist has none."""
        return self._list(folder) if folder else self._top

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read the bytes [start, stop) of a file; fewer only at its end."""
        with _open(self._folder / name, name) as descriptor:
            return os.pread(descriptor, stop - start, start)

    def read_many(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read ranges of files; one that is asked for in a row is opened once."""
        for name, members in groupby(ranges, key=itemgetter(0)):
            yield from read_ranges(self._folder / name, name, [(start, stop) for _, start, stop in members])

    def is_remote(self, name: str) -> bool:  # noqa: ARG002 - none of them
        """Return false."""
        return False

    def local_path(self, name: str) -> str | None:
        """Return the path of a file."""
        return str(self._folder / name)

    def prepare(self, shards: Sequence[str], weight_map: Mapping[str, str] | None) -> None:
        """Do nothing: local reads are quick and come one by one."""

    def _list(self, folder: str) -> dict[str, FileEntry]:
        path = self._folder / folder
        try:
            names = sorted(os.listdir(path))  # noqa: PTH208 - names only
        except OSError as error:
            if folder and error.errno in _NOT_THERE:
                return {}
            raise SourceError(f"{path}: the folder cannot be listed: {error.strerror}") from error
        return {f"{folder}/{name}" if folder else name: _entry(path / name) for name in names}


def _entry(path: Path) -> FileEntry:
    """Say what a directory entry is, following links."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return FileEntry(None, "a link to nothing", absent=True)
    except OSError as error:
        return FileEntry(None, error.strerror)
    if stat.S_ISREG(status.st_mode):
        return FileEntry(status.st_size)
    kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "something")
    return FileEntry(None, f"{kind}, not a regular file")


def read_ranges(path: Path, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes | SourceError]:
    """Read ranges [start, stop) of one file, opened once, and yield each or why it cannot be had."""
    read: list[bytes] = []
    try:
        with _open(path, name) as descriptor:
            for start, stop in ranges:
                read.append(os.pread(descriptor, stop - start, start))
    except SourceError as error:
        yield from read
        yield from [error] * (len(ranges) - len(read))
    else:
        yield from read


@contextmanager
def _open(path: Path, name: str) -> Iterator[int]:
    """Open a regular file for reading.

    Raises:
        SourceError: It cannot be opened, or what is done with it fails.
    """
    try:
        # A pipe would block until somebody writes to it, and may have come since the listing.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceError(f"{name}: not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror}") from error
