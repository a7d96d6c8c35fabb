# SPDX-License-Identifier: AGPL-3.0-only
"""The strict header reader against the `safetensors` library.

What the library refuses must be refused or reported as an error; what passes without a finding the library must accept.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
from checkpoints import write_raw
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glm5inspect.catalogue import Severity
from glm5inspect.errors import HeaderError
from glm5inspect.header import DTYPE_BITS, SNIFF_BYTES, header_length, parse_header
from glm5inspect.integrity import check_header, check_sizes
from glm5inspect.inventory import group_tensors

if TYPE_CHECKING:
    from pathlib import Path


def told(whole: bytes) -> Severity | None:
    """Return how much the worst thing that we say about a file weighs; a refusal is an error, ``None`` is silence."""
    try:
        length = header_length(whole[:SNIFF_BYTES], shard="s", file_bytes=len(whole))
        header = parse_header(whole[8 : 8 + length], shard="s", file_bytes=len(whole))
    except HeaderError:
        return Severity.ERROR
    found = [*check_header(header), *(f for group in group_tensors(header.tensors) for f in check_sizes(group))]
    return max((finding.severity for finding in found), default=None)


def accepts(whole: bytes) -> bool:
    """Tell whether the library takes the bytes of a whole file."""
    try:
        safetensors.deserialize(whole)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        return False
    return True


def opens(path: Path) -> bool:
    """Tell whether the library opens a file."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            file.keys()
    except safetensors.SafetensorError:
        return False
    return True


def tensor(dtype: str, shape: str, start: int, stop: int, more: str = "") -> str:
    """Return the text of an entry; the shape is text, so that it can be spelt in any way."""
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{stop}]{more}}}'


def header(**entries: str) -> str:
    """Return the text of a header."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in entries.items()) + "}"


A = tensor("F32", "[1]", 0, 4)
BIG = 2**64 - 1

BOTH_ACCEPT: dict[str, tuple[str, int]] = {
    "nothing": ("{}", 0),
    "one tensor": (header(a=A), 4),
    "padded with spaces": (header(a=A) + "  ", 4),
    "white space inside": (header(a=A).replace(":", " \n\t:\r\n "), 4),
    "scalar": (header(a=tensor("F32", "[]", 0, 4)), 4),
    "nameless": (header(**{"": A}), 4),
    "metadata empty": (header(__metadata__="{}", a=A), 4),
    "metadata of strings": (header(__metadata__='{"a":"b"}', a=A), 4),
    "paired surrogates": (header(__metadata__='{"a":"\\ud83d\\ude00"}', a=A), 4),
    "length of a pickle's magic": (header(a=A).ljust(640), 4),
    "empty at the start": (header(e=tensor("U8", "[0]", 0, 0), a=A), 4),
    "empty at the end": (header(a=A, e=tensor("U8", "[0,3]", 4, 4)), 4),
    "empty after the one that begins where it does": (header(a=A, e=tensor("U8", "[0]", 0, 0)), 4),
    "against the order of offsets": (header(b=tensor("U8", "[2]", 4, 6), a=A), 6),
    "longest dimension beside a 0": (header(a=tensor("F64", f"[{BIG},0]", 0, 0)), 0),
    "F4": (header(a=tensor("F4", "[4,64]", 0, 128)), 128),
    "F6": (header(a=tensor("F6_E3M2", "[2,2]", 0, 3)), 3),
    **{
        dtype: (header(a=tensor(dtype, "[8]", 0, bits), b=tensor(dtype, "[0]", bits, bits)), bits)
        for dtype, bits in DTYPE_BITS.items()
    },
}

BOTH_REFUSE: dict[str, tuple[str, int]] = {
    "no header": ("", 0),
    "array": ("[]", 0),
    "byte order mark": ("\ufeff{}", 0),
    "padded with NULs": ("{}\0", 0),
    "padded with a vertical tab": ("{}\v", 0),
    "NaN in the metadata": ('{"__metadata__":{"a":NaN}}', 0),
    "Infinity in a shape": (header(a=tensor("U8", "[Infinity]", 0, 1)), 1),
    "NaN under an unknown key": (header(a=tensor("U8", "[1]", 0, 1, ',"x":NaN')), 1),
    "lone surrogate in a name": (header(**{"\\ud800": A}), 4),
    "lone surrogate in the metadata": (header(__metadata__='{"a":"\\udfff"}', a=A), 4),
    "surrogates the wrong way round": (header(__metadata__='{"a":"\\ude00\\ud83d"}', a=A), 4),
    "control character": ('{"__metadata__":{"a":"\x01"}}', 0),
    "dimension -0": (header(a=tensor("U8", "[-0]", 0, 0)), 0),
    "dimension true": (header(a=tensor("U8", "[true]", 0, 1)), 1),
    "dimension true, 1 seen before": (header(b=tensor("U8", "[1]", 0, 1), a=tensor("U8", "[true]", 1, 2)), 2),
    "dimension 1.0, 1 seen before": (header(b=tensor("U8", "[1]", 0, 1), a=tensor("U8", "[1.0]", 1, 2)), 2),
    "dimension 2.0, 2 seen before": (header(b=tensor("U8", "[2]", 0, 2), a=tensor("U8", "[2.0]", 2, 4)), 4),
    "dimension 2e0, 2 seen before": (header(b=tensor("U8", "[2]", 0, 2), a=tensor("U8", "[2e0]", 2, 4)), 4),
    "dimension false, 0 seen before": (header(b=tensor("U8", "[0]", 0, 0), a=tensor("U8", "[false]", 0, 0)), 0),
    "dimension -0.0, 0 seen before": (header(b=tensor("U8", "[0]", 0, 0), a=tensor("U8", "[-0.0]", 0, 0)), 0),
    "dimension in a string": (header(a=tensor("U8", '["1"]', 0, 1)), 1),
    "dimension of 5000 digits": (header(a=tensor("U8", f"[{'9' * 5000}]", 0, 1)), 1),
    "dimension of 2^64 beside a 0": (header(a=tensor("U8", "[0,18446744073709551616]", 0, 0)), 0),
    "product of 2^64 before a 0": (header(a=tensor("U8", "[4294967296,4294967296,0]", 0, 0)), 0),
    "bits of 2^64": (header(a=tensor("F64", "[288230376151711744]", 0, 0)), 0),
    "offset as a float": ('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0.0,1]}}', 1),
    "offset as a boolean": ('{"a":{"dtype":"U8","shape":[1],"data_offsets":[false,1]}}', 1),
    "three offsets": ('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}', 1),
    "begins after it ends": (header(a=tensor("U8", "[1]", 1, 0)), 1),
    "no shape": ('{"a":{"dtype":"U8","data_offsets":[0,1]}}', 1),
    "dtype twice": (header(a=tensor("U8", "[1]", 0, 1, ',"dtype":"U8"')), 1),
    "metadata twice": ('{"__metadata__":{},"__metadata__":{}}', 0),
    "metadata is an array": (header(__metadata__="[]", a=A), 4),
    "metadata holds a number": (header(__metadata__='{"a":1}', a=A), 4),
    "metadata holds null": (header(__metadata__='{"a":null}', a=A), 4),
    "metadata is deep": (header(__metadata__="[" * 500 + "]" * 500), 0),
    "deep entry": (header(a="[" * 100_000), 0),
    "deep unknown key": (header(a=tensor("U8", "[1]", 0, 1, f',"x":{"[" * 130}{"]" * 130}')), 1),
    "unknown key of 400 digits": (header(a=tensor("U8", "[1]", 0, 1, f',"x":{"9" * 400}')), 1),
    "unknown key out of range": (header(a=tensor("U8", "[1]", 0, 1, ',"x":-1e999')), 1),
    "unknown dtype": (header(a=tensor("F7", "[1]", 0, 1)), 1),
    "dtype in lower case": (header(a=tensor("u8", "[1]", 0, 1)), 1),
    "F4 of one element": (header(a=tensor("F4", "[1]", 0, 1)), 1),
    "F4 scalar": (header(a=tensor("F4", "[]", 0, 1)), 1),
    "F6 of three elements, rounded down": (header(a=tensor("F6_E2M3", "[3]", 0, 2)), 2),
    "F4 scalar of no bytes": (header(a=tensor("F4", "[]", 0, 0)), 0),
    "F6 of three elements": (header(a=tensor("F6_E2M3", "[3]", 0, 3)), 3),
    "too few bytes": (header(a=tensor("F32", "[1]", 0, 2)), 2),
    "too many bytes": (header(a=tensor("U8", "[1]", 0, 2)), 2),
    "gap": (header(a=A, b=tensor("U8", "[1]", 5, 6)), 6),
    "overlap": (header(a=A, b=tensor("U8", "[4]", 2, 6)), 6),
    "empty inside another": (header(a=A, e=tensor("U8", "[0]", 2, 2)), 4),
    "empty beyond the others": (header(a=A, e=tensor("U8", "[0]", 6, 6)), 4),
    "empty beyond, in the file": (header(a=A, e=tensor("U8", "[0]", 6, 6)), 6),
    "truncated": (header(a=A), 3),
    "trailing": (header(a=A), 5),
    "trailing after nothing": ("{}", 1),
}

STRICTER: dict[str, tuple[str, int]] = {
    "leading space": (" {}", 0),
    "padded with a tab": ("{}\t", 0),
    "name twice": (f'{{"a":{A},"a":{A}}}', 4),
    "key twice in the metadata": (header(__metadata__='{"a":"1","a":"2"}', a=A), 4),
    "key twice under an unknown one": (header(a=tensor("U8", "[1]", 0, 1, ',"x":{"y":1,"y":2}')), 1),
    "entry as an array": ('{"a":["F32",[1],[0,4]]}', 4),
    "dtype as an object": ('{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}', 1),
    "F4 with an odd last dimension": (header(a=tensor("F4", "[2,3]", 0, 3)), 3),
    "product of 2^64 after a 0": (header(a=tensor("U8", "[0,4294967296,4294967296]", 0, 0)), 0),
}

WARNED: dict[str, tuple[str, int]] = {
    "metadata is null": (header(__metadata__="null", a=A), 4),
    "unknown key": (header(a=tensor("U8", "[1]", 0, 1, ',"x":"y"')), 1),
}

VERDICTS = [
    (True, None, BOTH_ACCEPT),
    (False, Severity.ERROR, BOTH_REFUSE),
    (True, Severity.ERROR, STRICTER),
    (True, Severity.WARNING, WARNED),
]
CASES = [
    pytest.param(header, data, library, ours, id=name)
    for library, ours, table in VERDICTS
    for name, (header, data) in table.items()
]


@pytest.mark.parametrize(("header", "data_bytes", "library", "ours"), CASES)
def test_table(header: str, data_bytes: int, library: bool, ours: Severity | None, tmp_path: Path) -> None:  # noqa: FBT001
    """Each file is judged as the table says: by the library from memory and from disk, and by us."""
    path = write_raw(tmp_path / "x.safetensors", header.encode(), data_bytes)

    assert (library, library) == (accepts(path.read_bytes()), opens(path))
    assert ours == told(path.read_bytes())


def agree(whole: bytes) -> None:
    """Hold both against each other on one file."""
    severity = told(whole)
    if accepts(whole):
        return
    assert severity is Severity.ERROR


def with_length(raw: bytes, data_bytes: int) -> bytes:
    """Return a whole file."""
    return struct.pack("<Q", len(raw)) + raw + bytes(data_bytes)


@settings(deadline=None, max_examples=200, database=None)
@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: with_length(b"{" + tail, 0)))
@example(b"\x02\0\0\0\0\0\0\0{}")
def test_any_bytes(whole: bytes) -> None:
    """On arbitrary bytes the two agree."""
    agree(whole)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Draw tensors one after the other, right at first, and then move, resize or rename some things a little."""
    header: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.sampled_from("abcde"), unique=True)):
        dtype = draw(st.sampled_from(["U8", "BF16", "F32", "F4", "F6_E2M3", "F7"]))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 2**32, BIG]), max_size=3))
        size = DTYPE_BITS.get(dtype, 8)
        for dimension in shape:
            size *= dimension
        shift = draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]))
        start = max(0, end + shift)
        stop = min(start + size // 8, BIG)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        end = stop
    return header, min(end, 1 << 12) + draw(st.sampled_from([0, 0, 0, -1, 1]))


@settings(deadline=None, max_examples=400, database=None)
@given(laid_out())
def test_any_layout(drawn: tuple[dict[str, Any], int]) -> None:
    """However tensors lie in a file, and whatever their dtypes and dimensions, the two agree."""
    header, data_bytes = drawn
    agree(with_length(json.dumps(header).encode(), max(0, data_bytes)))


TOKENS = [
    *("0", "-0", "1", "1.0", "1e0", "1e999", "-1", "true", "null", "NaN", '"x"', '"\\ud800"', '"\\u0061"', "[]", "{}"),
    *("18446744073709551616", "9" * 400, "[" * 130 + "]" * 130, '"a"', '"b"', '"U8"', '"shape"', '"__metadata__"'),
    *("[1]", "[0,4]", ",", ":", "{", "}", "[", "]", " ", "\t", "\n", "\0", "\ufeff", '{"dtype":"U8"}', ""),
]
PIECES = [
    *('"__metadata__"', ":", "{", '"k"', ":", '"v"', "}", ",", '"b"', ":", "{", '"dtype"', ":", '"U8"', ","),
    *('"shape"', ":", "[", "1", ",", "4", "]", ",", '"data_offsets"', ":", "[", "0", ",", "4", "]", "}", ","),
    *('"a"', ":", "{", '"dtype"', ":", '"F32"', ",", '"shape"', ":", "[", "1", "]", ","),
    *('"data_offsets"', ":", "[", "4", ",", "8", "]", ",", '"x"', ":", "1", "}", "}"),
]


@settings(deadline=None, max_examples=600, database=None)
@given(st.lists(st.tuples(st.integers(0, len(PIECES) - 1), st.sampled_from(TOKENS)), max_size=3))
def test_any_token(changes: list[tuple[int, str]]) -> None:
    """Whatever tokens of a well-formed header are swapped for awkward ones, the two agree."""
    pieces = list(PIECES)
    for place, token in changes:
        pieces[place] = token
    agree(with_length(b"{" + "".join(pieces).encode(), 8))
