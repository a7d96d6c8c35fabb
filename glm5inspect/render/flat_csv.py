# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as one flat table of comma-separated values (RFC 4180), for a spreadsheet or a query.

Each row says in its first column what it is: a row of one of the command's own tables, a ``fact`` about the whole, a
``finding``, one that was ``accepted``, the ``source`` or the ``verdict``. With several sources, a column before it says
of which. The columns of a command are always the same, whatever it found; a cell
that does not apply is empty, and one that holds more than one value is JSON. Nothing that a file says is taken for a
formula.
"""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import TYPE_CHECKING, Any

from glm5inspect.render.content import verdict_of
from glm5inspect.render.json_report import plain
from glm5inspect.render.wording import parts_of
from glm5inspect.report import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.render import View
    from glm5inspect.report import Finding, Report

_ENCODING = "part encoding layers modules bytes parameters bits_per_parameter"

TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "verify": {
        "checks": ("check", "name subjects findings status"),
        "encodings": ("encoding", _ENCODING),
        "scale_pairs": ("pair", "scale pairs of unequal median p99 max layers worst"),
        "statistics": ("statistic", "kind tensors of values min median max finite"),
    },
    "census": {
        "by_role": ("role", "role tensors bytes dtypes"),
        "by_dtype": ("dtype", "dtype tensors bytes"),
        "pattern_table": ("pattern", "pattern role dtype shape layers experts tensors bytes"),
        "layer_table": ("layer", "layer mixer ffn mtp tensors bytes dtypes"),
        "encodings": ("encoding", _ENCODING),
    },
    "sources": {
        "sources": ("compared", "name tensors bytes parameters bits_per_parameter encodings mtp verdict"),
    },
    "verify-dsa": {"blocks": ("block", "layer bound expected bytes ok unclaimed")},
    "find-mtp": {
        "layers": ("layer", "layer names tensors bytes dtypes_by_role shards"),
        "encodings": ("encoding", _ENCODING),
    },
    "diff": {
        "rows": ("change", "change pattern layers experts a b tensors bytes_a bytes_b"),
        "encodings": ("encoding", "part layers a b modules bytes_a bytes_b"),
        "roles": ("role", "role a b"),
        "config": ("config", "key a b"),
    },
    "show": {"tensors": ("tensor", "name dtype shape bytes role shard start stop")},
    "classify": {"results": ("name", "name role norm text_model mtp_only layer normalized")},
    "explain": {"entries": ("code", "code severity title meaning cause remedy")},
}
"""By topic and key of its answer: what a row of that table is called, and its columns.

Where the answer has an object instead of a list, the key of each entry is the first column.
"""

FINDING = ("code", "severity", "message", "hint", "tensor", "layer", "shard", "expected", "actual", "count", "check")
"""The columns of a finding; ``message`` also has the verdict."""

FACT = ("fact", "value")
"""The columns of a fact: its name, with dots where it is inside another, and its value."""

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are the same, full width


def render(report: Report, view: View) -> str:  # noqa: ARG001 - always whole
    """Return the report as CSV, with a header."""
    parts = parts_of(report)
    texts = [text for _, part in parts for _, text in TABLES.get(part.topic, {}).values()]
    own = [name for text in texts for name in text.split()]
    names = list(dict.fromkeys([*(["of"] if report.reports else []), "row", *own, *FACT, *FINDING, "reason"]))
    out = StringIO(newline="")
    writer = csv.DictWriter(out, names, restval="")
    writer.writeheader()
    for name, part in parts:
        of = {"of": name} if report.reports else {}
        for row in _rows(part):
            writer.writerow({name: _cell(value) for name, value in {**of, **row}.items()})
    return out.getvalue()


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    answer = plain(report.answer)
    for key, (kind, columns) in TABLES.get(report.topic, {}).items():
        yield from _table(kind, columns.split(), answer.pop(key))
    for name, value in _facts("", answer):
        yield {"row": "fact", "fact": name, "value": value}
    for finding in report.findings:
        yield {"row": "finding", **_finding(finding)}
    for finding, waiver in report.accepted:
        yield {"row": "accepted", **_finding(finding), "reason": waiver.reason}
    if report.source:
        for key in ("name", "repo", "revision", "commit"):
            yield {"row": "source", "fact": key, "value": getattr(report.source, key)}
    for key in ("ok", "complete", "waived"):
        yield {"row": "verdict", "fact": key, "value": getattr(report, key)}
    if verdict := verdict_of(report):
        yield {"row": "verdict", "fact": "verdict", "value": verdict}


def _table(kind: str, columns: list[str], rows: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - plain data
    if isinstance(rows, dict):
        rows = [{columns[0]: key, **row} for key, row in rows.items()]
    for row in rows or ():
        yield {"row": kind, **row}


def _facts(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - plain data
    """Yield what is in no table, one value each; a list of names is as many facts of one name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _facts(f"{prefix}.{key}" if prefix else key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield prefix, inner
    else:
        yield prefix, value


def _finding(finding: Finding) -> dict[str, Any]:
    values = {name: getattr(finding, name) for name in FINDING}
    return {**values, "code": finding.code.value, "severity": finding.severity.name.lower()}


def _cell(value: Any) -> str | int | float:  # noqa: ANN401 - plain data
    """Write a value so that it comes out of a spreadsheet as it went in."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = printable(value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
