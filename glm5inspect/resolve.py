# SPDX-License-Identifier: AGPL-3.0-only
"""What a SOURCE argument means: a path, a bundled snapshot, or a repository."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from glm5inspect.checkpoint import ADAPTER, OTHER_FORMATS, Checkpoint
from glm5inspect.errors import SourceError, UsageError
from glm5inspect.header import SNIFF_BYTES, foreign_format
from glm5inspect.snapshot import bundled_names, load_snapshot, snapshot_folder
from glm5inspect.sources.address import check_revision, parse_address
from glm5inspect.sources.base import INDEX_SUFFIX, SHARD_SUFFIX
from glm5inspect.sources.hub_options import HubOptions
from glm5inspect.sources.local import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5inspect.inventory import Source
    from glm5inspect.sources.address import RepoAddress

BUNDLED = "snapshot:"


def open_source(
    text: str,
    *,
    subfolder: str | None = None,
    revision: str | None = None,
    hub: HubOptions | None = None,
    note: Callable[[str], None] = lambda text: None,  # noqa: ARG005 - nobody to tell
) -> Source:
    """Find out what a SOURCE argument means and open it.

    Args:
        text: An existing path (a folder of shards, one ``.safetensors`` file, an index file, a snapshot file), else
            ``snapshot:NAME``, else a repository of the Hugging Face Hub.
        subfolder: Where the model is below the root of a folder or repository.
        revision: Branch, tag or commit of a repository that is named without one.
        hub: How to reach the Hub; ``None`` for the usual way.
        note: Told what the user should know and no report says.

    Raises:
        SourceError: There is no such thing, or it is nothing that can be inspected.
        SnapshotError: A snapshot file is malformed.
        UsageError: Arguments contradict each other.
    """
    if not text.strip():
        raise SourceError("SOURCE is empty; give a folder, a file, snapshot:NAME or owner/name")
    if is_local(text):
        if revision is not None:
            raise UsageError(f"{text}: is here, and --revision is for repositories of the Hub (hf://owner/name)")
        if text.startswith(BUNDLED) and not _exists(text):
            return _open_bundled(text.removeprefix(BUNDLED), text, subfolder)
        return _open_path(_path(text), text, subfolder)
    address = parse_address(text)  # never of what looks like a path: an owner begins with a letter or digit
    if address is None:
        raise SourceError(f"{text}: no such file or folder")
    return _open_repository(address, text, subfolder, revision, hub or HubOptions(), note)


def is_local(text: str) -> bool:
    """Tell whether a SOURCE is an existing path or a bundled snapshot, and so no repository.

    Raises:
        SourceError: Whether a path exists cannot be told, or it is a link that leads nowhere.
    """
    if text[:5].lower() == "hf://":
        return False
    if _exists(text) or text.startswith(BUNDLED):
        return True
    if _path(text).is_symlink():
        raise SourceError(f"{text}: a link that leads nowhere")
    return False


def _path(text: str) -> Path:
    return Path(text).expanduser() if text.startswith("~") else Path(text)


def _exists(text: str) -> bool:
    try:
        return _path(text).exists()
    except OSError as error:  # a name too long, or below a folder that is closed to us
        raise SourceError(f"{text[:80]}: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:  # a NUL in it, or of nobody's home
        raise SourceError(f"{text[:80]}: not a path: {error}") from error


def _open_repository(
    address: RepoAddress,
    text: str,
    subfolder: str | None,
    revision: str | None,
    hub: HubOptions,
    note: Callable[[str], None],
) -> Source:
    from glm5inspect.sources.hub import HubSource  # noqa: PLC0415 - imports what only the Hub needs

    for option, typed, addressed in (
        ("--revision", revision, address.revision),
        ("--subfolder", subfolder, address.subfolder),
    ):
        if typed is not None and addressed is not None and PurePosixPath(typed) != PurePosixPath(addressed):
            raise UsageError(f"{text}: says {addressed}, and {option} says {typed}; give one of them")
    if revision is not None:
        address = address._replace(revision=check_revision(revision, "--revision"))
    below = subfolder or address.subfolder
    if below:
        _check_subfolder(below, text)
    return Checkpoint(
        HubSource(address, typed=text.partition("?")[0].partition("#")[0], subfolder=below, options=hub, note=note)
    )


def _open_path(path: Path, text: str, subfolder: str | None) -> Source:
    if path.is_dir():
        return _open_folder(path, text, subfolder)
    if subfolder:
        raise SourceError(f"{text}: a file, so there is no --subfolder {subfolder} in it")
    if path.name.endswith(INDEX_SUFFIX):
        return Checkpoint(LocalSource(path.parent, typed=text, index=path.name))
    if path.name.endswith(SHARD_SUFFIX):
        if path.name.startswith("adapter_"):
            raise SourceError(f"{text}: {ADAPTER}")
        return Checkpoint(LocalSource(path.parent, typed=text, sole_shard=path.name))
    if not path.is_file():
        raise SourceError(f"{text}: neither a folder nor a regular file")
    start = _first_bytes(path)
    if path.suffix == ".json" or start.startswith(b"{"):
        if what := foreign_format(start):
            raise SourceError(f"{text}: {what}")
        return load_snapshot(path, typed=text)
    raise SourceError(f"{text}: {_what_is(path, start)}; give a folder of .safetensors files, or a snapshot file")


def _open_folder(path: Path, text: str, subfolder: str | None) -> Source:
    if not subfolder:
        return Checkpoint(LocalSource(path, typed=text))
    below = _check_subfolder(subfolder, text)
    if not os.path.isdir(path / below):  # noqa: PTH112 - no name is too long for it
        raise SourceError(f"{text}: has no folder {subfolder}")
    return Checkpoint(LocalSource(path / below, typed=text))


def _check_subfolder(subfolder: str, text: str) -> PurePosixPath:
    below = PurePosixPath(subfolder)
    if below.is_absolute() or ".." in below.parts:
        raise SourceError(f"--subfolder {subfolder}: not a path below {text}")
    return below


def _open_bundled(name: str, text: str, subfolder: str | None) -> Source:
    known = bundled_names()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        did_you_mean = f"did you mean {BUNDLED}{close[0]}?" if close else f"there are {', '.join(known)}"
        raise SourceError(f"{text}: no such bundled snapshot; {did_you_mean}")
    if subfolder:
        raise SourceError(f"{text}: a snapshot has no sub-folders")
    return load_snapshot(snapshot_folder() / f"{name}.json", typed=text, resolved=f"{name}, bundled")


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(SNIFF_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _what_is(path: Path, start: bytes) -> str:
    """Name a file that is no source: by its first bytes, else by its suffix."""
    by_suffix = next((what for suffix, what in OTHER_FORMATS if path.name.endswith(suffix)), None)
    return foreign_format(start) or (f"a file of another kind ({by_suffix})" if by_suffix else "not a checkpoint")
