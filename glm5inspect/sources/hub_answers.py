# SPDX-License-Identifier: AGPL-3.0-only
"""What the Hub answers, checked before anybody believes it: listings, small files, ranges."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect.sources.address import is_full_commit
from glm5inspect.sources.hub_faults import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_SKIPPED = 8 << 20  # bytes dropped before those wanted, from a server that sends whole files only
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class RemoteFile(NamedTuple):
    """One file of a commit.

    Attributes:
        size: Bytes; ``None`` when the Hub does not tell.
        blob: What the content is known by: the SHA-256 of an LFS object, else the Git blob id.
        lfs: Whether it is an LFS object.
    """

    size: int | None
    blob: str
    lfs: bool


class Listing(NamedTuple):
    """The files of one commit, by path from the root of the repository."""

    commit: str
    files: Mapping[str, RemoteFile]

    def dump(self) -> bytes:
        """Write it for the cache."""
        return json.dumps([self.commit, self.files]).encode()

    @classmethod
    def load(cls, raw: bytes, commit: str) -> Listing | None:
        """Read what `dump` wrote of a commit; ``None`` for anything else, as another version may have written it."""
        try:
            stored, files = json.loads(raw)
            listing = cls(stored, {name: RemoteFile(*facts) for name, facts in files.items()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        sound = stored == commit and not any(map(_leads_out, listing.files))
        return listing if sound and all(map(_is_sound, listing.files.values())) else None


def _is_sound(file: RemoteFile) -> bool:
    size, blob, lfs = file
    return (size is None or (type(size) is int and size >= 0)) and type(blob) is str and type(lfs) is bool


def as_listing(info: Any) -> Listing:  # noqa: ANN401 - from the Hub, and to be checked
    """Check what the Hub tells about a repository."""
    if not isinstance(info["sha"], str) or not is_full_commit(info["sha"]):
        raise AnswerError("the answer names no commit; is HF_ENDPOINT right?", again=True)
    files = {}
    for sibling in info["siblings"]:
        name, lfs = sibling["rfilename"], sibling.get("lfs")
        if not isinstance(name, str) or _leads_out(name):
            raise AnswerError(f"lists a file {str(name)[:80]!r}, which is not below the repository; nothing was read")
        size, blob = sibling.get("size"), lfs["sha256"] if lfs else sibling.get("blobId")
        known = type(size) is int and size >= 0
        files[name] = RemoteFile(size if known else None, str(blob or ""), bool(lfs))
    return Listing(info["sha"], files)


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return not name or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name


def is_whole(content: bytes, file: RemoteFile) -> bool:
    """Tell whether a small file is the one of the listing: by size, and by checksum when that is Git's."""
    if file.size is not None and len(content) != file.size:
        return False
    if file.lfs or not is_full_commit(file.blob):  # which has the form of every Git object
        return True
    digest = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest() == file.blob


def check_range(status: int, headers: Mapping[str, str], start: int, stop: int, size: int) -> tuple[int, int]:
    """Return how many bytes of an answer come before those asked for, and how many it has altogether.

    Raises:
        AnswerError: It holds other bytes than those asked for.
    """
    if headers.get("Content-Encoding", "identity") != "identity":
        raise AnswerError("the server compresses ranges, so their bytes are not the file's; use another mirror")
    if status == 200:  # noqa: PLR2004 - HTTP; the whole file, from a server that does not know ranges
        if start > _MOST_SKIPPED:
            raise AnswerError("the server sends whole files only (no Range); use another mirror")
        total = headers.get("Content-Length", "")
        if total.isdecimal() and int(total) != size:
            raise AnswerError(f"the server has {int(total):,} bytes of it, the listing {size:,}; was it replaced?")
        if start and not total.isdecimal():  # a header shows whether it is one; what lies behind it does not
            raise AnswerError("answered something without saying how long it is; is HF_ENDPOINT right?", again=True)
        return start, size
    told = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if status != 206 or told is None:  # noqa: PLR2004 - HTTP
        raise AnswerError(f"answered {status} without saying which bytes these are; is HF_ENDPOINT right?", again=True)
    first, last, total = int(told[1]), int(told[2]), told[3]
    if total != "*" and int(total) != size:
        raise AnswerError(f"the server has {int(total):,} bytes of it, the listing {size:,}; was it replaced?")
    if first != start or last < stop - 1:
        raise AnswerError(f"asked for bytes [{start}, {stop}), and got [{first}, {last + 1}); use another mirror")
    return 0, last + 1 - first
