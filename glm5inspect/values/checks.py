# SPDX-License-Identifier: AGPL-3.0-only
"""The five checks of values: what makes a model quietly wrong although every header is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glm5inspect.catalogue import Code, Severity
from glm5inspect.report import Finding, counted, layers_named
from glm5inspect.values.decoding import decode, fits_bf16
from glm5inspect.values.statistics import are_usable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from glm5inspect.values.reading import Taken
    from glm5inspect.values.selection import Wanted
    from glm5inspect.values.statistics import PairRow

    Numbers = Mapping[Wanted, NDArray[np.float64]]

_EXACT = 1 + 1e-6  # what F32 makes of 0.1 and 0.01 is not ten times each other
_NEAR = 1.001

MARKERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
"""The multiplier of each codebook of EXL3, which its marker holds."""


def check_pairs(rows: Iterable[PairRow], most: float | None) -> Iterator[Finding]:
    """Report kinds of global scales that are not the same for gate and up.

    Args:
        rows: How they differ.
        most: The largest ratio that is no error; ``None`` leaves every one a warning.
    """
    for row in rows:
        if not row.unequal or row.max is None:
            continue
        share = f"{row.unequal:,} of {counted(row.pairs, 'pair')} of gate and up differ ({row.unequal / row.pairs:.1%})"
        where = f", layers {row.layers}" if row.layers else ""
        yield Finding(
            Code.SCALE_PAIR_UNEQUAL,
            f"{row.scale}: {share}, ratio median {row.median:.4g}, p99 {row.p99:.4g}, max {_ratio(row.max)}{where}",
            weight=Severity.ERROR if most is not None and row.max > most * _EXACT else None,
            tensor=row.worst,
            expected="equal" if most is None else f"a ratio of at most {most:g}",
            actual=f"a ratio of {_ratio(row.max)}",
            count=row.unequal,
        )


def _ratio(ratio: float) -> str:
    """Write a ratio; one that is next to 1 by its excess."""
    return f"{ratio:.4g}" if ratio >= _NEAR else f"1 + {ratio - 1:.1e}"


def check_scales(taken: Taken, numbers: Numbers) -> Iterator[Finding]:
    """Report scales that are zero, negative, NaN or infinite: one finding a kind, layer and fault."""
    alike: dict[tuple[str, int | None, str], list[Wanted]] = {}
    scalars = [wanted for wanted in taken.raw if wanted.topic == "scale"]
    every = np.array([numbers[wanted][0] for wanted in scalars])  # in one go: there are tens of thousands
    suspects = [scalars[place] for place in np.flatnonzero(~are_usable(every))]
    suspects += [w for w in taken.raw if w.topic == "block-scale" and not are_usable(numbers[w]).all()]
    for wanted in suspects:
        alike.setdefault((wanted.kind, wanted.layer, _what_is_wrong(numbers[wanted])), []).append(wanted)
    for (_, layer, fault), members in alike.items():
        first = members[0].tensor
        yield Finding(
            Code.SCALE_INVALID,
            f"{first.name}: {fault}{_more(members)}",
            tensor=first.name,
            layer=layer,
            shard=first.shard,
            expected="positive and finite",
            actual=fault,
            count=len(members),
        )


def _what_is_wrong(values: NDArray[np.float64]) -> str:
    """Name what a scale must not be; where it has many values, how many of them are."""
    kinds = (
        ("NaN", np.isnan(values)),
        ("infinite", np.isinf(values)),
        ("zero", values == 0),
        ("negative", np.isfinite(values) & (values < 0)),
    )
    if values.size == 1:
        return next(name for name, found in kinds if found[0])
    told = [f"{int(found.sum()):,} {name}" for name, found in kinds if found.any()]
    return f"{', '.join(told)} of {values.size:,} values"


def check_norms(taken: Taken, numbers: Numbers) -> Iterator[Finding]:
    """Report norms that cannot work, or that look as if they were meant for another convention."""
    for wanted in taken.raw:
        if wanted.topic == "norm" and (found := _of_norm(wanted.kind, numbers[wanted])):
            yield _about(wanted, *found)


def _of_norm(kind: str, values: NDArray[np.float64]) -> tuple[Code, str, str] | None:
    """Return what is wrong with a norm: the code, the fault in numbers, and in words that all alike have."""
    if not np.isfinite(values).all():
        return Code.NORM_INVALID, _not_finite(values), "NaN or infinite values"
    if not values.any():
        code = Code.BIAS_ZERO if kind.endswith(".bias") else Code.NORM_INVALID
        return code, f"all {values.size:,} values are 0", "zeros"
    if values.size > 1 and (values == values[0]).all():
        return Code.NORM_CONSTANT, f"all {values.size:,} values are {values[0]:g}", "one value throughout"
    if kind in _LAYER_NORMS:
        return None
    lower, median = (float(np.percentile(values, share)) for share in (25, 50))
    if lower < 0:
        told = f"{np.mean(values < 0):.0%} of the values are negative, the median is {median:.4g}"
        return Code.NORM_OFFSET, told, "a quarter or more of the values negative"
    return None


_LAYER_NORMS = frozenset({"self_attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.bias"})
"""Norms that also subtract the mean; their weights and biases may have any sign."""


def check_helpers(taken: Taken, numbers: Numbers) -> Iterator[Finding]:
    """Report helpers that are not finite, and those that are F32 in name only."""
    for wanted, raw in taken.raw.items():
        if wanted.topic != "helper":
            continue
        values = numbers[wanted]
        if not np.isfinite(values).all():
            yield _about(wanted, Code.HELPER_INVALID, _not_finite(values), "NaN or infinite values")
        elif wanted.dtype == "F32" and fits_bf16(raw).all():
            same = f" and are {values[0]:g}" if (values == values[0]).all() else ""
            yield _about(wanted, Code.HELPER_ROUNDED, f"all {values.size:,} values fit BF16{same}", "values of BF16")


def _not_finite(values: NDArray[np.float64]) -> str:
    number = int((~np.isfinite(values)).sum())
    return f"{number:,} of {counted(values.size, 'value')} {'is' if number == 1 else 'are'} NaN or infinite"


def check_markers(taken: Taken, codebook: str | None) -> Iterator[Finding]:
    """Report markers and shapes that contradict what they stand beside: one finding a kind, layer and value.

    Args:
        taken: What was read.
        codebook: Of EXL3, as the config declares it; ``None`` where it does not, and the name of the marker counts.
    """
    alike: dict[tuple[Code, str, int | None, str, str], list[Wanted]] = {}
    for wanted, raw in taken.raw.items():
        if wanted.topic == "marker":
            right, value = MARKERS[codebook or wanted.suffix], int.from_bytes(raw, "little")
            code, expected, actual = Code.MARKER_MISMATCH, f"{right:#010x}", f"{value:#010x}"
        elif wanted.topic == "weight-shape":
            stored = decode(wanted.dtype, raw).tolist()
            code, expected, actual = Code.WEIGHT_SHAPE_MISMATCH, str(list(wanted.logical)), str(stored)
        else:
            continue
        if actual != expected:
            alike.setdefault((code, wanted.kind, wanted.layer, expected, actual), []).append(wanted)
    for (code, _, layer, expected, actual), members in alike.items():
        first = members[0].tensor
        message = f"{first.name}: {actual} instead of {expected}{_more(members)}"
        yield Finding(
            code,
            message,
            tensor=first.name,
            layer=layer,
            shard=first.shard,
            expected=expected,
            actual=actual,
            count=len(members),
        )


def check_unread(taken: Taken) -> Iterator[Finding]:
    """Report shards of which values could not be read, which leaves the answer open."""
    for shard, reason in sorted(taken.failed.items()):
        yield Finding(Code.VALUES_UNREAD, f"{shard}: values not read: {reason}", shard=shard, actual=reason)


def _about(wanted: Wanted, code: Code, told: str, fault: str) -> Finding:
    tensor = wanted.tensor
    return Finding(
        code,
        f"{tensor.name}: {told}",
        tensor=tensor.name,
        layer=wanted.layer,
        shard=tensor.shard,
        expected=_EXPECTED[code],
        actual=fault,
    )


_EXPECTED = {
    Code.NORM_INVALID: "finite values that are not all zero",
    Code.NORM_OFFSET: "positive values",
    Code.NORM_CONSTANT: "different values",
    Code.BIAS_ZERO: "values that are not all zero",
    Code.HELPER_INVALID: "finite values",
    Code.HELPER_ROUNDED: "values of F32",
}


def _more(members: Sequence[Wanted]) -> str:
    if len(members) == 1:
        return ""
    layers = {wanted.layer for wanted in members if wanted.layer is not None}
    where = f" of {layers_named(layers)}" if layers else ""
    return f", as are {len(members) - 1:,} more like it{where}"
