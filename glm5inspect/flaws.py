# SPDX-License-Identifier: AGPL-3.0-only
"""Findings about one stored module or tensor: what is wrong with its dtype, its shape, or its companions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.catalogue import Code
from glm5inspect.encodings import COMPANIONS
from glm5inspect.report import Finding, ranges, some

if TYPE_CHECKING:
    from collections.abc import Collection

    from glm5inspect.encodings import Flaw, Reading, Shape

_ROPE_DIM = 64  # rows that an MLA with positions adds to kv_a_proj_with_mqa


class Codes(NamedTuple):
    """What the findings of a check are called."""

    missing: Code
    shape: Code
    dtype: Code
    unclaimed: Code


USUAL = Codes(Code.MODULE_MISSING, Code.MODULE_SHAPE, Code.ENCODING_DTYPE, Code.MODULE_UNCLAIMED)
CODES = {
    "dsa": Codes(Code.DSA_MISSING, Code.DSA_SHAPE, Code.DSA_DTYPE, Code.DSA_UNCLAIMED),
    "mtp": USUAL._replace(missing=Code.MTP_INCOMPLETE),
}
"""The codes of checks that have their own; the others have the usual ones."""


class Place(NamedTuple):
    """Where something is wrong.

    Attributes:
        path: Full name of the module, or of the first of several experts.
        row: The name that the module table has for it, for hints.
        layer: 0-based, ``None`` outside the layers.
        check: The check that looks at it.
        experts: All experts it is about, ``None`` for a single module.
    """

    path: str
    row: str
    layer: int | None
    check: str
    experts: tuple[int, ...] | None = None

    @property
    def number(self) -> int:
        """How many modules it is about."""
        return len(self.experts) if self.experts else 1

    @property
    def others(self) -> str:
        """Say which experts it is about, when these are several."""
        return f" (experts {ranges(self.experts)})" if self.experts and len(self.experts) > 1 else ""

    @property
    def codes(self) -> Codes:
        """What findings are called here."""
        return CODES.get(self.check, USUAL)


def judge(place: Place, reading: Reading, flaw: Flaw, stored: Collection[str]) -> Finding:
    """Return a flaw of a module's encoding as a finding.

    Args:
        place: The module.
        reading: How it is stored.
        flaw: What is wrong with it.
        stored: The suffixes of its tensors.
    """
    plain = reading.encoding.name == "plain"
    if flaw.kind == "dtype":
        code = place.codes.dtype if plain else Code.ENCODING_DTYPE
        return wrong_dtype(place, flaw.suffixes[0], str(flaw.expected), str(flaw.actual), code)
    if flaw.kind == "shape":
        code = place.codes.shape if plain else Code.ENCODING_SHAPE
        return wrong_shape(place, flaw.suffixes[0], flaw.expected, flaw.actual, code)  # type: ignore[arg-type]
    names = some(flaw.suffixes)
    code, expected, actual = Code.ENCODING_INCOMPLETE, None, None
    if flaw.kind == "missing":
        expected = names
        lost = reading.encoding.payload in flaw.suffixes
        what = f"no {names}" + (f", so that {some(sorted(stored))} belong to nothing" if lost else "")
        what += f"; it looks like {reading.name}"
    else:
        actual = names
        orphans = plain and COMPANIONS.issuperset(flaw.suffixes)
        code = Code.ENCODING_INCOMPLETE if orphans else Code.ENCODING_AMBIGUOUS
        what = f"{names} beside the tensors of {reading.name}"
    return Finding(
        code,
        f"{place.path}: {what}{place.others}",
        tensor=f"{place.path}.{names}" if len(flaw.suffixes) == 1 else place.path,
        layer=place.layer,
        expected=expected,
        actual=actual,
        count=place.number * len(flaw.suffixes),
    )


def wrong_dtype(place: Place, suffix: str, expected: str, actual: str, code: Code) -> Finding:
    """Report a dtype."""
    name = f"{place.path}.{suffix}" if suffix else place.path
    message = f"{name}: dtype {actual} instead of {expected}{place.others}"
    return Finding(code, message, tensor=name, layer=place.layer, expected=expected, actual=actual, count=place.number)


def wrong_shape(place: Place, suffix: str, expected: Shape, actual: Shape, code: Code) -> Finding:
    """Report a shape, with a hint at what it is when that is known."""
    name = f"{place.path}.{suffix}" if suffix else place.path
    return Finding(
        code,
        f"{name}: shape {list(actual)} instead of {list(expected)}{place.others}",
        hint=shape_hint(place.row, expected, actual),
        tensor=name,
        layer=place.layer,
        expected=list(expected),
        actual=list(actual),
        count=place.number,
    )


def shape_hint(row: str, expected: Shape, actual: Shape) -> str | None:
    """Name the known way in which a shape is wrong, or ``None``."""
    if len(actual) > 1 and actual == expected[::-1]:
        return "It is transposed."
    if len(actual) != len(expected) or not actual:
        return None
    if row.startswith("self_attn.kv_a_proj_with_mqa") and actual[0] == expected[0] + _ROPE_DIM:
        return f"It carries a rope part ({_ROPE_DIM} rows); this model has none (NoPE)."
    if actual[1:] == expected[1:] and abs(actual[0] - expected[0]) == 1:
        return f"It is one row {'short' if actual[0] < expected[0] else 'too long'}."
    return None
