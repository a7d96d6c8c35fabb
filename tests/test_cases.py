# SPDX-License-Identifier: AGPL-3.0-only
"""What went wrong with checkpoints in public, scaled down: each is told by its code, and its sound twin by none.

How names may be written otherwise, which experts may be pruned and what a draft is, has tests of its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from checkpoints import TEXT, Kind, edit_json, shard_name, write_checkpoint, write_index, write_shard
from dialect_tables import SWITCH, mlx
from whole_model import CONFIG, EXPERT_SHAPES, answer, look, serious, stating, trunk, whole

from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Report

MTP = f"{TEXT}layers.5."
INDEX = "model.safetensors.index.json"


class Case(NamedTuple):
    """A checkpoint, and what is to be said of it.

    Attributes:
        tensors: What it holds.
        expected: Code and severity of everything but what the config of a tiny model changes.
        quantization: ``quantization_config`` of ``config.json``.
        sidecar: ``hf_quant_config.json``.
        config: ``config.json`` but for that.
    """

    tensors: Tensors
    expected: set[str]
    quantization: dict[str, Any] | None = None
    sidecar: dict[str, Any] | None = None
    config: dict[str, Any] = CONFIG


def encoded(layers: Iterable[int], *, gate: dict[str, Kind], down: dict[str, Kind]) -> Tensors:
    """Return the whole model with the experts of some layers stored in another way."""
    tensors = whole()
    for layer in layers:
        for expert in range(4):
            for projection in EXPERT_SHAPES:
                module = f"{TEXT}layers.{layer}.mlp.experts.{expert}.{projection}"
                del tensors[f"{module}.weight"]
                kinds = down if projection == "down_proj" else gate
                tensors |= {f"{module}.{suffix}": kind for suffix, kind in kinds.items()}
    return tensors


def nvfp4(*layers: int, **more: Kind) -> Tensors:
    """Return the whole model with the experts of some layers in NVFP4, without scales of activations unless given."""
    gate = {"weight": Kind("U8", (32, 32)), "weight_scale": Kind("F8_E4M3", (32, 4)), "weight_scale_2": Kind("F32", ())}
    down = {"weight": Kind("U8", (64, 16)), "weight_scale": Kind("F8_E4M3", (64, 2)), "weight_scale_2": Kind("F32", ())}
    return encoded(layers, gate=gate | more, down=down | more)


def with_mxfp8_layer_5() -> Tensors:
    """Return an NVFP4 trunk beside an MTP layer in MXFP8."""
    gate = {"weight": Kind("F8_E4M3", (32, 64)), "weight_scale": Kind("U8", (32, 2))}
    down = {"weight": Kind("F8_E4M3", (64, 32)), "weight_scale": Kind("U8", (64, 1))}
    mine = encoded((5,), gate=gate, down=down)
    return drop(nvfp4(3, 4), f"{MTP}mlp.experts.") | {n: kind for n, kind in mine.items() if f"{MTP}mlp.experts." in n}


def drop(tensors: Tensors, *marks: str) -> Tensors:
    """Return tensors without those whose names hold any of these."""
    return {name: kind for name, kind in tensors.items() if not any(mark in name for mark in marks)}


def fp8(rows: int, columns: int, *scale: int, suffix: str = "weight_scale_inv", dtype: str = "F32") -> dict[str, Kind]:
    """Return a weight in FP8 and its scales."""
    return {"weight": Kind("F8_E4M3", (rows, columns)), suffix: Kind(dtype, scale)}


def put(module: str, kinds: dict[str, Kind]) -> Tensors:
    """Return the whole model with one module stored in another way."""
    tensors = whole()
    del tensors[f"{module}.weight"]
    return tensors | {f"{module}.{suffix}": kind for suffix, kind in kinds.items()}


PLAIN_TRUNK = ["lm_head", "model.visual*", *(f"model.language_model.layers.{n}.self_attn*" for n in range(5))]
PLAIN_TRUNK += [
    f"model.language_model.layers.{n}.mlp.{p}*" for n in (0, 1, 2) for p in ("gate_proj", "up_proj", "down")
]
PLAIN_TRUNK += [f"model.language_model.layers.{n}.mlp.shared_experts*" for n in (3, 4)]
PLAIN_MTP = [f"{MTP}{part}*" for part in ("self_attn", "mlp.shared_experts", "eh_proj")]
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
WEIGHT_ONLY = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16}
ALL_PLAIN = [*PLAIN_TRUNK, *PLAIN_MTP]


def group(targets: list[str], bits: int, size: int, activations: object = None) -> dict[str, Any]:
    """Return a group of a quantization config."""
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": size}
    return {"targets": targets, "weights": weights, "input_activations": activations}


def groups(*each: dict[str, Any]) -> dict[str, Any]:
    """Return a quantization config of several groups."""
    named = {f"group_{number}": one for number, one in enumerate(each)}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": named, "ignore": ALL_PLAIN}


DENSE = f"{TEXT}layers.0.mlp.up_proj"
KV_A = f"{TEXT}layers.3.self_attn.kv_a_proj_with_mqa"
BLOCK_32 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
BUT_DENSE = ["lm_head", "visual", "self_attn", "experts", "shared_experts", "eh_proj", "layers.1", "layers.2"]
FP8 = {**BLOCK_32, "modules_to_not_convert": [*BUT_DENSE, "gate_proj", "down_proj"]}
STATIC = {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16}
SIDECAR = {"quantization": {"quant_algo": "W4A16_NVFP4", "group_size": 16, "exclude_modules": ALL_PLAIN}}
UNSTATED = "quant-unstated WARNING"
MIXED = {"encoding-mixed NOTE", "mtp-encoding NOTE"}
ONE_MIXED = {"encoding-mixed NOTE"}
TRUNK_GROUP = group(["*.layers.3.mlp.experts*", "*.layers.4.mlp.experts*"], 4, 16)
MXFP4 = encoded(
    (3, 4, 5),
    gate={"weight": Kind("U8", (32, 32)), "weight_scale": Kind("U8", (32, 2))},
    down={"weight": Kind("U8", (64, 16)), "weight_scale": Kind("U8", (64, 1))},
)
EXL3 = encoded(
    (3, 4, 5),
    gate={
        "trellis": Kind("I16", (4, 2, 32)),
        "suh": Kind("F16", (64,)),
        "svh": Kind("F16", (32,)),
        "mul1": Kind("I32", ()),
    },
    down={
        "trellis": Kind("I16", (2, 4, 32)),
        "suh": Kind("F16", (32,)),
        "svh": Kind("F16", (64,)),
        "mul1": Kind("I32", ()),
    },
)
FP8_EXPERTS = encoded((3, 4, 5), gate=fp8(32, 64, 1, 1), down=fp8(64, 32, 1, 1))
CONVOLUTIONS = {name: Kind("F32", kind.shape) for name, kind in whole().items() if "conv1d" in name}
DECAYS = {name: Kind("BF16", kind.shape) for name, kind in whole().items() if name.endswith("A_log")}
BIASES = {name: Kind("BF16", kind.shape) for name, kind in whole().items() if "e_score" in name}
APE = f"{TEXT}layers.3.self_attn.indexer.index_kpool_compress_ape"
MOVED = {name.replace("layers.5.", "layers.6."): kind for name, kind in whole().items()}

CASES = {
    "01 MTP layer plain, and not left out": Case(
        nvfp4(3, 4), MIXED | {"quant-undeclared ERROR"}, {**WEIGHT_ONLY, "ignore": PLAIN_TRUNK}
    ),
    "01 left out": Case(nvfp4(3, 4), MIXED, {**WEIGHT_ONLY, "ignore": [*PLAIN_TRUNK, f"{MTP}*"]}),
    "02 MXFP8 beside NVFP4": Case(
        with_mxfp8_layer_5(), MIXED, groups(TRUNK_GROUP, group(["*.layers.5.mlp.experts*"], 8, 32))
    ),
    "02 no group for it": Case(
        with_mxfp8_layer_5(), MIXED | {"quant-scheme ERROR"}, {**WEIGHT_ONLY, "ignore": ALL_PLAIN}
    ),
    "04 MTP layer lost": Case(drop(whole(), MTP), {"mtp-missing ERROR"}),
    "04 only its projection left": Case(
        drop(whole(), *(f"{MTP}{part}" for part in ("self_attn", "mlp", "enorm", "hnorm", "shared", "input", "post"))),
        {"dsa-missing ERROR", "module-missing ERROR", "mtp-incomplete ERROR"},
    ),
    "04 its last expert lost": Case(drop(whole(), f"{MTP}mlp.experts.3."), {"expert-count ERROR"}),
    "07 weights only": Case(nvfp4(3, 4, 5), set(), {**WEIGHT_ONLY, "ignore": ALL_PLAIN}),
    "07 activations declared, no scale": Case(
        nvfp4(3, 4, 5), {"quant-activations WARNING"}, {**MODELOPT, "ignore": ALL_PLAIN}
    ),
    "07 activations declared static": Case(
        nvfp4(3, 4, 5), {"quant-activations WARNING"}, groups(group(["Linear"], 4, 16, STATIC))
    ),
    "07 activations declared null": Case(nvfp4(3, 4, 5), set(), groups(group(["Linear"], 4, 16))),
    "07 activations declared, and scales": Case(
        nvfp4(3, 4, 5, input_scale=Kind("F32", ())), set(), groups(group(["Linear"], 4, 16, STATIC))
    ),
    "07 null beside scales": Case(
        nvfp4(3, 4, 5, input_scale=Kind("F32", ())),
        {"quant-activations WARNING"},
        groups(group(["Linear"], 4, 16)),
    ),
    "10 block scales called weight_scale": Case(
        put(DENSE, fp8(128, 64, 4, 2, suffix="weight_scale")), ONE_MIXED | {"scale-suffix WARNING"}, FP8
    ),
    "10 MXFP4 with the same suffix": Case(MXFP4, {UNSTATED}),
    "10 both suffixes": Case(
        put(DENSE, fp8(128, 64, 4, 2) | fp8(128, 64, 4, 2, suffix="weight_scale")), {"encoding-ambiguous ERROR"}, FP8
    ),
    "10 neither": Case(put(DENSE, {"weight": Kind("F8_E4M3", (128, 64))}), {"encoding-incomplete ERROR"}, FP8),
    "12 entries under another prefix": Case(
        nvfp4(3, 4, 5),
        {"quant-undeclared ERROR", "quant-pattern-unused NOTE"},
        {**WEIGHT_ONLY, "ignore": [entry.replace("language_model.", "") for entry in ALL_PLAIN]},
    ),
    "14 convolutions wide": Case(whole() | CONVOLUTIONS, {"precision-widened NOTE"}),
    "14 decay narrow": Case(whole() | DECAYS, {"precision-narrowed WARNING"}),
    "14 indexer wide": Case(whole() | {APE: Kind("F32", (4, 8))}, {"dsa-dtype ERROR"}),
    "15 router bias narrow": Case(whole() | BIASES, {"precision-narrowed WARNING"}),
    "21 EXL3": Case(EXL3, set(), {"quant_method": "exl3", "bits": 2.0, "codebook": "mul1"}),
    "21 another codebook": Case(EXL3, {"quant-scheme ERROR"}, {"quant_method": "exl3", "bits": 2.0, "codebook": "mcg"}),
    "21 another rate": Case(EXL3, {"quant-scheme ERROR"}, {"quant_method": "exl3", "bits": 4.0}),
    "28 MTP still declared after a merge": Case(trunk(), {"mtp-missing ERROR"}),
    "28 not declared any more": Case(trunk(), {"mtp-absent NOTE"}, config=stating(num_nextn_predict_layers=0)),
    "30 MTP there, none declared": Case(
        whole(), {"mtp-undeclared WARNING"}, config=stating(num_nextn_predict_layers=0)
    ),
    "30 MTP at another index": Case(MOVED, {"layer-gap ERROR", "mtp-position ERROR"}),
    "47 two files contradict": Case(nvfp4(3, 4, 5), {"quant-conflict ERROR"}, BLOCK_32, SIDECAR),
    "47 the other file only": Case(nvfp4(3, 4, 5), set(), None, SIDECAR),
    "47 no file": Case(nvfp4(3, 4, 5), {UNSTATED}),
    "47 FP8 stored, NVFP4 declared": Case(FP8_EXPERTS, {"quant-scheme ERROR"}, {**WEIGHT_ONLY, "ignore": ALL_PLAIN}),
    "51 blocks rounded up": Case(put(DENSE, fp8(128, 64, 4, 2)), ONE_MIXED, FP8),
    "51 scales in 16 bits": Case(put(DENSE, fp8(128, 64, 4, 2, dtype="BF16")), ONE_MIXED, FP8),
    "51 one row short": Case(put(DENSE, fp8(128, 64, 3, 2)), {"encoding-shape ERROR"}, FP8),
    "51 transposed": Case(put(DENSE, fp8(128, 64, 2, 4)), {"encoding-shape ERROR"}, FP8),
    "51 one-dimensional": Case(put(DENSE, fp8(128, 64, 4)), {"encoding-shape ERROR"}, FP8),
    "51 tiles of one row": Case(put(DENSE, fp8(128, 64, 128, 2)), ONE_MIXED | {UNSTATED}),
    "51 a rope part": Case(put(KV_A, fp8(80, 64, 1, 1)), {"encoding-shape ERROR"}),
}


def told(report: Report) -> set[str]:
    """Return code and severity of everything that is said."""
    return {f"{finding.code.value} {finding.severity.name}" for finding in serious(report)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_reported_case(tmp_path: Path, case: Case) -> None:
    """Exactly what is wrong with it, and the answer is *no* when an error is among that."""
    if case.sidecar:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(case.sidecar))
    declared = {"quantization_config": case.quantization} if case.quantization else {}
    report = look(tmp_path, case.tensors, {**case.config, **declared})
    assert told(report) == case.expected
    assert report.judged(Policy()).ok == (not any(one.endswith("ERROR") for one in case.expected))


HINTS = {
    "51 one row short": "one row short",
    "51 transposed": "transposed",
    "51 a rope part": "carries a rope part",
    "28 MTP still declared after a merge": "set num_nextn_predict_layers to 0",
    "01 MTP layer plain, and not left out": '"model.language_model.layers.5*", "model.layers.5*"',
}


@pytest.mark.parametrize(("name", "hint"), HINTS.items(), ids=HINTS)
def test_what_helps_is_said(tmp_path: Path, name: str, hint: str) -> None:
    """A known cause is named, and a remedy can be pasted."""
    case = CASES[name]
    declared = {"quantization_config": case.quantization} if case.quantization else {}
    report = look(tmp_path, case.tensors, {**case.config, **declared})
    assert any(hint in (finding.hint or "") for finding in report.findings)


def test_49_mlx_widths(tmp_path: Path) -> None:
    """The width is solved with the inputs that the config gives: 4 bits stored are not the 8 that are declared."""
    packed: Tensors = {}
    for layer in (3, 4, 5):
        for name, (experts, rows, width) in ((name, kind.shape) for name, kind in SWITCH.items()):
            module = f"language_model.model.layers.{layer}.{name.removesuffix('.weight')}"
            packed[f"{module}.weight"] = Kind("U32", (experts, rows, width // 8))
            packed |= {
                f"{module}.{suffix}": Kind("BF16", (experts, rows, width // 32)) for suffix in ("scales", "biases")
            }
    block = {"group_size": 32, "bits": 8}
    report = look(tmp_path, mlx() | packed, {**CONFIG, "quantization": block})
    wrong = [finding for finding in report.findings if finding.code.value == "quant-scheme"]
    assert {finding.layer for finding in wrong} == {3, 4, 5}
    assert "mlx-affine 4-bit g32" in wrong[0].message


def test_06_values_are_not_read(tmp_path: Path) -> None:
    """Scales that differ, experts scaled by a wrong factor, rows of zeros: nothing is said, and that is said."""
    report = look(tmp_path, nvfp4(3, 4, 5), {**CONFIG, "quantization_config": {**WEIGHT_ONLY, "ignore": ALL_PLAIN}})
    assert told(report) == set()
    assert answer(report).not_read == ("tensor values",)


def grafted(folder: Path, *, indexed: bool, counted: bool) -> Path:
    """Write a trunk, and the MTP layer beside it in a file of its own, as a repair does."""
    write_checkpoint(folder, trunk(), config=CONFIG, shards=2)
    layer = {name: kind for name, kind in whole().items() if name.startswith(MTP)}
    write_shard(folder / "mtp.safetensors", layer)
    size = sum(kind.nbytes for kind in whole().values()) if counted else sum(kind.nbytes for kind in trunk().values())
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    write_index(folder, weight_map | (dict.fromkeys(layer, "mtp.safetensors") if indexed else {}), size)
    return folder


@pytest.mark.parametrize(
    ("indexed", "counted", "expected"),
    [
        (True, True, set()),
        (True, False, {"index-total-size WARNING"}),
        (False, False, {"index-unlisted-shard ERROR"}),
    ],
    ids=["31 indexed", "09 not counted", "27 not indexed"],
)
def test_an_mtp_layer_in_a_file_of_its_own(
    tmp_path: Path,
    indexed: bool,  # noqa: FBT001 - a column
    counted: bool,  # noqa: FBT001 - a column
    expected: set[str],
) -> None:
    """Each omission of the repair is told by itself; an unusual name of a file is none."""
    report = verify(open_source(str(grafted(tmp_path, indexed=indexed, counted=counted))))
    assert told(report) == expected
    assert answer(report).mtp.state == "complete"


def placed(folder: Path, name: str, *others: str) -> Path:
    """Write the whole model in two shards, one tensor (and its like) in the second."""
    names = {name, *others}
    parts = [{n: k for n, k in nvfp4(3, 4, 5).items() if (n in names) == second} for second in (False, True)]
    config = {**CONFIG, "quantization_config": {**WEIGHT_ONLY, "ignore": ALL_PLAIN}}
    return write_checkpoint(folder, {}, parts=parts, config=config)


def test_26_an_expert_in_two_shards(tmp_path: Path) -> None:
    """One of its projections elsewhere is no fault; a weight apart from its scale is complete, with a warning."""
    module = f"{MTP}mlp.experts.3.up_proj"
    tensors = [f"{module}.{suffix}" for suffix in ("weight", "weight_scale", "weight_scale_2")]
    assert told(verify(open_source(str(placed(tmp_path / "whole", *tensors))))) == set()
    torn = verify(open_source(str(placed(tmp_path / "torn", tensors[1]))))
    assert told(torn) == {"companion-split WARNING"}
    assert torn.judged(Policy()).ok


def test_33_to_36_what_lies_where(tmp_path: Path) -> None:
    """An index that points elsewhere, a copy with and without a judge, and a shard that did not arrive."""
    head, eh = "lm_head.weight", f"{MTP}eh_proj.weight"

    def verified(name: str) -> set[str]:
        return told(verify(open_source(str(tmp_path / name))))

    for name in ("elsewhere", "overlay", "unsettled", "interrupted"):
        write_checkpoint(tmp_path / name, whole(), config=CONFIG, index=name != "unsettled")
    edit_json(tmp_path / "elsewhere" / INDEX, lambda index: index["weight_map"].update({eh: shard_name(1, 3)}))
    assert verified("elsewhere") == {"index-wrong-shard ERROR"}
    copy = {head: whole()[head]}
    for name in ("overlay", "unsettled"):
        write_shard(tmp_path / name / "model-overlay.safetensors", copy)
    edit_json(tmp_path / "overlay" / INDEX, lambda i: i["weight_map"].update({head: "model-overlay.safetensors"}))
    assert verified("overlay") == {"duplicate-tensor WARNING"}
    assert verified("unsettled") == {"duplicate-tensor ERROR"}
    (tmp_path / "interrupted" / shard_name(3, 3)).unlink()
    assert verified("interrupted") == {"index-missing-shard ERROR"}
