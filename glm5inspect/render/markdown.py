# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as Markdown, for the summary of a CI job, a model card or a comment.

What a file says is never markup: a word that is no plain word stands in a code span, and one that a code span could not
hold in any reader of Markdown is spelt in character references.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from glm5inspect.render.blocks import Lines
from glm5inspect.render.content import blocks_of, folded, verdict_of
from glm5inspect.render.wording import accepted_lines, parts_of, source_lines
from glm5inspect.report import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.render import View
    from glm5inspect.render.blocks import Block, Grid
    from glm5inspect.report import Report

_QUOTED = re.compile(r"(?<!\S)((?:--[\w-]+ )?'[^']+'[,.:;]*)(?!\S)")
_PLAIN = re.compile(r"(?!\d+\)$)\(?(?:[A-Za-z][A-Za-z/'-]*|\d[\d.,-]*(?:-[a-z]+|%)?)\)?", flags=re.ASCII)
_TAIL = ",.:;"
_NOT_IN_A_SPAN = re.compile(r"[`|\\]")


def render(report: Report, view: View) -> str:
    """Return the report as Markdown, with a heading that has the verdict."""
    *parts, (_, whole) = parts_of(report)
    texts = [text for name, part in (("", whole), *parts) for text in _part(part, name, quiet=view.quiet)]
    return "\n\n".join(texts) + "\n"


def _part(report: Report, name: str, *, quiet: bool) -> Iterator[str]:
    verdict = verdict_of(report)
    word, _, rest = (verdict or "").partition(": ")
    yield f"## glm5inspect {report.command}{f' of {inline(name)}' if name else ''}{f': {word}' if word else ''}"
    if rest:
        yield inline(f"{rest[0].upper()}{rest[1:]}.")
    if report.source and not quiet:
        yield _bullets(source_lines(report.command, report.source, typed=True))
    if not quiet:
        yield from (text for block in blocks_of(report) for text in _drawn(block))
    if report.findings:
        yield from ("### Findings", "\n".join(_findings(report)))
    if report.accepted:
        yield from ("### Accepted", _bullets(tuple(accepted_lines(report))))


def _findings(report: Report) -> Iterator[str]:
    for entry in folded(report):
        yield f"- **{entry.severity.name.lower()}** `{entry.code.value}`: {inline(entry.headline)}"
        yield from (f"  - {inline(detail)}" for detail in entry.details)


def _drawn(block: Block) -> Iterator[str]:
    if block.title:
        yield f"### {block.title}"
    if not isinstance(block, Lines):
        yield "\n".join(_table(block))
    elif block.drawn:
        yield "\n".join(["```text", *block.lines, "```"])
    else:
        yield _bullets(block.lines)


def _bullets(lines: Iterator[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines if line)


def _table(grid: Grid) -> Iterator[str]:
    yield _row(name.rstrip(">") for name in grid.columns)
    yield _row("---:" if name.endswith(">") else "---" for name in grid.columns)
    for cells in grid.texts():
        yield _row(map(inline, cells))


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def inline(text: str) -> str:
    """Return text as it can stand in a line or a cell: plain words as they are, any others as code."""
    if text in ("", "-"):
        return text
    words: list[str] = []
    for number, part in enumerate(_QUOTED.split(printable(text))):
        words += [part] if number % 2 else part.removeprefix(" ").removesuffix(" ").split(" ") if part.strip() else []
    pieces = []
    for plain, group in groupby(words, _is_plain):
        piece = " ".join(group)
        pieces.append(piece if plain else _code(piece))
    return " ".join(pieces).strip()


def _is_plain(word: str) -> bool:
    """Tell whether a word is one that no reader takes for markup, the number of an item of a list included."""
    core = word.rstrip(_TAIL)
    numbered = core.isdecimal() and word.startswith(".", len(core))
    return not word or (bool(_PLAIN.fullmatch(core)) and not numbered)


def _code(text: str) -> str:
    core = text.rstrip(_TAIL) or text
    tail = text[len(core) :]
    if not _NOT_IN_A_SPAN.search(core):
        return f"`{core}`{tail}"
    spelt = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in core)
    return f"<code>{spelt}</code>{tail}"
