# SPDX-License-Identifier: AGPL-3.0-only
"""What the config files claim about quantization is held against what is stored, module by module."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from quantized import (
    BLOCKS,
    CONFIG,
    EXPERTS,
    FP8,
    GPTQ,
    INT4,
    LAYER,
    MLX,
    MTP,
    MXFP8,
    NVFP4,
    PLAIN,
    SCALED,
    SHARED,
    SIDE,
    SIDECAR,
    TRELLIS,
    WEIGHT_ONLY,
    bundled,
    check,
    codes,
    group,
    method,
    modelopt,
    small,
    snapshot,
)

from glm5inspect.catalogue import Code
from glm5inspect.quantization.check import check_quantization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5inspect.report import Finding
    from glm5inspect.stored import StoredModule


def check_bundled(name: str, config: Mapping[str, object] | None = None) -> tuple[list[Finding], int]:
    """Check a bundled snapshot, with its own config or another."""
    modules, names = bundled(name)
    configs = {CONFIG: snapshot(name).config() if config is None else config, SIDECAR: None}
    return check_quantization(configs, modules, has_kv_scales=False, names=names)


SUBJECTS = {"reference": 37_818, "official-fp8": 37_818, "official-bf16": 0, "nvidia-nvfp4": 37_818}
FUSED = ["in_proj_qkvbfg_a", "fused_qkv_a_proj", "wk_weights_proj", "gate_up_proj", "gate_up_proj"]
UNUSED = {
    "reference": FUSED,
    "official-fp8": ["hyper_connection", "router", "attn_mha", "attn_mqa"],
    "official-bf16": [],
    "nvidia-nvfp4": [],
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_published_checkpoints(name: str) -> None:
    """Only one of them declares what it does not store; the notes are about names that runtimes give."""
    findings, subjects = check_bundled(name)
    assert subjects == SUBJECTS[name]
    assert codes(findings) == (["kv-scheme", "quant-undeclared"] if name == "nvidia-nvfp4" else [])
    notes = [str(f.actual).rpartition(".")[2] for f in findings if f.code is Code.QUANT_PATTERN_UNUSED]
    assert notes == UNUSED[name]


def test_the_layer_that_nobody_left_out() -> None:
    """One finding of 876 modules, with entries and an option that make the same checkpoint pass."""
    found, _ = check_bundled("nvidia-nvfp4")
    (finding,) = [finding for finding in found if finding.code is Code.QUANT_UNDECLARED]
    assert (finding.layer, finding.count, finding.expected, finding.actual) == (45, 876, "NVFP4 g16", "plain")
    assert finding.message == (
        f"{LAYER}45.eh_proj: stored plain but declared NVFP4 g16; no entry leaves out "
        f"876 Linear modules of layer 45 (MTP): {LAYER}45.*"
    )
    assert finding.hint
    assert f'Add to `ignore` of config.json: "{LAYER}45*", "model.layers.45*".' in finding.hint
    option, override = shlex.split(finding.hint.partition("start vLLM with: ")[2])
    assert option == "--hf-overrides"
    again, subjects = check_bundled("nvidia-nvfp4", json.loads(override))
    assert (codes(again), subjects) == (["kv-scheme"], 37_818)
    assert Code.QUANT_PATTERN_UNUSED not in {f.code for f in again}
    config = json.loads(json.dumps(snapshot("nvidia-nvfp4").config()))
    config["quantization_config"]["ignore"].append(f"{LAYER}45*")
    assert codes(check_bundled("nvidia-nvfp4", config)[0]) == ["kv-scheme"]


STATIC = modelopt(quant_algo="NVFP4", config_groups={"g": group(4, 16, inputs={"dynamic": False})})
APART = modelopt(
    config_groups={
        "n": group(4, 16, f"{LAYER}3.mlp.experts"),
        "m": group(8, 0, MTP.partition(".E")[0], weight_block_size=[1, 32]),
    }
)
CASES: dict[str, tuple[list[StoredModule], dict[str, Any], dict[str, Any] | None, list[str]]] = {
    "weight-only": (small(NVFP4, NVFP4), WEIGHT_ONLY, None, []),
    "static": (small(SCALED, SCALED), STATIC, None, []),
    "static without scales": (small(NVFP4, NVFP4), STATIC, None, ["quant-activations"]),
    "bare algorithm without scales": (small(NVFP4, NVFP4), modelopt(quant_algo="NVFP4"), None, ["quant-activations"]),
    "null with scales": (small(SCALED, SCALED), WEIGHT_ONLY, None, ["quant-activations"]),
    "plain layer": (small(NVFP4, PLAIN), WEIGHT_ONLY, None, ["quant-undeclared"]),
    "plain shared expert not left out": (
        small(NVFP4, NVFP4),
        modelopt(quant_algo="W4A16_NVFP4", ignore=[]),
        None,
        ["quant-undeclared"],
    ),
    "ignored and quantized": (small(NVFP4, NVFP4, NVFP4), WEIGHT_ONLY, None, ["quant-ignored"]),
    "ignored expert by number": (
        small(NVFP4, NVFP4),
        modelopt(quant_algo="W4A16_NVFP4", ignore=["*.shared_experts.*", EXPERTS.replace("E", "2")]),
        None,
        ["quant-ignored"],
    ),
    "two groups": (small(NVFP4, MXFP8), APART, None, []),
    "another scheme in one layer": (small(NVFP4, MXFP8), WEIGHT_ONLY, None, ["quant-scheme"]),
    "group for another layer": (
        small(NVFP4, MXFP8),
        modelopt(config_groups={"n": group(4, 16, EXPERTS.partition(".E")[0])}),
        None,
        ["quant-unstated"],
    ),
    "tensors of another format": (small(FP8, FP8), WEIGHT_ONLY, None, ["quant-scheme", "quant-scheme"]),
    "packed": (
        small(INT4, INT4),
        method(
            "compressed-tensors",
            config_groups={"g": {**group(4, 64), "weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
            ignore=["re:.*shared.*"],
        ),
        None,
        [],
    ),
    "packed in another group size": (
        small(INT4, INT4),
        method(
            "compressed-tensors",
            config_groups={"g": {**group(4, 64), "weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            ignore=["re:.*shared.*"],
        ),
        None,
        ["quant-scheme"] * 2,
    ),
    "blocks": (small(BLOCKS, BLOCKS, BLOCKS, (256, 256)), method("fp8", weight_block_size=[128, 128]), None, []),
    "other blocks": (
        small(BLOCKS, BLOCKS, BLOCKS, (256, 256)),
        method("fp8", weight_block_size=[64, 64]),
        None,
        ["quant-scheme"] * 3,
    ),
    "mlx": (small(MLX, MLX), {"quantization": {"bits": 4, "group_size": 32}}, None, []),
    "mlx in other bits": (small(MLX, MLX), {"quantization": {"bits": 8, "group_size": 32}}, None, ["quant-scheme"] * 2),
    "mlx override of a plain module": (
        small(MLX, MLX),
        {"quantization": {"bits": 4, "group_size": 32, SHARED: {"bits": 8}}},
        None,
        ["quant-undeclared"],
    ),
    "exl3": (small(TRELLIS, TRELLIS), method("exl3", bits=2, codebook="mul1"), None, []),
    "exl3 of another mean": (small(TRELLIS, TRELLIS), method("exl3", bits=3.5), None, ["quant-scheme"]),
    "exl3 with another marker": (small(TRELLIS, TRELLIS), method("exl3", codebook="mcg"), None, ["quant-scheme"] * 2),
    "gptq beside what it does not quantize": (small(GPTQ, PLAIN), method("gptq", bits=4, group_size=64), None, []),
    "a class of modules and a sidecar": (
        small(NVFP4, NVFP4),
        method("compressed-tensors", config_groups={"g": group(4, 16, "FusedMoE")}),
        SIDE,
        ["quant-unstated"],
    ),
    "a sidecar about a class of modules": (
        small(NVFP4, NVFP4),
        WEIGHT_ONLY,
        {"quantization": {"config_groups": {"g": group(4, 16, "FusedMoE")}}},
        [],
    ),
    "both files": (small(NVFP4, NVFP4), WEIGHT_ONLY, SIDE, []),
    "sidecar only": (small(NVFP4, NVFP4), {}, SIDE, []),
    "sidecar only, plain layer": (small(NVFP4, PLAIN), {}, SIDE, ["quant-undeclared"]),
    "old block, new sidecar": (
        small(NVFP4, NVFP4),
        method("fp8", weight_block_size=[128, 128], modules_to_not_convert=["shared_experts"]),
        SIDE,
        ["quant-conflict"],
    ),
    "only one leaves it out": (
        small(NVFP4, PLAIN),
        modelopt(quant_algo="W4A16_NVFP4", ignore=["*.shared_experts.*", f"{LAYER}5*"]),
        SIDE,
        ["quant-conflict"],
    ),
    "only one leaves an expert out": (
        small(NVFP4, NVFP4),
        modelopt(quant_algo="W4A16_NVFP4", ignore=["*.shared_experts.*", "*.experts.2.*"]),
        SIDE,
        ["quant-conflict"],
    ),
    "nothing declared": (small(NVFP4, NVFP4), {}, None, ["quant-unstated"]),
    "nothing declared, two schemes": (small(NVFP4, FP8), {}, None, ["quant-unstated"] * 2),
    "not understood": (small(NVFP4, NVFP4), method("bitsandbytes"), None, ["quant-unstated"]),
    "not understood in part": (
        small(NVFP4, NVFP4),
        method("compressed-tensors", config_groups={"g": group(4, 16, "FusedMoE")}),
        None,
        ["quant-unstated"],
    ),
    "all plain, nothing declared": (small(PLAIN, PLAIN), {}, None, []),
}


@pytest.mark.parametrize(("modules", "config", "sidecar", "expected"), CASES.values(), ids=CASES)
def test_each_contradiction_has_its_code(
    modules: list[StoredModule], config: dict[str, Any], sidecar: dict[str, Any] | None, expected: list[str]
) -> None:
    """What agrees is silent; what does not is told once for each layer and part, or once for the files."""
    assert codes(check(modules, config, sidecar)[0]) == expected


TOLD: dict[str, tuple[str, str, int, object, object, str]] = {
    "ignored and quantized": (
        "quant-ignored",
        SHARED,
        1,
        "plain",
        "nvfp4-modelopt",
        "`*.shared_experts.*` in `ignore`",
    ),
    "ignored expert by number": (
        "quant-ignored",
        EXPERTS.replace("E", "2"),
        1,
        "plain",
        "nvfp4-modelopt",
        ".2.up_proj",
    ),
    "another scheme in one layer": ("quant-scheme", MTP.replace("E", "0"), 4, "NVFP4 g16", "mxfp8", "layer 5 (MTP)"),
    "group for another layer": (
        "quant-unstated",
        MTP.replace("E", "0"),
        4,
        "plain",
        "mxfp8",
        "no target of config.json",
    ),
    "exl3 with another marker": (
        "quant-scheme",
        EXPERTS.replace("E", "0"),
        4,
        "EXL3 mcg",
        "exl3 2-bit without `mcg`",
        "mcg",
    ),
    "exl3 of another mean": (
        "quant-scheme",
        EXPERTS.replace("E", "0"),
        8,
        "3.5 bits on average",
        "2 bits",
        "layers 3,5",
    ),
    "old block, new sidecar": (
        "quant-conflict",
        EXPERTS.replace("E", "0"),
        8,
        ["declared FP8 128x128", "declared W4A16_NVFP4"],
        "nvfp4-modelopt",
        "by hf_quant_config.json, stored as nvfp4-modelopt",
    ),
    "only one leaves an expert out": (
        "quant-conflict",
        EXPERTS.replace("E", "2"),
        2,
        ["left out", "declared W4A16_NVFP4"],
        "nvfp4-modelopt",
        "2 Linear modules of layers 3,5",
    ),
    "nothing declared": (
        "quant-unstated",
        EXPERTS.replace("E", "0"),
        8,
        None,
        "nvfp4-modelopt",
        "no config file declares",
    ),
    "static without scales": (
        "quant-activations",
        EXPERTS.replace("E", "0"),
        8,
        "input_scale",
        None,
        "no `input_scale`",
    ),
    "null with scales": ("quant-activations", EXPERTS.replace("E", "0"), 8, None, "input_scale", "not quantized, but"),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_finding_says_what_it_is_about(case: str) -> None:
    """The first module, how many, what is declared, what is stored."""
    code, tensor, count, expected, actual, words = TOLD[case]
    modules, config, sidecar, _ = CASES[case]
    finding = check(modules, config, sidecar)[0][0]
    assert (finding.code.value, finding.tensor, finding.count) == (code, tensor, count)
    assert (finding.expected, finding.actual) == (expected, actual)
    assert words in finding.message
