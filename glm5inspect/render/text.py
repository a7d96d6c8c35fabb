# SPDX-License-Identifier: AGPL-3.0-only
"""Plain lines for the answers that are lists: one line a name, aligned, quick to start and easy to grep.

Rich would cost these commands half of their time again (`classify NAME`), or minutes (`show` of 113,074 tensors).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.render.wording import columns, fold, source_lines, verdict
from glm5inspect.report import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5inspect.classification import Classification, Classified
    from glm5inspect.explain import Explained
    from glm5inspect.keeping import CacheState
    from glm5inspect.listing import Listing
    from glm5inspect.render import View
    from glm5inspect.report import Report


def render(report: Report, view: View) -> str:
    """Return a list-like answer as plain lines with findings and verdict below, any other as tables."""
    if report.command not in _BODIES:
        from glm5inspect.render import table  # noqa: PLC0415 - imports Rich

        return table.render(report, view)
    body, subject = _BODIES[report.command]
    lines = [] if view.quiet else [*source_lines(report.command, report.source), *body(report.answer)]
    if subject:
        number = len(getattr(report.answer, subject))
        noun = "name" if subject == "results" else "tensor"
        lines += [*finding_lines(report), verdict(report, counted(number, noun))]
    return "\n".join(lines) + "\n"


def finding_lines(report: Report) -> list[str]:
    """Return the folded findings as lines, details indented below them."""
    lines = []
    for entry in fold(report.findings):
        lines.append(f"{entry.severity.name.lower()} {entry.code.value}: {printable(entry.headline)}")
        lines += [f"    {printable(detail)}" for detail in entry.details]
    return lines


def _classified(answer: Classification) -> list[str]:
    rows = [(r.name, r.role or "unknown", "-" if r.layer is None else str(r.layer), _kinds(r)) for r in answer.results]
    return columns([("name", "role", "layer", "kind"), *rows]) if rows else []


def _kinds(result: Classified) -> str:
    kinds = [word for word, is_so in (("norm", result.norm), ("MTP only", result.mtp_only)) if is_so]
    return ", ".join(kinds) or "-"


def _shown(answer: Listing) -> list[str]:
    rows = [("name", "dtype", "shape", "bytes", "role", "shard", "bytes of the file")]
    for t in answer.tensors:
        span = "-" if t.start is None else f"[{t.start}, {t.stop})"
        rows.append((t.name, t.dtype, str(list(t.shape)), str(t.bytes), t.role or "unknown", t.shard or "-", span))
    return columns(rows) if answer.tensors else []


def _explained(answer: Explained) -> list[str]:
    if len(answer.entries) > 1:
        return columns((entry.code, entry.severity, entry.title) for entry in answer.entries)
    (entry,) = answer.entries
    return [
        f"{entry.code} ({entry.severity}): {entry.title}",
        "",
        *_paragraph("Meaning: ", entry.meaning),
        *_paragraph("Cause:   ", entry.cause),
        *_paragraph("Remedy:  ", entry.remedy),
    ]


def _cached(answer: CacheState) -> list[str]:
    rows = [(kind, getattr(answer, kind)) for kind in ("headers", "listings", "revisions")]
    return [
        f"{'cleared' if answer.cleared else 'kept in'} {printable(answer.folder)}",
        *columns([("kind", "entries", "bytes"), *((kind, str(u.entries), str(u.bytes)) for kind, u in rows)]),
    ]


def _paragraph(label: str, text: str) -> list[str]:
    from textwrap import wrap  # noqa: PLC0415 - for this command only

    return wrap(label + text, width=80, subsequent_indent=" " * len(label))


_BODIES: dict[str, tuple[Callable[..., list[str]], str]] = {
    "classify": (_classified, "results"),
    "show": (_shown, "tensors"),
    "explain": (_explained, ""),  # the catalogue has no verdict
    "cache": (_cached, ""),  # nor has a folder
}
