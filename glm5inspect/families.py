# SPDX-License-Identifier: AGPL-3.0-only
"""Well-known naming families that are not the released one: what a refused name looks like, as a hint."""

from __future__ import annotations

from glm5inspect.catalogue import Code
from glm5inspect.report import Finding

MTP_PREFIXES = ("mtp.", "model.mtp.", "model.layers.mtp.", "language_model.mtp.")
"""How other models name a multi-token-prediction layer."""

_PREFIXES = (
    (MTP_PREFIXES, "an MTP layer in the convention of other models"),
    (("language_model.model.", "language_model.lm_head."), "MLX names"),
    (("vision_tower.", "vision_model.", "model.vision_tower."), "a vision tower under the prefix of another export"),
    (("base_model.model.",), "a LoRA adapter"),
    (("model.layers.", "model.embed_tokens.", "model.norm."), "a flat text-only tree, or another architecture"),
)
_PARTS = (
    (
        (".attn_hc.", ".ffn_hc.", ".forget_gate.", ".self_attn.conv1d.", ".experts.gate_up_proj", ".experts.down_proj"),
        "a transformers export",
    ),
    ((".switch_mlp.", ".embed_q.", ".unembed_out."), "MLX names"),
    ((".lora_A.", ".lora_B."), "a LoRA adapter"),
)
_SUFFIXES = (
    (("weight_scale_inv",), "scales of block FP8"),
    (("weight_packed", "weight_global_scale", "input_global_scale"), "compressed-tensors quantization"),
    (("weight_zero_point", "weight_shape", "weight_g_idx"), "compressed-tensors quantization"),
    (("weight_scale", "weight_scale_2", "input_scale"), "quantization scales (ModelOpt, compressed-tensors or FP8)"),
    (("qweight", "qzeros", "g_idx"), "GPTQ or AWQ quantization"),
    (("trellis", "suh", "svh", "mcg", "mul1"), "EXL3 quantization"),
    (("scales", "biases"), "MLX quantization"),
    (("k_scale", "v_scale"), "KV-cache scales"),
)


def unknown_tensor(name: str, layer: int | None, shard: str | None = None) -> Finding:
    """Report a name that no rule teaches, with a hint at what it looks like."""
    message = f"{name}: no rule says what this tensor is for"
    return Finding(Code.UNKNOWN_TENSOR, message, hint=family_hint(name), tensor=name, layer=layer, shard=shard)


def family_hint(name: str) -> str | None:
    """Say for a hint which family a name looks like, or ``None`` when it looks like none."""
    family = foreign_family(name)
    return f"The name looks like {family}." if family else None


def foreign_family(name: str) -> str | None:
    """Say which family a name looks like, or ``None``; a family is a guess for people, never a reason to accept."""
    for prefixes, family in _PREFIXES:
        if name.startswith(prefixes):
            return family
    for parts, family in _PARTS:
        if any(part in name for part in parts):
            return family
    suffix = name.rpartition(".")[2]
    return next((family for suffixes, family in _SUFFIXES if suffix in suffixes), None)
