# SPDX-License-Identifier: AGPL-3.0-only
"""Numbers about numbers, so that a person can look: what each kind of tensor holds, and how scales differ in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from glm5inspect.report import ranges
from glm5inspect.values.decoding import decode
from glm5inspect.values.selection import RECIPROCALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from glm5inspect.values.reading import Taken
    from glm5inspect.values.selection import Wanted

_NO_QUANTITIES = ("marker", "weight-shape")
_HALVES = ("gate_proj", "up_proj")
"""The projections that loaders fuse into one, with one global scale for both."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """What one kind of tensor holds.

    Attributes:
        kind: Its name in the module table, with the suffix of a module.
        tensors: How many were read.
        of: How many there are to read.
        values: Elements read.
        min: The least finite value; ``None`` where no value is finite, as for the next two.
        median: Half of the finite values are less.
        max: The greatest finite value.
        finite: Share of the values that are neither NaN nor infinite.
    """

    kind: str
    tensors: int
    of: int
    values: int
    min: float | None
    median: float | None
    max: float | None
    finite: float


@dataclass(frozen=True, slots=True)
class PairRow:
    """How the global scales of two projections that are fused differ.

    A ratio is the larger scale over the smaller one; percentiles are interpolated linearly between the two nearest.

    Attributes:
        scale: The suffix.
        pairs: How many were compared: both read, and both positive and finite.
        of: How many there are.
        unequal: How many of them differ at all.
        median: Of the ratios of all pairs compared; ``None`` where none was, as for the next two.
        p99: The 99th percentile.
        max: The largest.
        layers: With unequal pairs, as ranges; ``None`` for none.
        worst: The gate's scale of the pair with the largest ratio, by name; ``None`` where all are equal.
    """

    scale: str
    pairs: int
    of: int
    unequal: int
    median: float | None
    p99: float | None
    max: float | None
    layers: str | None
    worst: str | None


def kind_rows(taken: Taken, numbers: Mapping[Wanted, NDArray[np.float64]]) -> Iterator[KindRow]:
    """Yield what each kind of scale, norm and helper holds, by name; markers and shapes are no quantities."""
    kinds: dict[str, list[Wanted]] = {}
    for wanted in taken.wanted:
        if wanted.topic not in _NO_QUANTITIES:
            kinds.setdefault(wanted.kind, []).append(wanted)
    for kind, members in sorted(kinds.items()):
        read = [numbers[wanted] for wanted in members if wanted in numbers]
        values = np.concatenate(read) if read else np.empty(0)
        finite = values[np.isfinite(values)]
        measures = (finite.min(), np.median(finite), finite.max()) if finite.size else (None, None, None)
        low, middle, high = (None if measure is None else float(measure) for measure in measures)
        share = finite.size / values.size if values.size else 0.0
        yield KindRow(kind, len(read), len(members), values.size, low, middle, high, share)


def pair_rows(taken: Taken, numbers: Mapping[Wanted, NDArray[np.float64]]) -> Iterator[PairRow]:
    """Yield, for each kind of global scale, how those of gate and up differ."""
    pairs: dict[str, dict[tuple[object, ...], dict[str, Wanted]]] = {}
    for wanted in taken.wanted:
        if wanted.topic == "scale":
            module = wanted.kind.removesuffix(f".{wanted.suffix}")
            block, _, half = module.rpartition(".")
            if half in _HALVES:
                members = pairs.setdefault(wanted.suffix, {})
                members.setdefault((block, wanted.layer, wanted.expert), {})[half] = wanted
    for suffix in sorted(pairs):
        whole = [pair for pair in pairs[suffix].values() if len(pair) == len(_HALVES)]
        yield _pair_row(suffix, whole, numbers)


def _pair_row(
    suffix: str, pairs: Sequence[Mapping[str, Wanted]], numbers: Mapping[Wanted, NDArray[np.float64]]
) -> PairRow:
    read = [pair for pair in pairs if all(wanted in numbers for wanted in pair.values())]
    scales = np.array([[numbers[pair[half]][0] for half in _HALVES] for pair in read]).reshape(-1, len(_HALVES))
    usable = np.logical_and.reduce(are_usable(scales), axis=1)
    compared = [pair for pair, use in zip(read, usable, strict=True) if use]
    scales = scales[usable]
    if not compared:
        return PairRow(suffix, 0, len(pairs), 0, None, None, None, None, None)
    differ = scales[:, 0] != scales[:, 1]
    if suffix in RECIPROCALS:
        scales = 1 / scales
    ratios = scales.max(axis=1) / scales.min(axis=1)
    gates = [pair[_HALVES[0]] for pair in compared]
    layers = [gate.layer for gate, unequal in zip(gates, differ, strict=True) if unequal and gate.layer is not None]
    unequal = int(differ.sum())
    median, p99, largest = (float(np.percentile(ratios, share)) for share in (50, 99, 100))
    worst = gates[int(ratios.argmax())].tensor.name if unequal else None
    return PairRow(suffix, len(compared), len(pairs), unequal, median, p99, largest, ranges(layers) or None, worst)


def are_usable(scales: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell of each scale whether it can be multiplied with: it is positive and finite."""
    return np.isfinite(scales) & (scales > 0)


def numbers_of(taken: Taken) -> dict[Wanted, NDArray[np.float64]]:
    """Return the values of every scale, norm and helper read, flat; those of one dtype are decoded together."""
    alike: dict[str, list[Wanted]] = {}
    for wanted in taken.raw:
        if wanted.topic not in _NO_QUANTITIES:
            alike.setdefault(wanted.dtype, []).append(wanted)
    numbers: dict[Wanted, NDArray[np.float64]] = {}
    for dtype, members in alike.items():
        values = decode(dtype, b"".join(taken.raw[wanted] for wanted in members)).astype(np.float64)
        start = 0
        for wanted in members:
            stop = start + prod(wanted.tensor.shape)
            numbers[wanted] = values[start:stop]
            start = stop
    return numbers
