# SPDX-License-Identifier: AGPL-3.0-only
"""The census: known answers of the full-size reference, and what it says about names, layers and what is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    REFERENCE_ROLES,
    TEXT,
    TINY_CONFIG,
    Kind,
    Tensors,
    declaring,
    edit_header,
    parts_by_layer,
    shard_name,
    snapshot_tensors,
    tiny,
    write_checkpoint,
    write_shard,
)

from glm5inspect.catalogue import Severity
from glm5inspect.census import Census, take_census
from glm5inspect.layers import LayerRow
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source
from glm5inspect.scope import Scope

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "e833a4dd6b1be69ae8392d5b55f57d0e8e788d440dc2434d3e697efc2ff55007"
DSA_LAYERS = [3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43]


def census(folder: Path, scope: Scope = Scope.AUTO) -> Report:
    """Take the census of a folder."""
    return take_census(open_source(str(folder)), scope=scope)


def answer(report: Report) -> Census:
    """Return what was counted."""
    assert isinstance(report.answer, Census)
    return report.answer


def codes(report: Report) -> list[str]:
    """Return the codes of all findings."""
    return [finding.code.value for finding in report.findings]


def without_layers(*layers: int) -> Tensors:
    """Return the tiny model without some layers."""
    gone = tuple(f"{TEXT}layers.{layer}." for layer in layers)
    return {name: kind for name, kind in tiny().items() if not name.startswith(gone)}


@pytest.fixture(scope="module", params=["shards", "snapshot"])
def full(request: pytest.FixtureRequest, reference: Path) -> Report:
    """The census of the reference, from 120 shards and from its snapshot."""
    source = str(reference) if request.param == "shards" else "snapshot:reference"
    return take_census(open_source(source), patterns=True, layers=True)


def test_known_answers_of_the_reference(full: Report) -> None:
    """Every tensor of the reference is counted, has a role, and nothing is wrong."""
    counted = answer(full)
    assert full.findings == ()
    assert full.judged(Policy()).ok
    assert counted.tensors == 113_074
    assert counted.bytes == 194_644_803_576
    assert counted.patterns == 407
    assert counted.shards == 120
    assert counted.layers == 46
    assert counted.unknown == ()
    assert counted.mtp_layers == (45,)
    assert counted.digest == DIGEST
    assert {role: tally.tensors for role, tally in counted.by_role.items()} == REFERENCE_ROLES
    assert list(REFERENCE_ROLES) == list(counted.by_role)
    dtypes = {dtype: tally.tensors for dtype, tally in counted.by_dtype.items()}
    assert dtypes == {"BF16": 1_327, "F32": 37_443, "F8_E4M3": 37_152, "U8": 37_152}


def test_bytes_and_dtypes_of_roles_add_up(full: Report) -> None:
    """The tallies by role and by dtype are two cuts through the same tensors."""
    counted = answer(full)
    assert sum(tally.bytes for tally in counted.by_role.values()) == 194_644_803_576
    assert sum(tally.bytes for tally in counted.by_dtype.values()) == 194_644_803_576
    assert counted.by_role["MoeExpert"].dtypes == {"F32": 37_152, "F8_E4M3": 37_152, "U8": 37_152}
    assert counted.by_role["HyperConnection"].dtypes == {"BF16": 90, "F32": 180}
    for dtype, tally in counted.by_dtype.items():
        assert tally.tensors == sum(role.dtypes.get(dtype, 0) for role in counted.by_role.values())


def test_pattern_table_of_the_reference(full: Report) -> None:
    """One row a pattern, dtype and shape: 408, for o_proj has a shape in each mixer."""
    rows = answer(full).pattern_table
    assert rows is not None
    assert len(rows) == 408
    assert list(rows) == sorted(rows, key=lambda row: (row.pattern, row.dtype, row.shape))
    assert sum(row.tensors for row in rows) == 113_074
    assert sum(row.bytes for row in rows) == 194_644_803_576
    by_pattern = {row.pattern: row for row in rows}
    gate = by_pattern[f"{TEXT}layers.N.mlp.experts.E.gate_proj.weight"]
    assert (gate.role, gate.dtype, gate.shape) == ("MoeExpert", "U8", (2048, 2048))
    assert (gate.layers, gate.experts, gate.tensors, gate.bytes) == ("3-45", "0-287", 12_384, 51_942_260_736)
    head = by_pattern["lm_head.weight"]
    assert (head.layers, head.experts, head.tensors) == (None, None, 1)
    o_proj = [row for row in rows if row.pattern == f"{TEXT}layers.N.self_attn.o_proj.weight"]
    assert [(row.shape, row.tensors) for row in o_proj] == [((4096, 8192), 34), ((4096, 16384), 12)]
    assert o_proj[1].layers == "3,7,11,15,19,23,27,31,35,39,43,45"


def test_layer_table_of_the_reference(full: Report) -> None:
    """34 KDA layers, 11 DSA layers and the MTP layer; dense feed-forward parts in the first three only."""
    rows = answer(full).layer_table
    assert rows is not None
    assert [row.layer for row in rows] == list(range(46))
    assert [row.layer for row in rows if row.mixer == "DSA"] == [*DSA_LAYERS, 45]
    assert sum(row.mixer == "KDA" for row in rows) == 34
    assert [row.layer for row in rows if row.ffn == "dense"] == [0, 1, 2]
    assert sum(row.ffn == "moe" for row in rows) == 43
    assert [row.layer for row in rows if row.mtp] == [45]
    dtypes = {"BF16": 24, "F32": 865, "F8_E4M3": 864, "U8": 864}
    assert rows[45] == LayerRow(45, "DSA", "moe", mtp=True, tensors=2_617, bytes=4_446_537_728, dtypes=dtypes)


def test_shards_and_snapshot_give_the_same_answer(reference: Path) -> None:
    """How tensors are cut into shards changes nothing but what the index claims; compared, they are equal."""
    snapshot = open_source("snapshot:reference")
    report = take_census(open_source(str(reference)), patterns=True, layers=True, against=snapshot)
    shards, recorded = answer(report), answer(take_census(snapshot, patterns=True, layers=True))
    assert report.findings == ()
    assert (shards.index.present, shards.index.entries, shards.index.total_size) == (True, 113_074, 194_644_803_576)
    assert (recorded.index.present, recorded.index.entries, recorded.index.total_size) == (False, None, None)
    assert replace(shards, index=recorded.index) == recorded


def test_tables_are_only_made_when_asked_for(checkpoint: Path) -> None:
    """Without options there are no tables; a healthy checkpoint has no findings."""
    report = census(checkpoint)
    assert codes(report) == []
    assert answer(report).pattern_table is None
    assert answer(report).layer_table is None


def test_odd_layers_in_the_table(tmp_path: Path) -> None:
    """A layer with names of both mixers is mixed, one with neither has none."""
    tensors = {**tiny(), f"{TEXT}layers.3.self_attn.A_log": Kind("F32", (4,)), f"{TEXT}layers.9.x": Kind("U8", (1,))}
    rows = answer(take_census(open_source(str(write_checkpoint(tmp_path, tensors))), layers=True)).layer_table
    assert rows is not None
    assert {0: "KDA", 3: "mixed", 5: "DSA", 9: "none"}.items() <= {row.layer: row.mixer for row in rows}.items()
    assert {0: "dense", 3: "moe", 9: "none"}.items() <= {row.layer: row.ffn for row in rows}.items()


def test_digest_sees_every_change_but_sharding(tmp_path: Path) -> None:
    """The digest pins names, dtypes and shapes, whatever shard they are in; a scalar has no dimensions."""
    one = answer(census(write_checkpoint(tmp_path / "1", tiny(), shards=1))).digest
    assert one == answer(census(write_checkpoint(tmp_path / "4", tiny(), shards=4, index=False))).digest
    other = {**tiny(), "lm_head.weight": Kind("F16", (96, 64))}
    assert one != answer(census(write_checkpoint(tmp_path / "other", other))).digest
    scalar = write_checkpoint(tmp_path / "scalar", {"b": Kind("F32", ()), "a": Kind("U8", (2, 3))})
    known = "18014731aa34b85ab54c8036bd6f58705dcd2232d9a3b24cc3f544a0bfccc469"
    assert known == answer(census(scalar)).digest


def test_name_in_two_shards_counts_once(tmp_path: Path) -> None:
    """The copy that the index names is counted, with its size."""
    folder = write_checkpoint(tmp_path, tiny())
    before = answer(census(folder))
    write_shard(folder / "a-second-copy.safetensors", {"lm_head.weight": Kind("F32", (96, 64))})
    after = answer(census(folder))
    assert (before.tensors, before.bytes, before.digest) == (after.tensors, after.bytes, after.digest)
    assert after.shards == 4


@pytest.mark.parametrize("declared", [True, False], ids=["config", "no config"])
def test_removed_layers_of_the_reference_are_named(tmp_path: Path, declared: bool) -> None:  # noqa: FBT001
    """A hole in the layers is one finding that names it, whether or not a config says how many there are."""
    gone = tuple(f"{TEXT}layers.{layer}." for layer in range(5, 10))
    tensors = {
        n: k for n, k in snapshot_tensors("reference").items() if ".experts." not in n and not n.startswith(gone)
    }
    config = open_source("snapshot:reference").config() if declared else None
    report = census(write_checkpoint(tmp_path, tensors, config=config))
    assert codes(report) == ["layer-gap"]
    (gap,) = report.findings
    assert "text layers 5-9 are missing" in gap.message
    assert (gap.expected, gap.actual, gap.count) == ("0-45", "0-4,10-45", 5)


@pytest.mark.parametrize("config", [TINY_CONFIG, None], ids=["config", "no config"])
def test_last_layers_are_missed_as_well(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """Without a config it is the MTP layer's place that tells where the trunk should have ended."""
    report = census(write_checkpoint(tmp_path, without_layers(3, 4), config=config))
    assert [(f.code.value, f.expected, f.actual, f.count) for f in report.findings] == [
        ("layer-gap", "0-5", "0-2,5", 2),
    ]


@pytest.mark.parametrize(
    ("layers", "beyond"),
    [(4, "layer 4 is"), (1, "layers 1-4 are"), (0, "layers 0-4 are")],
    ids=["one too few", "many too few", "zero"],
)
def test_layers_beyond_the_declared_number(tmp_path: Path, layers: int, beyond: str) -> None:
    """A trunk layer that the config has no place for is named."""
    report = census(write_checkpoint(tmp_path, tiny(), config=declaring(num_hidden_layers=layers)))
    assert codes(report) == ["layer-gap"]
    assert f"text {beyond} beyond num_hidden_layers {layers}" in report.findings[0].message


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        (TINY_CONFIG, "layer-gap", "text layers 0-4 are missing; there are none"),
        (declaring(num_hidden_layers=None), "layer-gap", "there is no text layer at all"),
        (None, "foreign-architecture", "no config.json, and none of 5 names is one of this architecture"),
    ],
    ids=["config", "no number", "no config"],
)
def test_no_text_layer_at_all(tmp_path: Path, config: dict[str, Any] | None, code: str, message: str) -> None:
    """A tree of embedding, head and vision only is not a model, and without a config nobody knows whose it is."""
    report = census(write_checkpoint(tmp_path, without_layers(0, 1, 2, 3, 4, 5), config=config))
    assert [(f.code.value, f.message) for f in report.findings] == [(code, message)]


@pytest.mark.parametrize("config", [TINY_CONFIG, None], ids=["config", "no config"])
def test_huge_layer_index_is_no_loop(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """An index of 10^18 costs nothing, and is named."""
    huge = {f"{TEXT}layers.{10**18}.input_layernorm.weight": Kind("BF16", (64,))}
    report = census(write_checkpoint(tmp_path, {**tiny(), **huge}, config=config))
    assert codes(report) == ["layer-gap"]
    assert "1000000000000000000" in report.findings[0].message
    assert report.findings[0].count == (1 if config else 999_999_999_999_999_994)


@pytest.mark.parametrize("value", [-1, "5", 5.0, True, 10**4000], ids=["negative", "string", "float", "bool", "huge"])
def test_impossible_number_of_layers(tmp_path: Path, value: object) -> None:
    """What is no number of layers is a fault of the config, and no layer is held to it."""
    report = census(write_checkpoint(tmp_path, tiny(), config=declaring(num_hidden_layers=value)))
    assert codes(report) == ["config-geometry"]
    assert "num_hidden_layers" in report.findings[0].message


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_tree_of_the_mtp_layer_only_is_a_draft(tmp_path: Path, index: bool) -> None:  # noqa: FBT001
    """It lacks no trunk: that is a note, and the answer is yes."""
    report = census(write_checkpoint(tmp_path, without_layers(0, 1, 2, 3, 4), index=index))
    assert codes(report) == ["draft-tree"]
    assert report.findings[0].severity is Severity.NOTE
    assert report.judged(Policy()).ok


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (f"{TEXT}layers.4.self_attn.wat", None),
        (f"{TEXT}layers.3.self_attn.q_a_proj.weight_scale_inv", "scales of block FP8"),
        (f"{TEXT}layers.3.self_attn.q_a_proj.weight_packed", "compressed-tensors"),
        (f"{TEXT}layers.3.self_attn.q_a_proj.qweight", "GPTQ or AWQ"),
        (f"{TEXT}layers.3.self_attn.q_a_proj.trellis", "EXL3"),
        (f"{TEXT}layers.0.attn_hc.fn", "a transformers export"),
        ("model.layers.mtp.0.eh_proj.weight", "an MTP layer in the convention of other models"),
        ("model.layers.3.self_attn.o_proj.weight", "a flat text-only tree, or another architecture"),
        ("vision_tower.blocks.0.attn.qkv.weight", "a vision tower under the prefix of another export"),
    ],
)
def test_unknown_name_is_refused_with_what_it_looks_like(tmp_path: Path, name: str, hint: str | None) -> None:
    """A name that no rule teaches is an error of its own, listed, and in no role."""
    report = census(write_checkpoint(tmp_path, {**tiny(), name: Kind("BF16", (2,))}, shards=1), Scope.REFERENCE)
    assert [(f.code.value, f.tensor, f.shard) for f in report.findings] == [("unknown-tensor", name, shard_name(1, 1))]
    assert not report.judged(Policy()).ok
    assert (hint is None) == (report.findings[0].hint is None)
    assert (hint or "") in (report.findings[0].hint or "")
    assert answer(report).unknown == (name,)
    assert answer(report).tensors == 1 + sum(tally.tensors for tally in answer(report).by_role.values())


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_packed", "qweight", "trellis", "svh", "biases", "mcg"])
def test_a_companion_has_the_role_of_its_weight(tmp_path: Path, suffix: str) -> None:
    """Whatever the encoding, beyond the scope of the reference; beside a weight without encodings it stays unknown."""
    extra = {f"{TEXT}layers.3.self_attn.q_a_proj.{suffix}": Kind("BF16", (2,))}
    folder = write_checkpoint(tmp_path / "companion", tiny() | extra)
    assert codes(census(folder)) == []
    assert answer(census(folder)).by_role["MlaProjection"].tensors == 15
    assert codes(census(folder, Scope.REFERENCE)) == ["unknown-tensor"]
    odd = {f"{TEXT}layers.3.self_attn.wat.{suffix}": Kind("BF16", (2,))}
    assert codes(census(write_checkpoint(tmp_path / "odd", tiny() | odd))) == ["unknown-tensor"]


@pytest.mark.parametrize(
    ("rest", "role"),
    [
        ("hc_attn_norm", "HyperConnection"),
        ("self_attn.indexer.q_norm.weight", "Indexer"),
        ("mlp.gate.norm.weight", "MoeRouter"),
        ("mlp.experts.2.norm.weight", "MoeExpert"),
        ("mlp.shared_experts.norm.weight", "MoeShared"),
        ("mlp.up_proj.norm.weight", "DenseFfn"),
    ],
)
def test_norm_in_a_role_that_is_none(tmp_path: Path, rest: str, role: str) -> None:
    """The rules that accept any tail must not swallow a norm; the vision tower's norms are exempt."""
    name = f"{TEXT}layers.3.{rest}"
    tensors = {**tiny(), name: Kind("BF16", (64,)), "model.visual.blocks.0.norm2.weight": Kind("BF16", (16,))}
    report = census(write_checkpoint(tmp_path, tensors))
    found = [(f.code.value, f.tensor, f.layer, f.actual) for f in report.findings]
    assert found == [("norm-role-mismatch", name, 3, role)]


def test_no_tensor_at_all(tmp_path: Path) -> None:
    """Headers without a tensor are no empty success."""
    report = census(write_checkpoint(tmp_path, {}, parts=[{}], index=False, config=None))
    assert codes(report) == ["no-tensors"]
    assert not report.judged(Policy()).ok


PARTS = 7  # one a layer of the tiny model, and the rest


@pytest.mark.parametrize("config", [TINY_CONFIG, None], ids=["config", "no config"])
@pytest.mark.parametrize("gone", [[3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]], ids=["one layer", "trunk", "all"])
def test_missing_shard_is_no_gap_as_well(tmp_path: Path, gone: list[int], config: dict[str, Any] | None) -> None:
    """What the index puts in a shard that is not there counts in that finding only, and the answer is complete."""
    folder = write_checkpoint(tmp_path, {}, parts=parts_by_layer(tiny()), config=config)
    write_shard(folder / "unlisted.safetensors", {})
    for number in gone:
        (folder / shard_name(number, PARTS)).unlink()
    report = census(folder)
    assert sorted(codes(report)) == ["index-missing-shard"] * len(gone) + ["index-unlisted-shard"]
    assert report.complete
    assert answer(report).digest is not None


@pytest.mark.parametrize("damage", ["refused", "missing"])
@pytest.mark.parametrize("config", [TINY_CONFIG, None], ids=["config", "no config"])
@pytest.mark.parametrize(
    "layers", [(2,), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)], ids=["one layer", "trunk", "every layer"]
)
def test_nothing_is_said_to_be_absent_that_may_be_elsewhere(
    tmp_path: Path, layers: tuple[int, ...], config: dict[str, Any] | None, damage: str
) -> None:
    """Without an index, a shard that cannot be read (or whose number is missing) may hold any layer."""
    folder = write_checkpoint(tmp_path, {}, parts=[without_layers(*layers), {}], index=False, config=config)
    shard = folder / shard_name(2, 2)
    shard.unlink()
    if damage == "refused":
        shard.write_bytes(BROKEN)
    report = census(folder)
    assert codes(report) == ["header-length" if damage == "refused" else "shard-numbering"]
    assert report.complete == (damage == "missing")


def test_refused_shard_that_no_index_names_may_hold_the_gap(tmp_path: Path) -> None:
    """An index does not tell what a shard holds that it does not name."""
    folder = write_checkpoint(tmp_path, without_layers(2))
    (folder / "more.safetensors").write_bytes(BROKEN)
    assert codes(census(folder)) == ["header-length"]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_incomplete_census_has_no_digest(tmp_path: Path, index: bool) -> None:  # noqa: FBT001
    """What could not be read whole must not be pinned."""
    folder = write_checkpoint(tmp_path, tiny(), index=index)
    (folder / shard_name(2, 3)).write_bytes(BROKEN)
    report = census(folder)
    assert codes(report) == ["header-length"]
    assert not report.complete
    assert answer(report).digest is None


def test_finding_of_the_headers_joins_the_census(checkpoint: Path) -> None:
    """The census also reports what is wrong with a shard, and goes on counting."""
    edit_header(checkpoint / shard_name(1, 3), lambda _: None, data_bytes=0)
    report = census(checkpoint)
    assert codes(report) == ["file-truncated"]
    assert answer(report).tensors == 271
