# SPDX-License-Identifier: AGPL-3.0-only
"""Which small tensors are worth their bytes: scales, norms, helpers of the mixers and routers, markers.

Everything is found by what the module table expects, under the names that are stored. A tensor whose shape or dtype is
not what it should be is another check's finding, and is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeVar

from glm5inspect.binding import name_of
from glm5inspect.encodings import RANK
from glm5inspect.header import DTYPE_BITS
from glm5inspect.roles import TensorRole, classify, is_cache_scale, is_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from glm5inspect.binding import Binding, Bound
    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Inventory
    from glm5inspect.modules import Expected

K = TypeVar("K")

GLOBAL_SCALES = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")
"""Suffixes of scales that a module has one of; those called *global* are stored as their reciprocals."""

RECIPROCALS = frozenset({"weight_global_scale", "input_global_scale"})

_BLOCK_SCALES = frozenset({"weight_scale", "weight_scale_inv"})
_MARKERS = frozenset({"mcg", "mul1"})
_SCALE_DTYPES = frozenset({"F32", "BF16", "F16", "F8_E4M3", "F8_E8M0"})
_HELPER_DTYPES = frozenset({"F32", "BF16", "F16"})

MOST_BYTES = 16 << 20
"""Of all tensors together, block scales apart: eight times those of the release; nothing grows without bound."""

BLOCK_SCALE_BYTES = 1 << 20
"""Of all block scales together: two modules of NVFP4, or hundreds of block FP8."""


@dataclass(eq=False, slots=True)
class Wanted:
    """A tensor to read; compared by identity, since there are tens of thousands.

    Attributes:
        topic: What it is read for: ``scale``, ``block-scale``, ``norm``, ``helper``, ``marker`` or ``weight-shape``.
        kind: The kind of tensor, as reported: its name in the module table, with the suffix of a module.
        suffix: After the path of its module, without the rank of a slice; empty for a tensor of its own.
        layer: 0-based, ``None`` outside the layers.
        expert: Its number, ``None`` outside the experts.
        logical: The shape of its module, or of itself, in elements.
        dtype: What its bytes are to be read as; bytes that are exponents are ``F8_E8M0`` here.
        tensor: Where it lies.
    """

    topic: str
    kind: str
    suffix: str
    layer: int | None
    expert: int | None
    logical: tuple[int, ...]
    dtype: str
    tensor: TensorRecord

    @property
    def shard(self) -> str:
        """The file that holds it."""
        return self.tensor.shard or ""


def select(inventory: Inventory, expected: Iterable[Expected], binding: Binding) -> list[Wanted]:
    """Return what there is to read; `affordable` says how much of it is.

    Args:
        inventory: What is stored.
        expected: The module table, in the names stored.
        binding: What of it was found.
    """
    found = [wanted for bound in binding.modules for wanted in _of_module(inventory, bound)]
    found += [wanted for row in expected for wanted in _of_tensor(inventory, row)]
    for group in inventory.groups:
        if is_cache_scale(group.pattern) and group.dtype in _SCALE_DTYPES and prod(group.shape) == 1:
            suffix = group.pattern.rpartition(".")[2]
            kind = f"self_attn.{suffix}"
            found += [Wanted("scale", kind, suffix, group.layer, None, (), t.dtype, t) for t in group.tensors]
    return found


def affordable(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Return what may be read, whatever the requests: everything but most block scales, unless that is a lot."""
    blocks = [tensor for tensor in wanted if tensor.topic == "block-scale"]
    others = [tensor for tensor in wanted if tensor.topic != "block-scale"]
    if sum(tensor.tensor.nbytes for tensor in others) > MOST_BYTES:
        others = list(_within(spread(others), MOST_BYTES))
    return [*others, *_within(spread(blocks, together=False), BLOCK_SCALE_BYTES)]


def spread(wanted: Iterable[Wanted], *, together: bool = True) -> list[Wanted]:
    """Order tensors so that any first part of them is spread evenly over the layers, and in a layer over its experts.

    Layers begin with different experts.

    Args:
        wanted: In any order.
        together: Whether what one expert has stays together, so that scales can be compared with each other.
    """
    layers: dict[int | None, dict[object, list[Wanted]]] = {}
    for tensor in wanted:
        unit = tensor.expert if together else (tensor.expert, tensor.kind)
        layers.setdefault(tensor.layer, {}).setdefault(unit, []).append(tensor)
    queues = []
    for number, units in enumerate(layers.values()):
        scattered = _scattered(list(units.values()))
        first = number % len(scattered)
        queues.append(scattered[first:] + scattered[:first])
    order = _scattered(queues)
    longest = max(map(len, order), default=0)
    return [tensor for turn in range(longest) for queue in order if turn < len(queue) for tensor in queue[turn]]


def _scattered(items: list[K]) -> list[K]:
    """Order items so that any first few lie far apart: halves first, then quarters, as the bits of their places say."""
    bits = max(len(items) - 1, 0).bit_length()
    places = (int(f"{place:0{bits}b}"[::-1], 2) if bits else 0 for place in range(1 << bits))
    return [items[place] for place in places if place < len(items)]


def _within(wanted: Iterable[Wanted], nbytes: int) -> Iterator[Wanted]:
    """Yield what fits into a number of bytes; one that does not is passed over."""
    for tensor in wanted:
        if tensor.tensor.nbytes <= nbytes:
            nbytes -= tensor.tensor.nbytes
            yield tensor


def _of_module(inventory: Inventory, bound: Bound) -> Iterator[Wanted]:
    """Yield the scales and markers of modules that are stored alike."""
    for stored, part in bound.parts.items():
        suffix = stored.partition(".")[2] if stored.startswith(RANK) else stored
        topic = _topic(suffix, part.dtype, prod(part.shape))
        if topic is None:
            continue
        row, layer = bound.expected, bound.module.layer
        kind, dtype = f"{row.row.name}.{suffix}", "F8_E8M0" if part.dtype == "U8" else part.dtype
        for expert in bound.module.experts or (None,):
            path = bound.module.path if expert is None else bound.module.path.replace(".E.", f".{expert}.", 1)
            tensor = inventory.tensors.get(f"{path}.{stored}")
            if tensor is not None and _is_whole(tensor):
                yield Wanted(topic, kind, suffix, layer, expert, row.shape, dtype, tensor)


def _topic(suffix: str, dtype: str, elements: int) -> str | None:
    if suffix in _MARKERS:
        return "marker" if (dtype, elements) == ("I32", 1) else None
    if suffix == "weight_shape":
        return "weight-shape" if (dtype, elements) == ("I64", 2) else None
    if suffix in GLOBAL_SCALES:
        return "scale" if elements == 1 and dtype in _SCALE_DTYPES else None
    if suffix not in _BLOCK_SCALES or dtype not in (*_SCALE_DTYPES, "U8"):
        return None
    return "scale" if elements == 1 else "block-scale"


def _of_tensor(inventory: Inventory, row: Expected) -> Iterator[Wanted]:
    """Yield a norm or a helper of a mixer, a router or a hyper-connection."""
    if row.row.kind != "tensor":
        return
    role = classify(row.released)
    is_of_norms = role is not None and role is not TensorRole.VISION and is_norm(role)
    if not (is_of_norms or row.row.wide):
        return
    tensor = inventory.tensors.get(name_of(row))
    if tensor is not None and tensor.shape == row.shape and tensor.dtype in _HELPER_DTYPES and _is_whole(tensor):
        topic = "norm" if is_of_norms else "helper"
        yield Wanted(topic, row.row.name, "", row.layer, None, row.shape, tensor.dtype, tensor)


def _is_whole(tensor: TensorRecord) -> bool:
    """Tell whether a tensor has the bytes that dtype and shape need; another one has its own finding."""
    return tensor.nbytes * 8 == prod(tensor.shape) * DTYPE_BITS[tensor.dtype]
