# SPDX-License-Identifier: AGPL-3.0-only
"""Which repository of the Hub a SOURCE names; nothing is asked here."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from glm5inspect.errors import SourceError, UsageError

DEFAULT_REVISION = "main"

_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_OTHER_KINDS = {"datasets": "a dataset", "spaces": "a Space", "kernels": "a kernel", "buckets": "a bucket"}
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_REPO = re.compile(rf"{_SEGMENT}/{_SEGMENT}")
_PLAIN = re.compile(rf"(?P<repo>{_SEGMENT}(?:/{_SEGMENT})+)(?:@(?P<revision>.*))?", re.DOTALL)
_REVISION = re.compile(r"[^\s~^:?*\[\\@]+")
_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
_VIEWS = ("tree", "blob", "resolve", "raw", "commit", "commits")
"""What follows the repository in the address of a page of its files."""

_FILE_SUFFIXES = (".safetensors", ".json", ".gguf")
_REF_DEPTH = {"heads": 3, "tags": 3, "convert": 3, "pr": 3}
"""How many segments of an address make a revision that begins with ``refs/``, by the segment after it."""


class RepoAddress(NamedTuple):
    """A model repository as a SOURCE names it.

    Attributes:
        repo: ``owner/name``.
        revision: Branch, tag, ``refs/pr/N`` or commit, full or abbreviated; ``None`` when it names none.
        subfolder: The folder that a web address leads to, else ``None``.
    """

    repo: str
    revision: str | None = None
    subfolder: str | None = None


def is_full_commit(revision: str) -> bool:
    """Tell whether a revision is a whole commit, which never moves."""
    return _FULL_COMMIT.fullmatch(revision) is not None


def parse_address(text: str) -> RepoAddress | None:
    """Read a SOURCE as a repository: ``owner/name[@revision]``, ``hf://…``, or a web address of the Hub.

    Returns:
        ``None`` when it does not look like one.

    Raises:
        SourceError: It is another kind of repository, or a web address of something else.
        UsageError: The revision is empty or impossible.
    """
    scheme, colon, rest = text.partition("://")
    if colon and scheme.lower() in ("http", "https"):
        return _parse_web_address(text)
    if text.partition("/")[0].lower() in _HUB_HOSTS:  # as browsers show it
        return _parse_web_address(f"https://{text}")
    forced = bool(colon) and scheme.lower() == "hf"
    plain = _PLAIN.fullmatch((rest.removeprefix("models/") if forced else text).rstrip("/"))
    if plain is None:
        if forced:
            raise SourceError(f"{text}: not a repository; write hf://owner/name or hf://owner/name@revision")
        return None
    _refuse_other_kinds(text, plain["repo"].split("/"))
    owner, name, *more = plain["repo"].split("/")
    if more and more[0] in _VIEWS:
        raise SourceError(f"{text}: no such folder; a revision of a repository is written {owner}/{name}@revision")
    if more or plain["repo"].endswith(_FILE_SUFFIXES):
        if forced:
            raise SourceError(f"{text}: not a repository; a folder in it is given with --subfolder")
        return None
    if plain["revision"] is None:
        return RepoAddress(plain["repo"])
    return RepoAddress(plain["repo"], check_revision(plain["revision"], text))


def check_revision(revision: str, where: str) -> str:
    """Return a revision that Git could know.

    Raises:
        UsageError: It is empty, as an unset variable leaves it, or no name that Git accepts.
    """
    if not revision:
        raise UsageError(f"{where}: the revision is empty; leave it out for {DEFAULT_REVISION}")
    if _FULL_COMMIT.fullmatch(revision.lower()):
        return revision.lower()
    wrong = not revision.isprintable() or ".." in revision or "//" in revision or revision[0] in "/-"
    if wrong or not _REVISION.fullmatch(revision):
        raise UsageError(f"{where}: {revision!r} cannot be a branch, tag or commit")
    return revision


def _parse_web_address(text: str) -> RepoAddress:
    try:
        url = urlsplit(text)
        host = (url.hostname or "").lower()
        text = url._replace(query="", fragment="").geturl()  # which may hold a token
    except ValueError as error:
        raise SourceError("not a web address: " + str(error)) from error
    if url.username is not None or url.password is not None:
        raise SourceError(f"an address of {host} with a name or password in it; leave these out, and set HF_TOKEN")
    if host not in _HUB_HOSTS and url.netloc.lower() != _endpoint_host():
        raise SourceError(f"{text}: not an address of the Hugging Face Hub; for a mirror set HF_ENDPOINT")
    segments = [unquote(segment) for segment in url.path.split("/") if segment]
    _refuse_other_kinds(text, segments)
    repo = "/".join(segments[:2])
    if not _REPO.fullmatch(repo):
        raise SourceError(f"{text}: not the address of a repository, which is {url.scheme}://{host}/owner/name")
    if len(segments) == 2:  # noqa: PLR2004 - owner and name
        return RepoAddress(repo)
    view, *rest = segments[2:]
    if view != "tree" or not rest:
        known = rest[0] if view in ("blob", "resolve", "raw", "commit", "commits") and rest else "REVISION"
        raise SourceError(f"{text}: not a page of the files of a repository; give {repo}@{known}")
    depth = _REF_DEPTH.get(rest[1], 1) if len(rest) > 1 and rest[0] == "refs" else 1
    revision = check_revision("/".join(rest[:depth]), text)
    return RepoAddress(repo, revision, "/".join(rest[depth:]) or None)


def _refuse_other_kinds(text: str, segments: list[str]) -> None:
    if len(segments) > 1 and (kind := _OTHER_KINDS.get(segments[0])):  # no owner has one of these names
        raise SourceError(f"{text}: {kind}, and only model repositories are read")


def _endpoint_host() -> str:
    """Return host and port of the endpoint that ``HF_ENDPOINT`` sets."""
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.lower()
