# SPDX-License-Identifier: AGPL-3.0-only
"""The tiny model with nothing left out: a vision tower, and a config that says the size of everything.

Kinds are literals worked out by hand from that config, not the formulas of the product.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from checkpoints import TEXT, TINY_CONFIG, TINY_EXPERTS, TINY_MTP, Kind, tiny, write_checkpoint

from glm5inspect.checkpoint import Checkpoint
from glm5inspect.sources.local import LocalSource
from glm5inspect.verification import Verification
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Finding, Report

VISION_CONFIG = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 2,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 64,
    "projection_intermediate_size": 40,
}
CONFIG: dict[str, Any] = {**TINY_CONFIG, "vision_config": VISION_CONFIG}

VISION_SHAPES: dict[str, tuple[int, ...]] = {
    "blocks.0.norm1.weight": (16,),
    "blocks.0.norm2.weight": (16,),
    "blocks.0.attn.q_norm.weight": (8,),
    "blocks.0.attn.k_norm.weight": (8,),
    "blocks.0.attn.qkv.weight": (48, 16),
    "blocks.0.attn.qkv.bias": (48,),
    "blocks.0.attn.proj.weight": (16, 16),
    "blocks.0.attn.proj.bias": (16,),
    "blocks.0.mlp.gate_proj.weight": (24, 16),
    "blocks.0.mlp.gate_proj.bias": (24,),
    "blocks.0.mlp.up_proj.weight": (24, 16),
    "blocks.0.mlp.up_proj.bias": (24,),
    "blocks.0.mlp.down_proj.weight": (16, 24),
    "blocks.0.mlp.down_proj.bias": (16,),
    "patch_embed.proj.weight": (16, 3, 2, 2, 2),
    "patch_embed.proj.bias": (16,),
    "post_layernorm.weight": (16,),
    "downsample.weight": (64, 16, 2, 2),
    "downsample.bias": (64,),
    "merger.proj.weight": (64, 64),
    "merger.post_projection_norm.weight": (64,),
    "merger.post_projection_norm.bias": (64,),
    "merger.gate_proj.weight": (40, 64),
    "merger.up_proj.weight": (40, 64),
    "merger.down_proj.weight": (64, 40),
}
"""The tensors of a vision tower of one block."""

EXPERT_SHAPES = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}
EXPERT_LAYERS = (3, 4, 5)


def whole() -> Tensors:
    """Return every tensor of the tiny model, all of them plain, in a dict of its own."""
    tensors = {
        name: kind for name, kind in tiny().items() if ".mlp.experts." not in name and not name.startswith("model.vis")
    }
    for layer in EXPERT_LAYERS:
        for expert in range(TINY_EXPERTS):
            module = f"{TEXT}layers.{layer}.mlp.experts.{expert}"
            tensors |= {f"{module}.{name}.weight": Kind("BF16", shape) for name, shape in EXPERT_SHAPES.items()}
    return tensors | {f"model.visual.{name}": Kind("BF16", shape) for name, shape in VISION_SHAPES.items()}


def trunk() -> Tensors:
    """Return the whole tiny model without its MTP layer."""
    return {name: kind for name, kind in whole().items() if not name.startswith(f"{TEXT}layers.{TINY_MTP}.")}


def stating(**fields: object) -> dict[str, Any]:
    """Return the config with other fields of ``text_config``; ``None`` removes one."""
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= fields
    config["text_config"] = {name: value for name, value in config["text_config"].items() if value is not None}
    return config


def look(folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = CONFIG, **options: Any) -> Report:  # noqa: ANN401 - of `verify`
    """Write a checkpoint of one shard and verify it."""
    write_checkpoint(folder, tensors, config=config, shards=1)
    return verify(Checkpoint(LocalSource(folder, typed=str(folder))), **options)


def serious(report: Report) -> list[Finding]:
    """Return the findings, but for the notes about what the config of a tiny model changes of the official one."""
    return [finding for finding in report.findings if finding.code.value != "config-differs"]


def told(report: Report) -> list[tuple[str | None, str, str | None]]:
    """Return check, code and tensor of every finding of `serious`."""
    return [(finding.check, finding.code.value, finding.tensor) for finding in serious(report)]


def answer(report: Report) -> Verification:
    """Return what was verified."""
    assert isinstance(report.answer, Verification)
    return report.answer


def status(report: Report) -> dict[str, str]:
    """Return how each check ended."""
    return {check.name: check.status for check in answer(report).checks}
