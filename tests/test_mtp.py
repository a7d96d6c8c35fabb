# SPDX-License-Identifier: AGPL-3.0-only
"""The MTP layer: found by its names, held to the config, whole or not, and what is opened to tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    DSA_SHAPES,
    TEXT,
    TINY_CONFIG,
    Kind,
    Tensors,
    WatchedSource,
    declaring,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_shard,
)

from glm5inspect.catalogue import Severity
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.mtp import MtpAnswer, MtpLayer, find_mtp
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
MTP = f"{TEXT}layers.5."
HEAD = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight")
EXPERTS = [f"mlp.experts.{expert}.{part}_proj" for expert in range(4) for part in ("gate", "up", "down")]
PARTS = {
    **dict.fromkeys(HEAD, "head tensor"),
    **dict.fromkeys(DSA_SHAPES, "tensor of the DSA block"),
    **dict.fromkeys(("mlp.gate.weight", "mlp.gate.e_score_correction_bias"), "router tensor"),
    **{f"{module}.weight": "expert tensor" for module in EXPERTS},
}
"""The tensors without which the layer is incomplete, and the part that they are."""


def find(folder: Path) -> Report:
    """Look for the MTP layer of a folder."""
    return find_mtp(open_source(str(folder)))


def codes(report: Report) -> list[str]:
    """Return the codes of all findings."""
    return [finding.code.value for finding in report.findings]


def answer(report: Report) -> MtpAnswer:
    """Return what was found."""
    assert isinstance(report.answer, MtpAnswer)
    return report.answer


def ok(report: Report) -> bool:
    """Tell whether the command would succeed."""
    return report.judged(Policy()).ok


def trunk() -> Tensors:
    """Return the tiny model without its MTP layer."""
    return {name: kind for name, kind in tiny().items() if not name.startswith(MTP)}


def layer(prefix: str = MTP) -> Tensors:
    """Return the MTP layer of the tiny model, under any prefix."""
    return {prefix + name.removeprefix(MTP): kind for name, kind in tiny().items() if name.startswith(MTP)}


SILENT = {
    "no config": None,
    "empty config": {},
    "no key": declaring(num_nextn_predict_layers=None),
    "null": json.loads('{"text_config": {"num_nextn_predict_layers": null}}'),
}
"""Configs that declare nothing about an MTP layer."""


def test_healthy_layer(checkpoint: Path) -> None:
    """It is described: its names, size, dtypes, shards, and what the config says of it."""
    report = find(checkpoint)
    weight_map = json.loads((checkpoint / INDEX).read_text())["weight_map"]
    shards = tuple(sorted({shard for name, shard in weight_map.items() if name.startswith(MTP)}))
    assert report.findings == ()
    assert ok(report)
    assert answer(report) == MtpAnswer(
        layers=(
            MtpLayer(
                layer=5,
                names=dict.fromkeys(HEAD, True),
                tensors=61,
                bytes=62_320,
                dtypes_by_role={
                    "Indexer": {"BF16": 5},
                    "IndexerNorm": {"BF16": 2},
                    "LayerNorm": {"BF16": 2},
                    "MlaNorm": {"BF16": 2},
                    "MlaProjection": {"BF16": 5},
                    "MoeExpert": {"F32": 12, "F8_E4M3": 12, "U8": 12},
                    "MoeRouter": {"BF16": 1, "F32": 1},
                    "MoeShared": {"BF16": 3},
                    "MtpNorm": {"BF16": 3},
                    "MtpProjection": {"BF16": 1},
                },
                shards=shards,
            ),
        ),
        declared=1,
        num_hidden_layers=5,
        expected_layers="5",
    )


def test_layer_of_the_reference(reference: Path) -> None:
    """Layer 45: 2,617 tensors of 4,446,537,728 bytes, in the shards that the index gives it."""
    shards, snapshot = find(reference), find_mtp(open_source("snapshot:reference"))
    weight_map = json.loads((reference / INDEX).read_text())["weight_map"]
    held = {shard for name, shard in weight_map.items() if name.startswith(f"{TEXT}layers.45.")}
    for report in (shards, snapshot):
        assert report.findings == ()
        (found,) = answer(report).layers
        assert (found.layer, found.tensors, found.bytes) == (45, 2_617, 4_446_537_728)
        assert found.names == dict.fromkeys(HEAD, True)
        assert found.dtypes_by_role["MoeExpert"] == {"F32": 864, "F8_E4M3": 864, "U8": 864}
        assert answer(report).expected_layers == "45"
    assert answer(shards).layers[0].shards == tuple(sorted(held))
    assert answer(snapshot).layers[0].shards is None


@pytest.mark.parametrize("name", layer())
def test_every_tensor_deleted_in_turn(tmp_path: Path, name: str) -> None:
    """Head, block, router and experts must be whole: one finding, of the right part; the rest is for other checks."""
    rest = name.removeprefix(MTP)
    report = find(write_checkpoint(tmp_path, {other: kind for other, kind in tiny().items() if other != name}))
    assert codes(report) == ["mtp-incomplete"] * (rest in PARTS)
    for finding in report.findings:
        assert (finding.tensor, finding.layer, finding.expected, finding.count) == (name, 5, [rest], 1)
        assert f"layer 5 lacks 1 {PARTS[rest]}" in finding.message
        assert not ok(report)
    assert answer(report).layers[0].names == {head: head != rest for head in HEAD}


@pytest.mark.parametrize(
    ("gone", "counts"),
    [
        (HEAD[1:], [3]),
        (("self_attn.",), [14]),
        (("mlp.gate.",), [2]),
        (("mlp.experts.3.",), [3]),
        (("mlp.experts.",), [12]),
        (("self_attn.", "mlp.", "input_", "post_", *HEAD[1:]), [2, 14, 3, 12]),
    ],
    ids=["head", "block", "router", "last expert", "all experts", "only eh_proj left"],
)
def test_missing_parts_are_counted(tmp_path: Path, gone: tuple[str, ...], counts: list[int]) -> None:
    """One finding a part, never one a tensor; it names the first few and counts all."""
    kept = {name: kind for name, kind in layer().items() if not name.removeprefix(MTP).startswith(gone)}
    report = find(write_checkpoint(tmp_path, {**trunk(), **kept}))
    assert codes(report) == ["mtp-incomplete"] * len(counts)
    assert sorted(finding.count for finding in report.findings) == sorted(counts)
    assert all(finding.tensor is None for finding in report.findings)


def test_missing_experts_are_named(tmp_path: Path) -> None:
    """Which experts are lacking stands in the message."""
    gone = tuple(f"{MTP}mlp.experts.{expert}." for expert in (1, 2))
    (finding,) = find(write_checkpoint(tmp_path, {n: k for n, k in tiny().items() if not n.startswith(gone)})).findings
    assert "lacks 6 expert tensors of experts 1-2: mlp.experts.1.down_proj.weight, " in finding.message
    assert finding.message.endswith(" and 3 more")


def recoded(**leaves: Kind) -> Tensors:
    """Return the tiny model with other tensors for each expert module of the MTP layer."""
    kept = {name: kind for name, kind in tiny().items() if not name.startswith(f"{MTP}mlp.experts.")}
    return kept | {f"{MTP}{module}.{leaf}": kind for module in EXPERTS for leaf, kind in leaves.items()}


@pytest.mark.parametrize(
    ("leaves", "actual"),
    [
        ({"weight": Kind("BF16", (32, 64))}, ["BF16"]),
        ({"weight": Kind("F8_E4M3", (32, 64)), "weight_scale": Kind("U8", (32, 2))}, ["F8_E4M3", "U8"]),
        ({"weight_packed": Kind("I32", (32, 8)), "weight_scale": Kind("BF16", (32, 2))}, ["BF16", "I32"]),
        ({"trellis": Kind("I16", (4, 2, 64)), "suh": Kind("F16", (64,))}, ["F16", "I16"]),
    ],
    ids=["BF16", "MXFP8", "packed", "EXL3"],
)
def test_other_encoding_than_the_trunk(tmp_path: Path, leaves: dict[str, Kind], actual: list[str]) -> None:
    """That is a note; the experts are all there, whatever their tensors are called."""
    tensors = recoded(**leaves)
    report = find(write_checkpoint(tmp_path / "whole", tensors))
    (note,) = report.findings
    assert (note.code.value, note.severity) == ("mtp-encoding", Severity.NOTE)
    assert (note.layer, note.expected, note.actual) == (5, ["F32", "F8_E4M3", "U8"], actual)
    assert ok(report)
    payload = f"{MTP}mlp.experts.2.up_proj.{next(iter(leaves))}"
    del tensors[payload]
    lacking = find(write_checkpoint(tmp_path / "broken", tensors))
    assert codes(lacking) == ["mtp-encoding", "mtp-incomplete"]
    assert lacking.findings[1].tensor == payload


def test_block_of_a_quantized_layer(tmp_path: Path) -> None:
    """A projection may be stored under another payload name, but its scale alone is not a projection."""
    tensors, module = tiny(), f"{MTP}self_attn.q_a_proj."
    del tensors[f"{module}weight"]
    scale = {f"{module}weight_scale": Kind("BF16", (24, 1))}
    packed = {f"{module}weight_packed": Kind("I32", (24, 8))}
    assert codes(find(write_checkpoint(tmp_path / "packed", tensors | scale | packed))) == []
    report = find(write_checkpoint(tmp_path / "scale", tensors | scale))
    assert [finding.tensor for finding in report.findings] == [f"{module}weight"]


def test_trunk_without_experts(tmp_path: Path) -> None:
    """There is nothing to compare the layer's experts with."""
    tensors = {name: kind for name, kind in tiny().items() if ".experts." not in name or name.startswith(MTP)}
    assert codes(find(write_checkpoint(tmp_path, tensors))) == []


@pytest.mark.parametrize("config", [TINY_CONFIG, *SILENT.values()], ids=["declared", *SILENT])
def test_nothing_found(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """It is missing when it is declared and when nothing is; once, with both remedies."""
    report = find(write_checkpoint(tmp_path, trunk(), config=config))
    (finding,) = report.findings
    assert finding.code.value == "mtp-missing"
    assert finding.expected == (1 if config is TINY_CONFIG else None)
    assert finding.hint is not None
    assert "estore the layer" in finding.hint
    assert "num_nextn_predict_layers to 0" in finding.hint
    assert answer(report).layers == ()
    assert not ok(report)


def test_nothing_found_and_none_declared(tmp_path: Path) -> None:
    """Zero is an answer: a note, and success."""
    report = find(write_checkpoint(tmp_path, trunk(), config=declaring(num_nextn_predict_layers=0)))
    assert [(f.code.value, f.severity) for f in report.findings] == [("mtp-absent", Severity.NOTE)]
    assert ok(report)


def test_found_but_none_declared(checkpoint: Path) -> None:
    """The layer is there and whole, but loaders that believe the config will not use it: a warning."""
    (checkpoint / "config.json").write_text(json.dumps(declaring(num_nextn_predict_layers=0)))
    report = find(checkpoint)
    assert [(f.code.value, f.severity) for f in report.findings] == [("mtp-undeclared", Severity.WARNING)]
    assert ok(report)
    assert not report.judged(Policy(fail_on=Severity.WARNING)).ok
    assert answer(report).expected_layers == "5"


@pytest.mark.parametrize("config", SILENT.values(), ids=SILENT)
def test_found_and_nothing_declared(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """A layer that nobody declares has nothing to contradict."""
    report = find(write_checkpoint(tmp_path, tiny(), config=config))
    assert codes(report) == []
    assert answer(report).declared is None


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp.", "model.layers.mtp.", "language_model.mtp."])
@pytest.mark.parametrize("declared", [1, 0])
def test_other_naming_convention(tmp_path: Path, prefix: str, declared: int) -> None:
    """Such a layer is there under a name that GLM does not use: that is said instead of that it is missing."""
    foreign = layer(f"{prefix}0.")
    config = declaring(num_nextn_predict_layers=declared)
    report = find(write_checkpoint(tmp_path, {**trunk(), **foreign}, config=config))
    (finding,) = report.findings
    assert (finding.code.value, finding.count, finding.tensor) == (
        "mtp-foreign-prefix",
        61,
        f"{prefix}0.eh_proj.weight",
    )
    assert f"{prefix}0.eh_proj.weight" in finding.message
    assert "61" in finding.message
    assert not ok(report)


def test_both_naming_conventions(tmp_path: Path) -> None:
    """The right layer is still described and checked when a foreign one stands beside it."""
    report = find(write_checkpoint(tmp_path, {**tiny(), "mtp.fc.weight": Kind("BF16", (64, 128))}))
    assert codes(report) == ["mtp-foreign-prefix"]
    assert answer(report).layers[0].tensors == 61


@pytest.mark.parametrize(
    ("place", "declared", "expected", "said"),
    [
        ((5,), 1, "5", []),
        ((5,), 2, "5-6", ["mtp-count"]),
        ((5, 6), 2, "5-6", []),
        ((5, 6), 1, "5", ["mtp-count", "mtp-position"]),
        ((6,), 1, "5", ["mtp-position"]),
        ((6,), 2, "5-6", ["mtp-count"]),
        ((6,), 0, "5", ["mtp-position", "mtp-undeclared"]),
        ((5, 7), 2, "5-6", ["mtp-position"]),
        ((7,), None, "5", ["mtp-position"]),
        ((10**18,), 1, "5", ["mtp-position"]),
    ],
)
def test_number_and_place(
    tmp_path: Path, place: tuple[int, ...], declared: int | None, expected: str, said: list[str]
) -> None:
    """As many as declared, from num_hidden_layers on."""
    tensors = trunk()
    for index in place:
        tensors |= layer(f"{TEXT}layers.{index}.")
    report = find(write_checkpoint(tmp_path, tensors, config=declaring(num_nextn_predict_layers=declared)))
    assert codes(report) == said
    assert answer(report).expected_layers == expected
    assert [found.layer for found in answer(report).layers] == list(place)
    assert {f.layer for f in report.findings if f.code.value == "mtp-position"} <= set(place) - {5}


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_nextn_predict_layers"])
def test_impossible_declaration(tmp_path: Path, field: str) -> None:
    """A declaration that is no number is a fault of the config; nothing is concluded from it."""
    report = find(write_checkpoint(tmp_path, tiny(), config=declaring(**{field: "1"})))
    assert codes(report) == ["config-geometry"]
    assert field in report.findings[0].message


@pytest.mark.parametrize("indexed", [True, False])
def test_side_file(tmp_path: Path, *, indexed: bool) -> None:
    """A layer in a file of its own is found, whether or not the index names the file."""
    folder = write_checkpoint(tmp_path, trunk())
    write_shard(folder / "mtp.safetensors", layer())
    if indexed:
        edit_json(folder / INDEX, lambda index: index["weight_map"].update(dict.fromkeys(layer(), "mtp.safetensors")))
    report = find(folder)
    assert codes(report) == ["index-unlisted-shard"] * (not indexed)
    assert answer(report).layers[0].shards == ("mtp.safetensors",)


def test_layer_that_the_index_does_not_name(tmp_path: Path) -> None:
    """Headers are the truth: a layer is found in a shard that the index knows for other tensors only."""
    folder = write_checkpoint(tmp_path, {}, parts=[trunk(), {"lm_head.bias": Kind("BF16", (2,)), **layer()}])
    edit_json(folder / INDEX, lambda index: [index["weight_map"].pop(name) for name in layer()])
    report = find(folder)
    assert set(codes(report)) == {"index-unlisted-tensor"}
    assert len(report.findings) == 61
    assert answer(report).layers[0].tensors == 61


@pytest.mark.parametrize("damage", ["missing", "refused"])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("gone", [5, 6, 7, 8], ids=["trunk experts", "layer", "rest", "experts"])
def test_lost_shard_is_told_once(tmp_path: Path, gone: int, damage: str, *, index: bool) -> None:
    """What lies in a shard that is not there, or cannot be read, is not missing as well."""
    parts = parts_by_layer(tiny())
    experts = {name: parts[5].pop(name) for name in list(parts[5]) if ".experts." in name}
    folder = write_checkpoint(tmp_path, {}, parts=[*parts, experts], index=index)
    (folder / shard_name(gone, 8)).unlink()
    if damage == "refused":
        (folder / shard_name(gone, 8)).write_bytes(BROKEN)
    code = {"missing": "index-missing-shard" if index else "shard-numbering", "refused": "header-length"}[damage]
    report = find(folder)
    assert codes(report) == ([] if index and gone == 7 else [code])
    assert report.complete == (codes(report) != ["header-length"])


def test_part_of_an_expert_in_a_lost_shard(tmp_path: Path) -> None:
    """Half an expert of the trunk tells nothing about its encoding."""
    expert = {name: kind for name, kind in tiny().items() if name.startswith(f"{TEXT}layers.4.mlp.experts.0.up_proj")}
    half = {
        name: kind for name, kind in tiny().items() if name.startswith(f"{TEXT}layers.4.mlp.") and name not in expert
    }
    rest = {name: kind for name, kind in tiny().items() if name not in half}
    del rest[f"{TEXT}layers.4.mlp.experts.0.up_proj.weight"]
    folder = write_checkpoint(tmp_path, {}, parts=[half, rest])
    (folder / shard_name(1, 2)).unlink()
    assert codes(find(folder)) == ["index-missing-shard"]


def test_refused_side_file_may_hold_the_layer(tmp_path: Path) -> None:
    """The index does not tell what a shard holds that it does not name: nothing is said to be missing."""
    folder = write_checkpoint(tmp_path, trunk())
    (folder / "mtp.safetensors").write_bytes(BROKEN)
    report = find(folder)
    assert codes(report) == ["header-length"]
    assert not report.complete


def opened(folder: Path) -> list[int]:
    """Look for the MTP layer and return the numbers of the shards opened for it."""
    files = WatchedSource(folder)
    find_mtp(Checkpoint(files))
    return files.opened()


def test_only_needed_shards_are_opened(tmp_path: Path) -> None:
    """Those of the layer, that of expert 0 of the last trunk layer with experts, foreign names, unlisted shards."""
    *others, last, mtp, rest = parts_by_layer(tiny())
    expert = {name: last.pop(name) for name in list(last) if ".experts.0." in name}
    mlp = {name: mtp.pop(name) for name in list(mtp) if ".mlp." in name}
    dense = {name.replace("layers.0.", "layers.9."): kind for name, kind in others[0].items()}
    parts = [expert, mlp, mtp, last, *others, rest, dense]
    folder = write_checkpoint(tmp_path / "index", {}, parts=parts)
    assert opened(folder) == [1, 2, 3]
    write_shard(folder / "more.safetensors", {"x": Kind("U8", (1,))})
    assert opened(folder) == [0, 1, 2, 3]
    foreign = write_checkpoint(tmp_path / "foreign", {}, parts=[*parts, {"mtp.fc.weight": Kind("BF16", (64, 128))}])
    assert opened(foreign) == [1, 2, 3, 11]
    unindexed = write_checkpoint(tmp_path / "no index", {}, parts=parts, index=False)
    assert opened(unindexed) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("absent", "declared"),
    [("promise", 1), ("layer", 1), ("layer", 0), ("expert", 1), ("second layer", 2)],
    ids=["promised tensor", "missing", "absent", "incomplete", "count"],
)
def test_all_shards_are_opened_before_an_absence_is_told(tmp_path: Path, absent: str, declared: int) -> None:
    """What is not where the index says, or is not in the index, may be anywhere."""
    parts, lost = parts_by_layer(tiny()), {"expert": f"{MTP}mlp.experts.1.", "layer": MTP}.get(absent)
    parts = [{n: k for n, k in part.items() if not (lost and n.startswith(lost))} for part in parts]
    config = declaring(num_nextn_predict_layers=declared)
    folder = write_checkpoint(tmp_path, {}, parts=[part or {"x": Kind("U8", (1,))} for part in parts], config=config)
    if absent == "promise":
        edit_json(folder / INDEX, lambda index: index["weight_map"].update({"y": shard_name(6, 7)}))
    assert opened(folder) == [1, 2, 3, 4, 5, 6, 7]
