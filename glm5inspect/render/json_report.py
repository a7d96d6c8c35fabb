# SPDX-License-Identifier: AGPL-3.0-only
"""The report as one JSON object with sorted keys, the same bytes for the same answer.

The text is ASCII: whatever a tensor name holds, no control character reaches a terminal.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from glm5inspect import __version__
from glm5inspect.catalogue import Severity

if TYPE_CHECKING:
    from glm5inspect.render import View
    from glm5inspect.report import Finding, Report

SCHEMA = "glm5inspect-report/1"


def render(report: Report, view: View) -> str:  # noqa: ARG001 - the same for everyone
    """Return the report as JSON text, ending in a line feed."""
    return f"{json.dumps(_object(report), sort_keys=True, indent=2)}\n"


def _object(report: Report) -> dict[str, object]:
    source = report.source
    counts = {severity.name.lower(): report.count(severity) for severity in Severity}
    waived = sum(part.waived for part in (report, *report.reports))
    whole = {
        "schema": SCHEMA,
        "version": __version__,
        "command": report.command,
        "source": source and {key: getattr(source, key) for key in ("kind", "name", "repo", "revision", "commit")},
        "ok": report.ok,
        "complete": report.complete,
        "summary": {**counts, "waived": waived},
        "findings": [_finding(finding) for finding in report.findings],
        "accepted": [{**_finding(finding), "reason": waiver.reason} for finding, waiver in report.accepted],
        report.command: plain(report.answer),
    }
    return {**whole, "reports": list(map(_object, report.reports))} if report.reports else whole


def _finding(finding: Finding) -> dict[str, object]:
    facts = ("message", "hint", "tensor", "layer", "shard", "expected", "actual", "count")
    values = {fact: getattr(finding, fact) for fact in facts}
    return {"code": finding.code.value, "severity": finding.severity.name.lower(), **values}


def plain(value: Any) -> Any:  # noqa: ANN401 - any answer
    """Turn an answer into dicts, lists and scalars; a dataclass becomes an object with its field names as keys."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value
