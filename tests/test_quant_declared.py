# SPDX-License-Identifier: AGPL-3.0-only
"""What each format of quantization config declares about a module."""

from __future__ import annotations

from typing import Any

import pytest

from glm5inspect.quantization.declared import Declaration, declared_tile, read_declaration
from glm5inspect.quantization.patterns import Style, Target
from glm5inspect.quantization.schemes import Activations, Scheme

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"
MODULE = "model.language_model.layers.3.mlp.down_proj"
OTHER = "model.language_model.layers.45.eh_proj"
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


def modelopt(**fields: object) -> dict[str, Any]:
    """Return a ModelOpt config as ``config.json`` has it."""
    return {"quantization_config": {"quant_method": "modelopt", **fields}}


def packed(weights: dict[str, object], **group: object) -> dict[str, Any]:
    """Return a compressed-tensors config of one group for everything."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, **group}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


def method(name: str, **fields: object) -> dict[str, Any]:
    """Return a config of a method."""
    return {"quantization_config": {"quant_method": name, **fields}}


def read(config: dict[str, Any], file: str = CONFIG) -> Declaration:
    """Return the declaration of a config that has one."""
    declaration = read_declaration(file, config)
    assert declaration is not None
    return declaration


def scheme(config: dict[str, Any], path: str = MODULE) -> Scheme | None:
    """Return the scheme that a config declares for a module, ``None`` for none."""
    for rule in read(config).rules:
        if rule.patterns.style is Style.ALL or list(rule.patterns.hits(Target(path))):
            return rule.scheme
    return None


SCHEMES = {
    "NVFP4 group": (
        modelopt(quant_algo="NVFP4", config_groups={"g": {"targets": ["Linear"], "weights": NVFP4}}),
        ("NVFP4 g16", {"nvfp4-modelopt"}, 0, None, 16),
    ),
    "NVFP4 bare": (modelopt(quant_algo="NVFP4", group_size=16), ("NVFP4 g16", {"nvfp4-modelopt"}, 0, None, 16)),
    "W4A16": (modelopt(quant_algo="W4A16_NVFP4"), ("W4A16_NVFP4", {"nvfp4-modelopt"}, 0, None, 0)),
    "FP8": (modelopt(quant_algo="FP8"), ("FP8", {"fp8-tensor"}, 0, None, 0)),
    "FP8 blocks": (modelopt(quant_algo="FP8_PB_WO", group_size=128), ("FP8_PB_WO", {"fp8-block"}, 0, (128, 128), 0)),
    "lower case": (modelopt(quant_algo="mxfp8"), ("MXFP8", {"mxfp8", "fp8-block"}, 0, None, 0)),
    "unknown algorithm": (modelopt(quant_algo="W3A3"), ("W3A3", set(), 0, None, 0)),
    "mixed": (
        modelopt(quant_algo="MIXED_PRECISION", quantized_layers={MODULE: {"quant_algo": "FP8"}}),
        ("FP8", {"fp8-tensor"}, 0, None, 0),
    ),
    "mixed by parent": (
        modelopt(
            quant_algo="MIXED_PRECISION",
            quantized_layers={MODULE.removesuffix(".down_proj"): {"quant_algo": "NVFP4", "group_size": 16}},
        ),
        ("NVFP4 g16", {"nvfp4-modelopt"}, 0, None, 16),
    ),
    "group with an algorithm": (
        modelopt(config_groups={"g": {"targets": [MODULE], "weights": {"quant_algo": "W4A16_NVFP4"}}}),
        ("W4A16_NVFP4", {"nvfp4-modelopt"}, 0, None, 0),
    ),
    "group with narrow blocks": (
        modelopt(
            config_groups={
                "g": {
                    "targets": [f"{MODULE}*"],
                    "weights": {"num_bits": 8, "type": "float", "weight_block_size": [1, 32]},
                }
            }
        ),
        ("float 8-bit 1x32", {"mxfp8", "fp8-block"}, 0, (1, 32), 0),
    ),
    "packed int4": (
        packed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
        ("int 4-bit g128", {"int-packed"}, 4, None, 128),
    ),
    "packed int8 by row": (
        packed({"num_bits": 8, "type": "int", "strategy": "channel", "group_size": -1}),
        ("int 8-bit", {"int-packed", "int8-channel"}, 8, None, 0),
    ),
    "packed NVFP4": (packed(NVFP4), ("NVFP4 g16", {"nvfp4-packed"}, 0, None, 16)),
    "packed MXFP4": (packed({**NVFP4, "group_size": 32}), ("MXFP4 g32", {"mxfp4"}, 0, None, 32)),
    "packed FP8 by row": (
        packed({"num_bits": 8, "type": "float", "strategy": "channel"}),
        ("float 8-bit", {"fp8-channel"}, 0, None, 0),
    ),
    "packed FP8 by block": (
        packed({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]}),
        ("float 8-bit 128x64", {"fp8-block"}, 0, (128, 64), 0),
    ),
    "packed FP8, not said how": (
        packed({"num_bits": 8, "type": "float"}),
        ("float 8-bit", {"fp8-tensor", "fp8-channel", "fp8-block", "mxfp8"}, 0, None, 0),
    ),
    "packed under the older key": (
        {"compression_config": packed(NVFP4)["quantization_config"]},
        ("NVFP4 g16", {"nvfp4-packed"}, 0, None, 16),
    ),
    "packed without a name": (
        {"quantization_config": {"config_groups": packed(NVFP4)["quantization_config"]["config_groups"]}},
        ("NVFP4 g16", {"nvfp4-packed"}, 0, None, 16),
    ),
    "fp8": (method("fp8", weight_block_size=[128, 128]), ("FP8 128x128", {"fp8-block"}, 0, (128, 128), 0)),
    "fp8 without blocks": (method("fp8"), ("FP8", {"fp8-tensor", "fp8-channel"}, 0, None, 0)),
    "mxfp8": (method("mxfp8"), ("FP8 1x32", {"mxfp8", "fp8-block"}, 0, (1, 32), 0)),
    "mxfp4": (method("mxfp4"), ("MXFP4", {"mxfp4"}, 0, None, 0)),
    "quark MXFP4": (
        method("quark", global_quant_config={"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}),
        ("MXFP4", {"mxfp4"}, 0, None, 32),
    ),
    "quark by layer": (
        method(
            "quark",
            global_quant_config={"weight": {"dtype": "int4"}},
            layer_quant_config={"*.down_proj": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}},
        ),
        ("FP8 per_channel", {"fp8-channel"}, 0, None, 0),
    ),
    "quark FP8 by block": (
        method("quark", global_quant_config={"weight": {"dtype": "fp8_e4m3", "group_size": [128, 128]}}),
        ("FP8 128x128", {"fp8-block"}, 0, (128, 128), 0),
    ),
    "quark something else": (
        method("quark", global_quant_config={"weight": {"dtype": "int4"}}),
        ("int4", set(), 0, None, 0),
    ),
    "mlx": ({"quantization": {"bits": 4, "group_size": 64}}, ("affine 4-bit g64", {"mlx-affine"}, 4, None, 64)),
    "mlx override": (
        {"quantization": {"bits": 4, "group_size": 64, MODULE: {"bits": 8}}},
        ("affine 8-bit g64", {"mlx-affine"}, 8, None, 64),
    ),
    "mlx in another mode": (
        {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}},
        ("mxfp4 4-bit g32", set(), 4, None, 32),
    ),
    "exl3": (method("exl3", bits=2.05, codebook="mcg"), ("EXL3 mcg", {"exl3"}, 0, None, 0)),
    "gptq": (method("gptq", bits=4, group_size=128), ("GPTQ 4-bit g128", {"gptq"}, 4, None, 128)),
    "gptq override": (
        method("gptq", bits=4, group_size=128, dynamic={r"+:.*\.down": {"bits": 8}}),
        ("GPTQ 8-bit g128", {"gptq"}, 8, None, 128),
    ),
    "awq": (method("awq", w_bit=4, q_group_size=128), ("AWQ 4-bit g128", {"awq"}, 4, None, 128)),
    "auto-round": (
        method("intel/auto_round", bits=4, group_size=128, packing_format="auto_round:auto_awq"),
        ("AutoRound 4-bit g128", {"awq"}, 4, None, 128),
    ),
    "auto-round override": (
        method("auto-round", bits=4, group_size=128, extra_config={MODULE: {"bits": 8, "group_size": 64}}),
        ("AutoRound 8-bit g64", {"gptq", "awq"}, 8, None, 64),
    ),
    "text config": ({"text_config": method("mxfp4")}, ("MXFP4", {"mxfp4"}, 0, None, 0)),
}


@pytest.mark.parametrize(("config", "expected"), SCHEMES.values(), ids=SCHEMES)
def test_the_scheme_declared(config: dict[str, Any], expected: tuple[str, set[str], int, object, int]) -> None:
    """Name, encodings, bits, block and group are what the format says."""
    found = scheme(config)
    assert found is not None
    assert (found.name, set(found.encodings), found.bits, found.block, found.group) == expected


LEFT_OUT = {
    "modelopt": modelopt(quant_algo="NVFP4", ignore=["*.down_proj"]),
    "modelopt sidecar": {"quantization": {"quant_algo": "FP8", "exclude_modules": [MODULE]}},
    "modelopt mixed": modelopt(quant_algo="MIXED_PRECISION", quantized_layers={OTHER: {"quant_algo": "FP8"}}),
    "modelopt module": modelopt(quantized_layers={MODULE: {"quant_algo": "UNQUANTIZED"}, OTHER: {"quant_algo": "FP8"}}),
    "modelopt without an algorithm": modelopt(quant_algo=None),
    "packed": {"quantization_config": {**packed(NVFP4)["quantization_config"], "ignore": [r"re:.*\.mlp\..*"]}},
    "fp8": method("fp8", modules_to_not_convert=["model.layers.3"]),
    "fp8 by the other key": method("fp8", ignored_layers=["mlp"]),
    "quark": method("quark", global_quant_config={"weight": {"dtype": "fp4"}}, exclude=["*mlp*"]),
    "quark layer": method(
        "quark", global_quant_config={"weight": {"dtype": "fp4"}}, layer_quant_config={MODULE: {"weight": None}}
    ),
    "mlx": {"quantization": {"bits": 4, "group_size": 64, MODULE: False}},
    "gptq": method("gptq", bits=4, dynamic={r"-:.*\.mlp": {}}),
    "awq": method("awq", bits=4, modules_to_not_convert=["mlp"]),
    "auto-round": method("auto-round", bits=4, extra_config={MODULE: {"bits": 16}}),
    "auto-round blocks": method("auto-round", bits=4, block_name_to_quantize="model.visual, model.other"),
}


@pytest.mark.parametrize("config", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_module_that_is_left_out(config: dict[str, Any]) -> None:
    """Every format has its way to leave a module out."""
    assert read(config).known is True
    assert scheme(config) is None


ACTIVATIONS = {
    "null": (packed(NVFP4, input_activations=None), Activations.PLAIN),
    "absent": (packed(NVFP4), Activations.PLAIN),
    "static": (packed(NVFP4, input_activations={"dynamic": False}), Activations.SCALED),
    "local": (packed(NVFP4, input_activations={"dynamic": "local"}), Activations.SCALED),
    "dynamic": (packed(NVFP4, input_activations={"dynamic": True}), Activations.UNTOLD),
    "nonsense": (packed(NVFP4, input_activations=3), Activations.UNTOLD),
    "bare NVFP4": (modelopt(quant_algo="NVFP4"), Activations.SCALED),
    "W4A16": (modelopt(quant_algo="W4A16_NVFP4"), Activations.PLAIN),
    "fp8 static": (method("fp8", activation_scheme="static"), Activations.SCALED),
    "fp8 dynamic": (method("fp8", activation_scheme="dynamic"), Activations.UNTOLD),
}


@pytest.mark.parametrize(("config", "expected"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_what_is_declared_about_activations(config: dict[str, Any], expected: Activations) -> None:
    """Only what needs or excludes a stored scale counts."""
    found = scheme(config)
    assert found is not None
    assert found.activations is expected


CACHES = {
    "scheme": (modelopt(quant_algo="FP8", kv_cache_scheme={"type": "float", "num_bits": 8}), "float 8-bit"),
    "dynamic": (modelopt(quant_algo="FP8", kv_cache_scheme={"type": "float", "num_bits": 8, "dynamic": True}), ""),
    "none": (modelopt(quant_algo="FP8", kv_cache_scheme=None), ""),
    "not said": (modelopt(quant_algo="FP8"), None),
    "algorithm": ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "FP8"),
    "no algorithm": ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, ""),
    "packed": ({"quantization_config": {**packed(NVFP4)["quantization_config"], "kv_cache_scheme": None}}, ""),
    "quark": (
        method("quark", global_quant_config={"weight": {"dtype": "fp4"}}, export={"kv_cache_group": ["*k_proj"]}),
        "a KV-cache group",
    ),
}


@pytest.mark.parametrize(("config", "expected"), CACHES.values(), ids=CACHES)
def test_what_is_declared_about_the_kv_cache(config: dict[str, Any], expected: str | None) -> None:
    """A scheme, none, or nothing at all."""
    assert read(config).kv_cache == expected


UNKNOWN = {
    "another method": (method("bitsandbytes", load_in_4bit=True), "bitsandbytes"),
    "no method": ({"quantization_config": {"bits": 4}}, "without a name"),
    "a method that is no word": (method("") | {"quantization_config": {"quant_method": 3}}, "without a name"),
    "nothing declared": (method("compressed-tensors", ignore=["lm_head"]), "compressed-tensors"),
    "too many groups": (
        method("compressed-tensors", config_groups={f"{n}": {"targets": ["a"], "weights": NVFP4} for n in range(300)}),
        "compressed-tensors",
    ),
    "too many schemes": (
        {"quantization": {"bits": 4, **{f"path{n}": {"bits": n} for n in range(300)}}},
        "mlx",
    ),
}


@pytest.mark.parametrize(("config", "name"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_understood_is_named(config: dict[str, Any], name: str) -> None:
    """It declares something, but nothing to hold modules against."""
    declaration = read(config)
    assert (declaration.method, declaration.known, declaration.rules) == (name, False, ())


@pytest.mark.parametrize("config", [None, {}, {"quantization_config": None}, {"quantization_config": {}}, {"a": 1}])
def test_a_config_that_declares_nothing(config: dict[str, Any] | None) -> None:
    """No file, no key and an empty block are all the same."""
    assert read_declaration(CONFIG, config) is None
    assert declared_tile(config) is None


TOTAL = {
    "targets by path": (modelopt(config_groups={"g": {"targets": [MODULE], "weights": NVFP4}}), True),
    "a class of modules": (packed(NVFP4, targets=["FusedMoE"]), False),
    "a target that is not read": (packed(NVFP4, targets=["re:("]), False),
}


@pytest.mark.parametrize(("config", "expected"), TOTAL.values(), ids=TOTAL)
def test_whether_a_declaration_tells_of_all_modules(config: dict[str, Any], expected: bool) -> None:  # noqa: FBT001 - a column
    """It does not where a target may mean any module."""
    assert read(config).total is expected


def test_a_sidecar_may_be_without_a_key() -> None:
    """Some exporters write the block itself."""
    declaration = read({"quant_algo": "FP8", "exclude_modules": [OTHER]}, SIDECAR)
    assert (declaration.file, declaration.method) == (SIDECAR, "modelopt")
    assert [rule.key for rule in declaration.rules] == ["exclude_modules", "quant_algo"]


def test_the_advice_names_the_list_of_the_format() -> None:
    """Each format has its own key to leave modules out, read in its own way."""
    sidecar = {"quantization": {"quant_algo": "FP8"}}
    configs = [modelopt(quant_algo="FP8"), sidecar, packed(NVFP4), method("fp8")]
    assert [(d.ignore, d.style) for d in map(read, configs)] == [
        ("ignore", Style.GLOB),
        ("exclude_modules", Style.GLOB),
        ("ignore", Style.REGEX),
        ("modules_to_not_convert", Style.PART),
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [([128, 64], (128, 64)), ([128], None), ([128, 0], None), ([1.5, 2], None), ([True, 2], None), ("128", None)],
)
def test_the_declared_tile(size: object, expected: tuple[int, int] | None) -> None:
    """Two positive integers, or none."""
    assert declared_tile(method("fp8", weight_block_size=size)) == expected


@pytest.mark.parametrize("bits", [0, -1, 17, True, "4", None, float("nan"), 10**400])
def test_a_mean_width_that_is_none(bits: object) -> None:
    """EXL3 declares a width between 0 and 16."""
    assert read(method("exl3", bits=bits)).bits == 0
