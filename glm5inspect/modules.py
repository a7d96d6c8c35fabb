# SPDX-License-Identifier: AGPL-3.0-only
"""The module table: everything that a checkpoint of this architecture must hold, in the released names.

A row names a module or a tensor and spells its logical shape in fields of the config, never in numbers. Rows follow the
class ``Glm5NextForConditionalGeneration``; those of a DSA block are `glm5inspect.dsa_block.BLOCK`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.dsa_block import BLOCK
from glm5inspect.roles import layer_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5inspect.architecture import Architecture
    from glm5inspect.encodings import Shape

LAYER = layer_prefix("N")
"""What the pattern of everything in a layer begins with."""

EMBEDDING = "model.language_model.embed_tokens"
LM_HEAD = "lm_head"
VISION = "model.visual."


class Row(NamedTuple):
    """A module or a tensor of the table.

    Attributes:
        name: Relative to the layer, or to its part of the model. A module's has no suffix: its weight may be stored in
            any encoding; a tensor's is the whole name.
        dimensions: Attributes of the architecture or its geometry, outermost first: (out, in) for a projection.
        kind: ``linear`` and ``module`` may be encoded, of which only the former is what quantization configs mean by
            *Linear*; ``tensor`` is always plain.
        wide: Whether the reference keeps it in F32.
    """

    name: str
    dimensions: tuple[str | int, ...]
    kind: str = "linear"
    wide: bool = False


class Expected(NamedTuple):
    """What one layer, or the model outside the layers, must hold: one module, or one for every routed expert.

    Attributes:
        check: The check that misses it.
        part: What its bytes are counted with.
        path: Census pattern: ``N`` for the layer, ``E`` for the expert.
        layer: ``None`` outside the layers.
        shape: Logical shape in elements.
        row: The row of the table.
        experts: How many there are, numbered from 0; ``None`` for a single one.
        optional: Whether it may be absent.
        renamed: The released path, where `path` is that of another dialect.
        origins: The paths of all rows that it stands for there.
    """

    check: str
    part: str
    path: str
    layer: int | None
    shape: Shape
    row: Row
    experts: int | None = None
    optional: bool = False
    renamed: str | None = None
    origins: tuple[str, ...] = ()

    @property
    def released(self) -> str:
        """The path in the released names."""
        return self.path if self.renamed is None else self.renamed


def _tensors(*rows: tuple[str, tuple[str | int, ...]], wide: bool = False) -> tuple[Row, ...]:
    return tuple(Row(name, dimensions, "tensor", wide) for name, dimensions in rows)


NORMS = _tensors(("input_layernorm.weight", ("hidden_size",)), ("post_attention_layernorm.weight", ("hidden_size",)))
HYPER = tuple(
    row
    for side in ("attn", "ffn")
    for row in (
        Row(f"hc_{side}_fn", ("hyper_rows", "hyper_width"), "tensor"),
        Row(f"hc_{side}_base", ("hyper_rows",), "tensor", wide=True),
        Row(f"hc_{side}_scale", (3,), "tensor", wide=True),
    )
)
KDA = (
    *(Row(f"self_attn.{letter}_proj", ("kda_width", "hidden_size")) for letter in "qkv"),
    Row("self_attn.b_proj", ("kda_heads", "hidden_size")),
    *(Row(f"self_attn.{letter}_a_proj", ("kda_head_dim", "hidden_size")) for letter in "fg"),
    *(Row(f"self_attn.{letter}_b_proj", ("kda_width", "kda_head_dim")) for letter in "fg"),
    *_tensors(*((f"self_attn.{letter}_conv1d.weight", ("kda_width", 1, "conv_kernel")) for letter in "qkv")),
    *_tensors(("self_attn.A_log", ("kda_heads",)), ("self_attn.dt_bias", ("kda_width",)), wide=True),
    *_tensors(("self_attn.o_norm.weight", ("kda_head_dim",))),
    Row("self_attn.o_proj", ("hidden_size", "kda_width")),
)
DSA = tuple(
    Row(row.name.removesuffix(".weight"), row.dimensions)
    if row.name.endswith(".weight") and len(row.dimensions) == 2  # noqa: PLR2004 - a matrix
    else Row(row.name, row.dimensions, "tensor")
    for row in BLOCK
)


def _gated(prefix: str, inner: str) -> tuple[Row, ...]:
    """Return the three projections of a gated feed-forward part."""
    return (
        Row(f"{prefix}gate_proj", (inner, "hidden_size")),
        Row(f"{prefix}up_proj", (inner, "hidden_size")),
        Row(f"{prefix}down_proj", ("hidden_size", inner)),
    )


DENSE = _gated("mlp.", "intermediate_size")
EXPERTS = _gated("mlp.experts.E.", "moe_intermediate_size")
SHARED = _gated("mlp.shared_experts.", "shared_size")
ROUTER = (
    Row("mlp.gate", ("n_routed_experts", "hidden_size"), "module"),
    *_tensors(("mlp.gate.e_score_correction_bias", ("n_routed_experts",)), wide=True),
)
MTP = (
    Row("eh_proj", ("hidden_size", "double_hidden")),
    *_tensors(*((f"{name}.weight", ("hidden_size",)) for name in ("enorm", "hnorm", "shared_head.norm"))),
)
MTP_COPIES = (
    Row("embed_tokens", ("vocab_size", "hidden_size"), "module"),
    Row("shared_head.head", ("vocab_size", "hidden_size"), "module"),
)
"""Copies of embedding and head that some builds put into the MTP layer."""

_VISION_BLOCK = (
    *_tensors(("norm1.weight", ("hidden_size",)), ("norm2.weight", ("hidden_size",))),
    *_tensors(("attn.q_norm.weight", ("head_dim",)), ("attn.k_norm.weight", ("head_dim",))),
    Row("attn.qkv", ("qkv_dim", "hidden_size")),
    Row("attn.proj", ("hidden_size", "hidden_size")),
    *_tensors(("attn.qkv.bias", ("qkv_dim",)), ("attn.proj.bias", ("hidden_size",))),
    Row("mlp.gate_proj", ("intermediate_size", "hidden_size")),
    Row("mlp.up_proj", ("intermediate_size", "hidden_size")),
    Row("mlp.down_proj", ("hidden_size", "intermediate_size")),
    *_tensors(("mlp.gate_proj.bias", ("intermediate_size",)), ("mlp.up_proj.bias", ("intermediate_size",))),
    *_tensors(("mlp.down_proj.bias", ("hidden_size",))),
)
_VISION_ENDS = (
    *_tensors(
        ("patch_embed.proj.weight", ("hidden_size", "in_channels", "temporal_patch_size", "patch_size", "patch_size")),
        ("patch_embed.proj.bias", ("hidden_size",)),
        ("post_layernorm.weight", ("hidden_size",)),
        ("downsample.weight", ("out_hidden_size", "hidden_size", "spatial_merge_size", "spatial_merge_size")),
        ("downsample.bias", ("out_hidden_size",)),
    ),
    Row("merger.proj", ("out_hidden_size", "out_hidden_size")),
    *_tensors(
        ("merger.post_projection_norm.weight", ("out_hidden_size",)),
        ("merger.post_projection_norm.bias", ("out_hidden_size",)),
    ),
    Row("merger.gate_proj", ("projection_intermediate_size", "out_hidden_size")),
    Row("merger.up_proj", ("projection_intermediate_size", "out_hidden_size")),
    Row("merger.down_proj", ("out_hidden_size", "projection_intermediate_size")),
)


def expected_modules(model: Architecture, mtp_layers: frozenset[int], *, draft: bool = False) -> Iterator[Expected]:
    """Yield everything that must be stored, in the order of the model.

    Args:
        model: What the config says.
        mtp_layers: Where multi-token prediction is to be, by the config and by the names stored.
        draft: Whether only the MTP layers are here: then the trunk, the final norm and the vision tower are not
            expected, and embedding and head may be absent.
    """
    for name, row in (
        ("embed", Row(EMBEDDING, ("vocab_size", "hidden_size"), "module")),
        ("embed", Row(LM_HEAD, ("vocab_size", "hidden_size"))),
        ("norms", Row("model.language_model.norm.weight", ("hidden_size",), "tensor")),
    ):
        may_lack = draft or (row.name == LM_HEAD and model.tied)
        part = "norms" if name == "norms" else "embeddings"
        yield Expected(name, part, row.name, None, _shape(row, model), row, None, may_lack)
    for layer in () if draft else range(model.num_hidden_layers):
        if layer not in mtp_layers:
            yield from _trunk_layer(model, layer)
    for layer in sorted(mtp_layers):
        yield from _mtp_layer(model, layer)
    if model.vision and not draft:
        yield from _vision(model)


def _trunk_layer(model: Architecture, layer: int) -> Iterator[Expected]:
    yield from _rows("norms", "norms", NORMS, model, layer)
    yield from _rows("hyper", "mHC", HYPER, model, layer)
    mixer, rows = ("DSA", DSA) if layer in model.dsa_layers else ("KDA", KDA)
    yield from _rows(mixer.lower(), mixer, rows, model, layer)
    if layer < model.first_k_dense_replace:
        yield from _rows("ffn", "dense FFN", DENSE, model, layer)
    else:
        yield from _moe(model, layer)


def _moe(model: Architecture, layer: int, part: str | None = None) -> Iterator[Expected]:
    experts = model.experts_of(layer)
    for row in ROUTER:
        shape = (experts, *_shape(row, model)[1:])
        yield Expected("moe", part or "router", LAYER + row.name, layer, shape, row)
    for row in EXPERTS:
        yield Expected("moe", part or "routed experts", LAYER + row.name, layer, _shape(row, model), row, experts)
    if model.n_shared_experts:
        yield from _rows("moe", part or "shared experts", SHARED, model, layer)


def _mtp_layer(model: Architecture, layer: int) -> Iterator[Expected]:
    yield from _rows("mtp", "MTP", MTP, model, layer)
    yield from _rows("norms", "MTP", NORMS, model, layer)
    yield from _rows("dsa", "MTP", DSA, model, layer)
    yield from _moe(model, layer, "MTP")
    for expected in _rows("mtp", "MTP", MTP_COPIES, model, layer):
        yield expected._replace(optional=True)


def _vision(model: Architecture) -> Iterator[Expected]:
    tower = model.vision
    for block in range(tower.depth if tower else 0):
        for row in _VISION_BLOCK:
            path = f"{VISION}blocks.{block}.{row.name}"
            yield Expected("vision", "vision", path, None, _shape(row, tower), row)
    for row in _VISION_ENDS:
        yield Expected("vision", "vision", VISION + row.name, None, _shape(row, tower), row)


def _rows(check: str, part: str, rows: tuple[Row, ...], model: Architecture, layer: int) -> Iterator[Expected]:
    for row in rows:
        yield Expected(check, part, LAYER + row.name, layer, _shape(row, model), row)


def _shape(row: Row, sizes: object) -> Shape:
    """Return the shape of a row: a dimension is a number, or an attribute of the sizes or of their geometry."""
    geometry = getattr(sizes, "geometry", None)
    return tuple(
        d if isinstance(d, int) else getattr(sizes if hasattr(sizes, d) else geometry, d) for d in row.dimensions
    )
