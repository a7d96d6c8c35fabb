# SPDX-License-Identifier: AGPL-3.0-only
"""How a config says that weights are stored, in terms of the encodings that `glm5inspect.encodings` reads."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5inspect.stored import StoredModule

Block = tuple[int, int]
"""Rows and columns that share a scale."""


class Activations(Enum):
    """What a config says about the activations of modules, as far as tensors tell of it."""

    SCALED = "quantized with stored scales"
    PLAIN = "not quantized"
    UNTOLD = "nothing that needs or excludes a tensor"


class Scheme(NamedTuple):
    """One way to store a weight, as declared.

    Attributes:
        name: As the config calls it, with its width and block.
        encodings: The names of the encodings that it may be; empty when this is not known, so that any will do.
        bits: Of a value; 0 when not said.
        block: Rows and columns that share a scale of block FP8; ``None`` when not said.
        group: Columns that share a scale; 0 when not said.
        activations: See there.
        marker: A tensor that each module must have, or nothing.
    """

    name: str
    encodings: frozenset[str] = frozenset()
    bits: int = 0
    block: Block | None = None
    group: int = 0
    activations: Activations = Activations.UNTOLD
    marker: str = ""

    def fits(self, module: StoredModule) -> bool:
        """Tell whether a quantized module is stored like this."""
        encoding, layout = module.reading.encoding.name, module.reading.layout
        if self.encodings and encoding not in self.encodings:
            return False
        block = (layout.rows, layout.group)
        return (
            not (self.bits and layout.bits and self.bits != layout.bits)
            and not (self.block and encoding == "fp8-block" and self.block != block)
            and not (self.group and layout.group and self.group != layout.group)
            and (not self.marker or self.marker in module.suffixes)
        )

    def agrees(self, other: Scheme) -> bool:
        """Tell whether one module can be stored as both say."""
        return (
            (not self.encodings or not other.encodings or bool(self.encodings & other.encodings))
            and not (self.bits and other.bits and self.bits != other.bits)
            and not (self.block and other.block and self.block != other.block)
            and not (self.group and other.group and self.group != other.group)
        )


_FP8 = ("fp8-tensor", "fp8-channel", "fp8-block", "mxfp8")
_NARROW_BLOCK = (1, 32)

_ALGORITHMS: dict[str, tuple[tuple[str, ...], Activations]] = {
    "NVFP4": (("nvfp4-modelopt",), Activations.SCALED),
    "NVFP4_AWQ": (("nvfp4-modelopt",), Activations.SCALED),
    "W4A16_NVFP4": (("nvfp4-modelopt",), Activations.PLAIN),
    "FP8": (("fp8-tensor",), Activations.SCALED),
    "FP8_PER_CHANNEL_PER_TOKEN": (("fp8-channel",), Activations.UNTOLD),
    "FP8_PB_WO": (("fp8-block",), Activations.UNTOLD),
    "FP8_BLOCK_SCALES": (("fp8-block",), Activations.UNTOLD),
    "MXFP8": (("mxfp8", "fp8-block"), Activations.UNTOLD),
    "MXFP4": (("mxfp4",), Activations.UNTOLD),
    "W4A16_MXFP4": (("mxfp4",), Activations.PLAIN),
    "W4A8_MXFP4_FP8": (("mxfp4",), Activations.UNTOLD),
}
"""What ModelOpt calls an algorithm: the encodings it writes, and what it says about activations."""

PLAIN_ALGORITHMS = frozenset({"UNQUANTIZED", "NO_QUANT", "NONE", "BF16", "FP16"})
"""What ModelOpt calls a module that is left as it is."""


def by_algorithm(algorithm: str, group: int) -> Scheme:
    """Return what ModelOpt means by the name of an algorithm; one that is not known may be anything."""
    encodings, activations = _ALGORITHMS.get(algorithm, ((), Activations.UNTOLD))
    blocks = "fp8-block" in encodings and "mxfp8" not in encodings
    return Scheme(
        f"{algorithm} g{group}" if group and encodings and not blocks else algorithm,
        frozenset(encodings),
        block=(group, group) if blocks and group > 0 else None,
        group=0 if blocks else max(group, 0),
        activations=activations,
    )


def by_arguments(weights: Mapping[str, object], inputs: object, *, packed: bool) -> Scheme:
    """Return what a group of ``config_groups`` says about its weights.

    Args:
        weights: Its ``weights``.
        inputs: Its ``input_activations``; ``None`` says that activations are not quantized.
        packed: Whether compressed-tensors wrote the tensors, not ModelOpt.
    """
    kind, bits = word(weights.get("type")), integer(weights.get("num_bits"))
    group = max(integer(weights.get("group_size")), 0)
    block = block_of(weights.get("block_structure")) or block_of(weights.get("weight_block_size"))
    activations = _inputs(inputs)
    if algorithm := word(weights.get("quant_algo")):
        return by_algorithm(algorithm.upper(), group)._replace(activations=activations)
    encodings: tuple[str, ...] = ()
    if kind == "float" and bits == 4:  # noqa: PLR2004 - widths are what this is about
        encodings = ("mxfp4",) if group == 32 else ("nvfp4-packed",) if packed else ("nvfp4-modelopt",)  # noqa: PLR2004
    elif kind == "float" and bits == 8:  # noqa: PLR2004
        encodings = _fp8(word(weights.get("strategy")), group, block)
    elif kind == "int" and bits and packed:
        encodings = ("int-packed", "int8-channel") if bits == 8 else ("int-packed",)  # noqa: PLR2004
    return Scheme(
        _NAMES.get(encodings, f"{kind or 'unknown'} {bits}-bit") + _extent(group, block),
        frozenset(encodings),
        bits if kind == "int" else 0,
        block,
        0 if block else group,
        activations,
    )


_NAMES: dict[tuple[str, ...], str] = {
    ("nvfp4-modelopt",): "NVFP4",
    ("nvfp4-packed",): "NVFP4",
    ("mxfp4",): "MXFP4",
}


def fp8(block: Block | None, activations: Activations = Activations.UNTOLD) -> Scheme:
    """Return FP8 with one scale a block, or with one a tensor or row where there is no block."""
    encodings = _fp8("", 0, block) if block else ("fp8-tensor", "fp8-channel")
    return Scheme("FP8" + _extent(0, block), frozenset(encodings), block=block, activations=activations)


def integers(encodings: tuple[str, ...], bits: int, group: int, name: str = "") -> Scheme:
    """Return integers of some bits, with one scale a group of columns; no group where it is not positive."""
    group = max(group, 0)
    label = f"{name or 'int'} {bits}-bit{_extent(group, None)}" if bits else name
    return Scheme(label, frozenset(encodings), bits, group=group)


def _fp8(strategy: str, group: int, block: Block | None) -> tuple[str, ...]:
    if group == 32 or block == _NARROW_BLOCK:  # noqa: PLR2004
        return ("mxfp8", "fp8-block")
    if block or strategy == "block":
        return ("fp8-block",)
    return {"tensor": ("fp8-tensor",), "channel": ("fp8-channel",)}.get(strategy, _FP8)


def _extent(group: int, block: Block | None) -> str:
    return f" {block[0]}x{block[1]}" if block else f" g{group}" if group else ""


def _inputs(inputs: object) -> Activations:
    """Return what ``input_activations`` says: only scales that are not found at run time are stored."""
    if inputs is None:
        return Activations.PLAIN
    dynamic = inputs.get("dynamic", False) if isinstance(inputs, dict) else True
    return Activations.SCALED if dynamic in (False, "local") else Activations.UNTOLD


def word(value: object) -> str:
    """Return a word of a config that is a string, not more than a line of it, else nothing."""
    return value[:80] if isinstance(value, str) else ""


def integer(value: object) -> int:
    """Return a number of a config that is an integer, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 32 else 0


def block_of(value: object) -> Block | None:
    """Return a block size of a config, ``[rows, columns]``, or ``None`` when it is none."""
    if isinstance(value, list) and len(value) == 2 and all(integer(n) > 0 for n in value):  # noqa: PLR2004 - rows, columns
        return (integer(value[0]), integer(value[1]))
    return None
