# SPDX-License-Identifier: AGPL-3.0-only
"""Bytes to numbers: every value of every 8- and 16-bit dtype against a second decoder that shares no line with ours."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest

from glm5inspect.header import DTYPE_BITS
from glm5inspect.values.decoding import DTYPES, decode, fits_bf16

OTHERS = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
}


@pytest.mark.parametrize("dtype", OTHERS)
def test_every_code(dtype: str) -> None:
    """All 256 or 65,536 codes, signs of zero, NaN and infinities included."""
    width = DTYPE_BITS[dtype] // 8
    raw = b"".join(code.to_bytes(width, "little") for code in range(1 << 8 * width))
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        expected = np.frombuffer(raw, OTHERS[dtype]).astype(np.float64)
    found = decode(dtype, raw).astype(np.float64)
    assert np.array_equal(found, expected, equal_nan=True)
    signed = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found[signed]), np.signbit(expected[signed]))


KNOWN: dict[str, list[tuple[int, float]]] = {
    "F8_E4M3": [(0x00, 0.0), (0x01, 2**-9), (0x08, 2**-6), (0x38, 1.0), (0x7E, 448.0), (0xFE, -448.0)],
    "F8_E5M2": [(0x01, 2**-16), (0x3C, 1.0), (0x7B, 57344.0), (0x7C, math.inf), (0xFC, -math.inf)],
    "F8_E8M0": [(0, 2**-127), (127, 1.0), (128, 2.0), (254, 2.0**127)],
    "BF16": [(0x3F80, 1.0), (0x7F80, math.inf), (0x0001, 2**-133), (0x7F7F, 3.3895313892515355e38)],
    "F16": [(0x3C00, 1.0), (0x7BFF, 65504.0), (0x0001, 2**-24), (0xFC00, -math.inf)],
}


@pytest.mark.parametrize("dtype", KNOWN)
def test_known_codes(dtype: str) -> None:
    """What the formats' own descriptions name: least, one, greatest, infinite."""
    width = DTYPE_BITS[dtype] // 8
    codes, values = zip(*KNOWN[dtype], strict=True)
    assert tuple(decode(dtype, b"".join(code.to_bytes(width, "little") for code in codes))) == values


@pytest.mark.parametrize(
    ("dtype", "codes"),
    [
        ("F8_E4M3", [0x7F, 0xFF]),
        ("F8_E5M2", [0x7D, 0x7E, 0x7F, 0xFD, 0xFF]),
        ("F8_E8M0", [0xFF]),
        ("BF16", [0x7F81, 0xFFC0]),
    ],
)
def test_what_is_no_number(dtype: str, codes: list[int]) -> None:
    """NaN is NaN, and nothing else is."""
    width = DTYPE_BITS[dtype] // 8
    assert np.isnan(decode(dtype, b"".join(code.to_bytes(width, "little") for code in codes))).all()


def test_wide_numbers() -> None:
    """Words and doubles, against the standard library, in their order."""
    floats = [0.0, -1.5, 3.4028234663852886e38, 1e-45, math.inf]
    assert decode("F32", struct.pack("<5f", *floats)).tolist() == [0.0, -1.5, 3.4028234663852886e38, 2**-149, math.inf]
    assert decode("F64", struct.pack("<2d", 0.1, -1e300)).tolist() == [0.1, -1e300]
    assert decode("I32", struct.pack("<2i", -(2**31), 7)).tolist() == [-(2**31), 7]
    assert decode("U32", struct.pack("<I", 2**32 - 1)).tolist() == [2**32 - 1]
    assert decode("I64", struct.pack("<2q", 2048, -(2**63))).tolist() == [2048, -(2**63)]


def test_every_dtype_is_one_of_the_format() -> None:
    """No spelling of our own, and nothing of nothing."""
    assert set(DTYPE_BITS) >= DTYPES
    assert all(decode(dtype, b"").size == 0 for dtype in DTYPES)


def test_what_fits_bf16() -> None:
    """Exactly the F32 that survive a way through BF16."""
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype("<u4")
    raw = bits.tobytes()
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = bits.view("<f4")
        survives = numbers.astype(ml_dtypes.bfloat16).astype(np.float32) == numbers
    real = ~np.isnan(numbers)
    assert np.array_equal(fits_bf16(raw)[real], survives[real])
    assert fits_bf16(struct.pack("<3f", 1.0, 0.1, 0.5)).tolist() == [True, False, True]
