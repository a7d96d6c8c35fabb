# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as JUnit XML, which every CI system shows as a list of tests.

`verify` has one test case per check, any other command one for itself; one more, ``complete``, is about whether all
that was asked for could be read. A finding that makes the answer *no* is a failure, another one goes to the output of
its case. No test case has a time, so that the same answer is the same file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from glm5inspect import __version__
from glm5inspect.render.content import answer_lines, verdict_of
from glm5inspect.render.wording import accepted_lines, finding_lines, fold, parts_of, source_lines
from glm5inspect.report import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glm5inspect.render import View
    from glm5inspect.report import Finding, Report


MOST_TEXT = 5_000_000
"""Characters of the answer; usual readers of XML take no more than 10 MB of one text."""


class _Case(NamedTuple):
    """One test case before its findings: ``looked_at`` is empty when nothing was, ``told`` says it in words."""

    name: str
    looked_at: bool
    told: str


def render(report: Report, view: View) -> str:  # noqa: ARG001 - always whole
    """Return the report as JUnit XML."""
    suites = Element("testsuites", name="glm5inspect")
    for name, part in parts_of(report):
        _add_suite(suites, part, f"glm5inspect.{report.command}{f' of {printable(name)}' if name else ''}")
    _count(suites)
    del suites.attrib["skipped"]  # which the schema of Jenkins knows of a suite only
    indent(suites)
    return f"{tostring(suites, encoding='us-ascii', xml_declaration=True).decode()}\n"


def _add_suite(suites: Element, report: Report, name: str) -> None:
    suite = SubElement(suites, "testsuite", name=name)
    properties = SubElement(suite, "properties")
    for key, value in _properties(report):
        SubElement(properties, "property", name=key, value=printable(value))
    for case, findings in _cases(report):
        _add_case(suite, report, case, findings)
    if not report.reports:  # each of them says so itself
        _add_complete(suite, report)
    told = "\n".join(["", *answer_lines(report), *accepted_lines(report), ""])
    SubElement(suite, "system-out").text = told if len(told) <= MOST_TEXT else _shortened(told)
    _count(suite)


def _shortened(told: str) -> str:
    kept = told[: told.rindex("\n", 0, MOST_TEXT)]
    left = told.count("\n", len(kept) + 1)
    return f"{kept}\n{counted(left, 'more line')}: see another format\n"


def _count(element: Element) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    for total, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(total, str(len(element.findall(f".//testcase/{kind}"))))


def _properties(report: Report) -> Iterator[tuple[str, str]]:
    yield "version", __version__
    if report.source:
        yield from zip(("subject", "repository"), source_lines(report.command, report.source, typed=True), strict=False)
    if verdict := verdict_of(report):
        yield "verdict", verdict


def _cases(report: Report) -> Iterator[tuple[_Case, list[Finding]]]:
    """Yield every test case of the answer with its findings."""
    answer: Any = report.answer
    if report.topic != "verify":
        number, noun = SUBJECTS[report.topic](answer)
        yield _Case(report.topic, bool(number), counted(number, noun)), list(report.findings)
        return
    for row in answer.checks:
        ended = "" if row.status in ("passed", "failed") else f", {row.status}"
        told = counted(row.subjects, "subject") + ended
        found = [finding for finding in report.findings if finding.check == row.name]
        yield _Case(row.name, row.status not in ("not-applicable", "not-read"), told), found
    if apart := [finding for finding in report.findings if finding.check is None]:
        yield _Case("accept", looked_at=True, told="what was said of accepted findings beforehand"), apart


SUBJECTS: dict[str, Callable[[Any], tuple[int, str]]] = {
    "census": lambda answer: (answer.tensors, "tensor"),
    "verify-dsa": lambda answer: (len(answer.blocks), "DSA block"),
    "find-mtp": lambda answer: (len(answer.layers), "MTP layer"),
    "diff": lambda answer: (answer.a.tensors, "tensor"),
    "sources": lambda answer: (len(answer.sources), "source"),
    "unanswered": lambda _: (0, "tensor"),
    "record": lambda answer: (answer.tensors, "tensor"),
    "show": lambda answer: (len(answer.tensors), "tensor"),
    "classify": lambda answer: (len(answer.results), "name"),
    "explain": lambda answer: (len(answer.entries), "code"),
    "cache": lambda answer: (
        sum(getattr(answer, k).entries for k in ("headers", "listings", "revisions", "values")),
        "kept file",
    ),
}
"""By topic: how many of what was looked at; none is a test that was skipped. (`verify` has its checks.)"""


def _add_case(suite: Element, report: Report, case: _Case, findings: list[Finding]) -> None:
    element = _new_case(suite, case.name)
    failures = [finding for finding in findings if report.fails(finding)]
    others = [finding for finding in findings if not report.fails(finding)]
    if failures:
        entries = fold(failures)
        codes = sorted({entry.code.value for entry in entries})
        failure = SubElement(element, "failure", message=printable(entries[0].headline), type=", ".join(codes))
        failure.text = "\n".join(["", *finding_lines(entries), ""])
    elif not case.looked_at:
        SubElement(element, "skipped", message=case.told)
    SubElement(element, "system-out").text = "\n".join(["", case.told, *finding_lines(fold(others)), ""])


def _add_complete(suite: Element, report: Report) -> None:
    element = _new_case(suite, "complete")
    if not report.complete:
        message = "not everything could be read, so the answer is neither yes nor no"
        SubElement(element, "error", message=message, type="incomplete")


def _new_case(suite: Element, name: str) -> Element:
    return SubElement(suite, "testcase", classname=suite.attrib["name"], name=name)
