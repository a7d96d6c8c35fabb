# SPDX-License-Identifier: AGPL-3.0-only
"""The shard index (``model.safetensors.index.json``): bytes in, a claim to check out; no file is opened here.

Every header is the truth and the index a claim. What would lead out of the checkpoint is refused here, before any file
or address is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glm5inspect.errors import IndexFileError
from glm5inspect.sources.base import SHARD_SUFFIX
from glm5inspect.strict_json import StrictJSONError, parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_INDEX_BYTES = 128 << 20
"""The longest index accepted; 113,074 tensors take 12 MB."""

ABSENT = object()
"""Stands for a ``total_size`` that is not there, since ``null`` is a value."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an index claims.

    Attributes:
        name: The index file, relative to the checkpoint.
        weight_map: Tensor name to shard file, each a safe relative path.
        total_size: ``metadata.total_size`` as stored, of any type; `ABSENT` when it is not there.
        shards: The shard files named, sorted.
        duplicates: Keys that stand twice, in the order found.
    """

    name: str
    weight_map: Mapping[str, str]
    total_size: object
    shards: tuple[str, ...]
    duplicates: tuple[str, ...]


def parse_index(raw: bytes, *, name: str) -> Index:
    """Parse an index file.

    Raises:
        IndexFileError: It is not strict JSON, has no ``weight_map`` of strings, or names a file that is not a
            ``.safetensors`` below the checkpoint.
    """
    try:
        parsed = parse_object(raw)
    except StrictJSONError as error:
        raise IndexFileError(f"{name}: the index is {error}; write it again from the headers") from error
    weight_map = parsed.value.get("weight_map")
    if not isinstance(weight_map, dict):
        raise IndexFileError(f"{name}: weight_map is not an object; this is not a shard index")
    shards = _check_shard_names(weight_map, name)
    metadata = parsed.value.get("metadata")
    total_size = metadata.get("total_size", ABSENT) if isinstance(metadata, dict) else ABSENT
    return Index(name, weight_map, total_size, shards, parsed.duplicates)


def _check_shard_names(weight_map: Mapping[str, Any], index: str) -> tuple[str, ...]:
    """Return the shards that an index names, sorted, or refuse it when one of them is not a safe name."""
    try:
        named: Iterable[Any] = set(weight_map.values())
    except TypeError:  # a list or an object cannot be in a set
        named = weight_map.values()
    for value in named:
        if fault := unsafe_shard_name(value):
            tensor = next(key for key, other in weight_map.items() if other == value)
            raise IndexFileError(f"{index}: {tensor} is mapped to {repr(value)[:80]}, {fault}; nothing was read")
    return tuple(sorted(named))


def unsafe_shard_name(value: object) -> str | None:
    """Say why a value of ``weight_map`` must not be followed, or ``None`` when it may.

    Allowed is a relative path below the checkpoint, sub-folders included, to a ``.safetensors`` file.
    """
    if not isinstance(value, str):
        return "which is not a string"
    if not value.endswith(SHARD_SUFFIX) or value.endswith("/" + SHARD_SUFFIX) or value == SHARD_SUFFIX:
        return "which is not the name of a .safetensors file"
    if "\\" in value or "\0" in value or ":" in value:
        return "which has a backslash, a NUL or a scheme in it"
    if any(segment in ("", ".", "..") for segment in value.split("/")):
        return "which is not a path below the checkpoint"
    return None
