# SPDX-License-Identifier: AGPL-3.0-only
"""The strict reader of safetensors headers: bytes in, tensor records out; no file is opened here.

Format (https://github.com/safetensors/safetensors#format): the length of the header as 8 little-endian bytes, a JSON
object from tensor name to ``dtype``, ``shape`` and ``data_offsets`` padded with spaces, then the tensors' data. What
makes a header unusable is a `HeaderError`; what is wrong in a usable one is for `glm5inspect.integrity` to report.
"""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect.catalogue import Code
from glm5inspect.errors import HeaderError
from glm5inspect.report import some
from glm5inspect.strict_json import StrictJSONError, parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LENGTH_BYTES = 8
"""Bytes of the header length at the start of a file."""

MAX_HEADER_BYTES = 100_000_000
"""The longest header accepted, as `MAX_HEADER_SIZE` of safetensors' tensor.rs."""

_WORD = 1 << 64  # safetensors keeps dimensions, offsets and element counts in 64 bits

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Width in bits of one element of each dtype of the format."""

_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})

_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself (git lfs pull)"),
    (b"PK\x03\x04", "a ZIP archive, as torch.save writes them, not safetensors"),
    (b"\x80\x02", "a Python pickle, not safetensors"),
    (b"\x80\x03", "a Python pickle, not safetensors"),
    (b"\x80\x04", "a Python pickle, not safetensors"),
    (b"\x80\x05", "a Python pickle, not safetensors"),
    (b"GGUF", "a GGUF file, not safetensors"),
    (b"\x1f\x8b", "a gzip archive, not safetensors"),
    (b"<!doctype", "an HTML page, not safetensors"),
    (b"<html", "an HTML page, not safetensors"),
    (b"<?xml", "an XML document, not safetensors"),
)
SNIFF_BYTES = max(len(magic) for magic, _ in _FOREIGN)
"""How many bytes from the start of a file are enough to tell what it is."""


class TensorRecord(NamedTuple):
    """One tensor as its header states it.

    Attributes:
        name: As stored, untrusted.
        dtype: The format's spelling, such as ``BF16``; possibly unknown to `DTYPE_BITS`.
        shape: Dimensions in elements, (out, in) for a projection; empty for a scalar.
        start: First byte, relative to the shard's data section.
        stop: One past the last byte: the range is half-open.
        shard: Name of its shard file, or ``None`` in a recorded inventory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    shard: str | None

    @property
    def nbytes(self) -> int:
        """Bytes stored, which is what the offsets say and not what shape and dtype need."""
        return self.stop - self.start


class MetadataFault(NamedTuple):
    """What is wrong with a ``__metadata__``, which must be an object of strings.

    Attributes:
        text: In words, to go on after the key.
        kind: What kind of value it is, in the words of JSON, when it is no object.
        keys: How many of its values are no strings.
        accepted: Whether the library takes it all the same.
    """

    text: str
    kind: str | None = None
    keys: int = 1
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one shard.

    Attributes:
        shard: Name of the shard file.
        file_bytes: Size of the whole file.
        data_start: Where the data section begins in the file, in bytes.
        tensors: In the order of the header.
        metadata_fault: What is wrong with ``__metadata__``; ``None`` for nothing. The metadata itself is not kept.
        extra_keys: Tensor name to the keys of its entry that the format does not know.
    """

    shard: str
    file_bytes: int
    data_start: int
    tensors: tuple[TensorRecord, ...]
    metadata_fault: MetadataFault | None
    extra_keys: Mapping[str, tuple[str, ...]]


def elements(shape: tuple[int, ...]) -> int:
    """Return the product of the dimensions; 1 for a scalar."""
    product = 1
    for dimension in shape:
        product *= dimension
    return product


def needed_bits(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return how many bits elements times width make, or ``None`` for an unknown dtype."""
    bits = DTYPE_BITS.get(dtype)
    return None if bits is None else bits * elements(shape)


def header_length(prefix: bytes, *, shard: str, file_bytes: int) -> int:
    """Read the length of the header, in bytes without the 8 of the length itself.

    Args:
        prefix: The first bytes of the file; `SNIFF_BYTES` of them let a foreign format be named.
        shard: Name of the file, for the error.
        file_bytes: Size of the file; the length is bounded by it before anything is allocated.

    Raises:
        HeaderError: The file is empty, foreign, too short, or the length is impossible.
    """
    if file_bytes == 0:
        raise HeaderError(Code.HEADER_EMPTY, "0 bytes, an empty file", shard=shard)
    foreign = foreign_format(prefix)
    if foreign and prefix[LENGTH_BYTES:][:1] != b"{":  # a length of 640 begins as a pickle does
        raise HeaderError(Code.HEADER_FORMAT, foreign, shard=shard)
    if len(prefix) < LENGTH_BYTES:
        reason = f"{len(prefix)} bytes long, shorter than the 8 of a header length"
        raise HeaderError(Code.HEADER_LENGTH, reason, shard=shard)
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        reason = f"declares a header of {length:,} bytes, over the limit of {MAX_HEADER_BYTES:,}"
        raise HeaderError(Code.HEADER_LENGTH, reason, shard=shard)
    if length > file_bytes - LENGTH_BYTES:
        reason = f"declares a header of {length:,} bytes, but only {file_bytes - LENGTH_BYTES:,} follow"
        raise HeaderError(Code.HEADER_LENGTH, reason, shard=shard)
    return length


def foreign_format(prefix: bytes) -> str | None:
    """Name what a file is when its first bytes belong to a well-known other format, else ``None``."""
    start = prefix.lower() if prefix[:1] == b"<" else prefix
    return next((what for magic, what in _FOREIGN if start.startswith(magic)), None)


def parse_header(raw: bytes, *, shard: str, file_bytes: int) -> Header:
    """Parse the JSON part of a header.

    Args:
        raw: Exactly the declared length of bytes, padding included.
        shard: Name of the shard file.
        file_bytes: Size of the whole file.

    Raises:
        HeaderError: The header is not usable; the code says in which way.
    """
    entries = _parse_entries(raw, shard)
    metadata_fault = _metadata_fault(entries.pop("__metadata__", {}))
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    extra_keys: dict[str, tuple[str, ...]] = {}
    tensors: list[TensorRecord] = []
    new = tuple.__new__  # what TensorRecord(...) does, without a call in between; there are 113,074 of them
    for name, entry in entries.items():
        try:
            dtype, dimensions, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            stated = tuple(dimensions)
            shape = shapes.get(stated)
            if shape is None:
                shape = bounded_shape(stated)
                if 0 not in shape and 1 not in shape:  # False and True would be taken for these the next time
                    shapes[stated] = shape
            if not (
                type(dtype) is str
                and type(dimensions) is list
                and type(start) is int
                and type(stop) is int
                and 0 <= start <= stop < _WORD
            ):
                raise TypeError
        except (TypeError, KeyError, ValueError) as error:
            raise _entry_error(name, entry, shard) from error
        if len(entry) != len(_ENTRY_KEYS):
            extra_keys[name] = _extra_keys(name, entry, shard)
        tensors.append(new(TensorRecord, (name, intern(dtype), shape, start, stop, shard)))
    return Header(shard, file_bytes, LENGTH_BYTES + len(raw), tuple(tensors), metadata_fault, extra_keys)


def _metadata_fault(metadata: object) -> MetadataFault | None:
    """Judge a ``__metadata__``: the library takes ``null`` for absent, and refuses what is not an object of strings."""
    if metadata is None:
        return MetadataFault("is null; leave it out instead", accepted=True)
    if not isinstance(metadata, dict):
        kinds = {list: "an array", str: "a string", bool: "a boolean"}
        return MetadataFault("is not an object", kinds.get(type(metadata), "a number"))
    keys = [key for key, value in metadata.items() if not isinstance(value, str)]
    return MetadataFault(f"holds other values than strings: {some(keys)}", keys=len(keys)) if keys else None


def _parse_entries(raw: bytes, shard: str) -> dict[str, Any]:
    """Parse the JSON object of a header, whose entries are still to be checked."""
    if not raw:
        raise HeaderError(Code.HEADER_JSON, "the header is 0 bytes long, not an object", shard=shard)
    if not raw.startswith(b"{"):
        raise HeaderError(Code.HEADER_JSON, f"begins with {raw[:1]!r} instead of {{", shard=shard)
    body = raw.rstrip(b" ")
    if (kept := body.rstrip(b"\0\t\n\v\f\r ")) != body:
        padding = body[len(kept) :].lstrip(b" ")
        reason = f"padded with {padding[:1]!r}; only spaces may follow the JSON"
        raise HeaderError(Code.HEADER_PADDING, reason, shard=shard)
    try:
        parsed = parse_object(body, integers_only=True)
    except StrictJSONError as error:
        raise HeaderError(Code.HEADER_JSON, f"the header is {error}", shard=shard) from error
    if parsed.duplicates:
        reason = f"the key {some(parsed.duplicates)} stands twice in the header"
        raise HeaderError(Code.HEADER_DUPLICATE, reason, shard=shard)
    return parsed.value


def bounded_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape when its dimensions are natural numbers whose product fits 64 bits, a 0 among them or not.

    Raises:
        ValueError: They are not.
    """
    if not all(type(d) is int and d >= 0 for d in shape) or _overflows(shape):
        raise ValueError("shape")
    return shape


def _overflows(shape: Iterable[int]) -> bool:
    """Tell whether the dimensions other than 0 multiply to 2^64 or more, at the first that makes it so."""
    product = 1
    for dimension in shape:
        product *= dimension or 1
        if product >= _WORD:
            return True
    return False


def _entry_error(name: str, entry: object, shard: str) -> HeaderError:
    """Say what is wrong with an entry that was refused."""
    code, fault = Code.HEADER_ENTRY, "data_offsets is not two integers from 0 to 2^64 - 1"
    if not isinstance(entry, dict):
        fault = "the entry is not an object"
    elif lacking := sorted(_ENTRY_KEYS - entry.keys()):
        fault = f"the entry has no {some(lacking)}"
    elif not isinstance(entry["dtype"], str):
        fault = "dtype is not a string"
    elif not isinstance(entry["shape"], list) or not all(_is_word(d) for d in entry["shape"]):
        fault = "shape is not a list of integers from 0 to 2^64 - 1"
    elif _overflows(entry["shape"]):
        fault = "the dimensions' product is 2^64 or more"
    elif (
        isinstance(offsets := entry["data_offsets"], list)
        and len(offsets) == 2  # noqa: PLR2004 - begin and end
        and all(_is_word(offset) for offset in offsets)
    ):
        code, fault = Code.HEADER_OFFSETS, f"data_offsets [{offsets[0]}, {offsets[1]}] begin after they end"
    return HeaderError(code, f"{name}: {fault}", shard=shard)


def _extra_keys(name: str, entry: Mapping[str, object], shard: str) -> tuple[str, ...]:
    """Return the keys of an entry that the format does not know, sorted.

    The library skips what stands under them, but not a number beyond its range, nor what is nested deeply.
    """
    extra = sorted(entry.keys() - _ENTRY_KEYS)
    for key in extra:
        value = entry[key]
        if not (value is None or isinstance(value, str | bool) or _is_word(value)):
            fault = f"the unknown key {key} holds something else than a string, a boolean, null or a 64-bit integer"
            raise HeaderError(Code.HEADER_ENTRY, f"{name}: {fault}", shard=shard)
    return tuple(extra)


def _is_word(value: object) -> bool:
    return type(value) is int and 0 <= value < _WORD
