# SPDX-License-Identifier: AGPL-3.0-only
"""The requests to the Hub: what a revision is, its small files, and ranges of its large ones.

Everything goes through ``huggingface_hub``: its endpoint, session, token, cache and errors. What may pass is tried
again, with growing pauses that all threads keep together when a server asks for one.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from glm5inspect.errors import SourceError
from glm5inspect.sources.hub_answers import RemoteFile, as_listing, check_range, is_whole
from glm5inspect.sources.hub_faults import AnswerError, Asked, NoAnswerError, explain
from glm5inspect.sources.hub_setup import limit_download, raise_for_status, set_up, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from glm5inspect.sources.hub_answers import Listing
    from glm5inspect.sources.hub_options import HubOptions

    T = TypeVar("T")

ATTEMPTS = 5
"""How often something is asked for before it counts as failed."""

_DOWNLOADS = 3  # the same for what the library downloads, since it tries again by itself

_FIRST_PAUSE = 0.5  # seconds; it doubles
_LONGEST_ANSWER = 64 << 20  # of the API; 10,000 files take 3 MB
_SLOWEST = 4096  # bytes a second; an answer that trickles in more slowly counts as stalled


class HubClient:
    """Ask the Hub about one repository; several threads may do so at once."""

    def __init__(self, repo: str, revision: str, options: HubOptions, note: Callable[[str], None]) -> None:
        """Get ready; nothing is requested, but ``huggingface_hub`` is imported.

        Raises:
            SourceError: The environment keeps the library from being used.
        """
        self.repo = repo
        self.revision = revision
        self._timeout = options.timeout
        self._token = options.token
        self.endpoint, is_offline, self._headers = set_up(options.token)
        self.offline = options.offline or is_offline
        self.page = without_password(self.endpoint)
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
        from urllib.parse import quote

        path = f"{self.repo}/revision/{quote(self.revision, safe='')}?blobs=true"
        return self._try(lambda: as_listing(self._ask(path)), self.repo)

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
                tqdm_class=limit_download(file.size),
            )
            content = Path(local).read_bytes()
            if is_whole(content, file):
                return content
        if self.offline:
            raise AnswerError(f"what is cached of it is damaged: remove {local}, and run once online")
        raise AnswerError("is not what the listing says, by size or checksum; try again", again=True)

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

    def _ask(self, path: str) -> Any:  # noqa: ANN401 - what a server sends
        """Return an answer of the Hub's API about the repository, parsed; its length and its time are bounded."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined] # lazily

        validate_repo_id(self.repo)
        url = f"{self.endpoint}/api/models/{path}"
        with get_session().stream("GET", url, headers=self._headers, timeout=self._timeout) as response:
            raise_for_status(response)
            return json.loads(self._gather(response.iter_bytes(), _LONGEST_ANSWER, whole=True))

    def _read_range(self, url: str, start: int, stop: int, size: int) -> bytes:
        from huggingface_hub import get_session

        if start >= stop:
            return b""  # for which there is no range
        headers = {**self._headers, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=self._timeout) as response:
            raise_for_status(response)
            skip, announced = check_range(response.status_code, response.headers, start, stop, size)
            return self._gather(response.iter_raw(), skip + stop - start, announced)[skip:]

    def _gather(
        self, chunks: Iterable[bytes], length: int, announced: int | None = None, *, whole: bool = False
    ) -> bytes:
        """Gather the bytes of an answer.

        Args:
            chunks: The answer as it comes.
            length: How many bytes are wanted; what is more than a chunk beyond them is left unread.
            announced: How many there are to come; ``None`` where nobody said so.
            whole: Whether fewer are enough, and more are too many.

        Raises:
            AnswerError: It is too short or too long, or takes too much time.
        """
        deadline = time.monotonic() + self._timeout + length / _SLOWEST
        taken = bytearray()
        for chunk in chunks:  # to its end where that is near, or the connection could not be used again
            taken += chunk
            if len(taken) > length:
                break
            if time.monotonic() > deadline:
                raise AnswerError("the answer trickles in; try again, or with a longer --timeout", again=True)
        if announced is not None and len(taken) > announced:
            raise AnswerError(f"sent more than the {announced:,} bytes announced; try again", again=True)
        if len(taken) > length and whole:
            raise AnswerError(f"answered more than {length:,} bytes; is HF_ENDPOINT right ({self.page})?")
        if len(taken) < length and not whole:
            raise AnswerError(f"ended after {len(taken):,} of {length:,} bytes; try again", again=True)
        return bytes(taken[:length])

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

    def _branches(self) -> list[str]:
        """Return the names of branches and tags; none when the Hub does not tell."""
        try:
            refs = self._ask(f"{self.repo}/refs")
            return [str(ref["name"]) for kind in ("branches", "tags") for ref in refs[kind]]
        except Exception:  # noqa: BLE001 - this only helps to explain another error
            return []
