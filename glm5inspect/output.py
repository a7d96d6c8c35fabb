# SPDX-License-Identifier: AGPL-3.0-only
"""Write a file whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from glm5inspect.errors import OutputError
from glm5inspect.sources.base import CONFIG_NAME, INDEX_SUFFIX, QUANT_CONFIG_NAME, SHARD_SUFFIX

if TYPE_CHECKING:
    from glm5inspect.report import SourceInfo

_PARTS = (
    *(SHARD_SUFFIX, INDEX_SUFFIX, CONFIG_NAME, QUANT_CONFIG_NAME),
    *("tokenizer.json", "vocab.json", "_map.json", "added_tokens.json", "merges.txt", ".model", ".jinja", ".py"),
    *("README.md", "LICENSE", ".bin", ".pt", ".gguf"),
)
"""How the names of files end that people keep in the folder of a checkpoint, reports apart."""


def write_file(path: str, text: str) -> None:
    """Write text to a file, replacing an old one in a single step; whatever goes wrong leaves the old file.

    Something that is not a regular file (a pipe, ``/dev/stderr``) is written to and not replaced, and a link keeps
    pointing where it points.

    Raises:
        OutputError: It cannot be written.
    """
    target = Path(path)
    try:
        old = _mode_of(target)
        if old is not None and not stat.S_ISREG(old):
            with suppress(BrokenPipeError):  # a reader that has gone away is no error
                target.write_text(text, encoding="utf-8")
        else:
            _replace(target.resolve(), text, None if old is None else stat.S_IMODE(old))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{path}: cannot be written: {reason}") from error


def write_apart_from(path: str, text: str, *sources: SourceInfo | None) -> None:
    """Write text to a file, unless that is one of the sources, or a part of one.

    Raises:
        OutputError: It is, or it cannot be written.
    """
    for source in sources:
        if source and source.kind != "hub":
            if os.path.realpath(source.resolved) == os.path.realpath(path):
                raise OutputError(f"{path}: is the source itself; nothing is written over it")
            if source.kind != "snapshot":
                refuse_parts_of(source.resolved, path)
    write_file(path, text)


def refuse_parts_of(checkpoint: str, path: str) -> None:
    """Refuse to write over a part of a checkpoint, whatever link or blob it is called by.

    Args:
        checkpoint: The folder, or one file in it.
        path: Where somebody wants to write.

    Raises:
        OutputError: A shard, an index or a configuration file of the folder is there.
    """
    folder = checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint)  # noqa: PTH112, PTH120 - a name
    target = os.path.realpath(path)
    for entry in sorted(Path(folder).iterdir()) if os.path.isdir(folder) else ():  # noqa: PTH112 - the same
        if entry.name.endswith(_PARTS) and os.path.realpath(entry) == target:
            raise OutputError(f"{path}: is {entry.name} of the checkpoint; nothing is written over it")


def _mode_of(target: Path) -> int | None:
    """Return what stands behind a name, or ``None`` for nothing; a link that leads in a circle is an error."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, text: str, mode: int | None) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(_usual_mode() if mode is None else mode)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _usual_mode() -> int:
    """Return the mode that a newly made file would get; ``mkstemp`` makes private ones."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
