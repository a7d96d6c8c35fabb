# SPDX-License-Identifier: AGPL-3.0-only
"""What a command answers: findings, the command's own facts, and whether everything could be read.

A report knows no rule about tensors and no output format. Every format renders the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Fact = str | int | None | list["Fact"] | dict[str, "Fact"]
"""What a finding expected or found, as plain data."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the checkpoint that is worth a line.

    Attributes:
        code: The entry of the catalogue.
        message: One sentence, without markup; names in it are as untrusted as the file they come from.
        weight: A severity other than the usual one of the code, else ``None``.
        hint: What to look at, when the cause is a known trap, else ``None``.
        tensor: Name, or census pattern where the code says so; ``None`` when it is not about one tensor.
        layer: Layer index, 0-based, or ``None``.
        shard: Shard file, relative to the checkpoint, or ``None``.
        expected: What should be there, ``None`` when nothing should.
        actual: What is there, ``None`` when nothing is.
        count: How many tensors (or layers, or shards) it speaks of.
        check: The check of a verification that found it, ``None`` elsewhere; policies may name it like a code.
    """

    code: Code
    message: str
    weight: Severity | None = None
    hint: str | None = None
    tensor: str | None = None
    layer: int | None = None
    shard: str | None = None
    expected: Fact = None
    actual: Fact = None
    count: int = 1
    check: str | None = None

    @property
    def severity(self) -> Severity:
        """How much this finding weighs."""
        return self.code.severity if self.weight is None else self.weight

    @property
    def order(self) -> tuple[object, ...]:
        """The place in every report: by code, layer, tensor and shard, ``None`` first."""
        place = (self.layer is not None, self.layer or 0, self.tensor or "", self.shard or "")
        return (self.code.value, *place, self.message)


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Where a report comes from.

    Attributes:
        kind: ``directory``, ``file``, ``snapshot`` or ``hub``.
        name: The SOURCE argument as typed.
        resolved: What it was resolved to, for people.
        repo: ``owner/name`` when known, else ``None``; so for the next two.
        revision: The branch or tag asked for.
        commit: The 40-digit commit.
    """

    kind: str
    name: str
    resolved: str
    repo: str | None = None
    revision: str | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Waiver:
    """Findings that need not be heard of: one ``--ignore``, or one entry of a reviewed list.

    Attributes:
        code: A finding code, or the name of a check.
        glob: On which tensors; ``None`` for all of it.
        reason: Why a reviewer accepted them; ``None`` for an ``--ignore``, which gives no reason.
        origin: The file and the place in it of a reviewed entry.
    """

    code: Code | str
    glob: str | None = None
    reason: str | None = None
    origin: str | None = None

    @property
    def subject(self) -> str:
        """What it is about, in words."""
        slug = self.code if isinstance(self.code, str) else self.code.value
        return slug if self.glob is None else f"{slug} on {self.glob}"

    def covers(self, finding: Finding) -> bool:
        """Tell whether a finding is waived; a glob is matched against the tensor name."""
        return self.code in (finding.code, finding.check) and (
            self.glob is None or fnmatchcase(finding.tensor or "", self.glob)
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """What the caller wants to hear of, and what makes the answer *no*.

    Attributes:
        select: Only these codes, and findings of these checks, count; empty means all.
        waivers: Findings that do not count; those that a reviewer accepted stay in the report, with the reason.
        fail_on: The least severity that fails, ``None`` for never.
    """

    select: frozenset[Code | str] = frozenset()
    waivers: tuple[Waiver, ...] = ()
    fail_on: Severity | None = Severity.ERROR

    def asks_for(self, finding: Finding) -> bool:
        """Tell whether a finding counts, waivers apart."""
        return not self.select or bool({finding.code, finding.check} & self.select)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer of one command.

    Attributes:
        command: Name of the command.
        source: ``None`` for a command that looked at no checkpoint.
        answer: The command's own facts, a frozen dataclass whose field names are the keys of the JSON report.
        findings: In the fixed order of `Finding.order`.
        complete: False when something could not be read; such an answer is neither *yes* nor *no*.
        waived: How many findings an ``--ignore`` covered.
        accepted: Findings that an entry of a reviewed list covered, each with that entry.
        failed: Whether a finding weighs as much as the policy allows or more.
        fail_on: The least severity that fails, ``None`` for never.
        reports: The judged reports that this one puts side by side, one for each of several sources.
    """

    command: str
    source: SourceInfo | None
    answer: object
    findings: tuple[Finding, ...] = ()
    complete: bool = True
    waived: int = 0
    accepted: tuple[tuple[Finding, Waiver], ...] = ()
    failed: bool = False
    fail_on: Severity | None = Severity.ERROR
    reports: tuple[Report, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was read and nothing failed."""
        return self.complete and not self.failed

    @property
    def verdict(self) -> str:
        """How it ended, in a word."""
        return "OK" if self.ok else "FAILED" if self.complete else "INCOMPLETE"

    @property
    def topic(self) -> str:
        """What the answer is about: the command, unless an answer of another kind says so itself."""
        return getattr(self.answer, "topic", self.command)

    def count(self, severity: Severity) -> int:
        """Return how many findings have exactly this severity, those of its reports included."""
        own = sum(finding.severity is severity for finding in self.findings)
        return own + sum(report.count(severity) for report in self.reports)

    def fails(self, finding: Finding) -> bool:
        """Tell whether a finding makes the answer *no*."""
        return self.fail_on is not None and finding.severity >= self.fail_on

    def judged(self, policy: Policy) -> Report:
        """Return the report with the caller's policy applied."""
        kept, accepted, waived = [], [], 0
        for finding in filter(policy.asks_for, self.findings):
            waiver = next((waiver for waiver in policy.waivers if waiver.covers(finding)), None)
            if waiver is None:
                kept.append(finding)
            elif waiver.reason is None:
                waived += 1
            else:
                accepted.append((finding, waiver))
        report = replace(self, findings=tuple(kept), waived=waived, accepted=tuple(accepted), fail_on=policy.fail_on)
        return replace(report, failed=any(map(report.fails, kept)) or any(part.failed for part in self.reports))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings into the one order that every report has."""
    return tuple(sorted(findings, key=lambda finding: finding.order))


def printable(text: str) -> str:
    r"""Escape what must not reach a terminal: control, format and surrogate characters become ``\xNN`` or ``\uNNNN``.

    Tensor names, metadata and file names come from files that nobody has vouched for.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def ranges(numbers: Iterable[int]) -> str:
    """Write a set of indices as ``a-b`` ranges, ascending, comma separated; both ends belong to a range."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def layers_named(layers: Iterable[int]) -> str:
    """Name one layer or several, as ranges."""
    numbers = set(layers)
    return f"layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, which takes an *s* unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Name the first few of a list, and say how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
