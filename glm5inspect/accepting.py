# SPDX-License-Identifier: AGPL-3.0-only
"""A reviewed list of accepted findings, so that a release check fails on anything new only.

The file is TOML: one ``[[accept]]`` table an entry, with ``code``, ``reason`` and, unless all findings of the code are
meant, ``tensor``, a glob on the tensor's name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from glm5inspect.catalogue import BY_SLUG, Code, hint_for
from glm5inspect.errors import UsageError
from glm5inspect.report import Finding, Waiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from glm5inspect.report import Report

MOST_BYTES = 200_000
"""Of the file: more than anybody reviewed."""

_KEYS = {"code", "tensor", "reason"}
_NEEDED = {"code", "reason"}


def read_accepted(path: str) -> tuple[Waiver, ...]:
    """Read a list of accepted findings.

    Raises:
        UsageError: The file cannot be read, is no TOML, or has an entry that is not understood: a finding must not be
            accepted by a misspelt entry, nor an entry be passed over.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path}: over {MOST_BYTES:,} bytes; no list of accepted findings is that long")
    try:
        entries = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8 either
        raise UsageError(f"{path}: not TOML: {error}") from error
    accepted = entries.pop("accept", [])
    if entries or not isinstance(accepted, list):
        raise UsageError(f"{path}: is to hold [[accept]] entries, and nothing else")
    return tuple(_entry(f"{path}: entry {number}", entry) for number, entry in enumerate(accepted, 1))


def _entry(origin: str, entry: object) -> Waiver:
    if not isinstance(entry, dict) or not entry.keys() >= _NEEDED:
        raise UsageError(f"{origin}: needs code and reason")
    if strange := sorted(entry.keys() - _KEYS):
        raise UsageError(f"{origin}: has {strange[0]}; an entry has code, reason and perhaps tensor")
    for key, text in entry.items():
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{origin}: {key} is not a text, or is empty")
    if entry["code"] not in BY_SLUG:
        raise UsageError(f"{origin}: {entry['code']} is not a finding code; {hint_for(entry['code'])}")
    return Waiver(BY_SLUG[entry["code"]], entry.get("tensor"), entry["reason"].strip(), origin)


def unused_entries(waivers: Sequence[Waiver], reports: Sequence[Report]) -> Iterator[Finding]:
    """Yield the entries of a reviewed list that cover nothing; none where not everything could be read.

    Args:
        waivers: The entries, and those of ``--ignore``, which are passed over.
        reports: The answers before any policy, one for each source: an entry may be about any of them.
    """
    if not all(report.complete for report in reports):
        return
    by_code: dict[Code, list[Finding]] = {}
    for report in reports:
        for finding in report.findings:
            by_code.setdefault(finding.code, []).append(finding)
    for waiver in waivers:
        if waiver.reason is None or isinstance(waiver.code, str):
            continue
        if not any(map(waiver.covers, by_code.get(waiver.code, ()))):
            message = f"{waiver.origin}: covers nothing: no {waiver.subject} was found"
            yield Finding(Code.ACCEPT_UNUSED, message, actual=waiver.reason)
