# SPDX-License-Identifier: AGPL-3.0-only
"""The catalogue of findings, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.explanations import EXPLANATIONS
from glm5inspect.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the catalogue; see `glm5inspect.catalogue.Code` and `glm5inspect.explanations.Explanation`."""

    code: str
    severity: str
    title: str
    meaning: str
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Explained:
    """The entries asked for."""

    entries: tuple[Entry, ...]


def explain(codes: Iterable[Code] = ()) -> Report:
    """Explain the codes asked for, or all of them in the order of the catalogue."""
    entries = (_entry(code) for code in (tuple(codes) or Code))
    return Report(command="explain", source=None, answer=Explained(tuple(entries)))


def _entry(code: Code) -> Entry:
    return Entry(code.value, code.severity.name.lower(), code.title, *EXPLANATIONS[code])
