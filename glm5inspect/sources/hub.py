# SPDX-License-Identifier: AGPL-3.0-only
"""A checkpoint in a repository of the Hugging Face Hub, of which only headers and small files are fetched.

A file that the Hub's cache of this machine holds is read there; a header that an earlier run fetched comes from the
header cache; what is left takes one ranged request a shard, several of them at once. Values of small tensors are
fetched and kept likewise.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import groupby
from operator import itemgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from glm5inspect.errors import SourceError
from glm5inspect.header import LENGTH_BYTES, MAX_HEADER_BYTES
from glm5inspect.index import MAX_INDEX_BYTES, parse_index
from glm5inspect.report import SourceInfo
from glm5inspect.sources.address import DEFAULT_REVISION, is_full_commit
from glm5inspect.sources.base import CONFIG_NAME, SHARD_SUFFIX, FileEntry, find_index
from glm5inspect.sources.header_cache import HeaderCache, cache_folder
from glm5inspect.sources.hub_answers import Listing, RemoteFile
from glm5inspect.sources.hub_client import ATTEMPTS, HubClient
from glm5inspect.sources.hub_faults import NOT_CACHED, NoAnswerError
from glm5inspect.sources.local import read_ranges
from glm5inspect.sources.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from glm5inspect.sources.address import RepoAddress
    from glm5inspect.sources.hub_options import HubOptions

_ENTRY_BYTES = 96
"""Bytes of a header entry besides the name: dtype, shape, offsets and punctuation; with the spaces that some write."""

_SPARE_BYTES = 1024  # metadata and padding
_UNKNOWN_BYTES = 256 << 10  # asked for first when no index tells what a shard holds
_LONGEST_GUESS = 16 << 20
_AHEAD = 2  # shards fetched or under way for every job, before they are read
_LEAST_PATIENCE, _PATIENCE = 30.0, 9  # seconds, and times the timeout, that a small file may take altogether
_SLOWEST = 32 << 10  # bytes a second that it must make besides
_HOPELESS = 4  # shards in a row that could not be had, after which the others are not tried


class HubSource:
    """A folder of a repository at one commit."""

    sole_shard = None

    def __init__(
        self,
        address: RepoAddress,
        *,
        typed: str,
        subfolder: str | None,
        options: HubOptions,
        note: Callable[[str], None],
    ) -> None:
        """Find out which commit is meant, and which files it has.

        Args:
            address: The repository.
            typed: The SOURCE argument, for the report.
            subfolder: Where the model is below the root, ``None`` for the root.
            options: How to reach the Hub.
            note: Told what the user should know and no report says.

        Raises:
            SourceError: The repository cannot be reached, or has several index files and none of the usual name.
        """
        self._revision = address.revision or DEFAULT_REVISION
        self._prefix = "".join(f"{part}/" for part in PurePosixPath(subfolder or "").parts)
        self._repo = address.repo
        self._cache = HeaderCache(cache_folder(options.cache_dir), note) if options.use_cache else None
        self._workers = Workers(options.jobs)
        self._ahead = _AHEAD * options.jobs
        self._timeout = options.timeout
        self._small: dict[str, Future[bytes]] = {}
        self._heads: dict[str, Future[bytes]] = {}
        self._todo: deque[tuple[str, int]] = deque()
        self._failed = 0
        self._here: dict[str, Path | None] = {}
        self._client, self._listing = self._workers.submit(self._open, options, note).result()
        self._top = self.listing()
        self.index_name = find_index(self._top, f"{self._repo}@{self._revision}")
        commit = self._listing.commit
        self.info = SourceInfo(
            kind="hub",
            name=typed,
            resolved="/".join(filter(None, (self._client.page, self._repo, self._prefix[:-1]))),
            repo=self._repo,
            revision=self._revision,
            commit=commit,
        )
        for name in filter(None, (self.index_name, CONFIG_NAME)):
            if name in self._top:
                self._fetch_small(name)

    def listing(self, folder: str = "") -> Mapping[str, FileEntry]:
        """Return the files of a folder of the commit; one that does not exist has none."""
        start = f"{self._prefix}{folder}/" if folder else self._prefix
        inside = {path: file for path, file in self._files.items() if path.startswith(start)}
        return {
            path[len(self._prefix) :]: self._entry(file)
            for path, file in sorted(inside.items())
            if "/" not in path[len(start) :]
        }

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read the bytes [start, stop) of a file; fewer only at its end."""
        file = self._files[self._prefix + name]
        stop = min(stop, file.size or 0)
        if not name.endswith(SHARD_SUFFIX):
            return self._small_file(name, file.size or 0)[start:stop]
        if name in self._heads:
            head = self._head(name)
            if stop <= len(head):
                return head[start:stop]
        return self._workers.submit(self._read_shard, name, start, stop).result()

    def read_many(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read ranges of shards; those that are not in a cache here are asked for several at once, and kept."""
        todo = list(ranges)
        coming = {each: self._workers.submit(self._fetch_range, *each) for each in todo if self.is_remote(each[0])}
        for name, members in groupby(todo, key=itemgetter(0)):
            if local := self._cached(name):
                yield from read_ranges(local, name, [(start, stop) for _, start, stop in members])
                continue
            for each in members:
                try:
                    yield coming[each].result()
                except SourceError as error:
                    yield error

    def is_remote(self, name: str) -> bool:
        """Tell whether a shard is not in the Hub's cache of this machine."""
        return self._cached(name) is None

    def local_path(self, name: str) -> str | None:  # noqa: ARG002 - none of them
        """Return ``None``: a repository is elsewhere, whatever is cached of it."""
        return None

    def prepare(self, shards: Sequence[str], weight_map: Mapping[str, str] | None) -> None:
        """Begin to fetch the headers of shards, in the order in which they will be read."""
        guesses: dict[str, int] = {}
        for name, shard in (weight_map or {}).items():
            guesses[shard] = guesses.get(shard, LENGTH_BYTES + _SPARE_BYTES) + len(name) + _ENTRY_BYTES
        for shard in shards:
            if self._files[self._prefix + shard].size:  # of any other nothing will be read
                self._todo.append((shard, min(guesses.get(shard, _UNKNOWN_BYTES), _LONGEST_GUESS)))
        self._send_for_more()

    @property
    def _files(self) -> Mapping[str, RemoteFile]:
        return self._listing.files

    def _open(self, options: HubOptions, note: Callable[[str], None]) -> tuple[HubClient, Listing]:
        """Reach the Hub, or do without, and find the files of the commit."""
        client = HubClient(self._repo, self._revision, options, note)
        commit: str | None = self._revision if is_full_commit(self._revision) else None
        if commit is None and client.offline:
            commit = self._last_commit(client)
            if commit is None:
                raise SourceError(
                    f"{self._repo}: offline, and no cache knows what {self._revision} is;"
                    " run once online, or give the full commit of what is cached"
                )
        listing = self._recall_listing(client, commit) if commit else None
        if commit and client.offline:
            listing = listing or self._list_cached(client, commit)
            if commit != self._revision:
                note(f"offline: {self._revision} of {self._repo} was last seen at {commit}")
        if listing:
            return client, listing
        listing = client.list_files()
        if self._cache:
            self._cache.put(listing.dump(), "listings", client.endpoint, self._repo, listing.commit)
            self._cache.put(listing.commit.encode(), "revisions", client.endpoint, self._repo, self._revision)
        return client, listing

    def _last_commit(self, client: HubClient) -> str | None:
        """Return where a branch stood when the Hub's cache, or the header cache, last heard of it."""
        commit = client.cached_commit()
        if commit and is_full_commit(commit) and any(map(self._is_of_interest, dict(client.cached_files(commit)))):
            return commit
        kept = self._cache and self._cache.get("revisions", client.endpoint, self._repo, self._revision)
        commit = kept.decode(errors="replace") if kept else None
        return commit if commit and is_full_commit(commit) else None

    def _recall_listing(self, client: HubClient, commit: str) -> Listing | None:
        kept = self._cache and self._cache.get("listings", client.endpoint, self._repo, commit)
        return Listing.load(kept, commit) if kept else None

    def _list_cached(self, client: HubClient, commit: str) -> Listing:
        """List what the Hub's cache of this machine has of a commit, and what an index there says is missing."""
        files = dict(client.cached_files(commit))
        here = [path.removeprefix(self._prefix) for path in files if self._is_of_interest(path)]
        if not here:
            raise SourceError(f"{self._repo}@{commit}: {NOT_CACHED}")
        index = find_index((name for name in here if "/" not in name), f"{self._repo}@{commit}")
        file = files.get(f"{self._prefix}{index}")
        if index and file and file.size and file.size <= MAX_INDEX_BYTES:
            for shard in parse_index(client.download(f"{self._prefix}{index}", commit, file), name=index).shards:
                files.setdefault(self._prefix + shard, RemoteFile(None, "", lfs=True))
        return Listing(commit, files)

    def _is_of_interest(self, path: str) -> bool:
        """Tell whether a file may belong to the model."""
        return path.startswith(self._prefix) and path.endswith((SHARD_SUFFIX, ".json"))

    def _entry(self, file: RemoteFile) -> FileEntry:
        if file.size is not None:
            return FileEntry(file.size)
        return FileEntry(None, NOT_CACHED if self._client.offline else "the Hub does not tell its size")

    def _fetch_small(self, name: str) -> Future[bytes]:
        """Begin to fetch a small file, once."""
        path = self._prefix + name
        if name not in self._small:
            commit = self._listing.commit
            self._small[name] = self._workers.submit(self._client.download, path, commit, self._files[path])
        return self._small[name]

    def _small_file(self, name: str, size: int) -> bytes:
        """Return a small file, however long the library would go on trying."""
        seconds = max(_LEAST_PATIENCE, _PATIENCE * self._timeout) + size / _SLOWEST
        try:
            return self._fetch_small(name).result(seconds)
        except TimeoutError:
            raise SourceError(f"{name}: did not come within {seconds:,.0f} s; try again") from None

    def _send_for_more(self) -> None:
        """Keep a few shards ahead of the one that is read, but not all: headers may be large."""
        while self._todo and len(self._heads) < self._ahead:
            name, guess = self._todo.popleft()
            self._heads[name] = self._workers.submit(self._fetch_head, name, guess)

    def _head(self, name: str) -> bytes:
        """Return what was fetched of a shard's start; shards announced before it have been read, and are let go."""
        for earlier in list(self._heads):
            if earlier == name:
                break
            del self._heads[earlier]
        self._send_for_more()
        return self._heads[name].result()

    def _fetch_head(self, name: str, guess: int) -> bytes:
        """Return length and header of a shard, or less when it does not have them."""
        path = self._prefix + name
        file = self._files[path]
        size = file.size or 0
        if local := self._cached(name):
            return _read_head(lambda start, stop: _read_local(local, start, stop), guess, size)
        key = (self._client.endpoint, file.blob, str(size))
        if self._cache and file.blob and (head := self._cache.get("headers", *key)):
            return head
        if self._client.offline:
            raise SourceError(f"{name}: {NOT_CACHED}")
        head = self._while_there_is_hope(name, lambda: self._fetch_steadily(path, guess, size))
        if self._cache and file.blob and is_head(head, size):
            self._cache.put(head, "headers", *key)
        return head

    def _while_there_is_hope(self, name: str, fetch: Callable[[], bytes]) -> bytes:
        """Fetch something of a shard, unless too many in a row could not be had."""
        if self._failed >= _HOPELESS:
            raise SourceError(f"{name}: not tried, since {_HOPELESS} in a row could not be had; try again")
        try:
            content = fetch()
        except NoAnswerError:
            self._failed += 1
            raise
        self._failed = 0
        return content

    def _fetch_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a shard, from the header cache or the Hub."""
        file = self._files[self._prefix + name]
        key = (self._client.endpoint, file.blob, str(file.size), f"{start}-{stop}")
        if self._cache and file.blob and (kept := self._cache.get("values", *key)) and len(kept) == stop - start:
            return kept
        content = self._while_there_is_hope(name, lambda: self._read_shard(name, start, stop))
        if self._cache and file.blob:
            self._cache.put(content, "values", *key)
        return content

    def _cached(self, name: str) -> Path | None:
        """Return where a shard lies in the Hub's cache of this machine; ``None`` when it does not."""
        if name not in self._here:
            path = self._prefix + name
            self._here[name] = self._client.cached(path, self._listing.commit, self._files[path].size or 0)
        return self._here[name]

    def _fetch_steadily(self, path: str, guess: int, size: int) -> bytes:
        """Fetch the start of a shard; what is no header must come twice the same before it is believed."""
        last, commit = None, self._listing.commit
        for _ in range(ATTEMPTS):
            head = _read_head(lambda start, stop: self._client.read(path, commit, start, stop, size), guess, size)
            if is_head(head, size) or head == last:
                return head
            last = head
        raise NoAnswerError(f"{path}: every answer has other bytes; use another mirror")

    def _read_shard(self, name: str, start: int, stop: int) -> bytes:
        """Read any bytes of a shard."""
        if local := self._cached(name):
            return _read_local(local, start, stop)
        if self._client.offline:
            raise SourceError(f"{name}: {NOT_CACHED}")
        path = self._prefix + name
        return self._client.read(path, self._listing.commit, start, stop, self._files[path].size or 0)


def _read_head(read: Callable[[int, int], bytes], guess: int, size: int) -> bytes:
    """Read length and header of a shard, in one go when the guess is not too short; else its first bytes."""
    start = read(0, min(guess, size))
    stop = _end_of_header(start, size)
    if stop is None or stop <= len(start):
        return start[:stop]
    return start + read(len(start), stop)


def _end_of_header(start: bytes, size: int) -> int | None:
    """Return where the header of a shard ends, or ``None`` when its first bytes are no length of one."""
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
        return None
    return LENGTH_BYTES + length


def is_head(head: bytes, size: int) -> bool:
    """Tell whether bytes look like length and header of a shard of a size, and nothing after them."""
    return (
        _end_of_header(head, size) == len(head)
        and head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"
        and head.rstrip(b" ").endswith(b"}")
    )


def _read_local(path: Path, start: int, stop: int) -> bytes:
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), stop - start, start)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
