# SPDX-License-Identifier: AGPL-3.0-only
"""How each part of a checkpoint is stored, in bytes and bits per parameter: what one compares before a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.report import Finding, layers_named, ranges
from glm5inspect.roles import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5inspect.binding import Binding, Bound
    from glm5inspect.modules import Expected

PARTS = (
    "routed experts",
    "shared experts",
    "router",
    "dense FFN",
    "KDA",
    "DSA",
    "mHC",
    "norms",
    "embeddings",
    "vision",
    "MTP",
)
"""The parts of the model, in the order of the summary; ``o_proj`` is counted with its mixer, layer 45 is MTP."""


@dataclass(frozen=True, slots=True)
class EncodingRow:
    """What of one part is stored in one encoding.

    Attributes:
        part: One of `PARTS`.
        encoding: With width and group; a plain one with its dtype.
        layers: As ranges, ``None`` outside the layers.
        modules: Modules, and tensors of their own.
        bytes: Stored.
        parameters: Logical elements.
        bits_per_parameter: Bits stored for each of them.
    """

    part: str
    encoding: str
    layers: str | None
    modules: int
    bytes: int
    parameters: int
    bits_per_parameter: float


def encodings_by_part(binding: Binding, *, by_role: bool = False) -> Iterator[EncodingRow]:
    """Yield how each part is stored: one row for each encoding of it, the largest first.

    Args:
        binding: What was found of the module table.
        by_role: Whether to tell apart by role instead, as the classifier names them.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    layers: dict[tuple[str, str], set[int]] = {}
    for row, part, encoding, layer, number, nbytes, parameters in _pieces(binding):
        if by_role:
            suffix = "" if row.row.kind == "tensor" else ".weight"
            role = classify(row.released + suffix)
            part = role.value if role else "unknown"  # noqa: PLW2901 - the other way to name it
        total = totals.setdefault((part, encoding), [0, 0, 0])
        for place, more in enumerate((number, nbytes, parameters)):
            total[place] += more
        if layer is not None:
            layers.setdefault((part, encoding), set()).add(layer)
    for (part, encoding), (number, nbytes, parameters) in sorted(
        totals.items(), key=lambda entry: (_place(entry[0][0]), -entry[1][1], entry[0][1])
    ):
        where = ranges(layers.get((part, encoding), ())) or None
        bits = bits_per_parameter(nbytes, parameters) or 0.0
        yield EncodingRow(part, encoding, where, number, nbytes, parameters, bits)


def _place(part: str) -> tuple[int, str]:
    return (PARTS.index(part) if part in PARTS else len(PARTS), part)


def bits_per_parameter(nbytes: int, parameters: int) -> float | None:
    """Return how many bits are stored for a parameter, to three places; ``None`` for no parameter."""
    return round(8 * nbytes / parameters, 3) if parameters else None


def _pieces(binding: Binding) -> Iterator[tuple[Expected, str, str, int | None, int, int, int]]:
    """Yield row, part, encoding, layer, number, bytes and parameters of everything found."""
    for bound in binding.modules:
        module = bound.module
        numbers = (module.count, module.bytes, module.parameters)
        yield bound.expected, module.part, encoding_of(bound), module.layer, *numbers
    for tensor in binding.tensors:
        row = tensor.expected
        yield row, row.part, f"plain {tensor.dtype}", row.layer, 1, tensor.bytes, tensor.parameters


def encoding_of(bound: Bound) -> str:
    """Return the encoding of a module as it is reported: a plain one with its dtype."""
    name = bound.module.reading.name
    weight = bound.parts.get("weight")
    return f"{name} {weight.dtype}" if name == "plain" and weight else name


def mixed_encodings(modules: Iterable[Bound]) -> Iterator[Finding]:
    """Note roles whose modules are stored in several encodings, with the layers of each."""
    roles: dict[str, dict[str, set[int]]] = {}
    for bound in modules:
        if bound.expected.row.kind == "linear" and bound.module.layer is not None and not bound.module.reading.flaws:
            encodings = roles.setdefault(_role(bound), {})
            encodings.setdefault(bound.module.reading.name, set()).add(bound.module.layer)
    for role, encodings in sorted(roles.items()):
        if len(encodings) > 1:
            told = [f"{name} in {layers_named(layers)}" for name, layers in sorted(encodings.items())]
            yield Finding(Code.ENCODING_MIXED, f"{role}: {'; '.join(told)}", actual=sorted(encodings), count=len(told))  # type: ignore[arg-type]


def _role(bound: Bound) -> str:
    """Name the kind of module that others of its kind should be stored like."""
    name = bound.expected.row.name
    for beginning, role in _ROLES:
        if name.startswith(beginning):
            return role
    return f"{bound.expected.check.upper()} {name.rpartition('.')[2]}"


_ROLES = (
    ("mlp.experts.", "routed experts"),
    ("mlp.shared_experts.", "shared experts"),
    ("mlp.", "dense FFN"),
    ("self_attn.indexer.", "indexer"),
)
