# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as workflow commands of GitHub Actions, which shows them as annotations of the run.

GitHub shows ten annotations of a step. So findings are folded as for people, the worst nine become annotations, and the
tenth is the verdict and says how many more there are; the answer and all findings stand in a group of the log before.
A workflow command is recognised at the beginning of a line (an older form, ``##[``, anywhere in it), so no line begins
with what a file says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.catalogue import Severity
from glm5inspect.render.content import answer_lines, folded, verdict_of
from glm5inspect.render.wording import accepted_lines, parts_of, source_lines
from glm5inspect.report import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.render import View
    from glm5inspect.render.wording import Folded
    from glm5inspect.report import Report

MOST = 10
"""Annotations of a run, the verdict included."""

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_IN_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = {**_IN_DATA, ":": "%3A", ",": "%2C"}


def render(report: Report, view: View) -> str:  # noqa: ARG001 - the same for everyone
    """Return the report as workflow commands, one a line."""
    lines: list[str] = []
    entries: list[Folded] = []
    for name, part in parts_of(report):
        told = folded(part)
        lines += _group(part, told, name)
        entries += [entry._replace(headline=f"{name}: {entry.headline}") if name else entry for entry in told]
    entries.sort(key=lambda entry: -entry.severity)
    shown = entries[: MOST - 1]
    lines += [_command(_COMMANDS[entry.severity], entry.code.value, entry.headline, *entry.details) for entry in shown]
    left = len(entries) - len(shown)
    more = f"; {left:,} more of these {len(entries):,} in the log" if left else ""
    verdict = verdict_of(report) or "an answer without a verdict"
    lines.append(_command("notice" if report.ok else "error", f"glm5inspect {report.command}", verdict + more))
    return "".join(f"{line}\n" for line in lines)


def _group(report: Report, entries: list[Folded], name: str) -> Iterator[str]:
    """Yield everything as plain lines that the log folds away."""
    title = f"glm5inspect {report.command}{f' of {name}' if name else ''}: {counted(len(report.findings), 'finding')}"
    yield f"::group::{_escaped(printable(title), _IN_DATA)}"
    if source := list(source_lines(report.command, report.source, typed=True)):
        yield _inert("; ".join(source))
    yield from (_inert(f"| {line}") for line in answer_lines(report))
    for entry in entries:
        yield _inert(f"{entry.severity.name.lower()} {entry.code.value}: {entry.headline}")
        yield from (_inert(f"  - {detail}") for detail in entry.details)
    yield from map(_inert, accepted_lines(report))
    yield "::endgroup::"


def _inert(text: str) -> str:
    """Make a line of the log that is no command; it begins with words of our own."""
    return printable(text).replace("##[", "##\\x5b")


def _command(kind: str, title: str, *texts: str) -> str:
    data = "\n".join(map(printable, texts))
    return f"::{kind} title={_escaped(title, _IN_PROPERTY)}::{_escaped(data, _IN_DATA)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)
