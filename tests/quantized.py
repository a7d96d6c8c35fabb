# SPDX-License-Identifier: AGPL-3.0-only
"""Stored modules to hold quantization configs against: those of the bundled snapshots, and a model of a few."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from glm5inspect.catalogue import Severity
from glm5inspect.encodings import SUFFIXES, Part, read_module
from glm5inspect.quantization.check import check_quantization
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.snapshot import load_snapshot, snapshot_folder
from glm5inspect.stored import StoredModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5inspect.report import Finding
    from glm5inspect.snapshot import Row, Snapshot

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"
LAYER = "model.language_model.layers."
PARTS = {
    "layers.45.": "MTP",
    "mlp.experts": "routed experts",
    "mlp.shared": "shared experts",
    "self_attn": "attention",
    "mlp": "FFN",
}

Stored = dict[str, Part]


def part_of(path: str) -> str:
    """Return the part of a module of the full model."""
    return next((part for mark, part in PARTS.items() if mark in path), "rest")


def module(path: str, stored: Stored, shape: tuple[int, ...], **more: Any) -> StoredModule:  # noqa: ANN401 - fields of the module
    """Make a stored module of some tensors."""
    layer = re.search(r"\.layers\.(\d+)\.", path)
    fields = {"layer": int(layer[1]) if layer else None, "part": part_of(path), "linear": True, "experts": None, **more}
    tile = fields.pop("tile", None)
    reading = read_module(stored, shape, tile)
    return StoredModule(path=path, suffixes=frozenset(stored), reading=reading, bytes=1, parameters=1, **fields)


@cache
def snapshot(name: str) -> Snapshot:
    """Return a bundled snapshot."""
    return load_snapshot(snapshot_folder() / f"{name}.json", typed=name)


def by_layer(row: Row) -> list[tuple[str, int | None]]:
    """Return the names of a row, one a layer, with the expert's number open."""
    return [
        (row.pattern.replace(".N.", f".{n}.", 1) if n is not None else row.pattern, n) for n in row.layers or (None,)
    ]


@cache
def bundled(name: str) -> tuple[list[StoredModule], list[str]]:
    """Return the modules of a bundled snapshot and the names of its tensors; shapes are those of the BF16 release."""
    logical = {n: row.shape for row in snapshot("official-bf16").rows for n, _ in by_layer(row)}
    stored: dict[tuple[str, int | None, tuple[int, ...] | None], Stored] = {}
    names = []
    for row in snapshot(name).rows:
        for full, layer in by_layer(row):
            names.append(full)
            path, _, suffix = full.rpartition(".")
            if suffix in SUFFIXES:
                stored.setdefault((path, layer, row.experts), {})[suffix] = Part(row.dtype, row.shape)
    tile = declared_tile(snapshot(name).config())
    modules = []
    for (path, _, experts), parts in stored.items():
        shape = logical[f"{path}.weight"]
        if len(shape) == 2 and not path.endswith(("embed_tokens", "mlp.gate")):
            modules.append(module(path, parts, shape, experts=experts, tile=tile))
    return modules, names


# A model of a few modules, to be declared and stored in every way.
NVFP4 = {"weight": Part("U8", (32, 32)), "weight_scale": Part("F8_E4M3", (32, 4)), "weight_scale_2": Part("F32", ())}
SCALED = NVFP4 | {"input_scale": Part("F32", ())}
PLAIN = {"weight": Part("BF16", (32, 64))}
FP8 = {"weight": Part("F8_E4M3", (32, 64)), "weight_scale": Part("F32", ())}
MXFP8 = {"weight": Part("F8_E4M3", (32, 64)), "weight_scale": Part("U8", (32, 2))}
BLOCKS = {"weight": Part("F8_E4M3", (256, 256)), "weight_scale_inv": Part("F32", (2, 2))}
MLX = {"weight": Part("U32", (32, 8)), "scales": Part("F16", (32, 2)), "biases": Part("F16", (32, 2))}
INT4 = {"weight_packed": Part("I32", (32, 8)), "weight_scale": Part("BF16", (32, 1)), "weight_shape": Part("I64", (2,))}
GPTQ = {"qweight": Part("I32", (8, 32)), "qzeros": Part("I32", (1, 4)), "scales": Part("F16", (1, 32))}
TRELLIS = {
    "trellis": Part("I16", (4, 2, 32)),
    "suh": Part("F16", (64,)),
    "svh": Part("F16", (32,)),
    "mul1": Part("I32", ()),
}
EXPERTS = f"{LAYER}3.mlp.experts.E.up_proj"
MTP = f"{LAYER}5.mlp.experts.E.up_proj"
SHARED = f"{LAYER}3.mlp.shared_experts.up_proj"


def small(
    experts: Stored, mtp: Stored, shared: Stored = PLAIN, shape: tuple[int, ...] = (32, 64)
) -> list[StoredModule]:
    """Return four experts of two layers and a shared one."""
    return [
        module(EXPERTS, experts, shape, experts=(0, 1, 2, 3)),
        module(MTP, mtp, shape, experts=(0, 1, 2, 3), part="MTP"),
        module(SHARED, shared, shape),
        module(f"{LAYER}3.mlp.gate", PLAIN, (32, 64), linear=False),
    ]


def modelopt(**fields: object) -> dict[str, Any]:
    """Return a ModelOpt config that leaves the shared expert out."""
    return {"quantization_config": {"quant_method": "modelopt", "ignore": ["*.shared_experts.*"], **fields}}


def group(bits: int, size: int, *targets: str, inputs: object = None, **more: object) -> dict[str, Any]:
    """Return a group of floats."""
    weights = {"num_bits": bits, "type": "float", "group_size": size, **more}
    return {"targets": list(targets) or ["Linear"], "weights": weights, "input_activations": inputs}


def method(name: str, **fields: object) -> dict[str, Any]:
    """Return a config of a method."""
    return {"quantization_config": {"quant_method": name, **fields}}


WEIGHT_ONLY = modelopt(quant_algo="NVFP4", config_groups={"g": group(4, 16)})
SIDE = {"quantization": {"quant_algo": "W4A16_NVFP4", "exclude_modules": ["*.shared_experts.*"]}}


def check(
    modules: list[StoredModule], config: object, sidecar: object = None, *, has_kv_scales: bool = False
) -> tuple[list[Finding], int]:
    """Check a few modules."""
    names = [f"{m.path}.{suffix}" for m in modules for suffix in m.suffixes]
    configs: dict[str, Any] = {CONFIG: config, SIDECAR: sidecar}
    return check_quantization(configs, modules, has_kv_scales=has_kv_scales, names=names)


def codes(findings: Sequence[Finding]) -> list[str]:
    """Return the codes but for notes."""
    return [finding.code.value for finding in findings if finding.severity is not Severity.NOTE]
