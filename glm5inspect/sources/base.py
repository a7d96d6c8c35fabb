# SPDX-License-Identifier: AGPL-3.0-only
"""What a place that holds checkpoint files must offer; the seam between bytes and meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    def prepare(self, shards: Sequence[str]) -> None:
        """Announce whose headers will be read next, so that a remote source may fetch several at once."""
        ...
