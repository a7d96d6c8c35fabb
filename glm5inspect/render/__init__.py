# SPDX-License-Identifier: AGPL-3.0-only
"""One report, many renderings: every format takes the same `glm5inspect.report.Report` and returns text."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from glm5inspect.report import Report


class Format(StrEnum):
    """The formats a report can be had in."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"
    SARIF = "sarif"
    CSV = "csv"
    HTML = "html"


class View(NamedTuple):
    """What a format for people may want to know.

    Attributes:
        stream: Where the text will go; ``None`` for a file. Its width and colours are used when it is a terminal.
        quiet: Whether only findings and the verdict are wanted.
    """

    stream: TextIO | None = None
    quiet: bool = False


FORMATS = {
    Format.TABLE: "glm5inspect.render.text",
    Format.JSON: "glm5inspect.render.json_report",
    Format.MARKDOWN: "glm5inspect.render.markdown",
    Format.JUNIT: "glm5inspect.render.junit",
    Format.GITHUB: "glm5inspect.render.github",
    Format.SARIF: "glm5inspect.render.sarif",
    Format.CSV: "glm5inspect.render.flat_csv",
    Format.HTML: "glm5inspect.render.html_page",
}
"""The module of each format; it has a function ``render(report, view) -> str`` and is imported when asked for."""


def render(report: Report, form: Format, view: View = View()) -> str:  # noqa: B008 - a named tuple does not change
    """Return a report as text in one of the formats."""
    text: str = import_module(FORMATS[form]).render(report, view)
    return text
