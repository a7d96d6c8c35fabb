# SPDX-License-Identifier: AGPL-3.0-only
r"""Regular expressions as quantization configs have them, read for `glm5inspect.quantization.expressions`.

Understood are literals, ``.``, classes, ``\d \w \s`` and their opposites, groups, alternatives, ``* + ? {m,n}`` (lazy
ones too), ``^ $`` and look-ahead. Anything else (back-references, look-behind, flags) is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.quantization.expressions import (
    ANY,
    CharSet,
    Expression,
    ExpressionError,
    anchored,
    characters,
    check_length,
    counted_times,
    either,
    in_sequence,
    literally,
    looking_ahead,
    once,
    repeatedly,
)

if TYPE_CHECKING:
    from glm5inspect.quantization.expressions import Step

_MAX_DEPTH = 30
_ESCAPES = {
    "d": CharSet.of(str.isdigit),
    "D": CharSet.of(lambda c: not c.isdigit()),
    "w": CharSet.of(lambda c: c.isalnum() or c == "_"),
    "W": CharSet.of(lambda c: not (c.isalnum() or c == "_")),
    "s": CharSet.of(str.isspace),
    "S": CharSet.of(lambda c: not c.isspace()),
}


def regex(pattern: str) -> Expression:
    """Read a regular expression, to be matched against the whole path.

    Raises:
        ExpressionError: It is too long, malformed, or uses what is not understood here.
    """
    check_length(pattern)
    parser = _Parser(pattern)
    step = parser.alternatives(0)
    if parser.peek():
        raise ExpressionError("has a `)` too many")
    return Expression(step)


class _Parser:
    """Reads a regular expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._index = 0

    def peek(self, ahead: int = 0) -> str:
        """Return a character that is still to come, or nothing after the last."""
        return self._pattern[self._index + ahead : self._index + ahead + 1]

    def _take(self) -> str:
        character = self.peek()
        if not character:
            raise ExpressionError("ends too early")
        self._index += 1
        return character

    def _took(self, text: str) -> bool:
        if self._pattern.startswith(text, self._index):
            self._index += len(text)
            return True
        return False

    def alternatives(self, depth: int) -> Step:
        """Read up to the end or a closing parenthesis."""
        if depth > _MAX_DEPTH:
            raise ExpressionError("is nested too deeply")
        steps = [self._branch(depth)]
        while self._took("|"):
            steps.append(self._branch(depth))
        return either(steps)

    def _branch(self, depth: int) -> Step:
        steps: list[Step] = []
        while self.peek() and self.peek() not in "|)":
            steps.append(self._piece(depth))
        return in_sequence(steps)

    def _piece(self, depth: int) -> Step:
        literal = self._literal()
        if literal:
            return literally(literal)
        character = self._take()
        if character == "(":
            return self._group(depth)
        if character in "^$":
            return anchored(start=character == "^")
        if character in "*+?":
            raise ExpressionError(f"repeats nothing at `{character}`")
        return self._quantified(self._set(character))

    def _literal(self) -> str:
        """Take the literal characters that come next, but for one that is repeated."""
        start = self._index
        literal = ""
        while (character := self.peek()) and character not in r".[()|^$*+?\{":
            if self.peek(1) and self.peek(1) in "*+?{":
                break
            literal += character
            self._index += 1
        if not literal and start < len(self._pattern) and self.peek() == "\\":
            following = self.peek(1)
            if following and not following.isalnum() and (not self.peek(2) or self.peek(2) not in "*+?{"):
                self._index += 2
                return following
        return literal

    def _set(self, character: str) -> CharSet:
        if character == ".":
            return ANY
        if character == "[":
            return self._brackets()
        if character == "\\":
            return self._escape()
        return CharSet.of(lambda c: c == character)

    def _escape(self) -> CharSet:
        character = self._take()
        if character.isalnum():
            if charset := _ESCAPES.get(character):
                return charset
            raise ExpressionError(f"uses `\\{character}`, which is not understood here")
        return CharSet.of(lambda c: c == character)

    def _brackets(self) -> CharSet:
        negated = self._took("^")
        members: list[str] = []
        others: list[CharSet] = []
        while (character := self._take()) != "]" or not (members or others):
            if character == "\\" and self.peek().isalnum():
                others.append(self._escape())
            else:
                members.append(self._take() if character == "\\" else character)
        plain = characters(members, negated=False)
        return CharSet.of(lambda c: (plain.has(c) or any(other.has(c) for other in others)) is not negated)

    def _group(self, depth: int) -> Step:
        ahead = "=" if self._took("?=") else "!" if self._took("?!") else ""
        if not ahead and not self._took("?:") and self.peek() == "?":
            raise ExpressionError(f"uses `(?{self.peek(1)}`, which is not understood here")
        inner = self.alternatives(depth + 1)
        if not self._took(")"):
            raise ExpressionError("has a `(` that is never closed")
        if ahead:
            return looking_ahead(inner, wanted=ahead == "=")
        least, most = self._counts()
        return inner if (least, most) == (1, 1) else counted_times(inner, least, most)

    def _quantified(self, charset: CharSet) -> Step:
        least, most = self._counts()
        if most is None and least <= 1:
            return repeatedly(charset, least=least)
        return once(charset) if (least, most) == (1, 1) else counted_times(once(charset), least, most)

    def _counts(self) -> tuple[int, int | None]:
        """Read what may follow a set or a group: how often it may stand, without an upper bound when that is none."""
        counts: tuple[int, int | None] = (1, 1)
        if self._took("*"):
            counts = (0, None)
        elif self._took("+"):
            counts = (1, None)
        elif self._took("?"):
            counts = (0, 1)
        elif self.peek() == "{":
            inner, brace, _ = self._pattern[self._index + 1 :].partition("}")
            low, comma, high = inner.partition(",")
            if not (brace and all(n.isascii() and n.isdigit() and len(n) < 5 for n in (low or "0", high or "0"))):  # noqa: PLR2004 - paths are short
                raise ExpressionError("has a `{` that is not understood here")
            self._index += len(inner) + 2
            least = int(low or 0)
            counts = (least, int(high) if high else None if comma else least)
            if counts[1] is not None and counts[1] < least:
                raise ExpressionError("counts backwards")
        else:
            return counts
        if self.peek() and self.peek() in "+*":
            raise ExpressionError("repeats a repetition")
        self._took("?")
        return counts
