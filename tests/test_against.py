# SPDX-License-Identifier: AGPL-3.0-only
"""One inventory held against another: what differs is found, once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from checkpoints import TEXT, Kind, Tensors, edit_json, parts_by_layer, shard_name, tiny, write_checkpoint

from glm5inspect.against import compare
from glm5inspect.catalogue import Code
from glm5inspect.census import take_census
from glm5inspect.errors import SourceError
from glm5inspect.header import TensorRecord
from glm5inspect.inventory import Inventory
from glm5inspect.report import Finding, SourceInfo
from glm5inspect.resolve import open_source
from glm5inspect.roles import parse_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INDEX = "model.safetensors.index.json"
EXPERT = TEXT + "layers.{}.mlp.experts.{}.up_proj.weight"
EXPERTS = TEXT + "layers.N.mlp.experts.E.up_proj.weight"
NORM = TEXT + "layers.{}.input_layernorm.weight"
NORMS = TEXT + "layers.N.input_layernorm.weight"


class Told(NamedTuple):
    """What a finding says, without its words."""

    code: Code
    tensor: str | None
    layer: int | None
    expected: str | None
    actual: str | None
    tensors: int


def told(finding: Finding) -> Told:
    """Return the facts of a finding."""
    expected, actual = (None if fact is None else str(fact) for fact in (finding.expected, finding.actual))
    return Told(finding.code, finding.tensor, finding.layer, expected, actual, finding.count)


def inventory_of(tensors: Tensors) -> Inventory:
    """Return a complete inventory of these tensors."""
    records = {name: TensorRecord(name, *kind, 0, kind.nbytes, None) for name, kind in tensors.items()}
    return Inventory(info=SourceInfo("snapshot", "x", "x"), tensors=records, shards=None)


def against_tiny(tensors: Tensors) -> list[Finding]:
    """Hold tensors against those of the healthy tiny checkpoint."""
    return list(compare(inventory_of(tensors), inventory_of(tiny())))


def pairs() -> list[str]:
    """Return one name of every pattern: each kind of tensor there is."""
    return list({parse_name(name).pattern: name for name in tiny()}.values())


def test_equal_inventories_are_silent() -> None:
    """Nothing differs from itself, in whatever order it is stored."""
    assert against_tiny(dict(reversed(tiny().items()))) == []


@pytest.mark.parametrize("name", pairs())
def test_each_kind_of_tensor(name: str) -> None:
    """Taking away, adding, re-typing or reshaping any one tensor gives exactly its finding."""
    pattern, layer, _ = parse_name(name)
    dtype, shape = tiny()[name]
    whole = f"{dtype} {list(shape)}"
    without = {other: k for other, k in tiny().items() if other != name}
    reshaped = (*shape, 1)
    other_dtype = "I8" if dtype == "U8" else "F64"

    assert [told(f) for f in against_tiny(without)] == [Told(Code.CENSUS_MISSING, pattern, layer, whole, None, 1)]
    extra = list(compare(inventory_of(tiny()), inventory_of(without)))
    assert [told(f) for f in extra] == [Told(Code.CENSUS_EXTRA, pattern, layer, None, whole, 1)]
    retyped = against_tiny(tiny() | {name: Kind(other_dtype, shape)})
    assert [told(f) for f in retyped] == [Told(Code.CENSUS_DTYPE, pattern, layer, dtype, other_dtype, 1)]
    moved = against_tiny(tiny() | {name: Kind(dtype, reshaped)})
    assert [told(f) for f in moved] == [
        Told(Code.CENSUS_SHAPE, pattern, layer, str(list(shape)), str(list(reshaped)), 1)
    ]
    both = against_tiny(tiny() | {name: Kind(other_dtype, reshaped)})
    assert {f.code for f in both} == {Code.CENSUS_DTYPE, Code.CENSUS_SHAPE}
    assert len(both) == 2


def test_one_finding_a_pattern() -> None:
    """What differs in the same way is told once, with the layers in words and the tensors counted."""
    changed = tiny() | {EXPERT.format(layer, expert): Kind("I8", (32, 32)) for layer in (3, 4) for expert in (0, 2, 3)}
    (finding,) = against_tiny(changed)
    assert told(finding) == Told(Code.CENSUS_DTYPE, EXPERTS, None, "U8", "I8", 6)
    assert finding.message == f"{EXPERTS}: I8 instead of U8, 6 tensors in layers 3-4"


def test_one_layer_is_named() -> None:
    """When all that differs is in one layer, the finding is about that layer."""
    changed = {name: kind for name, kind in tiny().items() if name not in {EXPERT.format(4, e) for e in range(3)}}
    (finding,) = against_tiny(changed)
    assert told(finding) == Told(Code.CENSUS_MISSING, EXPERTS, 4, "U8 [32, 32]", None, 3)
    assert finding.message == f"{EXPERTS}: not here, 3 tensors in layer 4"


def test_one_tensor_is_named() -> None:
    """A single tensor is told by its name."""
    changed = tiny() | {EXPERT.format(4, 1): Kind("U8", (64, 16))}
    (finding,) = against_tiny(changed)
    assert finding.message == (f"{EXPERT.format(4, 1)}: [64, 16] instead of [32, 32]")


def test_outside_the_layers() -> None:
    """A tensor of no layer is told without one."""
    changed = {name: kind for name, kind in tiny().items() if name != "lm_head.weight"}
    (finding,) = against_tiny(changed)
    assert (finding.layer, finding.message) == (None, "lm_head.weight: not here")


def test_other_ways_of_differing_are_other_findings() -> None:
    """Within a pattern, what differs in two ways is told apart by what is expected and what is there."""
    changed = tiny() | {
        NORM.format(0): Kind("F32", (64,)),
        NORM.format(1): Kind("F16", (64,)),
        NORM.format(2): Kind("F16", (64,)),
        NORM.format(4): Kind("BF16", (63,)),
    }
    del changed[NORM.format(3)]
    assert {told(finding) for finding in against_tiny(changed)} == {
        Told(Code.CENSUS_DTYPE, NORMS, 0, "BF16", "F32", 1),
        Told(Code.CENSUS_DTYPE, NORMS, None, "BF16", "F16", 2),
        Told(Code.CENSUS_SHAPE, NORMS, 4, "[64]", "[63]", 1),
        Told(Code.CENSUS_MISSING, NORMS, 3, "BF16 [64]", None, 1),
    }


def test_everything_differs() -> None:
    """Two checkpoints that share no name are missing and extra altogether."""
    findings = list(compare(inventory_of({"a": Kind("U8", ())}), inventory_of({"b": Kind("U8", ())})))
    assert sorted((f.code.value, f.tensor, f.count) for f in findings) == [
        ("census-extra", "a", 1),
        ("census-missing", "b", 1),
    ]


def census_codes(folder: Path, other: Path) -> set[tuple[Code, int]]:
    """Return the codes and counts of what a census of a folder says against another."""
    findings = take_census(open_source(str(folder)), against=open_source(str(other))).findings
    return {(finding.code, finding.count) for finding in findings if finding.code.value.startswith("census-")}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A healthy checkpoint to compare with."""
    return write_checkpoint(tmp_path / "whole", tiny())


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """The same in shards of one layer each, free to be damaged."""
    return write_checkpoint(tmp_path / "layered", tiny(), parts=parts_by_layer(tiny()))


def _remove(shard: Path) -> None:
    shard.unlink()


def _empty(shard: Path) -> None:
    shard.write_bytes(b"")


def _spoil(shard: Path) -> None:
    shard.write_bytes(b"PK\x03\x04 and nothing that could be read")


@pytest.mark.parametrize("damage", [_remove, _empty, _spoil])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no-index"])
def test_what_was_not_seen_is_not_missing(
    whole: Path,
    layered: Path,
    damage: Callable[[Path], None],
    index: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """Tensors of a shard that is not there or cannot be read may exist: they are told of that shard only."""
    damage(layered / shard_name(5, 7))
    if not index:
        (layered / INDEX).unlink()
    assert census_codes(layered, whole) == set()


def test_beside_a_missing_shard(whole: Path, tmp_path: Path) -> None:
    """What the index puts in no shard is missing, even when a shard is."""
    name = NORM.format(0)
    less = {other: kind for other, kind in tiny().items() if other != name}
    folder = write_checkpoint(tmp_path / "less", less, parts=parts_by_layer(less))
    (folder / shard_name(5, 7)).unlink()
    assert census_codes(folder, whole) == {(Code.CENSUS_MISSING, 1)}


def test_a_tensor_that_only_the_index_has(whole: Path, tmp_path: Path) -> None:
    """A name that the index puts in a readable shard which lacks it is missing."""
    less = {name: kind for name, kind in tiny().items() if name != NORM.format(0)}
    folder = write_checkpoint(tmp_path / "less", less)
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({NORM.format(0): shard_name(1, 3)}))
    assert census_codes(folder, whole) == {(Code.CENSUS_MISSING, 1)}


@pytest.mark.parametrize("damage", [_remove, _empty, _spoil])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no-index"])
def test_a_damaged_other_is_refused(
    whole: Path,
    layered: Path,
    damage: Callable[[Path], None],
    index: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """Nothing can be held against what is not whole itself."""
    damage(layered / shard_name(5, 7))
    if not index:
        (layered / INDEX).unlink()
    with pytest.raises(SourceError, match="nothing can be compared with it"):
        take_census(open_source(str(whole)), against=open_source(str(layered)))


def test_sharding_does_not_matter(whole: Path, layered: Path) -> None:
    """The same tensors in other shards are the same."""
    assert census_codes(whole, layered) == set()


def test_siblings_differ() -> None:
    """The reference and its BF16 sibling share what is not quantized."""
    report = take_census(open_source("snapshot:reference"), against=open_source("snapshot:official-bf16"))
    facts = [f for f in report.findings if f.code.value.startswith("census-")]
    assert {f.code.value for f in facts} == {"census-dtype", "census-extra", "census-shape"}
    extra = {f.tensor: f.count for f in facts if f.code is Code.CENSUS_EXTRA}
    down = f"{TEXT}layers.N.mlp.experts.E.down_proj"
    assert (extra[f"{down}.weight_scale"], extra[f"{down}.weight_scale_2"]) == (12_384, 12_384)
    assert sum(extra.values()) == 113_074 - 38_770
