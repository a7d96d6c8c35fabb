# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as one HTML page that needs nothing else: style and script are in it, and its policy allows no network."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from glm5inspect import __version__
from glm5inspect.render.content import verdict_of
from glm5inspect.render.html_section import Place, section
from glm5inspect.render.markup import Markup, below, element

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5inspect.render import View
    from glm5inspect.report import Report


def render(report: Report, view: View) -> str:
    """Return the report as a page; one that puts others side by side has a section for itself and one for each."""
    sections = [section(report, Place("r0"), quiet=view.quiet)]
    if report.reports:
        sections.append(_contents(report.reports))
    for number, part in enumerate(report.reports, 1):
        sections.append(section(part, Place(f"r{number}", 2, f", source {number}"), quiet=view.quiet))
    return page(_title(report), sections)


def page(title: str, sections: list[Markup]) -> str:
    """Return a page of sections."""
    style, script = (Markup(f"\n{_shipped(name)}") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = below(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    body = below(
        element("a", "Skip to the report", href="#main", class_="skip"),
        element("main", below(*sections), id="main", tabindex=-1),
        element("footer", f"Written by glm5inspect {__version__}."),
        element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', below(element('head', head), element('body', body)), lang='en')}\n"


def _contents(reports: Iterable[Report]) -> Markup:
    """Return links to the sections of several sources."""
    names = (report.source.name if report.source else report.command for report in reports)
    links = (element("li", element("a", name, href=f"#r{number}-title")) for number, name in enumerate(names, 1))
    return element("nav", element("ul", *links), aria_label="Reports of the sources")


def _title(report: Report) -> str:
    where = f" of {report.source.name}" if report.source else ""
    word = (verdict_of(report) or "").partition(":")[0]
    return f"glm5inspect {report.command}{where}{f': {word}' if word else ''}"


def _shipped(name: str) -> str:
    return files("glm5inspect.render").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return how a policy names the one style or script that it allows."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
