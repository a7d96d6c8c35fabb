# SPDX-License-Identifier: AGPL-3.0-only
"""Bytes of small tensors to numbers, exactly.

Every value of these dtypes is a float64 or an int64. The eight-bit formats are those of the safetensors format:
``F8_E4M3`` is the finite one (no infinity, one NaN for each sign), ``F8_E5M2`` follows IEEE 754, and ``F8_E8M0`` is an
exponent without sign, 255 being NaN. All are little-endian.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64] | NDArray[np.int64]

_INTEGERS = {"U8": "<u1", "I8": "<i1", "I16": "<i2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_SMALL = {"F8_E4M3": (4, 3, 7), "F8_E5M2": (5, 2, 15)}  # bits of exponent and mantissa, and the exponent's bias

DTYPES = frozenset({*_INTEGERS, *_FLOATS, *_SMALL, "BF16", "F8_E8M0"})
"""The dtypes that can be decoded."""


def decode(dtype: str, raw: bytes) -> Numbers:
    """Return the numbers that bytes hold, in their order.

    Args:
        dtype: One of `DTYPES`, as the safetensors format spells it.
        raw: A whole number of values.
    """
    if dtype in _INTEGERS:
        return np.frombuffer(raw, _INTEGERS[dtype]).astype(np.int64)
    if dtype == "BF16":  # the upper half of an F32
        return _widened((np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4"))
    if dtype in _FLOATS:
        return _widened(np.frombuffer(raw, _FLOATS[dtype]))
    return _table(dtype)[np.frombuffer(raw, np.uint8)]


def _widened(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one, which is no news for standard error
        return values.astype(np.float64)


def fits_bf16(raw: bytes) -> NDArray[np.bool_]:
    """Tell of each F32 in bytes whether BF16 has the same value: whether its lower half is empty."""
    fits: NDArray[np.bool_] = (np.frombuffer(raw, "<u4") & 0xFFFF) == 0
    return fits


@cache
def _table(dtype: str) -> NDArray[np.float64]:
    """Return the values of all 256 codes of an eight-bit float."""
    code = np.arange(256)
    if dtype == "F8_E8M0":
        return np.where(code == 255, np.nan, np.exp2(code - 127.0))  # noqa: PLR2004 - all bits set
    exponent_bits, mantissa_bits, bias = _SMALL[dtype]
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    value = sign * np.where(exponent, 1 + fraction, fraction) * np.exp2(np.maximum(exponent, 1) - float(bias))
    if dtype == "F8_E4M3":
        return np.where((code & 0x7F) == 0x7F, np.nan, value)  # noqa: PLR2004 - all bits but the sign
    largest = exponent == (1 << exponent_bits) - 1
    return np.where(largest, np.where(fraction == 0, sign * np.inf, np.nan), value)
