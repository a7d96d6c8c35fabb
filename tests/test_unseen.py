# SPDX-License-Identifier: AGPL-3.0-only
"""What could not be looked at is neither there nor missing, in words and in numbers."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from checkpoints import (
    TEXT,
    Kind,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_header,
    write_raw,
)

from glm5inspect.catalogue import Code, Severity
from glm5inspect.census import take_census
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.dsa import verify_dsa
from glm5inspect.errors import SourceError
from glm5inspect.mtp import MtpAnswer, find_mtp
from glm5inspect.recording import record
from glm5inspect.render import Format, View, render
from glm5inspect.report import Policy, Report
from glm5inspect.resolve import open_source
from glm5inspect.scope import Scope
from glm5inspect.sources.local import LocalSource

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
MTP_SHARD = shard_name(6, 7)


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """A tiny checkpoint with one shard a layer; the sixth holds the MTP layer 5, the seventh the rest."""
    return write_checkpoint(tmp_path / "layered", {}, parts=parts_by_layer(tiny()))


def words(report: Report) -> str:
    """Return the report as a person reads it, judged as by default."""
    return render(report.judged(Policy()), Format.TABLE, View(None, quiet=False))


def codes(report: Report) -> list[str]:
    """Return the codes found, in order."""
    return [finding.code.value for finding in report.findings]


@pytest.mark.parametrize("damage", ["missing", "refused"])
def test_an_mtp_layer_in_a_lost_shard_is_not_seen(layered: Path, damage: str) -> None:
    """Its names are neither present nor missing, and nobody claims to have found it."""
    (layered / MTP_SHARD).unlink()
    if damage == "refused":
        (layered / MTP_SHARD).write_bytes(b"not a header at all")
    report = find_mtp(open_source(str(layered)))
    assert isinstance(report.answer, MtpAnswer)
    assert set(report.answer.layers[0].names.values()) == {None}
    assert "MISSING" not in words(report)
    assert "eh_proj.weight not seen" in words(report)
    assert "MTP layer 5 only in the index; 1 error" in words(report)


def test_blocks_in_lost_shards_are_not_called_checked(layered: Path) -> None:
    """The last line counts what was found of the blocks."""
    (layered / shard_name(4, 7)).unlink()
    assert "2 DSA blocks (layers 3,5), 14 of 28 tensors found; 1 error" in words(verify_dsa(open_source(str(layered))))


def test_table_order_on_screen_only(layered: Path) -> None:
    """On screen the findings of a block follow its table; in the report, the common order."""
    path, names = layered / shard_name(4, 7), ("q_b_proj.weight", "indexer.index_kpool_compress_ape", "q_a_proj.weight")
    tensors = {n: k for n, k in parts_by_layer(tiny())[3].items() if not n.endswith(names)}
    path.unlink()
    write_checkpoint(layered, {}, parts=[*parts_by_layer(tiny())[:3], tensors, *parts_by_layer(tiny())[4:]])
    report = verify_dsa(open_source(str(layered)))
    screen = [line for line in words(report).splitlines() if line.startswith("error dsa-missing")]
    suffixes = [line.removesuffix(": missing").partition("self_attn.")[2] for line in screen]
    assert suffixes == ["q_a_proj.weight", "q_b_proj.weight", "indexer.index_kpool_compress_ape"]
    assert [f.tensor for f in report.findings] == sorted(f.tensor or "" for f in report.findings)


GHOSTS = {
    "attention": (f"{TEXT}layers.3.self_attn.ghost.weight", ["index-missing-tensor"], []),
    "head": (f"{TEXT}layers.5.ghost.weight", [], ["index-missing-tensor"]),
}


@pytest.mark.parametrize(("name", "dsa", "mtp"), GHOSTS.values(), ids=GHOSTS)
def test_an_index_entry_without_a_tensor_is_told_by_whom_it_concerns(
    layered: Path, name: str, dsa: list[str], mtp: list[str]
) -> None:
    """A name that only the index knows is needed as much as one that is stored."""
    home = shard_name(4 if ".3." in name else 6, 7)
    edit_json(layered / INDEX, lambda index: index["weight_map"].update({name: home}))
    assert codes(verify_dsa(open_source(str(layered)))) == dsa
    assert codes(find_mtp(open_source(str(layered)))) == mtp


@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
def test_a_hole_beside_the_mtp_layer_is_a_gap(tmp_path: Path, config: bool) -> None:  # noqa: FBT001 - a column
    """The MTP layer follows the trunk at once; where it does not, text layers have a hole."""
    moved = {name.replace("layers.5.", "layers.6."): kind for name, kind in tiny().items()}
    folder = write_checkpoint(tmp_path, moved)
    if not config:
        (folder / "config.json").unlink()
    (gap,) = take_census(open_source(str(folder))).findings
    assert (gap.code, gap.count) == (Code.LAYER_GAP, 1)
    assert gap.message == "text layer 5 is missing; there are 0-4,6"


@pytest.mark.parametrize("size", [0, "124", None], ids=["zero", "string", "null"])
def test_a_size_that_is_none_is_told_whatever_is_missing(layered: Path, size: object) -> None:
    """It takes no sum to see it."""
    edit_json(layered / INDEX, lambda index: index["metadata"].update(total_size=size))
    (layered / MTP_SHARD).unlink()
    assert codes(take_census(open_source(str(layered)))) == ["index-missing-shard", "index-total-size"]


def test_a_damaged_other_is_named_before_anything_is_read(layered: Path, tmp_path: Path) -> None:
    """The comparison is refused with the shard at fault, not the source in question."""
    other = write_checkpoint(tmp_path / "other", tiny())
    (other / shard_name(2, 3)).write_bytes(b"x" * 40)
    with pytest.raises(SourceError, match=r"other: nothing can be compared with it without model-00002-of-00003"):
        take_census(open_source(str(layered)), against=open_source(str(other)))


def test_what_cannot_be_recorded_is_reported_with_the_reason(tmp_path: Path) -> None:
    """A name that a row could not tell from a pattern leaves a report, and no text."""
    folder = write_checkpoint(tmp_path, {"layers.N.x": Kind("U8", (1,))}, config=None)
    report, reason = record(open_source(str(folder)), today="2026-01-01")
    assert report.complete is False
    assert "literal layers.N" in str(reason)


def test_a_config_that_is_not_needed_may_be_broken(layered: Path) -> None:
    """Listing tensors asks nothing of it."""
    (layered / "config.json").write_text("[]")
    assert len(open_source(str(layered)).inventory().tensors) == len(tiny())


def test_refused_headers_are_let_go(tmp_path: Path) -> None:
    """What is kept of a refused shard is the reason, not its header."""
    junk = json.dumps({f"t{i}": [i] for i in range(20_000)}).encode()
    for number in range(1, 9):
        write_raw(tmp_path / shard_name(number, 8), junk)
    tracemalloc.start()
    inventory = Checkpoint(LocalSource(tmp_path, typed="x")).inventory()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(inventory.refused) == 8
    assert kept < len(junk)


def test_many_mtp_layers_are_looked_at_once(tmp_path: Path) -> None:
    """Thousands of layers that claim to be MTP layers cost a finding each, not a look at all others."""
    header = {
        f"{TEXT}layers.{layer}.enorm.weight": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
        for layer in range(20_000)
    }
    write_header(tmp_path / "model.safetensors", header)
    report = find_mtp(open_source(str(tmp_path)), scope=Scope.REFERENCE)
    assert isinstance(report.answer, MtpAnswer)
    assert len(report.answer.layers) == 20_000


NOTES = {"draft-tree", "mtp-absent", "mtp-encoding", "quant-pattern-unused"} | {
    "encoding-mixed",
    "precision-widened",
    "config-differs",
    "mtp-copy",
    "accept-unused",
}
WARNINGS = {"header-extra-key", "index-total-size", "companion-split", "config-missing", "mtp-undeclared"} | {
    "quant-unstated",
    "quant-activations",
    "kv-scheme",
    "scale-suffix",
    "precision-narrowed",
    "scale-pair-unequal",
    "norm-offset",
    "norm-constant",
    "bias-zero",
    "helper-rounded",
}


@pytest.mark.parametrize("code", Code)
def test_the_severity_of_every_code(code: Code) -> None:
    """All others are errors: a new code is one too, until somebody says otherwise here."""
    usual = Severity.NOTE if code.value in NOTES else Severity.WARNING if code.value in WARNINGS else Severity.ERROR
    assert code.severity is usual
