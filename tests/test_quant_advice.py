# SPDX-License-Identifier: AGPL-3.0-only
"""What is advised about a quantization config, noted about its entries, and survived of hostile ones."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from quantized import (
    BLOCKS,
    EXPERTS,
    LAYER,
    MLX,
    MTP,
    NVFP4,
    PLAIN,
    SCALED,
    SHARED,
    SIDE,
    WEIGHT_ONLY,
    check,
    codes,
    group,
    method,
    modelopt,
    module,
    small,
)

from glm5inspect.catalogue import Code, Severity

if TYPE_CHECKING:
    from glm5inspect.stored import StoredModule

CACHE = {"type": "float", "num_bits": 8}
CACHES = {
    "declared, not stored": (modelopt(quant_algo="W4A16_NVFP4", kv_cache_scheme=CACHE), None, False, ["kv-scheme"]),
    "declared and stored": (modelopt(quant_algo="W4A16_NVFP4", kv_cache_scheme=CACHE), None, True, []),
    "stored, not declared": (modelopt(quant_algo="W4A16_NVFP4", kv_cache_scheme=None), None, True, ["kv-scheme"]),
    "stored, nothing said": (modelopt(quant_algo="W4A16_NVFP4"), None, True, ["kv-scheme"]),
    "said by the sidecar": (
        modelopt(quant_algo="W4A16_NVFP4"),
        {"quantization": {**SIDE["quantization"], "kv_cache_quant_algo": "FP8"}},
        True,
        [],
    ),
    "said differently": (
        modelopt(quant_algo="W4A16_NVFP4", kv_cache_scheme=None),
        {"quantization": {**SIDE["quantization"], "kv_cache_quant_algo": "FP8"}},
        True,
        ["quant-conflict"],
    ),
}


@pytest.mark.parametrize(("config", "sidecar", "scales", "expected"), CACHES.values(), ids=CACHES)
def test_the_kv_cache(config: object, sidecar: object, scales: bool, expected: list[str]) -> None:  # noqa: FBT001 - a column
    """Scales and a scheme belong together, and the files must agree."""
    assert codes(check(small(NVFP4, NVFP4), config, sidecar, has_kv_scales=scales)[0]) == expected


def advice(modules: list[StoredModule], config: object, sidecar: object = None) -> str:
    """Return the hint of the only finding that counts."""
    (finding,) = [f for f in check(modules, config, sidecar)[0] if f.code is Code.QUANT_UNDECLARED]
    assert finding.hint
    return finding.hint


ADVICE = {
    "glob": (small(NVFP4, PLAIN), WEIGHT_ONLY, [f"{LAYER}5.mlp.experts*", "model.layers.5.mlp.experts*"]),
    "one module": (
        small(NVFP4, NVFP4),
        modelopt(quant_algo="W4A16_NVFP4", ignore=[]),
        [SHARED, f"model.{SHARED[21:]}"],
    ),
    "regular expression": (
        small(NVFP4, PLAIN, NVFP4),
        method("compressed-tensors", config_groups={"g": {**group(4, 16), "weights": {"num_bits": 4}}}),
        [r"re:model\.language_model\.layers\.5\.mlp\.experts.*", r"re:model\.layers\.5\.mlp\.experts.*"],
    ),
    "parts": (
        small(BLOCKS, PLAIN, BLOCKS, (256, 256)),
        method("fp8", weight_block_size=[128, 128]),
        [f"{LAYER}5.mlp.experts", "model.layers.5.mlp.experts"],
    ),
    "a layer whose number begins others": (
        [
            module(f"{LAYER}4.x.a", PLAIN, (32, 64)),
            module(f"{LAYER}4.y", PLAIN, (32, 64)),
            module(f"{LAYER}45.x.a", NVFP4, (32, 64)),
        ],
        modelopt(quant_algo="W4A16_NVFP4"),
        [f"{LAYER}4.*", "model.layers.4.*"],
    ),
    "modules between others": (
        [
            module(f"{LAYER}4.x.a", PLAIN, (32, 64)),
            module(f"{LAYER}4.x.b", PLAIN, (32, 64)),
            module(f"{LAYER}4.x.c", NVFP4, (32, 64)),
        ],
        modelopt(quant_algo="W4A16_NVFP4"),
        [f"{LAYER}4.x.a", "model.layers.4.x.a", f"{LAYER}4.x.b", "model.layers.4.x.b"],
    ),
    "experts between others": (
        [
            module(EXPERTS, PLAIN, (32, 64), experts=(1, 3)),
            module(EXPERTS, NVFP4, (32, 64), experts=(0, 2)),
        ],
        modelopt(quant_algo="W4A16_NVFP4"),
        [f"{p}3.mlp.experts.{e}.up_proj" for e in (1, 3) for p in (LAYER, "model.layers.")],
    ),
    "a list that cannot be made shorter": (
        [
            *(module(f"{LAYER}{n}.x", PLAIN, (32, 64)) for n in range(15)),
            module(f"{LAYER}20.x", NVFP4, (32, 64)),
            module(f"{LAYER}21.y", PLAIN, (32, 64)),
        ],
        modelopt(quant_algo="W4A16_NVFP4", ignore=[f"{LAYER}{n}.x" for n in range(15)]),
        [f"{LAYER}21.y", "model.layers.21.y"],
    ),
    "outside the layers": ([module("lm_head", PLAIN, (32, 64))], modelopt(quant_algo="NVFP4"), ["lm_head"]),
}


@pytest.mark.parametrize(("modules", "config", "entries"), ADVICE.values(), ids=ADVICE)
def test_the_advice_can_be_pasted(modules: list[StoredModule], config: dict[str, Any], entries: list[str]) -> None:
    """With its entries in the list, or with the option given to vLLM, the same checkpoint passes."""
    hint = advice(modules, config)
    listed = hint.partition(": ")[2].partition(". Or ")[0]
    assert json.loads(f"[{listed}]") == entries
    override = json.loads(shlex.split(hint.partition("start vLLM with: ")[2])[1])
    assert codes(check(modules, override)[0]) == []
    key = hint.partition("`")[2].partition("`")[0]
    block = config["quantization_config"]
    config = {"quantization_config": {**block, key: [*block.get(key, []), *entries]}}
    assert codes(check(modules, config)[0]) == []


def test_advice_for_a_sidecar() -> None:
    """The list is the sidecar's, and vLLM is told all of it as a config."""
    hint = advice(small(NVFP4, PLAIN), {}, SIDE)
    assert hint.startswith("Add to `exclude_modules` of hf_quant_config.json: ")
    override = json.loads(shlex.split(hint.partition("start vLLM with: ")[2])[1])
    assert override["quantization_config"]["quant_method"] == "modelopt"
    assert codes(check(small(NVFP4, PLAIN), override)[0]) == []


def test_a_paste_runs_nothing() -> None:
    """Whatever stands in a config, the shell takes the option for one word."""
    config = modelopt(quant_algo="W4A16_NVFP4", ignore=["x'; touch /tmp/y #", "$(id)", "\x1b[31m"])
    option = advice(small(NVFP4, NVFP4), config).partition("start vLLM with: ")[2]
    assert len(shlex.split(option)) == 2
    assert option.isprintable()


def test_advice_that_would_be_too_long() -> None:
    """A config of thousands of characters is not printed again; the entries are, and what to do with them."""
    config = modelopt(quant_algo="W4A16_NVFP4", ignore=["a" * 900, "b" * 900, "c" * 900])
    assert advice(small(NVFP4, NVFP4), config).endswith(
        "would need the whole `quantization_config`, with these entries in it."
    )
    mixed = {"quantization": {"bits": 4, "group_size": 32, SHARED: {"bits": 8}}}
    assert advice(small(MLX, MLX), mixed) == "Say in config.json that these modules are not quantized."


NOTES: dict[str, tuple[list[object], list[str]]] = {
    "used": (["*.shared_experts.*", "*.mlp.gate", f"{LAYER}3.mlp"], []),
    "fused": (
        ["*.gate_up_proj"],
        ["`*.gate_up_proj` in `ignore` of config.json names nothing (read as an exact path or a glob)"],
    ),
    "other prefix": (
        ["model.layers.3.mlp.gate"],
        ["`model.layers.3.mlp.gate` in `ignore` of config.json names nothing (read as an exact path or a glob)"],
    ),
    "both prefixes": ([f"{LAYER}3.mlp.gate", "model.layers.3.mlp.gate"], []),
    "no string": ([None], ["`(NoneType)` in `ignore` of config.json is not read: it is not a string"]),
    "long": (["x" * 99], [f"`{'x' * 79}…` in `ignore` of config.json names nothing (read as an exact path or a glob)"]),
}


@pytest.mark.parametrize(("entries", "expected"), NOTES.values(), ids=NOTES)
def test_entries_that_name_nothing(entries: list[object], expected: list[str]) -> None:
    """Each is told, with how it was read; those that only another loader's prefix needs are not."""
    config = modelopt(quant_algo="W4A16_NVFP4", ignore=["*.shared_experts.*", *entries])
    findings, _ = check(small(NVFP4, NVFP4), config)
    assert [finding.message for finding in findings] == expected
    assert {finding.severity for finding in findings} <= {Severity.NOTE}


def test_many_entries_that_name_nothing() -> None:
    """Twenty are told one by one."""
    config = modelopt(quant_algo="W4A16_NVFP4", ignore=["*.shared_experts.*", *(f"a{n}" for n in range(50))])
    findings, _ = check(small(NVFP4, NVFP4), config)
    assert len(findings) == 21
    assert (findings[-1].count, findings[-1].message[:8]) == (30, "30 more ")


DEEP: list[object] = []
for _ in range(5000):
    DEEP = [DEEP]
ODD: list[object] = [None, 3, "x", 1.5, True, [], {}, [[]], {"a": {}}, DEEP, float("nan"), 10**400]
KEYS = ["quant_method", "quant_algo", "config_groups", "quantized_layers", "ignore", "exclude_modules", "group_size"]
KEYS += ["kv_cache_scheme", "kv_cache_quant_algo", "weight_block_size", "modules_to_not_convert", "bits", "mode"]
KEYS += ["global_quant_config", "layer_quant_config", "exclude", "export", "codebook", "dynamic", "extra_config"]
KEYS += ["packing_format", "block_name_to_quantize", "activation_scheme", "g"]
METHODS = ["modelopt", "compressed-tensors", "fp8", "mxfp8", "mxfp4", "quark", "exl3", "gptq", "awq", "auto-round", "x"]


@pytest.mark.parametrize("method_name", METHODS)
def test_wrong_types_never_raise(method_name: str) -> None:
    """Anything may stand anywhere."""
    groups = {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}
    base: dict[str, object] = {"quant_method": method_name, "quant_algo": "NVFP4", "config_groups": groups, "bits": 4}
    for odd in ODD:
        for key in KEYS:
            check(small(NVFP4, PLAIN), {"quantization_config": {**base, key: odd}}, {"quantization": {key: odd}})
            check(small(NVFP4, PLAIN), {"quantization": {**base, key: odd}}, {key: odd, "quant_algo": "FP8"})
            config = {
                **base,
                "config_groups": {"g": {key: odd, "targets": odd, "weights": {"num_bits": odd, "type": odd}}},
            }
            check(small(NVFP4, PLAIN), {"quantization_config": config})


def test_lists_of_any_length_are_read_in_time() -> None:
    """Hundreds of thousands of entries of each kind are bounded; what is not read is told."""
    entries = [f"a{n}" for n in range(250_000)]
    findings, subjects = check(small(NVFP4, NVFP4), modelopt(quant_algo="W4A16_NVFP4", ignore=entries))
    assert subjects == 9
    assert findings[-1].count == 100_001 - 20
    paths = {f"path{n}": {"bits": n} for n in range(250_000)}
    assert codes(check(small(MLX, MLX), {"quantization": {"bits": 4, **paths}})[0]) == ["quant-unstated"]


def test_experts_declared_one_by_one() -> None:
    """Thousands of exact paths are looked up, and each expert counts once."""
    layers = {EXPERTS.replace("E", str(n)): {"quant_algo": "NVFP4"} for n in range(3)}
    config = modelopt(
        quant_algo="MIXED_PRECISION", quantized_layers={**layers, MTP.replace("E", "0"): {"quant_algo": "FP8"}}
    )
    findings = check(small(SCALED, SCALED), config)[0]
    assert [(f.code.value, f.tensor, f.count, f.severity) for f in findings] == [
        ("quant-scheme", MTP.replace("E", "0"), 1, Severity.ERROR),
        ("quant-unstated", EXPERTS.replace("E", "3"), 1, Severity.ERROR),
        ("quant-unstated", MTP.replace("E", "1"), 3, Severity.ERROR),
    ]


def test_what_is_compared() -> None:
    """Linear modules only, and all of them where a declaration is understood."""
    assert check(small(NVFP4, NVFP4), WEIGHT_ONLY)[1] == 9
    assert check(small(NVFP4, NVFP4), {})[1] == 8
    assert check(small(NVFP4, NVFP4), method("bitsandbytes"))[1] == 8
    assert check(small(PLAIN, PLAIN), {})[1] == 0
    routers = [module(f"{LAYER}3.mlp.gate", PLAIN, (32, 64), linear=False)]
    assert check(routers, modelopt(quant_algo="W4A16_NVFP4", ignore=[])) == ([], 0)
