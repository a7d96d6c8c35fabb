# SPDX-License-Identifier: AGPL-3.0-only
"""Globs and regular expressions of files that nobody has vouched for, matched against module paths in bounded time.

Python's `re` backtracks: on forty characters ``(a+)+$`` takes longer than anybody waits. Here everywhere that a match
may have got to is one integer, a bit for each position of the path, and a step of an expression turns one such integer
into the next, so that nothing is ever tried twice. What nesting still multiplies is bounded by a budget of steps.

The number of a routed expert may be left open (`OPEN`), in a path or in both: an expression then matches for all
numbers, for none, or says that it depends on the number.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH = 1000
"""A longer expression is not read."""

OPEN = "\x00\x01"
"""Stands in a path for a number that is left open: its first digit, and the digits after it if there are any."""

_DIGITS = frozenset(string.digits)


class ExpressionError(ValueError):
    """Say why an expression is not read."""


class Budget:
    """How many steps may still be taken."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Take some steps, or refuse to."""
        self.left -= steps
        if self.left < 0:
            raise ExpressionError("takes too long to match")


class CharSet(NamedTuple):
    """A set of characters."""

    has: Callable[[str], bool]
    digits: int

    @classmethod
    def of(cls, has: Callable[[str], bool]) -> CharSet:
        """Make a set, and count its digits: that none or all are in it is what an open number turns on."""
        return cls(has, sum(map(has, _DIGITS)))


class Text:
    """A path that is being matched; positions are bits, from 0 before the first character to `end` after the last.

    Attributes:
        open: The bits in front of the two characters of `OPEN`.
        depends: Whether what has been asked so far has no one answer for all numbers that were left open.
        budget: Of the match going on.
    """

    __slots__ = ("_masks", "_sets", "budget", "depends", "end", "open", "rest")

    def __init__(self, path: str) -> None:
        self._masks: dict[str, int] = {}
        for index, character in enumerate(path):
            self._masks[character] = self._masks.get(character, 0) | 1 << index
        self._sets: dict[CharSet, int] = {}
        self.end = 1 << len(path)
        first, self.rest = (self._masks.get(character, 0) for character in OPEN)
        self.open = first | self.rest
        self.depends = False
        self.budget = Budget(0)

    def literal(self, literal: str, at: int) -> int:
        """Return where a literal leads from the positions given."""
        for character in literal:
            if at & self.open and character in _DIGITS:
                self.depends = True
            at = (at & self._masks.get(character, 0)) << 1
            if not at:
                break
        return at

    def mask(self, charset: CharSet) -> int:
        """Return the positions that a character of the set follows."""
        mask = self._sets.get(charset)
        if mask is None:
            mask = sum(bits for character, bits in self._masks.items() if charset.has(character)) & ~self.open
            if charset.digits == len(_DIGITS):
                mask |= self.open
            self._sets[charset] = mask
        return mask

    def one(self, charset: CharSet, at: int) -> int:
        """Return where one character of a set leads."""
        if at & self.open and charset.digits:
            self.depends = True
        return (at & self.mask(charset)) << 1

    def many(self, charset: CharSet, at: int) -> int:
        """Return where any number of characters of a set lead: an addition carries through each run of them."""
        mask = self.mask(charset)
        at |= ((at & mask) + mask) ^ mask
        if at & self.open and 0 < charset.digits < len(_DIGITS):
            self.depends = True
        return at

    def some(self, charset: CharSet, at: int) -> int:
        """Return where at least one character of a set leads; a whole number is as good as any other."""
        if at & self.rest and charset.digits:
            self.depends = True
        if at & self.open and charset.digits < len(_DIGITS):
            self.depends |= charset.digits > 0
        return self.many(charset, (at & self.mask(charset)) << 1)


if TYPE_CHECKING:
    Step = Callable[[Text, int], int]
    """Turns the positions reached into those reached after it."""

ANY = CharSet.of(lambda _: True)


class Expression:
    """A glob or a regular expression, ready to be matched.

    Attributes:
        prefix: What every path that matches begins with.
        suffix: What it ends with.
    """

    __slots__ = ("_step", "prefix", "suffix")

    def __init__(self, step: Step, prefix: str = "", suffix: str = "") -> None:
        self._step = step
        self.prefix = prefix
        self.suffix = suffix

    def matches(self, text: Text, budget: Budget) -> bool | None:
        """Tell whether the whole path matches; ``None`` when that depends on a number that is open in it.

        Raises:
            ExpressionError: The budget is spent.
        """
        text.depends, text.budget = False, budget
        found = bool(self._step(text, 1) & text.end)
        return None if text.depends else found


def glob(pattern: str) -> Expression:
    """Read a glob: ``*``, ``?`` and ``[...]`` as in `fnmatch`, matched against the whole path."""
    check_length(pattern)
    steps: list[Step] = []
    literal, index, prefix = "", 0, None
    while index < len(pattern):
        character = pattern[index]
        closing = pattern.find("]", index + 2 + (pattern[index + 1 : index + 2] == "!")) if character == "[" else -1
        if character in "*?" or closing > 0:
            if literal:
                steps.append(literally(literal))
            prefix = literal if prefix is None else prefix
            literal = ""
        if closing > 0:
            inner = pattern[index + 1 : closing]
            steps.append(once(characters(list(inner.removeprefix("!")), negated=inner.startswith("!"))))
            index = closing
        elif character == "*":
            steps.append(repeatedly(ANY))
        elif character == "?":
            steps.append(once(ANY))
        else:
            literal += character
        index += 1
    if literal:
        steps.append(literally(literal))
    return Expression(in_sequence(steps), literal if prefix is None else prefix, literal)


def check_length(pattern: str) -> None:
    """Refuse an expression that is too long."""
    if len(pattern) > MAX_LENGTH:
        raise ExpressionError(f"has {len(pattern):,} characters, more than {MAX_LENGTH:,}")


def literally(literal: str) -> Step:
    """Make the step of a literal."""

    def step(text: Text, at: int) -> int:
        text.budget.spend()
        return text.literal(literal, at)

    return step


def once(charset: CharSet) -> Step:
    """Make the step of one character of a set."""

    def step(text: Text, at: int) -> int:
        text.budget.spend()
        return text.one(charset, at)

    return step


def repeatedly(charset: CharSet, *, least: int = 0) -> Step:
    """Make the step of any number of characters of a set, or of at least one."""

    def step(text: Text, at: int) -> int:
        text.budget.spend()
        return text.some(charset, at) if least else text.many(charset, at)

    return step


def in_sequence(steps: list[Step]) -> Step:
    """Make one step of several that follow each other."""
    if len(steps) == 1:
        return steps[0]

    def step(text: Text, at: int) -> int:
        for inner in steps:
            at = inner(text, at)
            if not at:
                break
        return at

    return step


def either(steps: list[Step]) -> Step:
    """Make one step of several alternatives."""
    if len(steps) == 1:
        return steps[0]

    def step(text: Text, at: int) -> int:
        reached = 0
        for inner in steps:
            reached |= inner(text, at)
        return reached

    return step


def counted_times(inner: Step, least: int, most: int | None) -> Step:
    """Make the step of another that is repeated, without an upper bound where `most` is none."""

    def step(text: Text, at: int) -> int:
        for _ in range(least):
            text.budget.spend()
            at = inner(text, at)
            if not at:
                return 0
        reached = new = at
        more = None if most is None else most - least
        while new and more != 0:
            text.budget.spend()
            new = inner(text, new) & ~reached
            reached |= new
            more = None if more is None else more - 1
        return reached

    return step


def looking_ahead(inner: Step, *, wanted: bool) -> Step:
    """Make the step that stays where it is and asks whether another one would lead anywhere."""

    def step(text: Text, at: int) -> int:
        if at & text.rest:
            text.depends = True
        kept, bits = 0, at
        while bits:
            text.budget.spend()
            bit = bits & -bits
            bits ^= bit
            if bool(inner(text, bit)) is wanted:
                kept |= bit
        return kept

    return step


def anchored(*, start: bool) -> Step:
    """Make the step that is only taken at the start, or at the end."""
    return lambda text, at: at & (1 if start else text.end)


def characters(members: list[str], *, negated: bool) -> CharSet:
    """Make a set of single characters and of ranges, which are a character, ``-`` and another one."""
    singles, ranges = set(), []
    while members:
        first = members.pop(0)
        if len(members) > 1 and members[0] == "-":
            ranges.append((first, members[1]))
            del members[:2]
        else:
            singles.add(first)
    return CharSet.of(lambda c: (c in singles or any(a <= c <= b for a, b in ranges)) is not negated)
