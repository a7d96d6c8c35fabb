# SPDX-License-Identifier: AGPL-3.0-only
"""How every format for people words a source, findings and the verdict.

Findings of one kind on one pattern are folded into one entry. JSON never folds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.catalogue import Severity
from glm5inspect.report import counted, printable, ranges, some
from glm5inspect.roles import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from glm5inspect.catalogue import Code
    from glm5inspect.report import Finding, Report, SourceInfo, Waiver


_WIDEST = 120  # characters of a column; the longest name released has 88


class Folded(NamedTuple):
    """Findings of one code, severity, pattern, expected, actual and hint.

    Attributes:
        code: Of all of them.
        severity: Of all of them.
        headline: The message when there is one, else the pattern with the number of tensors and their layers.
        details: Further lines: the first names, expected against actual, the hint.
    """

    code: Code
    severity: Severity
    headline: str
    details: tuple[str, ...]


def fold(findings: Iterable[Finding]) -> list[Folded]:
    """Fold findings, errors first, else in the order of the report."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        pattern = parse_name(finding.tensor).pattern if finding.tensor else _without_shard(finding)
        facts = (repr(finding.expected), repr(finding.actual)) if _comparable(finding) else ()
        alike.setdefault((finding.code, finding.severity, pattern, finding.hint, *facts), []).append(finding)
    folded = [_fold(members) for members in alike.values()]
    return sorted(folded, key=lambda entry: -entry.severity)


def _without_shard(finding: Finding) -> str:
    """Return a message about a shard as a whole without its name, so that shards with the same fault fold."""
    return finding.message.removeprefix(f"{finding.shard}: ") if finding.shard else finding.message


def _comparable(finding: Finding) -> bool:
    """Tell whether expected and actual are about the kind of tensor; places (shards, offsets) differ one by one."""
    return not finding.code.value.startswith(("index-", "offset-", "companion-", "duplicate-"))


def _fold(members: list[Finding]) -> Folded:
    first = members[0]
    details = []
    if len(members) == 1:
        headline = first.message
    elif first.tensor is None and first.shard:
        headline = f"{counted(len(members), 'shard')}: {_without_shard(first)}"
        details.append(f"first: {some([finding.shard or '' for finding in members])}")
    else:
        names = [finding.tensor or finding.message for finding in members]
        layers = ranges(finding.layer for finding in members if finding.layer is not None)
        pattern = parse_name(names[0]).pattern
        where = f" in layer{'s' if '-' in layers or ',' in layers else ''} {layers}" if layers else ""
        said = {finding.message.removeprefix(f"{finding.tensor}: ") for finding in members}
        what = said.pop() if len(said) == 1 else first.code.title
        headline = f"{pattern}: {counted(len(members), 'tensor')}{where}: {what}"
        details.append(f"first: {some(names)}")
        expected, actual = _fact(first.expected), _fact(first.actual)
        if _comparable(first) and expected != actual and not (expected in what and actual in what):
            details.append(f"expected {expected}, found {actual}")
    if first.hint:
        details.append(first.hint)
    return Folded(first.code, first.severity, headline, tuple(details))


def _fact(fact: object) -> str:
    return "nothing" if fact is None else str(fact)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Align the cells of rows, each escaped for a terminal; the last column is not padded.

    A cell longer than any sane name stands out of its column, rather than to stretch every other row.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*cells, strict=True)][:-1]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in cells]


def source_lines(command: str, source: SourceInfo | None, *, typed: bool = False) -> Iterator[str]:
    """Say what SOURCE was resolved to, or how it was typed; nothing for a command that looked at none."""
    if source:
        yield printable(f"{command} of {source.name if typed else f'{source.kind} {source.resolved}'}")
        if source.repo:
            revision = source.commit or source.revision
            branch = f" ({source.revision})" if source.revision not in (None, revision) else ""
            yield printable(
                f"{source.repo} at {revision}{branch}" if revision else f"{source.repo}, revision not known"
            )


def parts_of(report: Report) -> list[tuple[str, Report]]:
    """Return the report on each source with the name of that, and last the report itself with an empty name.

    A source that was named several times has a number.
    """
    seen: dict[str, int] = {}
    parts = []
    for part in report.reports:
        name = part.source.name if part.source else ""
        seen[name] = seen.get(name, 0) + 1
        parts.append((name if seen[name] == 1 else f"{name} ({seen[name]})", part))
    return [*parts, ("", report)]


def finding_lines(entries: Iterable[Folded]) -> list[str]:
    """Return folded findings as lines, their details indented below them."""
    lines = []
    for entry in entries:
        lines.append(f"{entry.severity.name.lower()} {entry.code.value}: {printable(entry.headline)}")
        lines += [f"    {printable(detail)}" for detail in entry.details]
    return lines


def accepted_lines(report: Report) -> list[str]:
    """Return what a reviewer accepted, one line an entry of the list, with the reason."""
    used: dict[Waiver, int] = {}
    for _, waiver in report.accepted:
        used[waiver] = used.get(waiver, 0) + 1
    return [
        printable(f"accepted {counted(number, 'finding')}, {waiver.subject}: {waiver.reason}")
        for waiver, number in used.items()
    ]


def verdict(report: Report, subject: str, not_checked: str = "") -> str:
    """Say in one line how it ended: what was looked at, how many findings there are, and what was not looked at."""
    counts = [counted(report.count(severity), severity.name.lower()) for severity in reversed(Severity)]
    every = (report, *report.reports)
    apart = ((sum(part.waived for part in every), "waived"), (sum(len(part.accepted) for part in every), "accepted"))
    counts += [f"{number:,} {how}" for number, how in apart if number]
    reservation = f"; not checked: {not_checked}" if not_checked else ""
    return f"{report.verdict}: {printable(subject)}; {', '.join(counts)}{reservation}"


def size(nbytes: int) -> str:
    """Write a number of bytes for people, in the largest binary unit that leaves one digit before the point."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:  # noqa: PLR2004 - one unit up
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:,.2f} {unit}"


def dtypes_text(dtypes: dict[str, int]) -> str:
    """Write dtypes with their numbers of tensors, the most first."""
    parts = sorted(dtypes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(dtype if len(parts) == 1 else f"{dtype} {number:,}" for dtype, number in parts)
