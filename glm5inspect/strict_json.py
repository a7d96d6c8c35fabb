# SPDX-License-Identifier: AGPL-3.0-only
"""JSON as strict as the readers that will load the checkpoint, and a little stricter.

Python's `json` lets pass what serde (and so the safetensors library) refuses: NaN and Infinity, ``-0`` as an integer,
lone surrogates; and both keep the last of two equal keys without a word.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn


class StrictJSONError(ValueError):
    """Say why a text is not strict JSON."""


class Parsed:
    """A JSON object and the keys that stood twice in it, at any depth.

    Attributes:
        value: The object; of two equal keys the last one.
        duplicates: Each key that stood twice, in the order found.
    """

    __slots__ = ("duplicates", "value")

    def __init__(self, value: dict[str, object], duplicates: tuple[str, ...] = ()) -> None:
        self.value = value
        self.duplicates = duplicates


class NotAnInteger:
    """Stands for a number that strict readers do not take for an integer; equal to none, unlike ``1.0`` to ``1``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def parse_object(raw: bytes, *, integers_only: bool = False) -> Parsed:
    """Parse one JSON object.

    Args:
        raw: The whole text.
        integers_only: Read numbers as serde reads integers: what has a fraction or an exponent, and ``-0``, becomes
            `NotAnInteger`.

    Raises:
        StrictJSONError: The bytes are not UTF-8, not JSON, not an object, or hold what strict readers refuse.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise StrictJSONError(f"not UTF-8 at byte {error.start}") from error
    try:
        value = (_INTEGERS if integers_only else _NUMBERS).decode(text)
        if not isinstance(value, dict):
            raise StrictJSONError("not a JSON object")
        plain = _is_plain(raw, value) and not (integers_only and b"-0" in raw)
        return Parsed(value) if plain else _parse_slowly(text, integers_only=integers_only)
    except StrictJSONError:
        raise
    except RecursionError as error:
        raise StrictJSONError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise StrictJSONError(f"not JSON ({error})") from error
    except ValueError as error:  # Python converts no integer of more than 4,300 digits
        raise StrictJSONError("beyond reading: a number has thousands of digits") from error


def _is_plain(raw: bytes, value: dict[str, object]) -> bool:
    """Tell, without looking at every pair, that no key stands twice and no string holds a lone surrogate.

    Every pair has a colon of its own. Where no more colons stand in the text than pairs came out of it, none was lost
    to a duplicate; counting two levels is enough, since a third one only adds colons. Without a backslash there is no
    surrogate. Otherwise the slow way decides.
    """
    if b"\\" in raw:
        return False
    inner = [content for content in value.values() if type(content) is dict]
    return raw.count(b":") == len(value) + sum(map(len, inner))


def _parse_slowly(text: str, *, integers_only: bool) -> Parsed:
    """Parse with a look at every pair, and at every integer where ``-0`` matters."""
    duplicates: list[str] = []

    def keep(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            left = set(seen)
            for key, _ in pairs:
                if key in left:
                    left.remove(key)
                else:
                    duplicates.append(key)
        return seen

    value = json.JSONDecoder(
        object_pairs_hook=keep,
        parse_constant=_refuse_constant,
        parse_int=_parse_integer if integers_only else int,
        parse_float=NotAnInteger if integers_only else float,
    ).decode(text)
    if "\\u" in text and _SURROGATE.search(json.dumps(value, default=repr, ensure_ascii=False)):
        raise StrictJSONError("not Unicode: a lone surrogate in a string")
    return Parsed(value, tuple(duplicates))


def _refuse_constant(constant: str) -> NoReturn:
    raise StrictJSONError(f"not JSON ({constant})")


def _parse_integer(digits: str) -> int | NotAnInteger:
    return NotAnInteger(digits) if digits == "-0" else int(digits)


_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBERS = json.JSONDecoder(parse_constant=_refuse_constant)
_INTEGERS = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=NotAnInteger)
