# SPDX-License-Identifier: AGPL-3.0-only
"""What went wrong with a request to the Hub, in one sentence, and whether to ask again.

Only the kind of an error and a few of its headers are used, never its text: that may hold anything, a token included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.errors import SourceError
from glm5inspect.report import some

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from huggingface_hub.errors import HfHubHTTPError

PATIENCE = 120.0
"""The longest wait, in seconds, that a server may ask for before it counts as a refusal."""

PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes that may be gone the next time, as in ``huggingface_hub``."""

NOT_CACHED = "not in the cache, and offline; run once online, or hf download it"
"""What is said of everything that only the network has."""

_MOST_BRANCHES = 20
_LOGIN = "log in (hf auth login) or set HF_TOKEN"


class Fault(NamedTuple):
    """Why a request failed.

    Attributes:
        text: A clause without the name of what was asked for.
        again: Whether it may work the next time.
        wait: Seconds that the server asks to wait, ``None`` when it does not say.
        final: Whether every other request to the repository would fail in the same way.
    """

    text: str
    again: bool = False
    wait: float | None = None
    final: bool = False


class AnswerError(Exception):
    """Say that an answer is not what was asked for."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.fault = Fault(text, again)


class NoAnswerError(SourceError):
    """Say that something was asked for several times, in vain."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an error is explained with.

    Attributes:
        repo: ``owner/name``.
        revision: As asked for.
        endpoint: Scheme and host of the Hub.
        with_token: Whether a token was sent.
        branches: Lists the branches and tags that exist; called for an unknown revision only.
    """

    repo: str
    revision: str
    endpoint: str
    with_token: bool
    branches: Callable[[], list[str]]


def explain(error: Exception, asked: Asked) -> Fault:
    """Say what an error of ``huggingface_hub``, of its HTTP client, or of reading an answer means."""
    from huggingface_hub import errors as hub

    if isinstance(error, AnswerError):
        return error.fault
    if isinstance(error, hub.HfHubHTTPError):
        return _explain_status(error, asked)
    if isinstance(error, (hub.LocalEntryNotFoundError, ValueError)) and isinstance(error.__cause__, Exception):
        return explain(error.__cause__, asked)
    if isinstance(error, (hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError)):
        return Fault(NOT_CACHED)
    if isinstance(error, hub.HFValidationError):
        return Fault("this cannot be the name of a repository", final=True)
    return _explain_transport(error, asked.endpoint)


def _explain_status(error: HfHubHTTPError, asked: Asked) -> Fault:
    """Explain an answer with a status of 400 or more."""
    status: int = error.response.status_code
    for kind in type(error).__mro__:
        if sentence := _REFUSALS.get(kind.__name__):
            return sentence(asked, status)
    if status in PASSING:
        return _explain_passing(status, error.response.headers)
    if status == 401:  # noqa: PLR2004 - HTTP
        return _no_repository(asked, status)
    if status in _STATUSES:
        return _STATUSES[status]
    return Fault(f"answered {status}, not as the Hub does; is HF_ENDPOINT right ({asked.endpoint})?")


def _gated(asked: Asked, status: int) -> Fault:
    page = f"{asked.endpoint}/{asked.repo}"
    if asked.with_token:
        return Fault(f"gated, and this token has no access ({status}); accept its licence at {page}", final=True)
    return Fault(f"gated, and you are not logged in; accept its licence at {page}, then {_LOGIN}", final=True)


def _no_repository(asked: Asked, status: int) -> Fault:
    where = f"not found at {asked.endpoint}"
    if not asked.with_token:
        return Fault(f"{where}, or private and not logged in; check the name, or {_LOGIN}", final=True)
    if status == 401:  # noqa: PLR2004 - HTTP
        return _REFUSED_TOKEN
    return Fault(f"{where}, or this token may not see it; check the name, or use another token", final=True)


def _no_revision(asked: Asked, _: int) -> Fault:
    there = some(asked.branches(), _MOST_BRANCHES)
    return Fault(f"has no revision {asked.revision}; {f'there are {there}' if there else 'see its page'}", final=True)


_REFUSED_TOKEN = Fault("the token was refused (401): wrong, or expired; hf auth login, or set HF_TOKEN", final=True)
_REFUSALS: Mapping[str, Callable[[Asked, int], Fault]] = {
    "RevisionNotFoundError": _no_revision,
    "EntryNotFoundError": lambda *_: Fault("listed, and then not found (404); try again, or another revision"),
    "GatedRepoError": _gated,
    "DisabledRepoError": lambda *_: Fault("the Hub has disabled it; ask its owner", final=True),
    "RepositoryNotFoundError": _no_repository,
}
"""What the errors of ``huggingface_hub`` say of a repository, by the name of the class or of a base."""

_STATUSES = {
    403: Fault("access is forbidden (403); check the rights of the token, or log in"),
    416: Fault("the server has no such bytes (416): the file is smaller than listed; was it cut off or replaced?"),
}


def _explain_passing(status: int, headers: Mapping[str, str]) -> Fault:
    wait = _seconds_to_wait(headers)
    again = wait is None or wait <= PATIENCE
    ask = f" and asks to wait {wait:,.0f} s" if wait else ""
    if status == 429:  # noqa: PLR2004 - HTTP
        return Fault(f"the Hub limits requests (429){ask}; try again later, or {_LOGIN}", again, wait)
    return Fault(f"the server has a fault ({status}){ask}; try again later", again, wait)


def _seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After``, in seconds or as a date, or the reset time of the Hub's ``RateLimit``."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined] # lazily

    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value[:9])
    if value:
        from datetime import UTC, datetime
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None
    limits = parse_ratelimit_headers(headers)
    return float(limits.reset_in_seconds) if limits and limits.remaining == 0 else None


def _explain_transport(error: Exception, endpoint: str) -> Fault:
    """Explain an error below HTTP, or of making sense of an answer.

    The classes of the HTTP client are known by name: versions of ``huggingface_hub`` bring different clients, whose
    classes are called alike.
    """
    for kind in type(error).__mro__:
        if fault := _TRANSPORT.get(kind.__name__):
            return fault._replace(text=fault.text.format(endpoint=endpoint))
    if isinstance(error, OSError) and error.strerror:
        return Fault(f"cannot be had from the Hub's cache: {error.strerror}; see HF_HUB_CACHE")
    if isinstance(error, OSError):  # what hf_hub_download says of a file of the wrong size
        return Fault("came with another size than announced; try again", again=True)
    if isinstance(error, (ValueError, TypeError, KeyError, AttributeError, RecursionError)):
        return Fault(f"answered something that the Hub would not; is HF_ENDPOINT right ({endpoint})?", again=True)
    raise error


_NO_CONNECTION = Fault("no connection to {endpoint}; check the network, the proxy and HF_ENDPOINT", again=True)
_NO_ADDRESS = Fault("{endpoint} is no address of a server, or leads to none; check HF_ENDPOINT")
_TRANSPORT: Mapping[str, Fault] = {
    "ConnectError": _NO_CONNECTION,
    "ConnectTimeout": _NO_CONNECTION,
    "TimeoutException": Fault("the answer did not come in time; try again, or with a longer --timeout", again=True),
    "ProxyError": Fault("the proxy refuses the connection; check HTTPS_PROXY", final=True),
    "UnsupportedProtocol": _NO_ADDRESS,
    "InvalidURL": _NO_ADDRESS,
    "TooManyRedirects": Fault("{endpoint} redirects in a circle; check HF_ENDPOINT"),
    "DecodingError": Fault("the answer of {endpoint} is not what its headers say; try again", again=True),
    "TransportError": Fault("the connection to {endpoint} broke off; try again", again=True),
    "FileMetadataError": Fault("{endpoint} answers without the headers of the Hub; is HF_ENDPOINT right?", again=True),
}
"""What the errors of the HTTP client mean, by the name of the class or of a base; the nearest counts."""
