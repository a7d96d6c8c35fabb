# SPDX-License-Identifier: AGPL-3.0-only
"""A scaled-down checkpoint with every kind of module, each linear one stored in whatever way is asked for.

All shapes are written out here, for themselves. Inputs are multiples of 32 and outputs of 16, as the narrowest
encodings need it, and next to no matrix is square, so that a transposed one shows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from checkpoints import Kind, Tensors

from glm5inspect.header import TensorRecord
from glm5inspect.inventory import Inventory
from glm5inspect.report import SourceInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from glm5inspect.errors import SourceError
    from glm5inspect.inventory import Needs, Progress

CONFIG: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text",
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_attention_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 0,
        "v_head_dim": 24,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_kpool": 4,
        "index_topk": 16,
        "hc_mult": 4,
        "layer_types": ["linear_attention", "deepseek_sparse_attention"],
        "linear_attn_config": {
            "full_attn_layers": [1],
            "head_dim": 32,
            "num_heads": 16,
            "short_conv_kernel_size": 4,
        },
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 2,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 64,
        "projection_intermediate_size": 128,
    },
}
"""Layer 0 has KDA and a dense FFN, layer 1 DSA and experts, layer 2 is the MTP layer; all experts are four."""

TEXT = "model.language_model."
LAYERS = tuple(f"{TEXT}layers.{layer}." for layer in range(3))
VISION = "model.visual."
EXPERTS = 4

_DSA = {
    "self_attn.q_a_proj": (32, 64),
    "self_attn.q_b_proj": (80, 32),
    "self_attn.kv_a_proj_with_mqa": (32, 64),
    "self_attn.kv_b_proj": (176, 32),
    "self_attn.o_proj": (64, 96),
    "self_attn.indexer.wq_b": (256, 32),
    "self_attn.indexer.wk": (16, 64),
    "self_attn.indexer.weights_proj": (16, 64),
}
_GATED = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}
_MOE = {
    **{f"mlp.shared_experts.{name}": shape for name, shape in _GATED.items()},
    **{f"mlp.experts.{expert}.{name}": shape for expert in range(EXPERTS) for name, shape in _GATED.items()},
}
LINEAR: dict[str, tuple[int, int]] = {
    "lm_head": (160, 64),
    **{f"{LAYERS[0]}self_attn.{letter}_proj": (512, 64) for letter in "qkv"},
    f"{LAYERS[0]}self_attn.b_proj": (16, 64),
    **{f"{LAYERS[0]}self_attn.{letter}_a_proj": (32, 64) for letter in "fg"},
    **{f"{LAYERS[0]}self_attn.{letter}_b_proj": (512, 32) for letter in "fg"},
    f"{LAYERS[0]}self_attn.o_proj": (64, 512),
    f"{LAYERS[0]}mlp.gate_proj": (128, 64),
    f"{LAYERS[0]}mlp.up_proj": (128, 64),
    f"{LAYERS[0]}mlp.down_proj": (64, 128),
    **{LAYERS[1] + name: shape for name, shape in (_DSA | _MOE).items()},
    **{LAYERS[2] + name: shape for name, shape in (_DSA | _MOE).items()},
    f"{LAYERS[2]}eh_proj": (64, 128),
    f"{VISION}blocks.0.attn.qkv": (96, 32),
    f"{VISION}blocks.0.attn.proj": (32, 32),
    f"{VISION}blocks.0.mlp.gate_proj": (96, 32),
    f"{VISION}blocks.0.mlp.up_proj": (96, 32),
    f"{VISION}blocks.0.mlp.down_proj": (32, 96),
    f"{VISION}merger.proj": (64, 64),
    f"{VISION}merger.gate_proj": (128, 64),
    f"{VISION}merger.up_proj": (128, 64),
    f"{VISION}merger.down_proj": (64, 128),
}
"""Every module that may be quantized, with its logical shape (out, in)."""

EMBEDDING = f"{TEXT}embed_tokens"
ROUTERS = (f"{LAYERS[1]}mlp.gate", f"{LAYERS[2]}mlp.gate")
MODULES: dict[str, tuple[int, int]] = {**LINEAR, EMBEDDING: (160, 64), **dict.fromkeys(ROUTERS, (EXPERTS, 64))}
"""The same, with the embedding and the routers, which quantization configs do not speak of."""

HELPERS: dict[str, Kind] = {
    f"{LAYERS[0]}self_attn.A_log": Kind("F32", (16,)),
    f"{LAYERS[0]}self_attn.dt_bias": Kind("F32", (512,)),
    **{f"{router}.e_score_correction_bias": Kind("F32", (EXPERTS,)) for router in ROUTERS},
    **{
        f"{layer}hc_{side}_{name}": Kind("F32", (size,))
        for layer in LAYERS[:2]
        for side in ("attn", "ffn")
        for name, size in (("base", 24), ("scale", 3))
    },
}
"""What belongs in F32."""


def _bf16(prefixes: Iterable[str], **shapes: tuple[int, ...]) -> Tensors:
    return {prefix + name: Kind("BF16", shape) for prefix in prefixes for name, shape in shapes.items()}


SMALL: dict[str, Kind] = {
    **_bf16((TEXT,), **{"norm.weight": (64,)}),
    **_bf16(LAYERS, **{"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,)}),
    **_bf16(LAYERS[:2], hc_attn_fn=(24, 256), hc_ffn_fn=(24, 256)),
    **_bf16((f"{LAYERS[0]}self_attn.",), **{f"{letter}_conv1d.weight": (512, 1, 4) for letter in "qkv"}),
    **_bf16((f"{LAYERS[0]}self_attn.",), **{"o_norm.weight": (32,)}),
    **_bf16(
        (f"{layer}self_attn." for layer in LAYERS[1:]),
        **{
            "q_a_layernorm.weight": (32,),
            "kv_a_layernorm.weight": (32,),
            "indexer.k_norm.weight": (16,),
            "indexer.k_norm.bias": (16,),
            "indexer.index_kpool_compress_gate": (16, 64),
            "indexer.index_kpool_compress_ape": (4, 16),
        },
    ),
    **_bf16(LAYERS[2:], **{"enorm.weight": (64,), "hnorm.weight": (64,), "shared_head.norm.weight": (64,)}),
    **_bf16(
        (f"{VISION}blocks.0.",),
        **{
            "norm1.weight": (32,),
            "norm2.weight": (32,),
            "attn.q_norm.weight": (16,),
            "attn.k_norm.weight": (16,),
            "attn.qkv.bias": (96,),
            "attn.proj.bias": (32,),
            "mlp.gate_proj.bias": (96,),
            "mlp.up_proj.bias": (96,),
            "mlp.down_proj.bias": (32,),
        },
    ),
    **_bf16(
        (VISION,),
        **{
            "patch_embed.proj.weight": (32, 3, 2, 2, 2),
            "patch_embed.proj.bias": (32,),
            "post_layernorm.weight": (32,),
            "downsample.weight": (64, 32, 2, 2),
            "downsample.bias": (64,),
            "merger.post_projection_norm.weight": (64,),
            "merger.post_projection_norm.bias": (64,),
        },
    ),
}
"""What is always plain, and BF16 in the release."""


class Way(NamedTuple):
    """One way to store a weight.

    Attributes:
        name: What it is reported as.
        tensors: Its tensors by suffix, of a logical shape (out, in); the payload first.
        optional: The suffixes that it may lack.
        tile: The block size that a config has to declare for it.
    """

    name: str
    tensors: Callable[[int, int], dict[str, Kind]]
    optional: tuple[str, ...] = ()
    tile: tuple[int, int] | None = None


def fp8_block(rows: int, columns: int, *, scale: str = "weight_scale_inv", dtype: str = "F32") -> Way:
    """Store one scale a block; a block at an edge may be cut."""
    return Way(
        f"fp8-block {rows}x{columns}",
        lambda out, width: {
            "weight": Kind("F8_E4M3", (out, width)),
            scale: Kind(dtype, (math.ceil(out / rows), math.ceil(width / columns))),
        },
        tile=(rows, columns),
    )


def int_packed(bits: int, group: int, *, dtype: str = "BF16", extras: bool = False) -> Way:
    """Store integers as compressed-tensors packs them; ``extras`` are zero points and the order of groups."""
    more: Callable[[int, int], dict[str, Kind]] = lambda out, width: {  # noqa: E731 - like its siblings
        "weight_zero_point": Kind("I32", (out * bits // 32, width // group)),
        "weight_g_idx": Kind("I32", (width,)),
    }
    return Way(
        f"int-packed {bits}-bit g{group}",
        lambda out, width: {
            "weight_packed": Kind("I32", (out, width * bits // 32)),
            "weight_scale": Kind(dtype, (out, width // group)),
            "weight_shape": Kind("I64", (2,)),
            **(more(out, width) if extras else {}),
        },
        ("weight_zero_point", "weight_g_idx"),
    )


def gptq(bits: int, group: int, *, order: bool = False) -> Way:
    """Store integers as GPTQ packs them: along the inputs; ``order`` says which group each input is in."""
    return Way(
        f"gptq {bits}-bit g{group}",
        lambda out, width: {
            "qweight": Kind("I32", (width * bits // 32, out)),
            "qzeros": Kind("I32", (width // group, out * bits // 32)),
            "scales": Kind("F16", (width // group, out)),
            **({"g_idx": Kind("I32", (width,))} if order else {}),
        },
        ("g_idx",),
    )


def awq(bits: int, group: int) -> Way:
    """Store integers as AWQ packs them: along the outputs."""
    return Way(
        f"awq {bits}-bit g{group}",
        lambda out, width: {
            "qweight": Kind("I32", (width, out * bits // 32)),
            "qzeros": Kind("I32", (width // group, out * bits // 32)),
            "scales": Kind("F16", (width // group, out)),
        },
    )


def exl3(bits: int, marker: str) -> Way:
    """Store trellis codes of 16 by 16 tiles."""
    return Way(
        f"exl3 {bits}-bit",
        lambda out, width: {
            "trellis": Kind("I16", (width // 16, out // 16, 16 * bits)),
            "suh": Kind("F16", (width,)),
            "svh": Kind("F16", (out,)),
            marker: Kind("I32", ()),
        },
    )


def in_ranks(way: Way, ranks: int, *, by_row: bool) -> Way:
    """Store one slice for each rank of tensor parallelism, of the outputs or of the inputs."""
    return Way(
        f"{way.name} in {ranks} ranks",
        lambda out, width: {
            f"rank{rank}.{suffix}": kind
            for rank in range(ranks)
            for suffix, kind in (
                way.tensors(out // ranks, width) if by_row else way.tensors(out, width // ranks)
            ).items()
        },
    )


def mlx(bits: int, group: int, dtype: str = "BF16") -> Way:
    """Store integers as MLX packs them, with a scale and a bias for each group."""
    return Way(
        f"mlx-affine {bits}-bit g{group}",
        lambda out, width: {
            "weight": Kind("U32", (out, width * bits // 32)),
            "scales": Kind(dtype, (out, width // group)),
            "biases": Kind(dtype, (out, width // group)),
        },
    )


def fp8(per: str, dtype: str, shape: Callable[[int], tuple[int, ...]], *, activations: bool = False) -> Way:
    """Store one scale a row, or one for all."""
    return Way(
        f"fp8-{per}",
        lambda out, width: {
            "weight": Kind("F8_E4M3", (out, width)),
            "weight_scale": Kind(dtype, shape(out)),
            **({"input_scale": Kind("F32", ())} if activations else {}),
        },
        ("input_scale",),
    )


def nvfp4_modelopt(*, activations: bool = False) -> Way:
    """Store two values a byte, a scale for 16 of them, and one for all."""
    return Way(
        "nvfp4-modelopt",
        lambda out, width: {
            "weight": Kind("U8", (out, width // 2)),
            "weight_scale": Kind("F8_E4M3", (out, width // 16)),
            "weight_scale_2": Kind("F32", ()),
            **({"input_scale": Kind("F32", ())} if activations else {}),
        },
        ("input_scale",),
    )


def nvfp4_packed(*, activations: bool = False) -> Way:
    """Store the same as compressed-tensors names it."""
    return Way(
        "nvfp4-packed",
        lambda out, width: {
            "weight_packed": Kind("U8", (out, width // 2)),
            "weight_scale": Kind("F8_E4M3", (out, width // 16)),
            "weight_global_scale": Kind("F32", (1,)),
            **({"input_global_scale": Kind("F32", (1,))} if activations else {}),
        },
        ("input_global_scale",),
    )


def mxfp4(payload: str, dtype: str) -> Way:
    """Store two values a byte, and an exponent for 32 of them."""
    return Way(
        "mxfp4",
        lambda out, width: {
            payload: Kind("U8", (out, width // 2)),
            "weight_scale": Kind(dtype, (out, width // 32)),
        },
    )


def mxfp8(dtype: str) -> Way:
    """Store a byte a value, and an exponent for 32 of them."""
    return Way(
        "mxfp8",
        lambda out, width: {
            "weight": Kind("F8_E4M3", (out, width)),
            "weight_scale": Kind(dtype, (out, width // 32)),
        },
    )


def int8(*, offsets: bool = False) -> Way:
    """Store a byte a value and a scale a row."""
    return Way(
        "int8-channel",
        lambda out, width: {
            "weight": Kind("I8", (out, width)),
            "weight_scale": Kind("F32", (out, 1)),
            **({"weight_offset": Kind("F32", (out, 1))} if offsets else {}),
        },
        ("weight_offset",),
    )


def plain(dtype: str) -> Way:
    """Store it as it is."""
    return Way("plain", lambda out, width: {"weight": Kind(dtype, (out, width))})


def build(way: Way, overrides: Mapping[str, Way] | None = None) -> Tensors:
    """Return a whole checkpoint.

    Args:
        way: How its linear modules are stored; embedding and routers stay plain.
        overrides: How some modules are stored instead.
    """
    ways = {**dict.fromkeys(MODULES, plain("BF16")), **dict.fromkeys(LINEAR, way), **(overrides or {})}
    stored = {f"{m}.{suffix}": kind for m, s in MODULES.items() for suffix, kind in ways[m].tensors(*s).items()}
    return {**stored, **SMALL, **HELPERS}


class MemorySource:
    """A checkpoint that is nowhere but here, as a snapshot is."""

    info = SourceInfo("snapshot", "in memory", "in memory")

    def __init__(self, tensors: Mapping[str, Kind], config: Mapping[str, object] = CONFIG) -> None:
        """Hold tensors and ``config.json``."""
        self._tensors, self._config = tensors, config

    def config(self, name: str = "config.json") -> Mapping[str, object] | None:
        """Return ``config.json``; there is no other."""
        return self._config if name == "config.json" else None

    def local_path(self, shard: str) -> str | None:  # noqa: ARG002 - there is no shard
        """Return ``None``: nothing is on a disk."""
        return None

    def is_remote(self, shard: str) -> bool:  # noqa: ARG002 - there is no shard
        """Return false."""
        return False

    def read_data(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:  # noqa: ARG002 - likewise
        """Yield nothing."""
        yield from ()

    def inventory(self, needs: Needs | None = None, progress: Progress | None = None) -> Inventory:  # noqa: ARG002 - nothing is read
        """Return everything."""
        records = {name: TensorRecord(name, *kind, 0, kind.nbytes, None) for name, kind in self._tensors.items()}
        return Inventory(info=self.info, tensors=records, shards=None)


WAYS: dict[str, Way] = {
    "plain": plain("BF16"),
    "fp8-block": fp8_block(32, 32),
    "fp8-block-bf16": fp8_block(128, 128, dtype="BF16"),
    "fp8-block-weight_scale": fp8_block(32, 64, scale="weight_scale"),
    "fp8-block-rows": fp8_block(1, 32),
    "fp8-channel": fp8("channel", "F32", lambda out: (out, 1)),
    "fp8-channel-activations": fp8("channel", "BF16", lambda out: (out, 1), activations=True),
    "fp8-tensor": fp8("tensor", "F32", lambda _: ()),
    "fp8-tensor-activations": fp8("tensor", "BF16", lambda _: (), activations=True),
    "nvfp4-modelopt": nvfp4_modelopt(),
    "nvfp4-modelopt-activations": nvfp4_modelopt(activations=True),
    "nvfp4-packed": nvfp4_packed(),
    "nvfp4-packed-activations": nvfp4_packed(activations=True),
    "mxfp8": mxfp8("U8"),
    "mxfp8-e8m0": mxfp8("F8_E8M0"),
    "mxfp4": mxfp4("weight", "U8"),
    "mxfp4-e8m0": mxfp4("weight", "F8_E8M0"),
    "mxfp4-packed": mxfp4("weight_packed", "U8"),
    "mxfp4-packed-e8m0": mxfp4("weight_packed", "F8_E8M0"),
    "int-packed-2": int_packed(2, 32),
    "int-packed-4": int_packed(4, 32, dtype="F16"),
    "int-packed-4-extras": int_packed(4, 16, extras=True),
    "int-packed-8-extras": int_packed(8, 32, extras=True),
    "int8-channel": int8(),
    "int8-channel-offsets": int8(offsets=True),
    "gptq-2": gptq(2, 16),
    "gptq-4": gptq(4, 32),
    "gptq-8-order": gptq(8, 32, order=True),
    "awq-4": awq(4, 32),
    "awq-8": awq(8, 16),
    "exl3-2-mcg": exl3(2, "mcg"),
    "exl3-4-mul1": exl3(4, "mul1"),
    "exl3-6-mcg": exl3(6, "mcg"),
    "mlx-2": mlx(2, 32),
    "mlx-3": mlx(3, 32),
    "mlx-4-f16": mlx(4, 16, "F16"),
    "mlx-5": mlx(5, 16),
    "mlx-6": mlx(6, 32),
    "mlx-8": mlx(8, 32),
}
"""Every encoding, with every width, every dtype of its scales, and with what is optional."""
