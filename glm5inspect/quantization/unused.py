# SPDX-License-Identifier: AGPL-3.0-only
"""Entries of quantization configs that name nothing, and how they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.quantization.patterns import Target
from glm5inspect.report import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from glm5inspect.quantization.declared import Rule
    from glm5inspect.quantization.judging import Judged

MOST_LISTED = 20
"""So many entries of one list are reported one by one, the others together."""

_PREFIXES = ("model.language_model.", "model.")
_LINE = 80


def unused_entries(judged: Sequence[Judged], names: Iterable[str]) -> Iterator[Finding]:
    """Report every entry that names no module, no tensor, and nothing that holds any.

    Args:
        judged: What the declarations say of Linear modules.
        names: The name of every tensor, with ``E`` for the expert's number.
    """
    paths: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            path = ".".join(parts[:end])
            if path in paths:
                break
            paths[path] = None
    others = [Target(path, (0,) if ".experts.E" in path else None) for path in paths]
    for each in judged:
        for place, rule in enumerate(each.declaration.rules):
            used = {entry for where, entry in each.used if where == place}
            if rule.patterns.unread or len(used) < len(rule.patterns.entries):
                yield from _of_rule(each.declaration.file, rule, used, others)


def _of_rule(file: str, rule: Rule, used: set[int], others: Sequence[Target]) -> Iterator[Finding]:
    patterns = rule.patterns
    used = used.union(hit.entry for target in others for hit in patterns.hits(target))
    # What is named under one prefix may be named under the other as well, for loaders that go by that.
    named = {other for index in used for other in _spellings(patterns.entries[index])}
    unread = dict(patterns.unread)
    unused = [index for index, entry in enumerate(patterns.entries) if index not in used and index not in unread]
    reasons = dict.fromkeys(unused, f"names nothing (read as {patterns.style.value})")
    reasons = {i: reason for i, reason in reasons.items() if patterns.entries[i] not in named}
    reasons.update({index: f"is not read: it {bad.reason}" for index, bad in unread.items()})
    entries = (*patterns.entries, "…")
    for index in sorted(reasons)[:MOST_LISTED]:
        entry = entries[index] if len(entries[index]) <= _LINE else f"{entries[index][: _LINE - 1]}…"
        yield Finding(Code.QUANT_PATTERN_UNUSED, f"`{entry}` in `{rule.key}` of {file} {reasons[index]}", actual=entry)
    if (more := len(reasons) - MOST_LISTED) > 0:
        message = f"{more:,} more of `{rule.key}` of {file} name nothing or are not read"
        yield Finding(Code.QUANT_PATTERN_UNUSED, message, count=more)


def _spellings(entry: str) -> Iterator[str]:
    """Yield an entry under the other prefix of text layers."""
    for prefix, other in (_PREFIXES, _PREFIXES[::-1]):
        if entry.startswith(f"{prefix}layers."):
            yield other + entry.removeprefix(prefix)
