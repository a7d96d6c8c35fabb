# SPDX-License-Identifier: AGPL-3.0-only
"""`verify-dsa` where projections are stored in other ways than the reference: companions count, and are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoints import (
    BROKEN,
    DSA_SHAPES,
    TEXT,
    Kind,
    Tensors,
    edit_header,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
)
from whole_model import CONFIG, whole

from glm5inspect.dsa import Block, DsaAnswer, verify_dsa
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source
from glm5inspect.scope import Scope
from glm5inspect.verify import verify as verify_all

if TYPE_CHECKING:
    from pathlib import Path

MODULE = f"{TEXT}layers.3.self_attn.o_proj"
WEIGHT, SCALE = f"{MODULE}.weight", f"{MODULE}.weight_scale_inv"
WHOLE = 18_608  # bytes of a plain block
FP8: Tensors = {WEIGHT: Kind("F8_E4M3", (64, 48)), SCALE: Kind("F32", (1, 1))}
PROJECTIONS = [name for name, shape in DSA_SHAPES.items() if len(shape) == 2 and name.endswith(".weight")]
STORED = {"config-differs", "encoding-mixed", "quant-unstated"}  # said of what was seen, and nothing wrong
PARAMETERS = [name for name in DSA_SHAPES if name not in PROJECTIONS]


def verify(folder: Path, tensors: Tensors, scope: Scope = Scope.AUTO) -> Report:
    """Write a checkpoint of one shard and verify its blocks."""
    return verify_dsa(open_source(str(write_checkpoint(folder, tensors, shards=1))), scope=scope)


def told(report: Report) -> list[tuple[str, str | None]]:
    """Return code and tensor of every finding."""
    return [(finding.code.value, finding.tensor) for finding in report.findings]


def block(report: Report) -> Block:
    """Return the block of layer 3."""
    assert isinstance(report.answer, DsaAnswer)
    return report.answer.blocks[0]


def test_an_encoded_projection_is_bound(tmp_path: Path) -> None:
    """It is one of the 14 rows, with the bytes of its companions; in the scope of the reference it is neither."""
    report = verify(tmp_path, tiny() | FP8)
    assert told(report) == []
    assert block(report) == Block(3, 14, 14, WHOLE - 64 * 48 + 4, ok=True, unclaimed=())
    strict = verify(tmp_path, tiny() | FP8, Scope.REFERENCE)
    assert told(strict) == [("dsa-dtype", WEIGHT), ("dsa-unclaimed", SCALE)]
    assert block(strict).unclaimed == (SCALE,)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_every_projection_may_be_encoded(tmp_path: Path, name: str) -> None:
    """Each of the matrices that are modules; a lost scale is told under its name."""
    weight = f"{TEXT}layers.3.{name}"
    rows, _ = shape = DSA_SHAPES[name]
    scale = {f"{weight}_scale": Kind("F32", (rows, 1))}
    fits = verify(tmp_path / "fits", tiny() | {weight: Kind("F8_E4M3", shape)} | scale)
    assert (told(fits), block(fits).bound) == ([], 14)
    (lost,) = verify(tmp_path / "lost", tiny() | {weight: Kind("F8_E4M3", shape)}).findings
    assert (lost.code.value, lost.layer) == ("encoding-incomplete", 3)
    assert (lost.tensor or "").startswith(weight)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_plain_in_any_scope(tmp_path: Path, name: str) -> None:
    """Norms and what compresses the index are no modules: they have no companions."""
    tensor = f"{TEXT}layers.3.{name}"
    report = verify(tmp_path, tiny() | {tensor: Kind("F8_E4M3", DSA_SHAPES[name]), f"{tensor}_scale": Kind("F32", ())})
    assert told(report) == [("dsa-dtype", tensor), ("dsa-unclaimed", f"{tensor}_scale")]


DAMAGES: dict[str, tuple[Tensors, list[tuple[str, str]]]] = {
    "orphan": ({SCALE: Kind("F32", (1, 1))}, [("encoding-incomplete", SCALE)]),
    "orphan beside another dtype": (
        {WEIGHT: Kind("F16", (64, 48)), SCALE: Kind("F32", (1, 1))},
        [("dsa-dtype", WEIGHT), ("encoding-incomplete", SCALE)],
    ),
    "two payloads": ({f"{MODULE}.weight_packed": Kind("U8", (64, 24))}, [("encoding-ambiguous", "weight_packed")]),
    "scale of another shape": (FP8 | {SCALE: Kind("F32", (1, 7))}, [("encoding-shape", SCALE)]),
    "scale of another dtype": (FP8 | {SCALE: Kind("F16", (1, 1))}, [("encoding-dtype", SCALE)]),
    "weight of another shape": (FP8 | {WEIGHT: Kind("F8_E4M3", (48, 64))}, [("encoding-shape", WEIGHT)]),
}


@pytest.mark.parametrize(("tensors", "expected"), DAMAGES.values(), ids=DAMAGES)
def test_what_does_not_fit(tmp_path: Path, tensors: Tensors, expected: list[tuple[str, str]]) -> None:
    """Every fault once, in the layer, and the block is not sound."""
    report = verify(tmp_path, tiny() | tensors)
    assert [code for code, _ in told(report)] == [code for code, _ in expected]
    assert all(name in (told_name or "") for (_, told_name), (_, name) in zip(told(report), expected, strict=True))
    assert not block(report).ok
    assert not report.judged(Policy()).ok


def test_bytes_of_companions_are_checked(tmp_path: Path) -> None:
    """As those of plain tensors are."""
    folder = write_checkpoint(tmp_path, tiny() | FP8, shards=1)
    edit_header(folder / shard_name(1, 1), lambda header: header[SCALE]["data_offsets"].__setitem__(1, 1 << 20))
    assert told(verify_dsa(open_source(str(folder)))) == [("dsa-bytes", SCALE)]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("damage", ["missing", "refused"])
def test_a_companion_in_a_lost_shard_is_not_missing(tmp_path: Path, damage: str, *, index: bool) -> None:
    """Nobody could look for it: that is told as the shard's fault."""
    parts = [*parts_by_layer(whole() | FP8), {SCALE: FP8[SCALE]}]
    del parts[3][SCALE]
    folder = write_checkpoint(tmp_path, {}, parts=parts, index=index, config=CONFIG)
    (folder / shard_name(8, 8)).unlink()
    if damage == "refused":
        (folder / shard_name(8, 8)).write_bytes(BROKEN)
    lost = "index-missing-shard" if index else "shard-numbering"
    lost = "header-length" if damage == "refused" else lost
    assert [code for code, _ in told(verify_dsa(open_source(str(folder))))] == [lost]
    every = verify_all(open_source(str(folder))).findings
    assert {finding.code.value for finding in every} - STORED == {lost}
