# SPDX-License-Identifier: AGPL-3.0-only
"""What was read from the Hub, kept for the next run: headers by blob and listings by commit, neither ever changes.

One compressed file an entry, written aside and moved into place, so that processes may share the folder and may be
stopped at any time. An entry that is damaged, or was not written here, counts as none.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glm5inspect.errors import OutputError, UsageError
from glm5inspect.header import LENGTH_BYTES, MAX_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "GLM5INSPECT_CACHE"
"""The environment variable that names another folder."""

KINDS = ("headers", "listings", "revisions", "values")
"""The sub-folders: shard headers by blob, file lists by commit, the commit that a branch last stood at, and ranges of
tensor data by blob."""

_MAGIC = b"glm5inspect\x001\n"
_UNFINISHED = ".new-"
_KEY_BYTES = 32
_MAX_BYTES = LENGTH_BYTES + MAX_HEADER_BYTES
_FAST = 1  # of zlib: a header shrinks to a tenth, in a millisecond


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of one kind is kept: entries, and bytes on disk."""

    entries: int
    bytes: int


def cache_folder(chosen: str | None) -> Path:
    """Return the folder to use.

    Args:
        chosen: What the caller asks for; ``None`` for the environment's choice, else the user's cache folder.

    Raises:
        UsageError: It is below a home folder, and nobody knows where that is.
    """
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    folder = chosen or os.environ.get(VARIABLE, "").strip() or f"{base}/glm5inspect"
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # of nobody's home
        raise UsageError(
            f"{folder}: no folder for the header cache; name one with --cache-dir or {VARIABLE}"
        ) from error


class HeaderCache:
    """A folder of entries; several threads and processes may use it at once."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda text: None) -> None:  # noqa: ARG005 - no one
        """Use a folder, which need not be there yet.

        Args:
            folder: See `cache_folder`.
            note: Told once, when the folder cannot be written to.
        """
        self.folder = folder
        self._note = note
        self._writable = True

    def get(self, kind: str, *key: str) -> bytes | None:
        """Return what was kept under a key, or ``None``."""
        digest, path = self._place(kind, key)
        try:
            stored = path.read_bytes()
        except (OSError, ValueError):
            return None
        start = len(_MAGIC) + _KEY_BYTES
        if not stored.startswith(_MAGIC + digest):
            return None
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(stored[start:], _MAX_BYTES)
        except zlib.error:
            return None
        return content if unpacker.eof and not unpacker.unused_data else None

    def put(self, content: bytes, kind: str, *key: str) -> None:
        """Keep something under a key; that it could not be written is noted once, and no error."""
        if not self._writable:
            return
        digest, path = self._place(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_MAGIC + digest + zlib.compress(content, _FAST))
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except IsADirectoryError:
            pass  # somebody's folder has the place of this one entry
        except (OSError, ValueError) as error:
            self._give_up(error)

    def usage(self, kind: str) -> Usage:
        """Count the entries of a kind."""
        sizes = [_size_of(path) for path in self._entries(kind)]
        return Usage(len(sizes), sum(sizes))

    def clear(self) -> None:
        """Remove every entry, and nothing that is not one.

        Raises:
            OutputError: One cannot be removed.
        """
        for kind in KINDS:
            for path in self._entries(kind):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise OutputError(f"{path}: cannot be removed: {error.strerror}") from error
            for folder, _, _ in os.walk(self.folder / kind, topdown=False):
                with suppress(OSError):  # something else is in it
                    Path(folder).rmdir()

    def _entries(self, kind: str) -> Iterator[Path]:
        """Yield the files that begin as an entry does, and unfinished ones of interrupted runs."""
        for parent, _, names in os.walk(self.folder / kind):
            for name in names:
                if name.startswith(_UNFINISHED) or _is_entry(Path(parent, name)):
                    yield Path(parent, name)

    def _place(self, kind: str, key: tuple[str, ...]) -> tuple[bytes, Path]:
        digest = hashlib.sha256("\0".join((kind, *key)).encode()).digest()
        name = digest.hex()
        return digest, self.folder / kind / name[:2] / name[2:]

    def _give_up(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        if self._writable:
            self._writable = False
            self._note(f"{self.folder}: the header cache cannot be written ({reason}); going on without it")


def _is_entry(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed in the meantime
        return 0
