# SPDX-License-Identifier: AGPL-3.0-only
"""Checkpoints whose small tensors hold values: healthy ones, unless told otherwise.

Shards are holes until something is written into them, so that a full-size one still takes no disk.
"""

from __future__ import annotations

import json
import math
import re
import struct
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from checkpoints import TEXT, TINY_EXPERTS, Kind, tiny
from whole_model import whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from checkpoints import Tensors

MULTIPLIERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
SCALARS = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale", "k_scale", "v_scale")
EXPERT = re.compile(r"\.experts\.\d+\.")
HELPERS = (".A_log", ".dt_bias", "_base", "_scale", ".e_score_correction_bias")
PER_LAYER = [(layer, expert) for layer in (3, 4, 5) for expert in range(TINY_EXPERTS)]
"""Every routed expert of the tiny model."""


class Place(NamedTuple):
    """Where a tensor lies: the bytes [start, stop) of a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def nvfp4(*, scale: str = "weight_scale_2", activations: str | None = None) -> Tensors:
    """Return the whole tiny model with its routed experts in NVFP4.

    Args:
        scale: The suffix of the global scale, ModelOpt's or that of compressed-tensors.
        activations: The suffix of a scale of activations; ``None`` for none.
    """
    packed = scale == "weight_global_scale"
    tensors = {name: kind for name, kind in whole().items() if ".mlp.experts." not in name}
    for name, kind in tiny().items():
        if ".mlp.experts." not in name:
            continue
        module, _, suffix = name.rpartition(".")
        if suffix == "weight_scale_2":
            tensors[f"{module}.{scale}"] = Kind("F32", (1,) if packed else ())
        else:
            tensors[f"{module}.weight_packed" if packed and suffix == "weight" else name] = kind
        if activations and suffix == "weight":
            tensors[f"{module}.{activations}"] = Kind("F32", (1,) if packed else ())
    return tensors


def expert(layer: int, number: int, projection: str, suffix: str) -> str:
    """Return the name of a tensor of a routed expert."""
    return f"{TEXT}layers.{layer}.mlp.experts.{number}.{projection}.{suffix}"


def places(folder: Path) -> dict[str, Place]:
    """Return where every tensor of a checkpoint lies."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = (8 + length + offset for offset in entry["data_offsets"])
                found[name] = Place(path, entry["dtype"], tuple(entry["shape"]), start, stop)
    return found


def healthy(name: str, dtype: str, shape: tuple[int, ...]) -> bytes | None:
    """Return values that no check objects to; ``None`` for a tensor that is not small."""
    suffix = name.rpartition(".")[2]
    if suffix in MULTIPLIERS:
        return MULTIPLIERS[suffix].to_bytes(4, "little")
    if suffix in SCALARS:
        return struct.pack("<f", 0.0123)
    if suffix in ("weight_scale", "weight_scale_inv"):
        if (
            ".experts." in name
            and math.prod(shape) > 4096
            and not {".experts.0.", ".experts.80."} & {*EXPERT.findall(name)}
        ):
            return None  # of gigabytes in a full checkpoint two are sampled, of these experts
        return b"\x38" * math.prod(shape) if dtype.startswith("F8") else encoded(dtype, ramp(shape))
    if "norm" in name and len(shape) == 1 and not name.startswith("model.visual."):
        return encoded(dtype, ramp(shape))
    return encoded(dtype, ramp(shape)) if name.endswith(HELPERS) and dtype in ("F32", "BF16") else None


def ramp(shape: tuple[int, ...]) -> object:
    """Return ascending numbers around 1, no two alike; next to none of them fits BF16."""
    return np.linspace(0.51, 1.49, math.prod(shape), dtype=np.float32)


def encoded(dtype: str, values: object) -> bytes:
    """Write numbers as F32, as BF16 (cut off, not rounded), or as integers of 64 bits."""
    if dtype == "I64":
        return np.asarray(values, "<i8").tobytes()
    words = np.asarray(values, "<f4")
    return (words.view("<u4") >> 16).astype("<u2").tobytes() if dtype == "BF16" else words.tobytes()


def fill(folder: Path, values: Mapping[str, object] | None = None, *, healthily: bool = True) -> Path:
    """Write values into small tensors of a checkpoint.

    Args:
        folder: Where it is.
        values: For some tensors: bytes, or numbers.
        healthily: Whether all others get healthy ones; else they stay the holes that they are.
    """
    given = dict(values or {})
    found = places(folder)
    assert given.keys() <= found.keys()
    for path, members in groupby(found.items(), key=lambda entry: entry[1].path):
        with path.open("r+b") as file:
            for name, place in members:
                wanted = given.get(name)
                if wanted is None:
                    raw = healthy(name, place.dtype, place.shape) if healthily else None
                else:
                    raw = wanted if isinstance(wanted, bytes) else encoded(place.dtype, wanted)
                if raw is not None:
                    assert len(raw) == place.stop - place.start, name
                    file.seek(place.start)
                    file.write(raw)
    return folder
