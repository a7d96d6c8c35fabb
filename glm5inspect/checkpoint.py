# SPDX-License-Identifier: AGPL-3.0-only
"""Take the inventory of a folder of shards: which files there are, which headers to read, what they hold together."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.errors import ConfigError, HeaderError, IndexFileError, SourceError
from glm5inspect.header import LENGTH_BYTES, SNIFF_BYTES, Header, TensorRecord, header_length, parse_header
from glm5inspect.index import MAX_INDEX_BYTES, Index, parse_index
from glm5inspect.inventory import Inventory
from glm5inspect.sources.base import CONFIG_NAME, INDEX_SUFFIX, SHARD_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.inventory import Needs, Progress
    from glm5inspect.report import SourceInfo
    from glm5inspect.sources.base import FileSource

MAX_CONFIG_BYTES = 16 << 20
"""The longest configuration file accepted; the longest seen is 60 kB."""

ADAPTER = "an adapter (LoRA), not a checkpoint; merge it into its base model first"

OTHER_FORMATS = (
    (".gguf", "GGUF"),
    (".bin", "PyTorch .bin"),
    (".pt", "PyTorch .pt"),
    (".pth", "PyTorch .pth"),
    (".incomplete", "unfinished download"),
    (".ckpt", "PyTorch .ckpt"),
    (INDEX_SUFFIX, "shard index"),
)
"""Suffixes of files that are no shards, and what they are."""


class Checkpoint:
    """A folder of shards whose inventory can be taken; each header is read at most once."""

    def __init__(self, files: FileSource) -> None:
        """Look at the names and sizes of the files; nothing is opened."""
        self._files = files
        self._listing = dict(files.listing())
        self._headers: dict[str, Header] = {}
        self._refused: dict[str, HeaderError] = {}

    @property
    def info(self) -> SourceInfo:
        """What the source is, for the report."""
        return self._files.info

    def config(self, name: str = CONFIG_NAME) -> Mapping[str, object] | None:
        """Return a configuration file of the folder, or ``None`` when there is none.

        Raises:
            ConfigError: It is there but not a JSON object.
        """
        if name not in self._listing:
            return None
        raw = self._read_whole(name, MAX_CONFIG_BYTES, ConfigError)
        try:
            value = json.loads(raw)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: not JSON ({error}); take the file of the release") from error
        except (ValueError, RecursionError) as error:
            fault = "a number of thousands of digits" if isinstance(error, ValueError) else "values nested too deeply"
            raise ConfigError(f"{name}: holds {fault}; take the file of the release") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{name}: not a JSON object; take the file of the release")
        return value

    def local_path(self, shard: str) -> str | None:
        """Return where a shard lies on this machine, or ``None`` when it does not."""
        return self._files.local_path(shard)

    def is_remote(self, shard: str) -> bool:
        """Tell whether a read of a shard is a request to a server."""
        return self._files.is_remote(shard)

    def read_data(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read ranges [start, stop) of shards, each in bytes of its file, and yield each or why it cannot be had."""
        return self._files.read_many(ranges)

    def inventory(self, needs: Needs | None = None, progress: Progress | None = None) -> Inventory:
        """Read the headers and put them together.

        Args:
            needs: Picks from the names of an index those that a question is about; only their shards are opened, and
                those that the index does not name. All are when an opened shard lacks what the index puts there, when
                there is no index, and for ``None``.
            progress: Called after each header, with shards read, shards to read, and bytes read.

        Raises:
            SourceError: There is no shard, what is there is not a checkpoint, or the index cannot be read.
            IndexFileError: The index is malformed or leads out of the checkpoint.
        """
        index = self._index
        shards, missing = self._shards(index)
        unlisted = shards.difference(index.shards) if index else set()
        wanted = shards
        if index and needs:
            homes = {index.weight_map[name] for name in needs(index.weight_map)}
            wanted = shards & (homes | unlisted)
            self._read_headers(wanted, progress)
            if self._lacks_something(index):
                wanted = shards
        self._read_headers(wanted, progress)
        headers = {shard: header for shard, header in sorted(self._headers.items()) if shard in wanted}
        tensors, copies = _merge(headers.values(), index)
        return Inventory(
            info=self.info,
            tensors=tensors,
            copies=copies,
            shards=len(shards),
            headers=headers,
            refused={shard: error for shard, error in self._refused.items() if shard in wanted},
            index=index,
            missing=missing,
            unlisted=tuple(sorted(unlisted)),
            partial=len(wanted) < len(shards),
        )

    @cached_property
    def _index(self) -> Index | None:
        name = self._files.index_name
        if name is None:
            return None
        return parse_index(self._read_whole(name, MAX_INDEX_BYTES, IndexFileError), name=name)

    def _shards(self, index: Index | None) -> tuple[set[str], dict[str, str]]:
        """Return the shards that are there, and those that only the index knows of, with the reason."""
        if self._files.sole_shard:
            self._refuse_what_is_no_checkpoint({self._files.sole_shard})
            return {self._files.sole_shard}, {}
        for folder in sorted({shard.rpartition("/")[0] for shard in index.shards} - {""}) if index else ():
            self._listing.update(self._files.listing(folder))
        missing = {}
        for shard in index.shards if index else ():
            entry = self._listing.get(shard)
            if entry is None or entry.absent:
                missing[shard] = entry.fault or "absent" if entry else "not there"
            elif entry.size == 0:
                missing[shard] = "0 bytes"
        here = {name for name in self._listing if name.endswith(SHARD_SUFFIX) and not _is_hidden(name)}
        self._refuse_what_is_no_checkpoint(here)
        return here.union(index.shards if index else ()) - missing.keys(), missing

    def _refuse_what_is_no_checkpoint(self, shards: set[str]) -> None:
        """Name what the folder holds when it is not a checkpoint."""
        where, names = self.info.resolved, self._listing.keys()
        if shards and all(shard.startswith("adapter_") for shard in shards):
            raise SourceError(f"{where}: {ADAPTER}")
        if shards:
            return
        if {"blobs", "snapshots"} <= names:
            raise SourceError(f"{where}: a Hugging Face cache folder; give one of the folders below its snapshots/")
        kinds = Counter(what for name in names for suffix, what in OTHER_FORMATS if name.endswith(suffix))
        there = (
            "only " + ", ".join(f"{kind} ({n})" for kind, n in sorted(kinds.items())) if kinds else "nothing like it"
        )
        raise SourceError(f"{where}: no .safetensors file there, {there}; give the folder that holds the shards")

    def _read_headers(self, shards: Iterable[str], progress: Progress | None) -> None:
        todo = sorted(set(shards) - self._headers.keys() - self._refused.keys())
        index = self._index
        self._files.prepare(todo, index.weight_map if index else None)
        fetched = 0
        for done, shard in enumerate(todo, 1):
            try:
                self._headers[shard] = self._read_header(shard)
            except HeaderError as error:
                # A fresh one: the one caught holds on to the whole header through its traceback.
                self._refused[shard] = HeaderError(error.code, error.reason, shard=shard)
            if progress:
                header = self._headers.get(shard)
                fetched += header.data_start if header else 0
                progress(done, len(todo), fetched)

    def _read_header(self, shard: str) -> Header:
        entry = self._listing[shard]
        if entry.size is None:
            raise HeaderError(Code.HEADER_UNREADABLE, entry.fault or "cannot be read", shard=shard)
        try:
            prefix = self._files.read(shard, 0, SNIFF_BYTES)
            length = header_length(prefix, shard=shard, file_bytes=entry.size)
            raw = self._files.read(shard, LENGTH_BYTES, LENGTH_BYTES + length)
        except SourceError as error:
            reason = str(error).removeprefix(f"{shard}: ")
            raise HeaderError(Code.HEADER_UNREADABLE, reason, shard=shard) from error
        if len(raw) < length:
            reason = f"ends after {len(raw):,} of the {length:,} bytes of its header"
            raise HeaderError(Code.HEADER_LENGTH, reason, shard=shard)
        return parse_header(raw, shard=shard, file_bytes=entry.size)

    def _lacks_something(self, index: Index) -> bool:
        """Tell whether a shard read so far lacks a tensor that the index puts there."""
        held = {shard: {tensor.name for tensor in header.tensors} for shard, header in self._headers.items()}
        return any(shard in held and name not in held[shard] for name, shard in index.weight_map.items())

    def _read_whole(self, name: str, most: int, failure: type[ConfigError | IndexFileError]) -> bytes:
        entry = self._listing[name]
        if entry.size is None:
            raise failure(f"{name}: cannot be read: {entry.fault}")
        if entry.size > most:
            raise failure(f"{name}: {entry.size:,} bytes, over the limit of {most:,}; this cannot be the real file")
        return self._files.read(name, 0, entry.size)


def _merge(
    headers: Iterable[Header], index: Index | None
) -> tuple[dict[str, TensorRecord], dict[str, list[TensorRecord]]]:
    """Put the tensors of all shards together, each name once, and list the copies of those that stand in several."""
    tensors: dict[str, TensorRecord] = {}
    copies: dict[str, list[TensorRecord]] = {}
    for header in headers:
        held = {tensor.name: tensor for tensor in header.tensors}
        if not tensors.keys().isdisjoint(held):
            for name in held.keys() & tensors.keys():
                copies.setdefault(name, [tensors[name]]).append(held[name])
                if index is None or index.weight_map.get(name) != header.shard:
                    held[name] = tensors[name]
        tensors.update(held)
    return tensors, copies


def _is_hidden(name: str) -> bool:
    """Tell whether a file is one that loaders' globs pass over, such as the ``._`` files of other systems."""
    return name.rpartition("/")[2].startswith(".")
