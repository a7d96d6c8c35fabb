# SPDX-License-Identifier: AGPL-3.0-only
"""The tiny model as other writers name it: literal tables, one for each dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoints import TEXT, TINY_DSA, TINY_EXPERTS, TINY_KDA, Kind
from whole_model import EXPERT_LAYERS, EXPERT_SHAPES, trunk, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpoints import Tensors

RENAMED = {
    "hc_attn_fn": "attn_hc.fn",
    "hc_attn_base": "attn_hc.base",
    "hc_attn_scale": "attn_hc.scale",
    "hc_ffn_fn": "ffn_hc.fn",
    "hc_ffn_base": "ffn_hc.base",
    "hc_ffn_scale": "ffn_hc.scale",
    "self_attn.f_a_proj.weight": "self_attn.forget_gate.f_a_proj.weight",
    "self_attn.f_b_proj.weight": "self_attn.forget_gate.f_b_proj.weight",
    "self_attn.A_log": "self_attn.forget_gate.A_log",
    "self_attn.dt_bias": "self_attn.forget_gate.dt_bias",
}
"""What transformers calls parts of a layer, by what the release calls them."""

CONVOLUTIONS = tuple(f"self_attn.{letter}_conv1d.weight" for letter in "qkv")
JOINED = "self_attn.conv1d.weight"
STACKED = {
    "mlp.experts.gate_up_proj": Kind("BF16", (4, 64, 64)),
    "mlp.experts.down_proj": Kind("BF16", (4, 64, 32)),
}
SWITCH = {
    "mlp.switch_mlp.gate_proj.weight": Kind("BF16", (4, 32, 64)),
    "mlp.switch_mlp.up_proj.weight": Kind("BF16", (4, 32, 64)),
    "mlp.switch_mlp.down_proj.weight": Kind("BF16", (4, 64, 32)),
}
HALVES = {
    "self_attn.embed_q.weight": Kind("BF16", (4, 16, 8)),
    "self_attn.unembed_out.weight": Kind("BF16", (4, 12, 16)),
}
CHANNELS_LAST = {
    "patch_embed.proj.weight": Kind("BF16", (16, 2, 2, 2, 3)),
    "downsample.weight": Kind("BF16", (64, 2, 2, 16)),
}


def layer(number: int, *names: str) -> tuple[str, ...]:
    """Return full released names of a layer."""
    return tuple(f"{TEXT}layers.{number}.{name}" for name in names)


def expert_names(layers: Iterable[int]) -> set[str]:
    """Return the names of all routed experts of these layers."""
    return {
        f"{TEXT}layers.{number}.mlp.experts.{expert}.{projection}.weight"
        for number in layers
        for expert in range(TINY_EXPERTS)
        for projection in EXPERT_SHAPES
    }


def inside(tensors: Tensors, *, layers: Iterable[int], conv: tuple[int, ...]) -> Tensors:
    """Rename inside some layers as transformers does, with one convolution of this shape."""
    for number in layers:
        for released, stored in RENAMED.items():
            for old, new in zip(layer(number, released), layer(number, stored), strict=True):
                if old in tensors:
                    tensors[new] = tensors.pop(old)
        if number in TINY_KDA:
            for name in layer(number, *CONVOLUTIONS):
                del tensors[name]
            tensors |= dict.fromkeys(layer(number, JOINED), Kind("BF16", conv))
    return tensors


def transformers() -> Tensors:
    """Return what `save_pretrained` writes: no MTP layer, all experts of a layer in two tensors."""
    tensors = inside(trunk(), layers=range(5), conv=(96, 1, 4))
    tensors = {name: kind for name, kind in tensors.items() if name not in expert_names((3, 4))}
    for number in (3, 4):
        tensors |= dict(zip(layer(number, *STACKED), STACKED.values(), strict=True))
    return tensors


def msmodelslim() -> Tensors:
    """Return what msModelSlim writes: a rotation, released names in the MTP layer, and two copies there."""
    tensors = inside(whole(), layers=range(5), conv=(96, 1, 4))
    copies = dict.fromkeys(layer(5, "embed_tokens.weight", "shared_head.head.weight"), Kind("BF16", (96, 64)))
    return tensors | copies | {"rot.weight": Kind("BF16", (64, 64))}


def flat_text() -> Tensors:
    """Return a text-only export."""
    return {
        name.replace("model.language_model.", "model."): kind
        for name, kind in whole().items()
        if not name.startswith("model.visual.")
    }


def mlx(vision: str = "vision_model.", *, mtp: bool = True) -> Tensors:
    """Return what MLX converters write, unquantized."""
    layers = range(6 if mtp else 5)
    tensors = inside(whole() if mtp else trunk(), layers=range(5), conv=(96, 4, 1))
    for name in expert_names(EXPERT_LAYERS):
        tensors.pop(name, None)
    for number in EXPERT_LAYERS[: len(layers) - 3]:
        tensors |= dict(zip(layer(number, *SWITCH), SWITCH.values(), strict=True))
    for number in TINY_DSA[: len(layers) - 4]:
        for name in layer(number, "self_attn.kv_b_proj.weight"):
            del tensors[name]
        tensors |= dict(zip(layer(number, *HALVES), HALVES.values(), strict=True))
    tensors |= {f"model.visual.{name}": kind for name, kind in CHANNELS_LAST.items()}
    prefixes = {TEXT: "language_model.model.", "lm_head.": "language_model.lm_head.", "model.visual.": vision}
    return {
        next(new + name.removeprefix(old) for old, new in prefixes.items() if name.startswith(old)): kind
        for name, kind in tensors.items()
    }
