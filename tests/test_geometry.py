# SPDX-License-Identifier: AGPL-3.0-only
"""What config.json says about shapes and layers: read as it stands, validated field by field, nothing defaulted."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, TINY_CONFIG, Kind, tiny, write_checkpoint

from glm5inspect.census import take_census
from glm5inspect.dsa import Block, DsaAnswer, verify_dsa
from glm5inspect.geometry import declared_dsa_layers, read_count, read_geometry, text_config
from glm5inspect.mtp import find_mtp
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE_FIELDS = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_kpool": 4,
    "index_topk": 2048,
}
REFERENCE_BLOCK = {
    "self_attn.q_a_proj.weight": (1536, 4096),
    "self_attn.q_a_layernorm.weight": (1536,),
    "self_attn.q_b_proj.weight": (16384, 1536),
    "self_attn.kv_a_proj_with_mqa.weight": (512, 4096),
    "self_attn.kv_a_layernorm.weight": (512,),
    "self_attn.kv_b_proj.weight": (32768, 512),
    "self_attn.o_proj.weight": (4096, 16384),
    "self_attn.indexer.wq_b.weight": (4096, 1536),
    "self_attn.indexer.wk.weight": (128, 4096),
    "self_attn.indexer.k_norm.weight": (128,),
    "self_attn.indexer.k_norm.bias": (128,),
    "self_attn.indexer.weights_proj.weight": (32, 4096),
    "self_attn.indexer.index_kpool_compress_gate": (128, 4096),
    "self_attn.indexer.index_kpool_compress_ape": (4, 128),
}
LAYER_TYPES = [*["linear_attention"] * 3, "deepseek_sparse_attention", "linear_attention"]


def reference_block(tmp_path: Path, config: dict[str, Any] | None) -> Report:
    """Verify layer 3 of a tree that holds nothing but the block of the reference."""
    tensors = {f"{TEXT}layers.3.{name}": Kind("BF16", shape) for name, shape in REFERENCE_BLOCK.items()}
    return verify_dsa(open_source(str(write_checkpoint(tmp_path, tensors, config=config))), layers=[3])


def configured(tmp_path: Path, fields: dict[str, object]) -> Report:
    """Verify the tiny model under a config with other fields of its text model."""
    config = copy.deepcopy(TINY_CONFIG)
    config["text_config"] |= fields
    return verify_dsa(open_source(str(write_checkpoint(tmp_path, tiny(), config=config))))


def test_shapes_of_the_reference(tmp_path: Path) -> None:
    """The literal shapes of one block are what its geometry asks for, 249,828,864 bytes."""
    report = reference_block(tmp_path, {"text_config": {**REFERENCE_FIELDS, "layer_types": LAYER_TYPES}})
    assert report.findings == ()
    assert report.answer == DsaAnswer(REFERENCE_FIELDS, (Block(3, 14, 14, 249_828_864, ok=True, unclaimed=()),))


def test_without_a_config_the_geometry_is_the_reference(tmp_path: Path) -> None:
    """The same block is right without a config too, but a warning says what it was held to."""
    report = reference_block(tmp_path, None)
    assert [finding.code.value for finding in report.findings] == ["config-missing"]
    assert isinstance(report.answer, DsaAnswer)
    assert report.answer.geometry == REFERENCE_FIELDS


def test_flat_config(tmp_path: Path) -> None:
    """Text-only and draft configs have the fields at the top level."""
    report = reference_block(tmp_path, {**REFERENCE_FIELDS, "layer_types": LAYER_TYPES, "text_config": None})
    assert report.findings == ()


def test_nested_text_config_wins(tmp_path: Path) -> None:
    """What stands at the top level beside a text_config is not the text model's, not even for a missing field."""
    fields = {name: value for name, value in REFERENCE_FIELDS.items() if name != "hidden_size"}
    report = reference_block(tmp_path, {**REFERENCE_FIELDS, "text_config": fields})
    assert [finding.message for finding in report.findings] == [
        "config.json: hidden_size is missing, not a positive integer"
    ]


def test_halving_the_heads_changes_three_shapes(tmp_path: Path) -> None:
    """The head count is in the rows of q_b and kv_b and in the columns of o_proj, and nowhere else."""
    fields = {**REFERENCE_FIELDS, "num_attention_heads": 32, "layer_types": LAYER_TYPES}
    report = reference_block(tmp_path, {"text_config": fields})
    attention = f"{TEXT}layers.3.self_attn."
    assert [(f.code.value, f.tensor, f.expected) for f in report.findings] == [
        ("dsa-shape", f"{attention}kv_b_proj.weight", [16384, 512]),
        ("dsa-shape", f"{attention}o_proj.weight", [4096, 8192]),
        ("dsa-shape", f"{attention}q_b_proj.weight", [8192, 1536]),
    ]


@pytest.mark.parametrize("field", REFERENCE_FIELDS)
@pytest.mark.parametrize(
    "value",
    [None, True, 64.0, "64", -64, [64], 1 << 64, 10**4000],
    ids=["null", "bool", "float", "string", "negative", "list", "2^64", "huge"],
)
def test_impossible_field(field: str, value: object) -> None:
    """Whatever is not a positive integer is named with its field; nothing is converted and nothing defaulted."""
    geometry, faults = read_geometry({"text_config": {**REFERENCE_FIELDS, field: value}})
    assert geometry is None
    assert [fault.code.value for fault in faults] == ["config-geometry"]
    assert faults[0].message.startswith(f"config.json: {field} is ")
    assert faults[0].actual == json.dumps(value)[:60]


@pytest.mark.parametrize("field", REFERENCE_FIELDS)
def test_missing_field(field: str) -> None:
    """A field that is not there has no default."""
    geometry, faults = read_geometry({name: value for name, value in REFERENCE_FIELDS.items() if name != field})
    assert geometry is None
    assert [(fault.code.value, fault.actual) for fault in faults] == [("config-geometry", None)]
    assert faults[0].message.startswith(f"config.json: {field} is missing")


@pytest.mark.parametrize("field", [name for name in REFERENCE_FIELDS if name != "qk_rope_head_dim"])
def test_zero(field: str) -> None:
    """Only the rope part may be zero, and must be."""
    geometry, faults = read_geometry({**REFERENCE_FIELDS, field: 0})
    assert geometry is None
    assert [fault.message.split()[1] for fault in faults] == [field]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"qk_rope_head_dim": 64}, ["qk_rope_head_dim"]),
        ({"qk_rope_head_dim": False}, ["qk_rope_head_dim"]),
        ({"index_topk": 2047}, ["index_topk"]),
        ({"index_topk": 2}, ["index_topk"]),
        ({"index_kpool": 3}, ["index_topk"]),
        ({"index_kpool": 0, "index_topk": 2047}, ["index_kpool"]),
        ({"hidden_size": 0, "v_head_dim": 0, "index_topk": 2}, ["hidden_size", "v_head_dim", "index_topk"]),
    ],
    ids=["rope", "rope is false", "topk odd", "topk below kpool", "kpool not a divisor", "kpool zero", "several"],
)  # fmt: skip
def test_rules_between_fields(fields: dict[str, object], named: list[str]) -> None:
    """No rope section, and whole pools; every field at fault is reported, each once."""
    geometry, faults = read_geometry({**REFERENCE_FIELDS, **fields})
    assert geometry is None
    assert [fault.message.split()[1] for fault in faults] == named


def test_rope_is_explained() -> None:
    """A rope section means that the config is another model's."""
    _, (fault,) = read_geometry({**REFERENCE_FIELDS, "qk_rope_head_dim": 64})
    assert fault.expected == "0"
    assert fault.hint is not None
    assert "NoPE" in fault.hint


def test_no_block_is_checked_with_an_impossible_geometry(tmp_path: Path) -> None:
    """The answer is complete and no: geometry null, no blocks."""
    report = configured(tmp_path, {"hidden_size": 0})
    assert [finding.code.value for finding in report.findings] == ["config-geometry"]
    assert report.answer == DsaAnswer(None, ())
    assert report.complete
    assert not report.judged(Policy()).ok


@pytest.mark.parametrize(
    ("config", "count", "faulty"),
    [
        (None, None, False),
        ({}, None, False),
        ({"text_config": {}}, None, False),
        ({"text_config": {"n": None}}, None, False),
        ({"text_config": {"n": 0}}, 0, False),
        ({"n": 45}, 45, False),
        ({"n": (1 << 64) - 1}, 18_446_744_073_709_551_615, False),
        ({"n": 1 << 64}, None, True),
        ({"n": -1}, None, True),
        ({"n": True}, None, True),
        ({"n": 1.0}, None, True),
        ({"n": "1"}, None, True),
    ],
)
def test_number_of_layers(config: dict[str, object] | None, count: int | None, *, faulty: bool) -> None:
    """A number that is not declared is no fault; one that is not natural is."""
    value, faults = read_count(config, "n")
    assert value == count
    assert [fault.code.value for fault in faults] == ["config-geometry"] * faulty


@pytest.mark.parametrize("config", [{"text_config": []}, {"text_config": "x"}, {"text_config": None}, {}])
def test_text_config_that_is_no_object(config: dict[str, object]) -> None:
    """Such a config is read as a flat one."""
    assert text_config(config) is config


@pytest.mark.parametrize("kind", ["deepseek_sparse_attention", "indexed_attention", "full_attention"])
def test_names_of_sparse_layers(kind: str) -> None:
    """Three spellings of the same layer type are in use."""
    types = ["linear_attention", kind, None, 7, {"type": kind}, "sliding_attention", kind]
    assert ({1, 6}, []) == declared_dsa_layers({"layer_types": types})


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, None),
        ({"linear_attn_config": None}, None),
        ({"linear_attn_config": {"full_attn_layers": None}}, None),
        ({"linear_attn_config": {"full_attn_layers": [7, 3]}}, {3, 7}),
        ({"linear_attn_config": {"full_attn_layers": [3]}, "layer_types": LAYER_TYPES}, {3}),
        ({"layer_types": LAYER_TYPES, "num_hidden_layers": 5}, {3}),
        ({"layer_types": []}, set()),
    ],
    ids=["neither", "no linear config", "null", "list only", "both", "with a count", "none declared"],
)
def test_declared_layers(fields: dict[str, object], layers: set[int] | None) -> None:
    """Either field tells, both together are read when they agree."""
    assert (layers, []) == declared_dsa_layers(fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"linear_attn_config": {"full_attn_layers": [2, 3]}},
            ["layer_types and linear_attn_config.full_attn_layers disagree about layers 2"],
        ),
        (
            {"linear_attn_config": {"full_attn_layers": []}},
            ["layer_types and linear_attn_config.full_attn_layers disagree about layers 3"],
        ),
        ({"num_hidden_layers": 6}, ["layer_types has 5 entries, num_hidden_layers is 6"]),
        (
            {"num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": [4]}},
            ["disagree about layers 3-4", "layer_types has 5 entries, num_hidden_layers is 4"],
        ),
    ],
    ids=["one more", "none", "length", "both"],
)
def test_contradictions(tmp_path: Path, fields: dict[str, object], said: list[str]) -> None:
    """The fields that say which layers are sparse must agree with each other, and in length with the layer count."""
    report = configured(tmp_path, fields)
    found = [finding.message for finding in report.findings if finding.code.value == "config-contradiction"]
    assert len(found) == len(said)
    assert all(part in message for part, message in zip(said, found, strict=True))
    assert not report.judged(Policy()).ok


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layer_types": "deepseek_sparse_attention"}, "layer_types"),
        ({"layer_types": {"3": "full_attention"}}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 10_001}, "layer_types"),
        ({"linear_attn_config": {"full_attn_layers": "3"}}, "full_attn_layers"),
        ({"linear_attn_config": {"full_attn_layers": [True]}}, "full_attn_layers"),
        ({"linear_attn_config": {"full_attn_layers": [3.0]}}, "full_attn_layers"),
        ({"linear_attn_config": {"full_attn_layers": [-1]}}, "full_attn_layers"),
        ({"linear_attn_config": {"full_attn_layers": [10_000_000]}}, "full_attn_layers"),
    ],
)
def test_lists_that_are_no_lists_of_layers(tmp_path: Path, fields: dict[str, object], named: str) -> None:
    """A malformed list is a fault of its field; no block is checked by guesswork, and none passes."""
    report = configured(tmp_path, fields)
    assert [finding.code.value for finding in report.findings] == ["config-geometry"]
    assert report.findings[0].message.startswith(f"config.json: {named} is ")
    assert isinstance(report.answer, DsaAnswer)
    assert (report.answer.geometry, report.answer.blocks) == (None, ())


@pytest.mark.parametrize("layers", [10_000_000, (1 << 64) - 1], ids=["10^7", "2^64-1"])
def test_hostile_number_of_layers(tmp_path: Path, layers: int) -> None:
    """Millions of declared layers are compared as a range, never listed one by one."""
    fields = {"num_hidden_layers": layers, "num_nextn_predict_layers": layers}
    config = {"text_config": {**TINY_CONFIG["text_config"], **fields}}
    source = open_source(str(write_checkpoint(tmp_path, tiny(), config=config)))
    assert [f.code.value for f in take_census(source).findings] == ["layer-gap"]
    assert [f.code.value for f in verify_dsa(source).findings] == ["config-contradiction"]
    assert [f.code.value for f in find_mtp(source).findings] == ["mtp-count", "mtp-position"]
