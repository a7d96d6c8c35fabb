# SPDX-License-Identifier: AGPL-3.0-only
"""Several checkpoints side by side: what one compares before choosing which to download, release or serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from glm5inspect.errors import Glm5InspectError, UsageError
from glm5inspect.report import Finding, Report, SourceInfo
from glm5inspect.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from glm5inspect.verification import MtpState


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The answer about a source that could not be looked at: why not."""

    topic: ClassVar[str] = "unanswered"
    unanswered: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One source in a word each; ``None`` for what is not known.

    Attributes:
        name: The SOURCE as typed.
        tensors: Number of tensors.
        bytes: Bytes stored.
        parameters: Logical elements, whatever the encoding.
        bits_per_parameter: Bits stored for each of them.
        encodings: How weights are stored, the one with most bytes first.
        mtp: The state of multi-token prediction.
        verdict: ``OK``, ``FAILED`` or ``INCOMPLETE``.
    """

    name: str
    tensors: int | None
    bytes: int | None
    parameters: int | None
    bits_per_parameter: float | None
    encodings: tuple[str, ...]
    mtp: MtpState | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The answer of `verify` about several sources, in the order asked for."""

    topic: ClassVar[str] = "sources"
    sources: tuple[Compared, ...]


def answer_each(names: Iterable[str], ask: Callable[[str], Report]) -> Iterator[Report]:
    """Yield the report on each source; one that could not be looked at is an incomplete one, and ends nothing.

    Args:
        names: What SOURCEs were typed.
        ask: Opens one and answers.

    Raises:
        UsageError: What was typed contradicts itself.
    """
    for name in names:
        try:
            yield ask(name)
        except UsageError:
            raise
        except Glm5InspectError as error:
            nowhere = SourceInfo("unopened", name, name)
            yield Report(command="verify", source=nowhere, answer=Unanswered(str(error)), complete=False)


def gather(reports: Sequence[Report], findings: Iterable[Finding] = ()) -> Report:
    """Put judged reports side by side.

    Args:
        reports: One for each source.
        findings: What is to be said about all of them together.
    """
    return Report(
        command="verify",
        source=None,
        answer=Overview(tuple(map(_compared, reports))),
        findings=tuple(findings),
        complete=all(report.complete for report in reports),
        reports=tuple(reports),
    )


def _compared(report: Report) -> Compared:
    name = report.source.name if report.source else ""
    answer = report.answer
    if not isinstance(answer, Verification):
        return Compared(name, None, None, None, None, (), None, report.verdict)
    stored: dict[str, int] = {}
    for row in answer.encodings:
        stored[row.encoding] = stored.get(row.encoding, 0) + row.bytes
    encodings = tuple(sorted(stored, key=lambda encoding: (-stored[encoding], encoding)))
    numbers = (answer.tensors, answer.bytes, answer.parameters, answer.bits_per_parameter)
    return Compared(name, *numbers, encodings, answer.mtp, report.verdict)
