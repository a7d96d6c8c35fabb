# SPDX-License-Identifier: AGPL-3.0-only
"""DSA blocks: every tensor damaged in every way, the known traps, which layers are meant, and what is opened for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    DSA_SHAPES,
    TEXT,
    TINY_CONFIG,
    TINY_DSA,
    Kind,
    Tensors,
    WatchedSource,
    declaring,
    edit_header,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_shard,
)

from glm5inspect.checkpoint import Checkpoint
from glm5inspect.dsa import Block, DsaAnswer, verify_dsa
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source
from glm5inspect.scope import Scope

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
KDA_ONLY = (
    *(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v", "b", "f_a", "f_b", "g_a", "g_b")),
    *(f"self_attn.{name}_conv1d.weight" for name in "qkv"),
    "self_attn.A_log",
    "self_attn.dt_bias",
    "self_attn.o_norm.weight",
)
BLOCKS = [(layer, name) for layer in TINY_DSA for name in DSA_SHAPES]


def full(layer: int, rest: str) -> str:
    """Return the name of a tensor of a text layer."""
    return f"{TEXT}layers.{layer}.{rest}"


def verify(folder: Path, *layers: int, scope: Scope = Scope.AUTO) -> Report:
    """Verify the blocks of a folder."""
    return verify_dsa(open_source(str(folder)), layers=layers, scope=scope)


def told(report: Report) -> list[tuple[str, str | None]]:
    """Return code and tensor of every finding."""
    return [(finding.code.value, finding.tensor) for finding in report.findings]


def blocks(report: Report) -> dict[int, Block]:
    """Return the blocks that were checked, by layer."""
    assert isinstance(report.answer, DsaAnswer)
    return {block.layer: block for block in report.answer.blocks}


def without(*prefixes: str) -> Tensors:
    """Return the tiny model without the tensors of these prefixes."""
    return {name: kind for name, kind in tiny().items() if not name.startswith(prefixes)}


def test_healthy_blocks(checkpoint: Path) -> None:
    """Both blocks are whole; the declared one and that of the MTP layer."""
    report = verify(checkpoint)
    assert report.findings == ()
    assert report.judged(Policy()).ok
    whole = [Block(layer, bound=14, expected=14, bytes=18_608, ok=True, unclaimed=()) for layer in (3, 5)]
    assert list(blocks(report).values()) == whole


def test_reference_has_twelve_blocks() -> None:
    """11 text blocks of 2,748,117,504 bytes together, and the MTP layer's."""
    report = verify_dsa(open_source("snapshot:reference"))
    found = blocks(report)
    assert report.findings == ()
    assert list(found) == [3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 45]
    assert found[45].bytes == 249_828_864
    assert sum(block.bytes for block in found.values()) - found[45].bytes == 2_748_117_504


@pytest.mark.parametrize(("layer", "name"), BLOCKS)
@pytest.mark.parametrize("damage", ["missing", "dtype", "shape", "rank", "bytes", "renamed"])
def test_every_tensor_in_every_way(tmp_path: Path, layer: int, name: str, damage: str) -> None:
    """Each damage of each tensor of each block is exactly its one finding, and makes the command fail."""
    tensor, shape, tensors = full(layer, name), DSA_SHAPES[name], tiny()
    other = {
        "dtype": Kind("F32", shape),
        "shape": Kind("BF16", (*shape[:-1], shape[-1] + 2)),
        "rank": Kind("BF16", (1, *shape)),
    }
    if damage == "renamed":
        tensors[tensor + "_"] = tensors.pop(tensor)
    elif damage == "missing":
        del tensors[tensor]
    else:
        tensors[tensor] = other.get(damage, tensors[tensor])
    folder = write_checkpoint(tmp_path, tensors, shards=1)
    if damage == "bytes":
        edit_header(folder / shard_name(1, 1), lambda header: header[tensor]["data_offsets"].__setitem__(1, 1 << 20))
    report = verify(folder)
    expected = {
        "rank": [("dsa-shape", tensor)],
        "renamed": [("dsa-missing", tensor), ("dsa-unclaimed", tensor + "_")],
    }.get(damage, [(f"dsa-{damage}", tensor)])
    assert told(report) == expected
    assert {finding.layer for finding in report.findings} == {layer}
    assert not report.judged(Policy()).ok
    found = blocks(report)
    assert [number for number, block in found.items() if not block.ok] == [layer]
    assert found[layer].bound == (13 if damage in {"missing", "renamed"} else 14)
    assert found[layer].unclaimed == ((tensor + "_",) if damage == "renamed" else ())


def test_several_faults_of_one_tensor_are_all_told(tmp_path: Path) -> None:
    """A check does not stop at the first difference, and a wrong dtype alone is no wrong byte count."""
    tensor = full(3, "self_attn.o_proj.weight")
    folder = write_checkpoint(tmp_path, {**tiny(), tensor: Kind("F32", (48, 64))}, shards=1)
    edit_header(folder / shard_name(1, 1), lambda header: header[tensor]["data_offsets"].__setitem__(1, 1 << 20))
    assert told(verify(folder)) == [("dsa-bytes", tensor), ("dsa-dtype", tensor), ("dsa-shape", tensor)]


@pytest.mark.parametrize("dtype", ["F16", "bf16", "BF17", "F8_E4M3"])
def test_dtype_is_exact(tmp_path: Path, dtype: str) -> None:
    """Another dtype is one finding, whether or not the format knows it."""
    tensor = full(3, "self_attn.indexer.wk.weight")
    folder = write_checkpoint(tmp_path, {**tiny(), tensor: Kind("U8", (8, 64))}, shards=1)
    edit_header(folder / shard_name(1, 1), lambda header: header[tensor].__setitem__("dtype", dtype))
    strict = verify(folder, scope=Scope.REFERENCE)
    found = [(f.code.value, f.expected, f.actual) for f in strict.findings if f.code.value != "dsa-bytes"]
    assert found == [("dsa-dtype", "BF16", dtype)]


@pytest.mark.parametrize("layer", TINY_DSA)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *((name, None) for name in KDA_ONLY),
        ("self_attn.q_a_proj.bias", None),
        ("self_attn.rotary_emb.inv_freq", None),
        ("self_attn.indexer.k_norm.gamma", None),
        ("self_attn.indexer.rope.weight", None),
        ("self_attn.kv_a_proj_with_mqa.weight_scale_inv", "scales of block FP8"),
        ("self_attn.k_scale", "KV-cache scales"),
    ],
)
def test_every_tensor_too_many(tmp_path: Path, layer: int, name: str, hint: str | None) -> None:
    """What no row claims is an error; one of the other mixer says so as well."""
    folder = write_checkpoint(tmp_path, {**tiny(), full(layer, name): Kind("BF16", (4,))})
    report = verify(folder, scope=Scope.REFERENCE)
    mixed = [("mixed-mixer", None)] if name in KDA_ONLY else []
    assert told(report) == [("dsa-unclaimed", full(layer, name)), *mixed]
    assert (hint or "") in (report.findings[0].hint or "")
    assert {finding.layer for finding in report.findings} == {layer}
    assert not report.judged(Policy()).ok
    assert blocks(report)[layer] == Block(layer, 14, 14, 18_608, ok=False, unclaimed=(full(layer, name),))


@pytest.mark.parametrize("name", ["hc_attn_extra", "mlp.gate.bias", "mlp.wat", "input_layernorm.bias", "self_attnX.y"])
def test_other_parts_of_the_layer_are_not_its_business(tmp_path: Path, name: str) -> None:
    """Only what is under the attention of the layer is looked at."""
    assert told(verify(write_checkpoint(tmp_path, {**tiny(), full(3, name): Kind("BF16", (4,))}))) == []


@pytest.mark.parametrize(
    ("name", "shape", "hint"),
    [
        ("self_attn.indexer.k_norm.bias", None, "LayerNorm, not an RMSNorm"),
        ("self_attn.indexer.k_norm.weight", None, ""),
        ("self_attn.indexer.index_kpool_compress_ape", (8, 4), "ransposed"),
        ("self_attn.indexer.index_kpool_compress_ape", (4, 4), ""),
        ("self_attn.q_a_proj.weight", (64, 24), "ransposed"),
        ("self_attn.q_b_proj.weight", (80, 24), "width of kv_b_proj"),
        ("self_attn.kv_b_proj.weight", (32, 16), "width of q_b_proj"),
        ("self_attn.kv_b_proj.weight", (33, 16), ""),
        ("self_attn.kv_a_proj_with_mqa.weight", (80, 64), "carries a rope part"),
        ("self_attn.kv_a_proj_with_mqa.weight", (79, 64), ""),
        ("self_attn.kv_b_proj.weight", (16, 80), "ransposed"),
    ],
)
def test_traps_are_named(tmp_path: Path, name: str, shape: tuple[int, ...] | None, hint: str) -> None:
    """The four known mistakes are told from a mere wrong number."""
    tensors = tiny()
    if shape:
        tensors[full(3, name)] = Kind("BF16", shape)
    else:
        del tensors[full(3, name)]
    (finding,) = verify(write_checkpoint(tmp_path, tensors)).findings
    assert (finding.code.value, finding.tensor) == ("dsa-shape" if shape else "dsa-missing", full(3, name))
    assert (finding.hint is None) == (not hint)
    assert hint in (finding.hint or "")


def test_rope_part_of_a_quantized_sibling(tmp_path: Path) -> None:
    """576 rows in FP8 beside their scales: dtype, shape with the reason, and a scale that no row claims."""
    name = "self_attn.kv_a_proj_with_mqa.weight"
    ours = {full(3, "self_attn.indexer.index_kpool_compress_ape"): Kind("BF16", (4, 128))}
    tensors = {full(3, name): Kind("F8_E4M3", (576, 4096)), full(3, f"{name}_scale_inv"): Kind("F32", (5, 32))}
    report = verify(write_checkpoint(tmp_path, tensors | ours, config=None), 3, scope=Scope.REFERENCE)
    about = [(f.code.value, "rope part" in (f.hint or "")) for f in report.findings if name in (f.tensor or "")]
    assert about == [("dsa-dtype", False), ("dsa-shape", True), ("dsa-unclaimed", False)]


def test_wider_dtype_is_told_from_a_lossy_one(tmp_path: Path) -> None:
    """F32 instead of BF16 loses nothing, F16 does; both are another dtype."""
    ape, gate = (full(3, f"self_attn.indexer.index_kpool_compress_{name}") for name in ("ape", "gate"))
    report = verify(write_checkpoint(tmp_path, {**tiny(), ape: Kind("F32", (4, 8)), gate: Kind("F16", (8, 64))}))
    assert told(report) == [("dsa-dtype", ape), ("dsa-dtype", gate)]
    assert "Wider than the reference" in (report.findings[0].hint or "")
    assert report.findings[1].hint is None


def test_declared_layer_without_a_block(tmp_path: Path) -> None:
    """It is reported tensor by tensor; a layer that is declared is a DSA layer, whatever it holds."""
    report = verify(write_checkpoint(tmp_path, without(full(3, "self_attn."))))
    assert sorted(told(report)) == sorted(("dsa-missing", full(3, name)) for name in DSA_SHAPES)
    assert blocks(report)[3] == Block(3, 0, 14, 0, ok=False, unclaimed=())


def test_undeclared_layer_with_a_block(tmp_path: Path) -> None:
    """Its block is checked like the others; that it is not declared is an error of its own."""
    kinds = {full(6, name): Kind("BF16", shape) for name, shape in DSA_SHAPES.items()}
    report = verify(write_checkpoint(tmp_path, {**tiny(), **kinds}))
    assert [(f.code.value, f.layer) for f in report.findings] == [("dsa-undeclared-layer", 6)]
    assert blocks(report)[6].bound == 14
    assert not report.judged(Policy()).ok


def test_one_name_makes_a_dsa_layer(tmp_path: Path) -> None:
    """A KDA layer with one DSA-only name is undeclared, mixed, and lacks the rest of its block."""
    report = verify(
        write_checkpoint(tmp_path, {**tiny(), full(2, "self_attn.q_a_proj.weight"): Kind("BF16", (24, 64))})
    )
    codes = [code for code, _ in told(report)]
    assert {code: codes.count(code) for code in codes} == {
        "dsa-missing": 12,
        "dsa-shape": 1,  # o_proj, which both mixers have
        "dsa-unclaimed": 14,
        "dsa-undeclared-layer": 1,
        "mixed-mixer": 1,
    }
    assert {finding.layer for finding in report.findings} == {2}


def test_mtp_layer_that_lost_its_head_is_where_it_is_declared(tmp_path: Path) -> None:
    """The config's lists leave the MTP layer out, so its block is not undeclared there."""
    head = tuple(full(5, name) for name in ("eh_proj", "enorm", "hnorm", "shared_head"))
    assert told(verify(write_checkpoint(tmp_path, without(*head)))) == []


@pytest.mark.parametrize("config", [None, declaring(layer_types=["linear_attention"] * 5, linear_attn_config=None)])
def test_no_block_at_all(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """A check that looked at nothing must not pass."""
    report = verify(write_checkpoint(tmp_path, without(full(3, ""), full(5, "")), config=config))
    assert [code for code, _ in told(report)] == ["config-missing"] * (config is None) + ["dsa-none"]
    assert not report.judged(Policy()).ok


def test_config_that_does_not_declare_layers(tmp_path: Path) -> None:
    """The layers are then those of the tensors, and a warning says so; the geometry is the config's."""
    config = declaring(layer_types=None, linear_attn_config=None)
    report = verify(write_checkpoint(tmp_path, tiny(), config=config))
    assert told(report) == [("config-missing", None)]
    assert "does not declare its attention layers" in report.findings[0].message
    assert list(blocks(report)) == [3, 5]
    assert report.judged(Policy()).ok


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_draft_tree(tmp_path: Path, index: bool) -> None:  # noqa: FBT001
    """A tree of the MTP layer alone lacks no declared layer: its one block is checked, with a note."""
    tensors = {name: kind for name, kind in tiny().items() if name.startswith(full(5, ""))}
    report = verify(write_checkpoint(tmp_path / "whole", tensors, index=index))
    assert told(report) == [("draft-tree", None)]
    assert list(blocks(report)) == [5]
    assert report.judged(Policy()).ok
    gone = full(5, "self_attn.q_a_proj.weight")
    del tensors[gone]
    broken = write_checkpoint(tmp_path / "broken", tensors, index=index)
    assert told(verify(broken)) == [("draft-tree", None), ("dsa-missing", gone)]


def test_chosen_layers(tmp_path: Path) -> None:
    """Only the layers asked for are checked; one without a block is an error, and names those that have one."""
    folder = write_checkpoint(tmp_path, without(full(3, "self_attn.indexer.wk"), full(5, "self_attn.indexer.wk")))
    assert told(verify(folder, 3)) == [("dsa-missing", full(3, "self_attn.indexer.wk.weight"))]
    assert list(blocks(verify(folder, 3))) == [3]
    assert list(blocks(verify(folder, 5, 3))) == [3, 5]
    report = verify(folder, 5, 4, 10**18)
    assert [(f.code.value, f.layer, f.actual) for f in report.findings] == [
        ("dsa-missing", 5, None),
        ("dsa-not-a-layer", 4, "3,5"),
        ("dsa-not-a-layer", 10**18, "3,5"),
    ]
    assert list(blocks(report)) == [5]


def test_chosen_layer_hears_nothing_of_others(tmp_path: Path) -> None:
    """What is wrong with a layer that was not asked for is not told; contradictions of the config are."""
    extra = {full(4, "self_attn.q_a_proj.weight"): Kind("BF16", (1,)), full(3, "self_attn.A_log"): Kind("F32", (4,))}
    folder = write_checkpoint(tmp_path, {**tiny(), **extra}, config=declaring(num_hidden_layers=6))
    assert told(verify(folder, 5)) == [("config-contradiction", None)]


@pytest.mark.parametrize("damage", ["missing", "refused"])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("config", [TINY_CONFIG, declaring(layer_types=None, linear_attn_config=None)])
def test_lost_shard_is_told_once(tmp_path: Path, config: dict[str, Any], damage: str, index: bool) -> None:  # noqa: FBT001
    """Tensors of a shard that is not there, or cannot be read, are not missing as well."""
    folder = write_checkpoint(tmp_path, {}, parts=parts_by_layer(tiny()), index=index, config=config)
    shard = folder / shard_name(4, 7)  # layer 3
    shard.unlink()
    if damage == "refused":
        shard.write_bytes(BROKEN)
    report = verify(folder)
    code = {"missing": "index-missing-shard" if index else "shard-numbering", "refused": "header-length"}[damage]
    assert [found for found, _ in told(report) if found != "config-missing"] == [code]
    assert report.complete == (damage == "missing")
    assert not report.judged(Policy()).ok
    if index:
        assert blocks(report)[3] == Block(3, 0, 14, 0, ok=False, unclaimed=())
    assert blocks(report)[5].ok


def test_a_stray_in_a_missing_shard_counts_once(tmp_path: Path) -> None:
    """A name that no row claims is told as part of its missing shard, and not as unclaimed too."""
    stray = {f"{TEXT}layers.3.self_attn.wat": Kind("U8", (1,))}
    folder = write_checkpoint(tmp_path, {}, parts=[tiny(), stray])
    assert [code for code, _ in told(verify(folder))] == ["dsa-unclaimed"]
    (folder / shard_name(2, 2)).unlink()
    assert [code for code, _ in told(verify(folder))] == ["index-missing-shard"]


@pytest.mark.parametrize("damage", ["missing", "refused"])
def test_trunk_in_a_lost_shard_makes_no_draft(tmp_path: Path, damage: str) -> None:
    """Without an index nobody knows whether the trunk is there."""
    *trunk, mtp, rest = parts_by_layer(tiny())
    parts: list[Tensors] = [{**mtp, **rest}, {name: kind for part in trunk for name, kind in part.items()}]
    folder = write_checkpoint(tmp_path, {}, parts=parts, index=False)
    (folder / shard_name(2, 2)).unlink()
    if damage == "refused":
        (folder / shard_name(2, 2)).write_bytes(BROKEN)
    assert told(verify(folder)) == [("header-length" if damage == "refused" else "shard-numbering", None)]


NEEDED, OTHER = full(3, "self_attn.o_proj.weight"), full(4, "self_attn.o_proj.weight")
HOME, SPARE = shard_name(8, 9), shard_name(9, 9)
PLACEMENT = {
    "duplicate": ["duplicate-tensor"],
    "wrong shard": ["index-wrong-shard"],
    "unlisted": ["index-unlisted-tensor"],
    "unlisted shard": ["index-unlisted-shard"],
    "promised": ["dsa-missing", "index-missing-tensor"],
    "missing": ["index-missing-shard"],
}


@pytest.mark.parametrize(("name", "heard"), [(NEEDED, True), (OTHER, False)], ids=["needed", "other"])
@pytest.mark.parametrize("damage", PLACEMENT)
def test_placement_of_needed_tensors_only(tmp_path: Path, name: str, damage: str, *, heard: bool) -> None:
    """What the index has wrong about a block is told; about anything else it is not this command's business."""
    parts = parts_by_layer(tiny())
    kind = next(part.pop(name) for part in parts if name in part)
    homely = {"x.home": Kind("U8", (1,))}
    folder = write_checkpoint(tmp_path, {}, parts=[*parts, {**homely, name: kind}, {"x.spare": Kind("U8", (1,))}])
    match damage:
        case "duplicate":
            write_shard(folder / "overlay.safetensors", {name: kind})
        case "wrong shard":
            edit_json(folder / INDEX, lambda index: index["weight_map"].update({name: SPARE}))
        case "unlisted":
            edit_json(folder / INDEX, lambda index: index["weight_map"].pop(name))
        case "unlisted shard":
            edit_json(folder / INDEX, lambda index: [index["weight_map"].pop(gone) for gone in (name, "x.home")])
        case "promised":
            write_shard(folder / HOME, homely)
        case _:
            (folder / HOME).unlink()
    assert [code for code, _ in told(verify(folder))] == (PLACEMENT[damage] if heard else [])


def cut() -> dict[str, Tensors]:
    """Cut the tiny model by what the check needs: attention of the two blocks, the head of the MTP layer, the rest."""
    parts: dict[str, Tensors] = {"attention 3": {}, "attention 5": {}, "head 5": {}, "experts": {}, "other": {}}
    elsewhere = {"model.visual.layers.3.self_attn.q_proj.weight": Kind("BF16", (16, 16))}
    for name, kind in {**tiny(), **elsewhere}.items():
        place = "experts" if ".experts." in name else "other"
        for layer in TINY_DSA:
            if name.startswith(full(layer, "self_attn.")):
                place = f"attention {layer}"
        if name.startswith(tuple(full(5, head) for head in ("eh_proj", "enorm", "hnorm", "shared_head"))):
            place = "head 5"
        parts[place][name] = kind
    return parts


def opened(folder: Path, *layers: int) -> list[int]:
    """Verify a folder and return the numbers of the shards opened for it."""
    files = WatchedSource(folder)
    verify_dsa(Checkpoint(files), layers=layers)
    return files.opened()


def test_only_needed_shards_are_opened(tmp_path: Path) -> None:
    """Attention of the blocks and the names of the MTP layer, and what no index names; no tensor data ever."""
    folder = write_checkpoint(tmp_path / "index", {}, parts=cut().values())
    assert told(verify(folder)) == []
    assert opened(folder) == [1, 2, 3]
    assert opened(folder, 3) == [1, 3]
    assert opened(folder, 5) == [2, 3]
    write_shard(folder / "more.safetensors", {"x": Kind("U8", (1,))})
    assert opened(folder) == [0, 1, 2, 3]
    unindexed = write_checkpoint(tmp_path / "no index", {}, parts=cut().values(), index=False)
    assert opened(unindexed) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("absence", ["promise", "missing", "not a layer"])
def test_all_shards_are_opened_before_an_absence_is_told(tmp_path: Path, absence: str) -> None:
    """A tensor that is not where the index says may be anywhere."""
    parts, asked = cut(), [6] if absence == "not a layer" else []
    name = full(3, "self_attn.indexer.wk.weight")
    kind = parts["attention 3"].pop(name) if absence != "not a layer" else None
    folder = write_checkpoint(tmp_path, {}, parts=parts.values())
    if kind and absence == "promise":
        edit_json(folder / INDEX, lambda index: index["weight_map"].update({name: shard_name(1, 5)}))
        write_shard(folder / shard_name(5, 5), {**parts["other"], name: kind})
        assert told(verify(folder)) == [("index-wrong-shard", name)]
    assert opened(folder, *asked) == [1, 2, 3, 4, 5]
