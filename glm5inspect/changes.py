# SPDX-License-Identifier: AGPL-3.0-only
"""Tensors that one inventory has and the other has not, or has otherwise: told by pattern, with layers and experts.

What only one of two has of a layer, or of the vision tower, is told in one row when the other has nothing of it at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

from glm5inspect.dialects import DIALECTS
from glm5inspect.modules import VISION
from glm5inspect.report import ranges
from glm5inspect.roles import is_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Group, Inventory

    Place = tuple[int | None, str]
    """Layer and pattern of a group."""

    Told = Mapping[Place, frozenset[str] | None]
    """What need not be told again: of a place, these experts as written; ``None`` for everything there."""

VISION_TOWERS = tuple(dict.fromkeys(dialect.rename(VISION) for dialect in DIALECTS))
"""What names in the vision tower begin with, in whatever dialect."""

_MOST_DIGITS = 20  # of an expert's number; nobody has more experts than that


@dataclass(frozen=True, slots=True)
class TensorChange:
    """Tensors of one pattern that differ in the same way.

    Attributes:
        change: ``only-a``, ``only-b``, ``dtype`` or ``shape``.
        pattern: Census pattern; blocks of the vision tower are written ``N`` too. With ``*`` at its end, everything
            that begins so.
        layers: As ranges, or blocks of the vision tower; ``None`` for neither.
        experts: As ranges, ``None`` for none, and for whole layers.
        a: Dtype, shape or both in A; for several patterns their dtypes; ``None`` for nothing.
        b: The same in B.
        tensors: How many they are.
        bytes_a: Stored in A.
        bytes_b: Stored in B.
    """

    change: str
    pattern: str
    layers: str | None
    experts: str | None
    a: str | None
    b: str | None
    tensors: int
    bytes_a: int
    bytes_b: int


@dataclass(slots=True)
class _Fold:
    """Tensors that will be one row; ``kinds`` are of the side that has them alone."""

    layers: set[int] = field(default_factory=set)
    experts: set[int] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    tensors: int = 0
    bytes_a: int = 0
    bytes_b: int = 0


def tensor_changes(a: Inventory, b: Inventory, told: Told) -> list[TensorChange]:
    """Return what differs, sorted by pattern.

    Args:
        a: One side.
        b: The other side. That either has nothing of a name is only claimed where that is known.
        told: What is left out on both sides.
    """
    here, there = _by_place(a.groups, told), _by_place(b.groups, told)
    trees = {"only-a": _trees(b), "only-b": _trees(a)}
    folds: dict[tuple[str, str, str | None, str | None], _Fold] = {}
    for place in here.keys() | there.keys():
        layer, pattern = place
        tree = _tree(pattern)
        pattern, block = _fold_block(pattern)
        for one, other, expert in _unlike(here.get(place, []), there.get(place, [])):
            for change, left, right in _tell_apart(one, other, a, b):
                whole = change in trees and tree and (layer, tree) not in trees[change]
                key = (change, f"{tree}*", None, None) if whole else (change, pattern, left, right)
                fold = folds.setdefault(key, _Fold())
                fold.tensors += 1
                fold.bytes_a += one.nbytes if one else 0
                fold.bytes_b += other.nbytes if other else 0
                fold.layers.update(number for number in (layer, block) if number is not None)
                fold.patterns.add(pattern)
                if whole and (alone := one or other):
                    fold.kinds.add(_kind(alone))
                    fold.dtypes.add(alone.dtype)
                elif is_digits(expert) and len(expert) < _MOST_DIGITS:
                    fold.experts.add(int(expert))
    rows = [_row(*key, fold) for key, fold in folds.items()]
    return sorted(rows, key=lambda row: (row.change, row.pattern, row.a or "", row.b or ""))


def _by_place(groups: Iterable[Group], told: Told) -> dict[Place, list[Group]]:
    places: dict[Place, list[Group]] = {}
    for group in groups:
        place = (group.layer, group.pattern)
        left = _without(group, told[place]) if place in told else group
        places.setdefault(place, []).append(left)
    return places


def _without(group: Group, experts: frozenset[str] | None) -> Group:
    """Return a group without some of its experts, or ``None`` for all; names with an odd number of a layer stay."""
    head, layer, _ = group.pattern.partition("layers.N.")
    usual = f"{head}layers.{group.layer}." if layer else ""
    left = [
        i
        for i, tensor in enumerate(group.tensors)
        if not tensor.name.startswith(usual) or (experts is not None and group.experts[i] not in experts)
    ]
    tensors, numbers = [group.tensors[i] for i in left], [group.experts[i] for i in left if group.experts]
    return type(group)(group.pattern, group.layer, group.role, group.dtype, group.shape, tensors, numbers)


def _unlike(here: list[Group], there: list[Group]) -> Iterator[tuple[TensorRecord | None, TensorRecord | None, str]]:
    """Yield the tensors of one place that are not the same on both sides, with the expert as written."""
    if len(here) == len(there) == 1 and _alike(here[0], there[0]):
        return
    left = {tensor.name: tensor for group in there for tensor in group.tensors}
    for group in here:
        for tensor, expert in zip(group.tensors, group.experts or repeat(""), strict=False):
            other = left.pop(tensor.name, None)
            if other is None or other.dtype != group.dtype or other.shape != group.shape:
                yield tensor, other, expert
    for group in there:
        for tensor, expert in zip(group.tensors, group.experts or repeat(""), strict=False):
            if tensor.name in left:
                yield None, tensor, expert


def _alike(here: Group, there: Group) -> bool:
    return (
        here.dtype == there.dtype
        and here.shape == there.shape
        and len(here.tensors) == len(there.tensors)
        and {tensor.name for tensor in here.tensors} == {tensor.name for tensor in there.tensors}
    )


def _tell_apart(
    one: TensorRecord | None, other: TensorRecord | None, a: Inventory, b: Inventory
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield each way in which a tensor differs, as far as that can be known."""
    if one and other:
        if one.dtype != other.dtype:
            yield "dtype", one.dtype, other.dtype
        if one.shape != other.shape:
            yield "shape", str(list(one.shape)), str(list(other.shape))
    elif one and b.absence_is_known and one.name not in b.unseen:
        yield "only-a", _kind(one), None
    elif other and a.absence_is_known and other.name not in a.unseen:
        yield "only-b", None, _kind(other)


def _kind(tensor: TensorRecord) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _row(change: str, pattern: str, left: str | None, right: str | None, fold: _Fold) -> TensorChange:
    if fold.kinds:
        if len(fold.patterns) == 1:
            (pattern,) = fold.patterns
        kinds = ", ".join(sorted(fold.kinds if len(fold.kinds) == 1 else fold.dtypes))
        left, right = (kinds, None) if change == "only-a" else (None, kinds)
    layers, experts = ranges(fold.layers) or None, ranges(fold.experts) or None
    return TensorChange(change, pattern, layers, experts, left, right, fold.tensors, fold.bytes_a, fold.bytes_b)


def _tree(pattern: str) -> str | None:
    """Return the beginning of the names of everything in a layer, or in the vision tower."""
    head, layer, _ = pattern.partition("layers.N.")
    if layer:
        return head + layer
    return next((tower for tower in VISION_TOWERS if pattern.startswith(tower)), None)


def _trees(inventory: Inventory) -> set[tuple[int | None, str | None]]:
    return {(group.layer, _tree(group.pattern)) for group in inventory.known_groups}


def _fold_block(pattern: str) -> tuple[str, int | None]:
    """Write the number of a block of the vision tower ``N``, and return it."""
    if pattern.startswith(VISION_TOWERS):
        head, blocks, tail = pattern.partition(".blocks.")
        number, dot, rest = tail.partition(".")
        if dot and is_digits(number) and len(number) < _MOST_DIGITS:
            return f"{head}{blocks}N.{rest}", int(number)
    return pattern, None
