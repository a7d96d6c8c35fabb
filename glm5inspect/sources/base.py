# SPDX-License-Identifier: AGPL-3.0-only
"""What a place that holds checkpoint files must offer; the seam between bytes and meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from glm5inspect.errors import SourceError
from glm5inspect.report import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from glm5inspect.report import SourceInfo

SHARD_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = "model.safetensors.index.json"
"""The index that loaders look for."""

CONFIG_NAME = "config.json"
QUANT_CONFIG_NAME = "hf_quant_config.json"


class FileEntry(NamedTuple):
    """One file of a checkpoint.

    Attributes:
        size: Bytes; ``None`` when the file cannot be read.
        fault: Why it cannot be read, else ``None``.
        absent: Whether there is nothing at all behind the name (a link to nothing), as after a broken download.
    """

    size: int | None
    fault: str | None = None
    absent: bool = False


class FileSource(Protocol):
    """A folder of checkpoint files, local or remote, that is read by byte range."""

    @property
    def info(self) -> SourceInfo:
        """What the source is, for the report."""
        ...

    @property
    def index_name(self) -> str | None:
        """The index file to use; ``None`` when there is none."""
        ...

    @property
    def sole_shard(self) -> str | None:
        """The one shard to look at when the source is a single file, else ``None``."""
        ...

    def listing(self, folder: str = "") -> Mapping[str, FileEntry]:
        """Return the files of one folder by name relative to the checkpoint; opens none."""
        ...

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read the bytes [start, stop) of a file; fewer only at its end.

        Raises:
            SourceError: The file cannot be opened or read.
        """
        ...

    def read_many(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read ranges [start, stop) of files, and yield each, or why it cannot be had, in the order asked for.

        Fewer bytes only at the end of a file, as in `read`. Ranges of one file are best asked for one after the other.
        """
        ...

    def is_remote(self, name: str) -> bool:
        """Tell whether a read of a file is a request to a server."""
        ...

    def local_path(self, name: str) -> str | None:
        """Return where a file lies on this machine, or ``None`` when it does not."""
        ...

    def prepare(self, shards: Sequence[str], weight_map: Mapping[str, str] | None) -> None:
        """Announce whose headers will be read next, so that a remote source may fetch several at once.

        Args:
            shards: In the order in which they will be read.
            weight_map: Tensor name to shard as the index says, from which the length of a header can be guessed;
                ``None`` without an index.
        """
        ...


def find_index(names: Iterable[str], where: str) -> str | None:
    """Return the index among the files of a folder: the one of the usual name, else the only one, else ``None``.

    Raises:
        SourceError: There are several, and none of the usual name.
    """
    found = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if INDEX_NAME in found:
        return INDEX_NAME
    if len(found) > 1:
        raise SourceError(f"{where}: has several index files ({some(found)}); give one of them as SOURCE")
    return found[0] if found else None
