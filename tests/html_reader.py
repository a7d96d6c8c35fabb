# SPDX-License-Identifier: AGPL-3.0-only
"""The reader of HTML reports: a parser that forgives nothing, and the rules that every page has to keep."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING

from justhtml import JustHTML

if TYPE_CHECKING:
    from collections.abc import Iterator

    from justhtml import Node

ELEMENTS: dict[str, set[str]] = {
    "html": {"lang"},
    "head": set(),
    "meta": {"charset", "name", "content", "http-equiv"},
    "title": {"id"},
    "style": set(),
    "script": set(),
    "body": set(),
    "main": {"id", "tabindex"},
    "article": {"aria-labelledby"},
    "header": set(),
    "footer": set(),
    "nav": {"aria-label"},
    "section": {"class", "aria-label", "tabindex"},
    **{f"h{level}": {"id"} for level in (1, 2, 3, 4)},
    "p": {"class"},
    "a": {"class", "href"},
    "ul": {"class", "id"},
    "li": {"data-severity"},
    "b": {"class"},
    "strong": {"class"},
    "code": set(),
    "span": {"class"},
    "pre": set(),
    "wbr": set(),
    "table": {"class", "aria-labelledby"},
    "thead": set(),
    "tbody": set(),
    "tr": set(),
    "th": {"scope", "class"},
    "td": {"class"},
    "div": {"class", "role", "aria-label", "data-filter", "hidden"},
    "fieldset": set(),
    "legend": set(),
    "label": set(),
    "input": {"type", "name", "value", "checked"},
    "output": {"aria-live"},
    "svg": {
        *("class", "role", "aria-labelledby", "aria-describedby", "aria-hidden"),
        *("width", "height", "viewBox", "preserveAspectRatio"),
    },
    "desc": {"id"},
    "g": set(),
    "rect": {"class", "x", "y", "width", "height"},
    "text": {"class", "x", "y", "text-anchor"},
}
"""The elements of a page and their attributes: none of them loads anything, and none runs anything but the script."""

POLICY = "default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def read_html(text: str) -> Node:
    """Parse a page, hold it to the rules, and return it."""
    _Tags().feed(text)
    page: Node = JustHTML(text, sanitize=False, strict=True).root
    assert [node.name for node in page.children or ()] == ["!doctype", "html"]
    for node in elements(page):
        attributes = node.attrs or {}
        assert {*attributes} <= ELEMENTS[node.name], (node.name, attributes)
        assert "tabindex" not in attributes or attributes["tabindex"] in ("0", "-1")
    assert only(page, "html").attrs == {"lang": "en"}
    assert said(only(page, "head > title")).strip()
    _check_policy(page)
    _check_references(page)
    _check_headings(page)
    for table in page.query("table"):
        _check_table(table)
    for picture in page.query("svg"):
        attributes = picture.attrs or {}
        assert ("role" in attributes) != ("aria-hidden" in attributes)
    return page


class _Tags(HTMLParser):
    """Finds an attribute that is there twice, which no tree shows."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len({key for key, _ in attrs}), (tag, attrs)


def elements(node: Node) -> Iterator[Node]:
    """Yield every element below a node, in the order of the page."""
    for child in node.children or ():
        if not child.name.startswith(("#", "!")):
            yield child
            yield from elements(child)


def only(node: Node, selector: str) -> Node:
    """Return the one element that a selector finds."""
    (found,) = node.query(selector)
    return found


def attribute(node: Node, name: str) -> str:
    """Return the value of an attribute that is there."""
    value = (node.attrs or {})[name]
    return value or ""


def said(node: Node) -> str:
    """Return the text of an element as it stands there."""
    return str(node.data or "") if node.name == "#text" else "".join(map(said, node.children or ()))


def _check_policy(page: Node) -> None:
    """The policy allows this very style and this very script, and nothing of the network; nor does the style ask."""
    hashes = {}
    for name in ("style", "script"):
        content = said(only(page, name))
        hashes[name] = f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        assert not re.search(r"@import|url\(|https?:|//[a-z]", content)
    assert attribute(only(page, "meta[http-equiv]"), "content") == POLICY.format(**hashes)
    head = [node for node in elements(page) if node.name in ("meta", "title", "style")]
    assert attribute(head[0], "charset") == "utf-8"
    assert attribute(head[1], "http-equiv") == "Content-Security-Policy"


def _check_references(page: Node) -> None:
    """Ids are unique, and whatever points to one finds it."""
    ids = [attribute(node, "id") for node in elements(page) if "id" in (node.attrs or {})]
    assert len(ids) == len({*ids})
    for node in elements(page):
        attributes = node.attrs or {}
        named = [attributes.get(key) for key in ("aria-labelledby", "aria-describedby", "data-filter")]
        assert {name for name in named if name} <= {*ids}
        if "href" in attributes:
            assert attribute(node, "href").startswith("#")
            assert attribute(node, "href")[1:] in ids
        if node.name == "label":
            assert len(node.query("input")) == 1
            assert said(node).strip()
    assert len(page.query("input")) == len(page.query("label input"))


def _check_headings(page: Node) -> None:
    """One first heading, and none that skips a level."""
    levels = [int(node.name[1]) for node in elements(page) if re.fullmatch(r"h\d", node.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def _check_table(table: Node) -> None:
    """A table has a name, and each cell a heading above it and one beside it."""
    assert attribute(table, "aria-labelledby")
    (heads,) = (row.children or () for row in table.query("thead tr"))
    assert {attribute(cell, "scope") for cell in heads if cell.name == "th"} == {"col"}
    for row in table.query("tbody tr"):
        cells = row.children or []
        assert len(cells) == len(heads)
        assert [cell.name for cell in cells] == ["th", *["td"] * (len(cells) - 1)]
        assert attribute(cells[0], "scope") == "row"


def rows_of(table: Node) -> list[list[str]]:
    """Return the cells of a table, its head included."""
    return [[said(cell) for cell in row.children or ()] for row in table.query("tr")]
