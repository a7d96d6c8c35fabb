# SPDX-License-Identifier: AGPL-3.0-only
"""Which modules the entries of a quantization config name.

Formats read their lists differently (`Style`). Lists come from files that nobody has vouched for: of what is matched
as a glob or a regular expression the work is bounded (`glm5inspect.quantization.expressions`), and everything else is
looked up, so that a million entries cost no more than reading them. What could not be read is said, never dropped.

Modules that differ in the expert's number only are matched once, as one `Target`.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.quantization.expressions import (
    MAX_LENGTH,
    OPEN,
    Budget,
    Expression,
    ExpressionError,
    Text,
    glob,
)
from glm5inspect.quantization.regexes import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_ENTRIES = 100_000
"""More entries than this of one list are not read; MIXED_PRECISION configs name each of 40,000 modules."""

MAX_CHARACTERS = 100_000
"""So much of one list is read as globs and regular expressions; the longest list known has 6,000 characters."""

_MAX_PATH = 400
_STEPS = 1_000_000
_STEPS_PER_TEXT = 40
_EXPERT = re.compile(r"(?<=\.experts\.)(?:0|[1-9][0-9]{0,8})(?=\.|$)")
_LAYER = re.compile(r"[^*?\[]{,60}?\.layers\.[0-9]+\.")
_MAGIC = re.compile(r"[*?\[]")
_REGEX = "re:"


class Style(Enum):
    """How the entries of a list are read; the value says it to people."""

    ALL = "every Linear module"
    EXACT = "the exact path of a module"
    TREE = "the path of a module, or a glob, or what such a path lies under"
    GLOB = "an exact path or a glob"
    REGEX = "an exact path, or after `re:` a regular expression for the whole path"
    PART = "dotted parts that stand in a row in a path"


class Target:
    """Modules that share everything but the expert's number.

    Attributes:
        path: As stored, with ``E`` for the number of the expert where there are several.
        experts: Their numbers; ``None`` for a module that is not one of many.
    """

    __slots__ = ("_text", "experts", "path", "shape")

    def __init__(self, path: str, experts: Iterable[int] | None = None) -> None:
        self.path = path
        self.experts = None if experts is None else frozenset(experts)
        self.shape = path if experts is None else path.replace(".experts.E", f".experts.{OPEN}", 1)
        self._text: Text | None = None

    @property
    def text(self) -> Text:
        """The path to be matched, with the number left open."""
        if self._text is None:
            self._text = Text(self.shape)
        return self._text


class Hit(NamedTuple):
    """An entry that names a target, or some experts of it.

    Attributes:
        entry: Its place in the list; the first entry is 0.
        experts: Those that it names; ``None`` for the whole target.
    """

    entry: int
    experts: frozenset[int] | None


class Unread(NamedTuple):
    """What could not be read of a list: the entry (or what there is of it), and why."""

    entry: str
    reason: str


class PatternList:
    """A list of entries of a config, ready to be matched.

    Attributes:
        entries: As they stand in the config; what is not a string has become one.
        style: How they are read.
        unread: Those that are not, by their place in the list.
        budget: What matching may cost; lists may share one.
    """

    def __init__(self, entries: Sequence[object], style: Style) -> None:
        self.style = style
        self.entries: tuple[str, ...] = tuple(
            e if isinstance(e, str) else f"({type(e).__name__})" for e in entries[:MAX_ENTRIES]
        )
        self.unread: dict[int, Unread] = {}
        self._names: dict[str, dict[int | None, list[int]]] = {}
        self._expressions: dict[str, tuple[Expression, dict[int | None, list[int]]]] = {}
        self._by_layer: dict[str, list[str]] = {}
        self._characters = 0
        self.budget = Budget(_STEPS)
        if len(entries) > MAX_ENTRIES:
            more = len(entries) - MAX_ENTRIES
            self.unread[MAX_ENTRIES] = Unread("…", f"is one of {more:,} beyond the first {MAX_ENTRIES:,}")
        for index, entry in enumerate(entries[:MAX_ENTRIES]):
            if not isinstance(entry, str):
                self._leave(index, "is not a string")
            elif style is Style.REGEX and entry.startswith(_REGEX):
                self._read(index, entry, is_regex=True)
            elif style not in (Style.EXACT, Style.REGEX) and _MAGIC.search(entry):
                self._read(index, f"*.{_released(entry)}.*" if style is Style.PART else entry, is_regex=False)
            else:
                self._name(index, entry)

    def _leave(self, index: int, reason: str) -> None:
        self.unread[index] = Unread(self.entries[index][:80], reason)

    def _read(self, index: int, entry: str, *, is_regex: bool) -> None:
        self._characters += len(entry)
        if self._characters > MAX_CHARACTERS:
            self._leave(index, f"lies beyond {MAX_CHARACTERS:,} characters of wildcards")
            return
        # Globs that differ in the expert's number only are matched once, as one.
        shared, expert = (entry, None) if is_regex else _apart(entry, OPEN)
        try:
            if shared not in self._expressions:
                expression = regex(entry.removeprefix(_REGEX)) if is_regex else glob(shared)
                self._expressions[shared] = (expression, {})
                self._by_layer.setdefault(_layer(expression.prefix), []).append(shared)
        except ExpressionError as error:
            self._leave(index, str(error))
        else:
            self._expressions[shared][1].setdefault(expert, []).append(index)

    def _name(self, index: int, entry: str) -> None:
        if len(entry) > MAX_LENGTH:
            self._leave(index, f"has {len(entry):,} characters, more than {MAX_LENGTH:,}")
            return
        name, expert = _apart(_released(entry) if self.style is Style.PART else entry, "E")
        self._names.setdefault(name, {}).setdefault(expert, []).append(index)

    def hits(self, target: Target) -> Iterator[Hit]:
        """Yield every entry that names a target or some experts of it, those looked up first."""
        if len(target.path) > _MAX_PATH and self.style is not Style.EXACT:
            yield from self._named([target.path], target)
            return
        yield from self._named(self._keys(target.path), target)
        try:
            for shared in self._candidates(target):
                yield from self._matched(shared, *self._expressions[shared], target)
        except ExpressionError as error:
            for _, indices in self._expressions.values():
                for index in (index for those in indices.values() for index in those):
                    self._leave(index, str(error))
            self._expressions, self._by_layer = {}, {}

    def _candidates(self, target: Target) -> list[str]:
        """Return the expressions that do not begin in another layer than the target: few of a list that names all."""
        layer = _layer(self._spelled(target.path))
        return self._by_layer.get("", []) + (self._by_layer.get(layer, []) if layer else [])

    def _keys(self, path: str) -> Iterable[str]:
        """Return all that an entry without wildcards may say to name a path."""
        if self.style is Style.PART:
            parts = _released(path).split(".")
            ends = range(1, len(parts) + 1)
            return {".".join(parts[start:end]) for end in ends for start in range(end)}
        if self.style is Style.TREE:
            parts = path.split(".")
            return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return [path]

    def _named(self, keys: Iterable[str], target: Target) -> Iterator[Hit]:
        for key in keys:
            for expert, indices in self._names.get(key, {}).items():
                # What spells the placeholder itself names nothing: no module is called that.
                if expert is None and (target.experts is None or "E" not in key.split(".")):
                    yield from (Hit(index, None) for index in indices)
                elif expert is not None and expert in (target.experts or ()):
                    yield from (Hit(index, frozenset((expert,))) for index in indices)

    def _matched(
        self, shared: str, expression: Expression, indices: dict[int | None, list[int]], target: Target
    ) -> Iterator[Hit]:
        self.budget.spend()
        shape = self._spelled(target.shape)
        # Most do not match, and most of these begin or end otherwise; where a number is open, that tells nothing.
        if not shape.startswith(expression.prefix.partition(".experts.")[0]):
            return
        if not shape.endswith((expression.suffix.rpartition(".")[2], OPEN)):
            return
        found = expression.matches(target.text if shape is target.shape else Text(shape), self.budget)
        if found is False:
            return
        experts = target.experts or frozenset()
        for expert, those in indices.items():
            named = experts if expert is None else experts & {expert}
            if found is None:
                one = expression if expert is None else glob(shared.replace(OPEN, str(expert)))
                named = frozenset(number for number in named if self._names_one(one, shape, number))
            if named or (target.experts is None and expert is None):
                whole = expert is None and named == experts
                yield from (Hit(index, None if whole else named) for index in those)

    def _names_one(self, expression: Expression, shape: str, expert: int) -> bool:
        self.budget.spend(_STEPS_PER_TEXT)
        return bool(expression.matches(Text(shape.replace(OPEN, str(expert), 1)), self.budget))

    def _spelled(self, shape: str) -> str:
        """Return what an expression is matched against; parts of a path have a dot on either side."""
        return f".{_released(shape)}." if self.style is Style.PART else shape


def _layer(path: str) -> str:
    """Return what a path, or what is certain of one, has up to its layer; nothing when it names none."""
    layer = _LAYER.match(path)
    return layer[0] if layer else ""


def _apart(entry: str, placeholder: str) -> tuple[str, int | None]:
    """Take the number of an expert out of an entry that names one."""
    dotted = f".{entry}"
    number = _EXPERT.search(dotted)
    if number is None:
        return entry, None
    return f"{dotted[1 : number.start()]}{placeholder}{dotted[number.end() :]}", int(number[0])


def _released(path: str) -> str:
    """Spell the layers as the release does; text-only models leave a part of the prefix out."""
    return f"model.language_model.{path.removeprefix('model.')}" if path.startswith("model.layers.") else path
