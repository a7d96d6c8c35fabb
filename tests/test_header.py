# SPDX-License-Identifier: AGPL-3.0-only
"""The strict header reader: what it refuses, what it reports, and that nothing else can come out of it."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import write_raw
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5inspect.errors import HeaderError
from glm5inspect.header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    SNIFF_BYTES,
    Header,
    elements,
    header_length,
    needed_bits,
    parse_header,
)
from glm5inspect.integrity import check_header, check_sizes
from glm5inspect.inventory import group_tensors
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from glm5inspect.report import Finding


def shard(header: str | bytes, data_bytes: int = 0, *, length: int | None = None) -> bytes:
    """Return a whole file; ``length`` lies about the header."""
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data_bytes)


def read(whole: bytes) -> Header:
    """Read a header as the inventory does."""
    length = header_length(whole[:SNIFF_BYTES], shard="s", file_bytes=len(whole))
    return parse_header(whole[8 : 8 + length], shard="s", file_bytes=len(whole))


def findings(header: Header) -> list[Finding]:
    """Return what is wrong with a readable header."""
    return [*check_header(header), *(f for group in group_tensors(header.tensors) for f in check_sizes(group))]


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an entry of a header, well-formed unless told otherwise."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def one(raw_entry: Any) -> bytes:  # noqa: ANN401
    """Return a file with the tensor ``a`` and 4 bytes of data."""
    return shard(json.dumps({"a": raw_entry}), 4)


def without(key: str) -> dict[str, Any]:
    """Return an entry that lacks a key."""
    return {name: value for name, value in entry().items() if name != key}


A = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'

REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "header-empty", "0 bytes"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "header-format", "Git LFS pointer"),
    "zip": (b"PK\x03\x04\x14\0\0\0\x08\0archive/data.pkl", "header-format", "ZIP"),
    "zip of 4 bytes": (b"PK\x03\x04", "header-format", "ZIP"),
    "pickle 2": (b"\x80\x02}q\x00(X\x04\x00\x00\x00", "header-format", "pickle"),
    "pickle 4": (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}", "header-format", "pickle"),
    "gguf": (b"GGUF\x03\0\0\0\0\0\0\0", "header-format", "GGUF"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "header-format", "gzip"),
    "html": (b"<!DOCTYPE html><html><head>", "header-format", "HTML"),
    "bare html": (b"<HTML><body>404</body>", "header-format", "HTML"),
    "xml": (b'<?xml version="1.0"?><Error>', "header-format", "XML"),
    "7 bytes": (b"\x02\0\0\0\0\0\0", "header-length", "7 bytes long"),
    "all ones": (b"\xff" * 8, "header-length", "18,446,744,073,709,551,615"),
    "over the limit": (shard("{}", length=100_000_001), "header-length", "over the limit of 100,000,000"),
    "beyond the file": (shard("{}", length=3), "header-length", "3 bytes, but only 2 follow"),
    "no header": (shard(""), "header-json", "0 bytes long"),
    "leading space": (shard(" {}"), "header-json", "begins with b' '"),
    "byte order mark": (shard("\ufeff{}"), "header-json", "begins with b'\\xef'"),
    "array": (shard("[]"), "header-json", "begins with b'['"),
    "cut short": (shard('{"a":'), "header-json", "not JSON"),
    "two objects": (shard("{}{}"), "header-json", "not JSON"),
    "trailing comma": (shard("{" + A + ",}", 4), "header-json", "not JSON"),
    "not UTF-8": (shard(b'{"\xff":1}'), "header-json", "not UTF-8 at byte 2"),
    "NaN": (shard('{"a":NaN}'), "header-json", "not JSON (NaN)"),
    "Infinity": (shard('{"a":{"shape":[-Infinity]}}'), "header-json", "not JSON (-Infinity)"),
    "lone surrogate": (shard('{"\\ud800":1}'), "header-json", "lone surrogate"),
    "lone surrogate as a value": (shard('{"__metadata__":{"a":"\\udc00"}}'), "header-json", "lone surrogate"),
    "control character": (shard('{"a\x01":1}'), "header-json", "not JSON"),
    "thousands of digits": (shard('{"a":{"shape":[' + "9" * 5000 + "]}}"), "header-json", "thousands of digits"),
    "deep arrays": (shard('{"a":' + "[" * 100_000), "header-json", "nested too deeply"),
    "deep objects": (shard('{"a":' * 100_000), "header-json", "nested too deeply"),
    "padding of NULs": (shard("{}\0\0"), "header-padding", "b'\\x00'"),
    "padding of newlines": (shard("{} \n"), "header-padding", "b'\\n'"),
    "name twice": (shard("{" + A + "," + A + "}", 4), "header-duplicate", "the key a stands twice"),
    "name twice, escaped": (shard("{" + A + "," + A.replace('"a"', '"\\u0061"') + "}", 4), "header-duplicate", "key a"),
    "key twice in an entry": (shard("{" + A.replace("{", '{"dtype":"F32",') + "}", 4), "header-duplicate", "dtype"),
    "key twice in the metadata": (
        shard('{"__metadata__":{"k":"1","k":"2"}}'),
        "header-duplicate",
        "the key k stands twice",
    ),
    "metadata twice": (shard('{"__metadata__":{},"__metadata__":{}}'), "header-duplicate", "__metadata__"),
    "entry is null": (one(None), "header-entry", "a: the entry is not an object"),
    "entry is an array": (one(["F32", [1], [0, 4]]), "header-entry", "a: the entry is not an object"),
    "no dtype": (one(without("dtype")), "header-entry", "has no dtype"),
    "no shape": (one(without("shape")), "header-entry", "has no shape"),
    "no data_offsets": (one(without("data_offsets")), "header-entry", "has no data_offsets"),
    "entry of nothing": (one({}), "header-entry", "has no data_offsets, dtype, shape"),
    "dtype is a number": (one({**entry(), "dtype": 1}), "header-entry", "dtype is not a string"),
    "shape is a number": (one(entry(shape=1)), "header-entry", "shape is not a list"),
    "shape is an object": (one(entry(shape={})), "header-entry", "shape is not a list"),
    "shape is a string": (one(entry(shape="")), "header-entry", "shape is not a list"),
    "dimension is a list": (one(entry(shape=[[1]])), "header-entry", "shape is not a list"),
    "dimension is negative": (one(entry(shape=[-1])), "header-entry", "shape is not a list"),
    "dimension is true": (one(entry(shape=[True])), "header-entry", "shape is not a list"),
    "dimension is 1.0": (one(entry(shape=[1.0])), "header-entry", "shape is not a list"),
    "dimension is -0": (shard("{" + A.replace("[1]", "[-0]") + "}", 4), "header-entry", "shape is not a list"),
    "dimension is 1e0": (shard("{" + A.replace("[1]", "[1e0]") + "}", 4), "header-entry", "shape is not a list"),
    "dimension is 2^64": (one(entry(shape=[2**64])), "header-entry", "shape is not a list"),
    "dimensions multiply to 2^64": (one(entry(shape=[2**32, 2**32])), "header-entry", "product is 2^64 or more"),
    "2^64 beside a 0": (one(entry(shape=[0, 2**32, 2**32])), "header-entry", "product is 2^64 or more"),
    "one offset": (one(entry(offsets=[4])), "header-entry", "data_offsets is not two integers"),
    "three offsets": (one(entry(offsets=[0, 4, 8])), "header-entry", "data_offsets is not two integers"),
    "offsets are null": (one(entry(offsets=None)), "header-entry", "data_offsets is not two integers"),
    "offsets are strings": (one(entry(offsets=["0", "4"])), "header-entry", "data_offsets is not two integers"),
    "offsets are a string": (one(entry(offsets="04")), "header-entry", "data_offsets is not two integers"),
    "offset is false": (one(entry(offsets=[False, 4])), "header-entry", "data_offsets is not two integers"),
    "offset is 4.0": (one(entry(offsets=[0, 4.0])), "header-entry", "data_offsets is not two integers"),
    "offset is -0": (shard("{" + A.replace("[0,", "[-0,") + "}", 4), "header-entry", "data_offsets is not two"),
    "offset is negative": (one(entry(offsets=[-4, 4])), "header-entry", "data_offsets is not two integers"),
    "offset is 2^64": (one(entry(offsets=[0, 2**64])), "header-entry", "data_offsets is not two integers"),
    "begins after it ends": (one(entry(offsets=[4, 0])), "header-offsets", "[4, 0] begin after they end"),
    "unknown key is nested": (one(entry(extra=[[]])), "header-entry", "the unknown key extra"),
    "unknown key is too long a number": (one(entry(extra=10**400)), "header-entry", "the unknown key extra"),
    "unknown key is too big a float": (shard("{" + A[:-1] + ',"x":1e999}}', 4), "header-entry", "the unknown key x"),
}


@pytest.mark.parametrize(("whole", "code", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(whole: bytes, code: str, reason: str) -> None:
    """What cannot be used is refused, with the code and the words for its own reason, and the shard is named."""
    with pytest.raises(HeaderError) as caught:
        read(whole)

    assert (code, "s") == (caught.value.code.value, caught.value.shard)
    assert reason in caught.value.reason
    assert str(caught.value) == f"s: {caught.value.reason}"


@pytest.mark.parametrize("poisoned", ["true", "1.0", "-1", "1e0"])
@pytest.mark.parametrize("well_formed", [[1], [2, 1], [1, 1]], ids=str)
def test_equal_shape_seen_before(well_formed: list[int], poisoned: str) -> None:
    """A dimension that Python takes for an equal of 1 is refused even after the same shape was met with the integer."""
    good, bad = json.dumps(entry(shape=well_formed)), json.dumps(entry(shape=well_formed)).replace("1]", poisoned + "]")

    with pytest.raises(HeaderError, match="b: shape is not a list"):
        read(shard(f'{{"a":{good},"b":{bad}}}', 4))


@pytest.mark.parametrize("poisoned", ["false", "0.0", "-0", "0e0"])
def test_equal_zero_seen_before(poisoned: str) -> None:
    """The same for what Python takes for an equal of 0."""
    good = json.dumps(entry(shape=[0, 8], offsets=[0, 0]))

    with pytest.raises(HeaderError, match="b: shape is not a list"):
        read(shard(f'{{"a":{good},"b":{good.replace("[0, 8]", f"[{poisoned}, 8]")}}}'))


WRONG: dict[str, tuple[dict[str, Any], int, list[tuple[str, str]]]] = {
    "metadata is null": ({"__metadata__": None}, 0, [("header-metadata", "WARNING")]),
    "metadata is an array": ({"__metadata__": []}, 0, [("header-metadata", "ERROR")]),
    "metadata is false": ({"__metadata__": False}, 0, [("header-metadata", "ERROR")]),
    "metadata holds a number": ({"__metadata__": {"a": "1", "b": 2}}, 0, [("header-metadata", "ERROR")]),
    "unknown key": ({"a": entry(extra=1)}, 4, [("header-extra-key", "WARNING")]),
    "unknown dtype": ({"a": entry("F8_E9M9")}, 4, [("unknown-dtype", "ERROR")]),
    "dtype in lower case": ({"a": entry("f32")}, 4, [("unknown-dtype", "ERROR")]),
    "unknown dtype beside a wrong size": (
        {"a": entry("X"), "b": entry(shape=[2], offsets=[4, 8])},
        8,
        [("unknown-dtype", "ERROR"), ("shape-bytes", "ERROR")],
    ),
    "too few bytes": ({"a": entry("BF16", [3])}, 4, [("shape-bytes", "ERROR")]),
    "too many bytes": ({"a": entry("U8", [3])}, 4, [("shape-bytes", "ERROR")]),
    "scalar of no bytes": ({"a": entry(shape=[], offsets=[0, 0])}, 0, [("shape-bytes", "ERROR")]),
    "F4 with an odd last dimension": ({"a": entry("F4", [2, 3], [0, 3])}, 3, [("shape-bytes", "ERROR")]),
    "F4 scalar": ({"a": entry("F4", [], [0, 1])}, 1, [("shape-bytes", "ERROR")]),
    "F6 that ends inside a byte": ({"a": entry("F6_E3M2", [3], [0, 3])}, 3, [("shape-bytes", "ERROR")]),
    "F6 of the bytes before that": ({"a": entry("F6_E3M2", [3], [0, 2])}, 2, [("shape-bytes", "ERROR")]),
    "F4 scalar of no bytes": ({"a": entry("F4", [], [0, 0])}, 0, [("shape-bytes", "ERROR")]),
    "gap at the start": ({"a": entry(offsets=[4, 8])}, 8, [("offset-gap", "ERROR")]),
    "gap between": ({"a": entry(), "b": entry(offsets=[8, 12])}, 12, [("offset-gap", "ERROR")]),
    "overlap": ({"a": entry(), "b": entry(offsets=[2, 6])}, 6, [("offset-overlap", "ERROR")]),
    "same bytes": ({"a": entry(), "b": entry()}, 4, [("offset-overlap", "ERROR")]),
    "empty tensor inside another": ({"a": entry(), "b": entry("U8", [0], [2, 2])}, 4, [("offset-overlap", "ERROR")]),
    "one byte short": ({"a": entry()}, 3, [("file-truncated", "ERROR")]),
    "no data at all": ({"a": entry()}, 0, [("file-truncated", "ERROR")]),
    "trailing bytes": ({"a": entry()}, 20, [("file-trailing", "ERROR")]),
    "trailing bytes after no tensor": ({}, 1, [("file-trailing", "ERROR")]),
}


@pytest.mark.parametrize(("header", "data_bytes", "expected"), WRONG.values(), ids=WRONG)
def test_readable_but_wrong(header: dict[str, Any], data_bytes: int, expected: list[tuple[str, str]]) -> None:
    """One fault makes one finding of its own code."""
    found = findings(read(shard(json.dumps(header), data_bytes)))

    assert expected == [(f.code.value, f.severity.name) for f in found]
    assert {"s"} == {f.shard for f in found}


RIGHT: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 0),
    "metadata absent": ({"a": entry()}, 4),
    "metadata empty": ({"__metadata__": {}, "a": entry()}, 4),
    "metadata of strings": ({"__metadata__": {"format": "pt", "": "\U0001f600"}, "a": entry()}, 4),
    "scalar": ({"a": entry(shape=[])}, 4),
    "nameless": ({"": entry()}, 4),
    "not in order of offsets": ({"b": entry(offsets=[4, 8]), "a": entry()}, 8),
    "empty tensors at either end": (
        {"a": entry("U8", [0], [0, 0]), "b": entry(), "c": entry("U8", [0, 7], [4, 4])},
        4,
    ),
    "the longest dimension beside a 0": ({"a": entry(shape=[2**64 - 1, 0], offsets=[0, 0])}, 0),
    "empty tensor after the one that begins where it does": ({"a": entry(), "b": entry("U8", [0], [0, 0])}, 4),
    "F4 with an even last dimension": ({"a": entry("F4", [3, 2], [0, 3])}, 3),
    "F4 and its scales": ({"a": entry("F4", [4, 8], [0, 16]), "b": entry("F8_E8M0", [4, 2], [16, 24])}, 24),
    "F6 of whole bytes": ({"a": entry("F6_E2M3", [4], [0, 3])}, 3),
}


@pytest.mark.parametrize(("header", "data_bytes"), RIGHT.values(), ids=RIGHT)
def test_right(header: dict[str, Any], data_bytes: int) -> None:
    """A neighbour of each fault that is none passes without a word, with all of its tensors."""
    read_header = read(shard(json.dumps(header), data_bytes))

    assert findings(read_header) == []
    assert [name for name in header if name != "__metadata__"] == [tensor.name for tensor in read_header.tensors]


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 35615, 0x8B1F + 0x10000])
def test_length_that_looks_like_another_format(length: int) -> None:
    """A header whose length has the first bytes of a pickle or gzip file is read, since its JSON follows."""
    assert findings(read(shard(("{" + A + "}").ljust(length), 4))) == []


WIDTHS = {
    4: {"F4"},
    6: {"F6_E2M3", "F6_E3M2"},
    8: {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"},
    16: {"I16", "U16", "F16", "BF16"},
    32: {"I32", "U32", "F32"},
    64: {"I64", "U64", "F64", "C64"},
}


@pytest.mark.parametrize(
    ("bits", "dtype"), [(bits, dtype) for bits, dtypes in WIDTHS.items() for dtype in sorted(dtypes)]
)
def test_width(bits: int, dtype: str) -> None:
    """Every dtype of the format takes exactly its width: 8 elements are as many bytes as an element has bits."""
    right = read(shard(json.dumps({"a": entry(dtype, [8], [0, bits])}), bits))
    wrong = read(shard(json.dumps({"a": entry(dtype, [8], [0, bits - 1])}), bits - 1))

    assert findings(right) == []
    assert [("shape-bytes", bits, bits - 1)] == [(f.code.value, f.expected, f.actual) for f in findings(wrong)]


def test_no_other_widths() -> None:
    """The table of widths knows the dtypes of the format and no more."""
    assert set().union(*WIDTHS.values()) == DTYPE_BITS.keys()


def test_facts_of_a_header() -> None:
    """A header keeps what it says: order, offsets, the start of the data, metadata and unknown keys."""
    header = read(shard(json.dumps({"__metadata__": {"k": "v"}, "b": entry(z=None, y="s"), "a": entry("Q", [])}), 9))

    assert [tuple(t) for t in header.tensors] == [("b", "F32", (1,), 0, 4, "s"), ("a", "Q", (), 0, 4, "s")]
    assert header.tensors[0].nbytes == 4
    assert header.file_bytes - 9 == header.data_start
    assert (header.metadata_fault, header.extra_keys) == (None, {"b": ("y", "z")})
    assert read(shard("{}")).metadata_fault is None


def test_elements_and_bits() -> None:
    """A scalar is one element, a 0 makes none, and an unknown dtype has no width."""
    assert (elements(()), elements((2, 3, 4)), elements((5, 0))) == (1, 24, 0)
    assert (needed_bits("F6_E2M3", (2, 2)), needed_bits("F7", (2, 2))) == (24, None)


def test_facts_of_findings() -> None:
    """Findings about offsets say how many bytes, where they should be and where they are, and what is cut off."""
    whole = len(shard(json.dumps({"a": entry()}), 4))
    (gap,) = findings(read(shard(json.dumps({"a": entry(), "b": entry(offsets=[7, 11])}), 11)))
    (overlap,) = findings(read(shard(json.dumps({"a": entry(), "b": entry(offsets=[2, 6])}), 6)))
    (trailing,) = findings(read(shard(json.dumps({"a": entry()}), 6)))
    three = {"a": entry(), "b": entry(offsets=[4, 8]), "c": entry(offsets=[8, 12])}
    (truncated,) = findings(read(shard(json.dumps(three), 8)))
    full = len(shard(json.dumps(three), 12))

    assert ("3 bytes" in gap.message, gap.tensor, gap.expected, gap.actual) == (True, "b", 4, 7)
    assert ("2 bytes" in overlap.message, overlap.tensor, overlap.expected, overlap.actual) == (True, "b", 4, 2)
    assert ("2 bytes" in trailing.message, trailing.expected, trailing.actual) == (True, whole, whole + 2)
    assert truncated.message == "s: 4 bytes short; beyond the end: c"
    assert (truncated.count, truncated.expected, truncated.actual) == (1, full, full - 4)


def test_spelling_of_a_dtype() -> None:
    """A dtype in another case is told how the format spells it; one never heard of is not."""
    (lower,) = findings(read(one(entry("f32"))))
    (unheard,) = findings(read(one(entry("Q9"))))

    assert (lower.hint, unheard.hint) == ("The format spells it F32.", None)


@pytest.mark.parametrize("claim", [99_999_999, 100_000_001, 2**40])
def test_claim_is_bounded_before_reading(tmp_path: Path, claim: int) -> None:
    """A header said to be huge in a file of 1 kB is refused at once, and nothing of that size is allocated."""
    path = write_raw(tmp_path / "x.safetensors", b"{}", 1014, length=claim)
    source = open_source(str(path))
    tracemalloc.start()
    try:
        refused = source.inventory().refused
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [error.code.value for error in refused.values()] == ["header-length"]
    assert peak < 1 << 20


def test_limit_itself() -> None:
    """Exactly 100,000,000 bytes of header are accepted, as the library does."""
    prefix = struct.pack("<Q", 100_000_000)

    assert 100_000_000 == MAX_HEADER_BYTES == header_length(prefix, shard="s", file_bytes=100_000_008)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
ENTRIES = VALUES | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F7"]) | VALUES,
        "shape": st.lists(st.integers(0, 2**65), max_size=3) | VALUES,
        "data_offsets": st.lists(st.integers(0, 2**65), min_size=2, max_size=2) | VALUES,
    },
    optional={"more": VALUES},
)
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]) | st.text(max_size=3), ENTRIES, max_size=4)


def parses_or_refuses(whole: bytes) -> None:
    """Read a file and check it, if it can be read; any exception but a `HeaderError` fails the test."""
    try:
        header = read(whole)
    except HeaderError as error:
        assert error.code.value.startswith("header-")  # noqa: PT017 - either outcome is right
    else:
        assert all(finding.shard == "s" for finding in findings(header))


@settings(deadline=None, max_examples=300, database=None)
@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: shard(b"{" + tail)))
def test_any_bytes(whole: bytes) -> None:
    """Whatever the bytes, there is a header or a refusal."""
    parses_or_refuses(whole)


@settings(deadline=None, max_examples=300, database=None)
@given(HEADERS, st.integers(0, 64), st.data())
def test_any_json(header: dict[str, Any], data_bytes: int, data: st.DataObject) -> None:
    """Whatever a header says, and whatever byte of it is then damaged, there is a header or a refusal."""
    raw = bytearray(json.dumps(header).encode())
    parses_or_refuses(shard(bytes(raw), data_bytes))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    parses_or_refuses(shard(bytes(raw), data_bytes))
