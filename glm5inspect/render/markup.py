# SPDX-License-Identifier: AGPL-3.0-only
"""Elements of HTML and SVG. What is no markup yet becomes text, so nothing that a file says is taken for markup."""

from __future__ import annotations

from html import escape

from glm5inspect.report import printable

_VOID = frozenset({"input", "meta"})
"""Elements of HTML that have no content, and so no end tag."""


class Markup(str):
    """Text that is HTML; any other text is escaped where an element takes it in."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text as markup that shows it, with control and format characters spelt out."""
    return Markup(escape(printable(value)))


def element(name: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        children: What is in it, side by side: markup as it is, text escaped.
        attributes: An underscore stands for a hyphen, one at the end for nothing (``class_``). ``None`` leaves an
            attribute out; an empty string is an attribute without a value.
    """
    opening = [name]
    for key, value in attributes.items():
        if value is not None:
            word = key.removesuffix("_").replace("_", "-")
            opening.append(f'{word}="{text(str(value))}"' if value != "" else word)
    tag = f"<{' '.join(opening)}>"
    return Markup(tag) if name in _VOID else Markup(f"{tag}{beside(*children)}</{name}>")


def beside(*children: str) -> Markup:
    """Join markup, and text that is escaped."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children))


def below(*children: str) -> Markup:
    """Join markup line by line, so that a page can be read and compared as text."""
    return Markup("".join(f"\n{beside(child)}" for child in children if child) + "\n")


def scrolled(content: Markup, name: str) -> Markup:
    """Return what may be wider than the page in a region that scrolls by itself, by keyboard too."""
    return element("section", content, class_="scroll", aria_label=name, tabindex=0)
