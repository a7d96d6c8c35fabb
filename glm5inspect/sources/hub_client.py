# SPDX-License-Identifier: AGPL-3.0-only
"""The requests to the Hub: what a revision is, its small files, and ranges of its large ones.

Everything goes through ``huggingface_hub``: its endpoint, session, token, cache and errors. What may pass is tried
again, with growing pauses that all threads keep together when a server asks for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import time
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect import __version__
from glm5inspect.errors import SourceError
from glm5inspect.sources.address import is_full_commit
from glm5inspect.sources.hub_faults import AnswerError, Asked, NoAnswerError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    from glm5inspect.sources.address import HubOptions

    T = TypeVar("T")

ATTEMPTS = 5
"""How often something is asked for before it counts as failed."""

_DOWNLOADS = 3  # the same for what the library downloads, since it tries again by itself

_FIRST_PAUSE = 0.5  # seconds; it doubles
_SLOWEST = 4096  # bytes a second; an answer that trickles in more slowly counts as stalled
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
    def load(cls, raw: bytes) -> Listing | None:
        """Read what `dump` wrote; ``None`` for anything else, as another version may have written it."""
        try:
            commit, files = json.loads(raw)
            return cls(commit, {name: RemoteFile(*facts) for name, facts in files.items()})
        except (ValueError, TypeError, AttributeError):
            return None


class HubClient:
    """Ask the Hub about one repository; several threads may do so at once."""

    def __init__(self, repo: str, revision: str, options: HubOptions, note: Callable[[str], None]) -> None:
        """Get ready; nothing is requested, but ``huggingface_hub`` is imported."""
        from huggingface_hub import HfApi, is_offline_mode

        _be_quiet()
        self.repo = repo
        self.revision = revision
        self.offline = options.offline or is_offline_mode()
        self._timeout = options.timeout
        self._token = options.token
        self._api = HfApi(token=options.token, library_name="glm5inspect", library_version=__version__)
        self._headers = self._build_headers()
        self.endpoint: str = self._api.endpoint
        self.page = _without_password(self.endpoint)
        self._asked = Asked(repo, revision, self.page, "authorization" in self._headers, self._branches)
        self._note = note
        self._noted = False
        self._lock = Lock()
        self._not_before = 0.0
        self._lost: str | None = None

    def list_files(self) -> Listing:
        """Resolve the revision to a commit, and return the files of that commit; one request.

        Raises:
            SourceError: The Hub does not answer, or not with a listing.
        """

        def ask() -> Listing:
            info = self._api.model_info(self.repo, revision=self.revision, files_metadata=True, timeout=self._timeout)
            return _as_listing(info)

        return self._try(ask, self.repo)

    def download(self, path: str, commit: str, file: RemoteFile) -> bytes:
        """Return a small file, which is put into the Hub's cache of this machine unless it is there.

        Raises:
            SourceError: It cannot be had.
        """

        def get() -> bytes:
            try:
                return self._download(path, commit, file)
            except OSError as error:
                # An error of the disk has an errno; the library's own, which are OSErrors as well, have none.
                if error.errno is None or self.offline or file.size is None:
                    raise
                self._note_unkept(error)
            return self._read_range(self._url(path, commit), 0, file.size, file.size)

        return self._try(get, path, _DOWNLOADS)

    def _download(self, path: str, commit: str, file: RemoteFile) -> bytes:
        from huggingface_hub import hf_hub_download

        for force in (False, True):
            local = hf_hub_download(
                self.repo,
                path,
                revision=commit,
                token=self._token,
                endpoint=self.endpoint,
                local_files_only=self.offline,
                force_download=force and not self.offline,
            )
            content = Path(local).read_bytes()
            if _is_whole(content, file):
                return content
        raise AnswerError("is not what the listing says, by size or checksum; try again", again=not self.offline)

    def _note_unkept(self, error: OSError) -> None:
        if not self._noted:
            self._noted = True
            self._note(f"the Hub's cache cannot be written ({error.strerror}); going on without it; see HF_HUB_CACHE")

    def cached(self, path: str, commit: str, size: int) -> Path | None:
        """Return a shard that lies in the Hub's cache of this machine, and whole, as far as its size tells."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, path, revision=commit)
        if not isinstance(found, str):
            return None
        try:
            return Path(found) if Path(found).stat().st_size == size else None
        except OSError:
            return None

    def cached_commit(self) -> str | None:
        """Return the commit at which the Hub's cache of this machine last saw the revision, a branch or tag."""
        try:
            return (self._cache_folder() / "refs" / self.revision).read_text().strip()
        except (OSError, ValueError):
            return None

    def cached_files(self, commit: str) -> Iterator[tuple[str, RemoteFile]]:
        """Yield the files of a commit that the Hub's cache of this machine has, links to nothing included."""
        folder = self._cache_folder() / "snapshots" / commit
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                size = path.stat().st_size if path.is_file() else None
                yield path.relative_to(folder).as_posix(), RemoteFile(size, "", lfs=True)

    def _cache_folder(self) -> Path:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=self.repo, repo_type="model"))

    def read(self, path: str, commit: str, start: int, stop: int, size: int) -> bytes:
        """Read the bytes [start, stop) of a file of ``size`` bytes; all of them, in one request unless it fails.

        Raises:
            SourceError: They cannot be had.
        """
        return self._try(lambda: self._read_range(self._url(path, commit), start, stop, size), path)

    def _url(self, path: str, commit: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repo, path, revision=commit, endpoint=self.endpoint)

    def _read_range(self, url: str, start: int, stop: int, size: int) -> bytes:
        from huggingface_hub import get_session
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined] # lazily

        if start >= stop:
            return b""  # for which there is no range
        headers = {**self._headers, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=self._timeout) as response:
            if response.status_code >= 400:  # noqa: PLR2004 - HTTP
                hf_raise_for_status(response)
            skip = _check_range(response.status_code, response.headers, start, stop, size)
            return self._take(response.iter_raw(), skip, stop - start)

    def _take(self, chunks: Iterable[bytes], skip: int, length: int) -> bytes:
        """Gather ``length`` bytes after the first ``skip``, and leave what is more than a chunk beyond them unread."""
        deadline = time.monotonic() + self._timeout + (skip + length) / _SLOWEST
        taken = bytearray()
        for chunk in chunks:  # to its end where that is near, or the connection could not be used again
            taken += chunk
            if len(taken) > skip + length:
                break
            if time.monotonic() > deadline:
                raise AnswerError("the answer trickles in; try again, or with a longer --timeout", again=True)
        if len(taken) < skip + length:
            raise AnswerError(f"ended after {len(taken):,} of {skip + length:,} bytes; try again", again=True)
        return bytes(taken[skip : skip + length])

    def _try(self, action: Callable[[], T], what: str, attempts: int = ATTEMPTS) -> T:
        """Do something until it works, as often as is sensible."""
        for attempt in range(1, attempts + 1):
            self._wait_until_allowed()
            if self._lost:
                raise SourceError(self._lost)
            try:
                return action()
            except Exception as error:  # noqa: BLE001 - explained, or raised again where it cannot be
                fault = explain(error, self._asked)
            if fault.final:
                self._lost = f"{self.repo}: {fault.text}"
                raise SourceError(self._lost)
            if not fault.again:
                raise SourceError(f"{what}: {fault.text}")
            if attempt < attempts:
                self._pause(attempt, fault.wait)
        raise NoAnswerError(f"{what}: {fault.text} (tried {attempts} times)")

    def _pause(self, attempt: int, wait: float | None) -> None:
        """Wait before the next attempt; a wait that the server asks for holds for every thread."""
        if wait is None:
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads threads
        else:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + wait)

    def _wait_until_allowed(self) -> None:
        while (left := self._not_before - time.monotonic()) > 0:
            time.sleep(left)

    def _build_headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # lazily

        return build_hf_headers(token=self._token, library_name="glm5inspect", library_version=__version__)

    def _branches(self) -> list[str]:
        """Return the names of branches and tags; none when the Hub does not tell."""
        try:
            refs = self._api.list_repo_refs(self.repo)
            return [ref.name for ref in (*refs.branches, *refs.tags)]
        except Exception:  # noqa: BLE001 - this only helps to explain another error
            return []


def _be_quiet() -> None:
    """Keep the progress bars and warnings of the library off the terminal, unless its user asks for them."""
    from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined] # lazily

    if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    if not {"HF_HUB_VERBOSITY", "HF_DEBUG"} & os.environ.keys():
        logging.set_verbosity_error()  # type: ignore[no-untyped-call] # of a library


def _without_password(endpoint: str) -> str:
    """Return an address as it may be shown."""
    head, at, host = endpoint.rpartition("@")
    return f"{head.partition('://')[0]}://{host}" if at else endpoint


def _as_listing(info: Any) -> Listing:  # noqa: ANN401 - from the Hub, and to be checked
    """Check what the Hub tells about a repository."""
    files = {}
    if not isinstance(info.sha, str) or not is_full_commit(info.sha) or info.siblings is None:
        raise AnswerError("the answer names no commit or no files; is HF_ENDPOINT right?", again=True)
    for sibling in info.siblings:
        name = sibling.rfilename
        if not isinstance(name, str) or _leads_out(name):
            raise AnswerError(f"lists a file {str(name)[:80]!r}, which is not below the repository; nothing was read")
        size, blob = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        known = type(size) is int and size >= 0
        files[name] = RemoteFile(size if known else None, str(blob or ""), bool(sibling.lfs))
    return Listing(info.sha, files)


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return not name or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name


def _is_whole(content: bytes, file: RemoteFile) -> bool:
    """Tell whether a small file is the one of the listing: by size, and by checksum when that is Git's."""
    if file.size is not None and len(content) != file.size:
        return False
    if file.lfs or not is_full_commit(file.blob):  # which has the form of every Git object
        return True
    digest = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest() == file.blob


def _check_range(status: int, headers: Mapping[str, str], start: int, stop: int, size: int) -> int:
    """Return how many bytes of an answer come before those asked for.

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
        return start
    told = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if status != 206 or told is None:  # noqa: PLR2004 - HTTP
        raise AnswerError(f"answered {status} without saying which bytes these are; is HF_ENDPOINT right?", again=True)
    first, last, total = int(told[1]), int(told[2]), told[3]
    if total != "*" and int(total) != size:
        raise AnswerError(f"the server has {int(total):,} bytes of it, the listing {size:,}; was it replaced?")
    if first != start or last < stop - 1:
        raise AnswerError(f"asked for bytes [{start}, {stop}), and got [{first}, {last + 1}); use another mirror")
    return 0
