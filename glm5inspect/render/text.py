# SPDX-License-Identifier: AGPL-3.0-only
"""Plain lines for the answers that are lists: one line a name, aligned, quick to start and easy to grep.

Rich would cost these commands half of their time again (`classify NAME`), or minutes (`show` of 113,074 tensors).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.render.content import answer_lines, folded, verdict_of
from glm5inspect.render.wording import accepted_lines, finding_lines, source_lines

if TYPE_CHECKING:
    from glm5inspect.render import View
    from glm5inspect.report import Report

_LISTS = ("classify", "show", "explain", "cache")


def render(report: Report, view: View) -> str:
    """Return a list-like answer as plain lines with findings and verdict below, any other as tables."""
    if report.topic not in _LISTS:
        from glm5inspect.render import table  # noqa: PLC0415 - imports Rich

        return table.render(report, view)
    lines = [] if view.quiet else [*source_lines(report.command, report.source), *answer_lines(report)]
    if verdict := verdict_of(report):
        lines += [*finding_lines(folded(report)), *accepted_lines(report), verdict]
    return "\n".join(lines) + "\n"
