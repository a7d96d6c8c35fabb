# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as SARIF 2.1.0, for tools that gather the results of static analysis.

Every finding is a result, folded by nothing; one that a reviewer accepted is a suppressed one. Each of several sources
has a run of its own. The rules are those of the codes that were found, with what `explain` says
of them. A tensor is a logical location, its shard an artifact below the root ``CHECKPOINT``, which is wherever SOURCE
is. Fingerprints stay the same while code, tensor and layer do, however the tensors are cut into shards.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from glm5inspect import __version__
from glm5inspect.catalogue import Code, Severity
from glm5inspect.explanations import EXPLANATIONS
from glm5inspect.render.content import verdict_of
from glm5inspect.render.json_report import plain
from glm5inspect.render.wording import parts_of
from glm5inspect.report import printable
from glm5inspect.sources.base import CONFIG_NAME

if TYPE_CHECKING:
    from glm5inspect.render import View
    from glm5inspect.report import Finding, Report, Waiver

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "CHECKPOINT"
FINGERPRINT = "glm5inspect/v1"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def render(report: Report, view: View) -> str:  # noqa: ARG001 - the same for everyone
    """Return the report as a SARIF log, ending in a line feed."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(*part) for part in parts_of(report)]}
    return json.dumps(log, sort_keys=True, indent=2) + "\n"


def _run(name: str, report: Report) -> dict[str, Any]:
    found = {finding.code for finding in (*report.findings, *(finding for finding, _ in report.accepted))}
    codes = [code for code in Code if code in found]
    run = {
        "tool": {"driver": {"name": "glm5inspect", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "invocations": [_invocation(report)],
        "results": _results(report, codes),
        "columnKind": "unicodeCodePoints",
        "properties": _properties(report),
    }
    if report.source or report.findings or report.accepted:
        what = report.source.name if report.source else "no checkpoint"
        run["originalUriBaseIds"] = {ROOT: {"description": _message(what)}}
    if name or report.reports:  # GitHub tells several runs of one tool apart by this
        of = f" of {printable(name)}" if name else ""
        run["automationDetails"] = {"id": f"glm5inspect {report.command}{of}/"}
    return run


def _rule(code: Code) -> dict[str, Any]:
    meaning, cause, remedy = EXPLANATIONS[code]
    return {
        "id": code.value,
        "shortDescription": _message(f"{code.title[0].upper()}{code.title[1:]}."),
        "fullDescription": _message(meaning),
        "help": _message(meaning, "", f"Usual cause: {cause}", "", f"Remedy: {remedy}"),
        "defaultConfiguration": {"level": _LEVELS[code.severity]},
    }


def _invocation(report: Report) -> dict[str, Any]:
    if report.complete:
        return {"executionSuccessful": True}
    message = _message("Not everything could be read, so the answer is neither yes nor no.")
    return {
        "executionSuccessful": False,
        "toolExecutionNotifications": [{"level": "error", "message": message}],
    }


def _properties(report: Report) -> dict[str, Any]:
    """Return what SARIF has no place of its own for: the source, the verdict and the answer itself."""
    facts = {
        "command": report.command,
        "source": report.source
        and {key: getattr(report.source, key) for key in ("name", "repo", "revision", "commit")},
        "ok": report.ok,
        "verdict": verdict_of(report),
        "waived": report.waived,
        "answer": plain(report.answer),
    }
    return {key: _printable(value) for key, value in facts.items()}


def _results(report: Report, codes: list[Code]) -> list[dict[str, Any]]:
    seen: dict[str, int] = {}
    results = []
    every: list[tuple[Finding, Waiver | None]] = [*((finding, None) for finding in report.findings), *report.accepted]
    for finding, waiver in every:
        fingerprint = _fingerprint(finding)
        seen[fingerprint] = seen.get(fingerprint, 0) + 1
        facts = {key: getattr(finding, key) for key in ("hint", "layer", "expected", "actual", "count", "check")}
        result = {
            "ruleId": finding.code.value,
            "ruleIndex": codes.index(finding.code),
            "level": _LEVELS[finding.severity],
            "message": _message(finding.message, *filter(None, [finding.hint])),
            "partialFingerprints": {FINGERPRINT: f"{fingerprint}:{seen[fingerprint]}"},
            "properties": {key: _printable(value) for key, value in facts.items() if value is not None},
        }
        if report.accepted:  # all results of a run say so, or none
            result["suppressions"] = [_suppression(waiver)] if waiver else []
        result["locations"] = [_location(finding)]
        results.append(result)
    return results


def _suppression(waiver: Waiver) -> dict[str, str]:
    return {"kind": "external", "status": "accepted", "justification": printable(waiver.reason or "")}


def _location(finding: Finding) -> dict[str, Any]:
    """Say where a finding is: in its shard, else in the config.

    GitHub refuses a whole file for one result without an artifact and a line.
    """
    uri = CONFIG_NAME if finding.shard is None else quote(printable(finding.shard))
    place = {"artifactLocation": {"uri": uri, "uriBaseId": ROOT}, "region": {"startLine": 1}}
    location: dict[str, Any] = {"physicalLocation": place}
    if finding.tensor is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(finding.tensor), "kind": "tensor"}]
    elif finding.layer is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": f"layers.{finding.layer}", "kind": "layer"}]
    return location


def _fingerprint(finding: Finding) -> str:
    """Identify a finding by what it is about; where that is no tensor, by its shard and what it says."""
    about = (finding.tensor,) if finding.tensor is not None else (finding.shard, finding.message)
    parts = json.dumps([finding.code.value, finding.layer, *about])
    return sha256(parts.encode()).hexdigest()[:32]


def _message(*lines: str) -> dict[str, str]:
    """Write a message: braces, which would be placeholders, are doubled, and what looks like a link is none."""
    text = "\n".join(map(printable, lines))
    return {"text": text.replace("{", "{{").replace("}", "}}").replace("](", "]\\(")}


def _printable(value: Any) -> Any:  # noqa: ANN401 - plain data
    """Return plain data whose every text can be shown."""
    if isinstance(value, dict):
        return {printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_printable(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value
