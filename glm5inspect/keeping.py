# SPDX-License-Identifier: AGPL-3.0-only
"""The header cache as a user sees it: where it is, what is in it, and an end to it."""

from __future__ import annotations

from dataclasses import dataclass

from glm5inspect.report import Report
from glm5inspect.sources.header_cache import KINDS, HeaderCache, Usage, cache_folder


@dataclass(frozen=True, slots=True)
class CacheState:
    """What the folder holds: of each kind the entries and their bytes on disk; after the clearing, if there was one."""

    folder: str
    headers: Usage
    listings: Usage
    revisions: Usage
    values: Usage
    cleared: bool


def look_at_cache(folder: str | None, *, clear: bool) -> Report:
    """Report on the header cache.

    Args:
        folder: The folder; ``None`` for the usual one.
        clear: Whether to remove all entries first.

    Raises:
        OutputError: An entry cannot be removed.
    """
    cache = HeaderCache(cache_folder(folder))
    if clear:
        cache.clear()
    usage = {kind: cache.usage(kind) for kind in KINDS}
    answer = CacheState(folder=str(cache.folder), **usage, cleared=clear)
    return Report(command="cache", source=None, answer=answer, findings=(), complete=True)
