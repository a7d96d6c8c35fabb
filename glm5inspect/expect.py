# SPDX-License-Identifier: AGPL-3.0-only
"""What should be stored, as data, and the one comparison of that with what is.

A table row names a tensor and spells its shape in fields of the geometry, never in numbers: a change of geometry fails
here and not when a kernel is launched.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.header import needed_bits
from glm5inspect.report import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glm5inspect.catalogue import Code
    from glm5inspect.geometry import Geometry
    from glm5inspect.header import TensorRecord

    Hint = Callable[["Expected", "TensorRecord | None", Geometry], str | None]
    """Says, for a tensor that is not as expected, which known trap it fell into."""


_WIDENED = "Wider than the reference: nothing is lost, but it is not the tensor this contract describes."


class Expected(NamedTuple):
    """One tensor that a layer must have.

    Attributes:
        name: Relative to the layer.
        dimensions: Attributes of the geometry, outermost first: (out, in) for a projection.
        dtype: The only one accepted.
    """

    name: str
    dimensions: tuple[str, ...]
    dtype: str

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return the shape in elements."""
        return tuple(getattr(geometry, dimension) for dimension in self.dimensions)


class Verdicts(NamedTuple):
    """The codes that a comparison reports with."""

    missing: Code
    dtype: Code
    shape: Code
    bytes: Code


def compare(
    expected: Expected,
    name: str,
    layer: int,
    tensor: TensorRecord | None,
    geometry: Geometry,
    verdicts: Verdicts,
    hint: Hint,
) -> Iterator[Finding]:
    """Compare one expected tensor with the one stored, and report every difference.

    Args:
        expected: The row of the table.
        name: Full name of the tensor.
        layer: Its layer.
        tensor: What is stored, ``None`` when nothing is.
        geometry: What the shape follows from.
        verdicts: The codes to report with.
        hint: Names the trap behind a difference.
    """
    shape = expected.shape(geometry)
    if tensor is None:
        told, wanted = hint(expected, None, geometry), f"{expected.dtype} {list(shape)}"
        yield Finding(verdicts.missing, f"{name}: missing", hint=told, tensor=name, layer=layer, expected=wanted)
        return
    found = partial(Finding, tensor=name, layer=layer, shard=tensor.shard)
    if tensor.dtype != expected.dtype:
        message = f"{name}: dtype {tensor.dtype} instead of {expected.dtype}"
        told = _WIDENED if (tensor.dtype, expected.dtype) == ("F32", "BF16") else None
        yield found(verdicts.dtype, message, hint=told, expected=expected.dtype, actual=tensor.dtype)
    if tensor.shape != shape:
        message = f"{name}: shape {list(tensor.shape)} instead of {list(shape)}"
        told = hint(expected, tensor, geometry)
        yield found(verdicts.shape, message, hint=told, expected=list(shape), actual=list(tensor.shape))
    yield from compare_bytes(tensor, layer, verdicts.bytes)


def compare_bytes(tensor: TensorRecord, layer: int | None, code: Code) -> Iterator[Finding]:
    """Compare the bytes that a tensor is stored in with those that its dtype and shape need."""
    bits = needed_bits(tensor.dtype, tensor.shape)
    if bits is not None and bits != 8 * tensor.nbytes:
        need = -(-bits // 8)
        message = f"{tensor.name}: {tensor.nbytes:,} bytes stored, {tensor.dtype} {list(tensor.shape)} needs {need:,}"
        where = partial(Finding, tensor=tensor.name, layer=layer, shard=tensor.shard)
        yield where(code, message, expected=need, actual=tensor.nbytes)
