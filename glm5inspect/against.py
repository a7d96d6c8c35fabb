# SPDX-License-Identifier: AGPL-3.0-only
"""One inventory held against another, name for name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.errors import SourceError
from glm5inspect.report import Fact, Finding, counted, layers_named, some
from glm5inspect.roles import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Group, Inventory, Progress, Source

_WHAT = {Code.CENSUS_MISSING: "not here", Code.CENSUS_EXTRA: "not in the other inventory"}


@dataclass(slots=True)
class _Difference:
    """Tensors of one pattern that differ in the same way."""

    expected: Fact
    actual: Fact
    layers: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)


def whole_inventory(source: Source, progress: Progress | None = None) -> Inventory:
    """Take an inventory that another can be held against.

    Raises:
        SourceError: Shards are missing or could not be read.
    """
    inventory = source.inventory(progress=progress)
    if lost := sorted([*inventory.missing, *inventory.refused]):
        raise SourceError(f"{inventory.info.name}: nothing can be compared with it without {some(lost)}")
    if not inventory.absence_is_known:
        raise SourceError(
            f"{inventory.info.name}: nothing can be compared with it, its numbering says shards are missing"
        )
    return inventory


def compare(inventory: Inventory, other: Inventory) -> Iterator[Finding]:
    """Report each way in which the tensors of a pattern differ from those of another inventory.

    Args:
        inventory: The one in question.
        other: What it should be, a whole one.

    Yields:
        One finding per code, pattern, expected and actual. Tensors in shards that are missing or could not be read
        differ in no way.
    """
    differences: dict[tuple[Code, str, str], _Difference] = {}
    here, there = _leave_out_equal(inventory, other)
    for name in here.keys() | there.keys():
        for code, expected, actual in _tell_apart(here.get(name), there.get(name)):
            if code is Code.CENSUS_MISSING and (name in inventory.unseen or not inventory.absence_is_known):
                continue
            pattern, layer, _ = parse_name(name)
            key = (code, pattern, f"{expected} {actual}")
            difference = differences.setdefault(key, _Difference(expected, actual))
            difference.names.append(name)
            if layer is not None:
                difference.layers.add(layer)
    for (code, pattern, _), difference in differences.items():
        yield _finding(code, pattern, difference)


def _leave_out_equal(one: Inventory, other: Inventory) -> tuple[dict[str, TensorRecord], dict[str, TensorRecord]]:
    """Return the tensors of both that are not, name for name, in a group that the other has just so."""
    here = {(group.pattern, group.layer, group.dtype, group.shape): group for group in one.groups}
    there = {(group.pattern, group.layer, group.dtype, group.shape): group for group in other.groups}
    equal = {key for key in here.keys() & there.keys() if _names(here[key]) == _names(there[key])}
    left = ((group for key, group in groups.items() if key not in equal) for groups in (here, there))
    rest_here, rest_there = ({t.name: t for group in groups for t in group.tensors} for groups in left)
    return rest_here, rest_there


def _names(group: Group) -> set[str]:
    return {tensor.name for tensor in group.tensors}


def _tell_apart(here: TensorRecord | None, there: TensorRecord | None) -> Iterator[tuple[Code, Fact, Fact]]:
    if here is None or there is None:
        yield Code.CENSUS_MISSING if here is None else Code.CENSUS_EXTRA, _kind(there), _kind(here)
        return
    if here.dtype != there.dtype:
        yield Code.CENSUS_DTYPE, there.dtype, here.dtype
    if here.shape != there.shape:
        yield Code.CENSUS_SHAPE, list(there.shape), list(here.shape)


def _kind(tensor: TensorRecord | None) -> str | None:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor else None


def _finding(code: Code, pattern: str, difference: _Difference) -> Finding:
    layers, number = sorted(difference.layers), len(difference.names)
    where = f" in {layers_named(layers)}" if layers else ""
    what = _WHAT.get(code) or f"{difference.actual} instead of {difference.expected}"
    message = f"{pattern}: {what}, {counted(number, 'tensor')}{where}"
    if number == 1:
        message = f"{difference.names[0]}: {what}"
    return Finding(
        code,
        message,
        tensor=pattern,
        layer=layers[0] if len(layers) == 1 else None,
        expected=difference.expected,
        actual=difference.actual,
        count=number,
    )
