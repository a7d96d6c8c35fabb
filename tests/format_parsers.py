# SPDX-License-Identifier: AGPL-3.0-only
"""Readers of every format, none of them the product's: each holds a text to the rules of its format."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element, fromstring

from markdown_it import MarkdownIt
from markdown_it.token import Token

if TYPE_CHECKING:
    from collections.abc import Iterator

JUNIT = {
    "testsuites": ({"name", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped"}, {"properties", "testcase", "system-out"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"classname", "name"}, {"failure", "error", "skipped", "system-out"}),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}
"""The elements of a JUnit file: their attributes, and what may stand in them."""


def read_junit(text: str) -> Element:
    """Parse a JUnit file, hold it to its structure, and return its only suite."""
    (suite,) = read_suites(text)
    return suite


def read_suites(text: str) -> list[Element]:
    """Parse a JUnit file, hold it to its structure, and return its suites."""
    root = fromstring(text)  # noqa: S314 - our own output, and no entity is declared in it
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = JUNIT[element.tag]
        assert element.keys() == sorted(element.keys(), key=list(element.keys()).index)
        assert {*element.keys()} == attributes
        assert {child.tag for child in element} <= children
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        names = {(case.attrib["classname"], case.attrib["name"]) for case in cases}
        assert int(element.attrib["tests"]) == len(cases) == len(names)
        totals = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        for total, kind in ((total, kind) for total, kind in totals.items() if total in element.attrib):
            assert int(element.attrib[total]) == sum(case.find(kind) is not None for case in cases)
        assert all(sum(child.tag != "system-out" for child in case) <= 1 for case in cases)
    assert len({suite.attrib["name"] for suite in root}) == len(root)
    return list(root)


def texts_of(element: Element) -> str:
    """Return everything that an element says, in its attributes too."""
    return "\n".join(text for e in element.iter() for text in (*e.attrib.values(), e.text or ""))


LEVELS = {"error", "warning", "note"}
URI = re.compile(r"(?:[A-Za-z0-9._~/!$&'()*+,;=@-]|%[0-9A-F]{2})+")


def read_sarif(text: str) -> dict[str, Any]:
    """Parse a SARIF log, hold it to what the specification says of the parts used, and return its only run."""
    (run,) = read_runs(text)
    return run


def read_runs(text: str) -> list[dict[str, Any]]:
    """Parse a SARIF log, hold it to what the specification says of the parts used, and return its runs."""
    log = json.loads(text)
    assert log.keys() == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    for run in log["runs"]:
        _check_run(run)
    runs: list[dict[str, Any]] = log["runs"]
    return runs


def _check_run(run: dict[str, Any]) -> None:
    driver = run["tool"]["driver"]
    rules = driver["rules"]
    assert driver["name"] == "glm5inspect"
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["defaultConfiguration"]["level"] in LEVELS
        _check_messages(rule["shortDescription"], rule["fullDescription"], rule["help"])
    (invocation,) = run["invocations"]
    assert isinstance(invocation["executionSuccessful"], bool)
    fingerprints = set()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        _check_messages(result["message"])
        fingerprints.add(json.dumps(result["partialFingerprints"]))
        for suppression in result.get("suppressions", ()):
            assert suppression["kind"] == "external"
            assert suppression["justification"]
        (location,) = result["locations"]  # GitHub refuses files where one has none
        assert location.keys() <= {"physicalLocation", "logicalLocations"}
        place = location["physicalLocation"]
        assert URI.fullmatch(place["artifactLocation"]["uri"])
        assert place["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
        assert place["region"] == {"startLine": 1}
    assert len(fingerprints) == len(run["results"])
    assert len({"suppressions" in result for result in run["results"]}) <= 1
    assert {rule["id"] for rule in rules} == {result["ruleId"] for result in run["results"]}


def _check_messages(*messages: dict[str, str]) -> None:
    """A message has no placeholder, for there are no arguments, and no link."""
    for message in messages:
        assert message.keys() == {"text"}
        assert message["text"]
        assert not re.search(r"[{}]", message["text"].replace("{{", "").replace("}}", ""))
        assert not re.search(r"\[[^\]]*\]\(", message["text"])


def read_csv(text: str) -> list[dict[str, str]]:
    """Parse CSV: every record ends in CR LF, has as many cells as the header, and holds no formula."""
    assert text.endswith("\r\n")
    assert "\r" not in text.replace("\r\n", "")
    assert "\n" not in text.replace("\r\n", "")
    header, *rows = csv.reader(StringIO(text, newline=""), strict=True)
    assert len({*header}) == len(header)
    assert all(len(row) == len(header) for row in rows)
    assert not any(cell.strip()[:1] in {*"=+-@\uff1d\uff0b\uff0d\uff20"} - {""} for row in rows for cell in row if cell)
    return [dict(zip(header, row, strict=True)) for row in rows]


class Command(NamedTuple):
    """A workflow command of GitHub Actions, unescaped."""

    name: str
    properties: dict[str, str]
    data: str


def read_github(text: str) -> tuple[list[Command], list[str]]:
    """Read a log as the runner does; return the commands and the plain lines between them."""
    commands, plain = [], []
    for line in text.split("\n")[:-1]:
        found = re.fullmatch(r"::([a-z-]+)(?: ([^\r\n]*?))?::(.*)", line.lstrip())
        if not found:
            assert not line.lstrip().startswith("::")
            assert "##[" not in line
            plain.append(line)
            continue
        pairs = [pair.split("=", 1) for pair in (found[2] or "").split(",") if pair]
        properties = {key: _unescape(value).replace("%3A", ":").replace("%2C", ",") for key, value in pairs}
        commands.append(Command(found[1], properties, _unescape(found[3])))
    groups = [command.name for command in commands if command.name in ("group", "endgroup")]
    assert groups == ["group", "endgroup"] * (len(groups) // 2) != []
    assert [command.name for command in commands[: len(groups)]] == groups
    assert {command.name for command in commands[len(groups) :]} <= {"error", "warning", "notice"}
    return commands[len(groups) :], plain


def _unescape(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


OURS = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td", "strong"}
"""The markup that a report has, beside text, code and line ends."""


def read_markdown(text: str) -> tuple[list[str], list[list[list[str]]]]:
    """Parse Markdown with tables, hold it to the markup that a report has, and return its lines and its tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for token in _every(tokens):
        kind = re.sub(r"_(open|close)$", "", token.type)
        assert kind in OURS | {"inline", "text", "code_inline", "fence"} or token.content in ("<code>", "</code>"), (
            token
        )
    tables: list[list[list[str]]] = []
    lines = []
    for before, token in pairwise([Token("", "", 0), *tokens]):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline":
            said = _said(token)
            lines.append(said)
            if before.type in ("td_open", "th_open"):
                tables[-1][-1].append(said)
    return lines, tables


def _every(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _every(token.children or [])


def _said(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
