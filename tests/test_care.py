# SPDX-License-Identifier: AGPL-3.0-only
"""Nothing is lost, nothing grows: outputs beside a checkpoint, long names, large metadata, odd numbers."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from checkpoints import TEXT, Kind, header_of, shard_name, tiny, write_checkpoint, write_header, write_shard
from typer.testing import CliRunner

from glm5inspect.census import take_census
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.classification import classify_source
from glm5inspect.cli import app
from glm5inspect.listing import show
from glm5inspect.mtp import find_mtp
from glm5inspect.recording import record
from glm5inspect.render import Format, render
from glm5inspect.resolve import open_source
from glm5inspect.sources.local import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from glm5inspect.report import Report

INDEX = "model.safetensors.index.json"


def codes(report: Report) -> list[str]:
    """Return the codes found, in order."""
    return [finding.code.value for finding in report.findings]


def config(folder: Path) -> str:
    """Name the config itself."""
    return str(folder / "config.json")


def link_to_shard(folder: Path) -> str:
    """Name a shard by a link from elsewhere."""
    link = folder.parent / "report.txt"
    link.symlink_to(folder / shard_name(1, 3))
    return str(link)


def blob_of_shard(folder: Path) -> str:
    """Name the blob that a shard is a link to, as in the cache of the Hub."""
    blob = folder.parent / "blob"
    (folder / shard_name(2, 3)).rename(blob)
    (folder / shard_name(2, 3)).symlink_to(blob)
    return str(blob)


@pytest.mark.parametrize("name", [config, link_to_shard, blob_of_shard])
@pytest.mark.parametrize("command", ["census", "record"])
def test_no_part_of_a_checkpoint_is_written_over(checkpoint: Path, command: str, name: Callable[[Path], str]) -> None:
    """Under whatever name: one line, 3, and the part is as it was."""
    path = name(checkpoint)
    before = [file.read_bytes() for file in sorted(checkpoint.iterdir())]
    result = CliRunner().invoke(app, [command, str(checkpoint), "--output", path])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "of the checkpoint; nothing is written over it" in result.stderr
    assert [file.read_bytes() for file in sorted(checkpoint.iterdir())] == before


@pytest.mark.parametrize("source", ["folder", "file"])
def test_a_report_may_lie_beside_a_checkpoint(checkpoint: Path, source: str) -> None:
    """What is no part of it is replaced like any file."""
    report = checkpoint / "report.json"
    report.write_text("old")
    of = checkpoint if source == "folder" else checkpoint / shard_name(1, 3)
    CliRunner().invoke(app, ["census", str(of), "-f", "json", "-o", str(report)])
    assert json.loads(report.read_text())["command"] == "census"


@pytest.mark.parametrize("label", ["", " ", "a\x1b[31m"], ids=["empty", "blank", "control"])
@pytest.mark.parametrize("option", ["--repo", "--revision", "--provenance"])
def test_labels_say_something(checkpoint: Path, option: str, label: str) -> None:
    """An unset variable is no name."""
    result = CliRunner().invoke(app, ["record", str(checkpoint), "-o", str(checkpoint / "s.json"), option, label])
    assert result.exit_code == 2
    assert not (checkpoint / "s.json").exists()


def test_one_long_name_does_not_stretch_the_others(tmp_path: Path) -> None:
    """Each row is about as long as what it says."""
    tensors = {"x" * 20_000: Kind("U8", (1,)), **{f"t{number}": Kind("U8", (1,)) for number in range(500)}}
    write_header(tmp_path / "model.safetensors", header_of(tensors))
    text = render(show(open_source(str(tmp_path))), Format.TABLE)
    assert "x" * 20_000 in text
    assert len(text) < 200_000


def test_metadata_is_judged_and_let_go(tmp_path: Path) -> None:
    """A header that is kept does not keep its metadata."""
    metadata = {f"k{number}": "v" * 50 for number in range(20_000)}
    for number in range(1, 9):
        write_header(tmp_path / shard_name(number, 8), {"__metadata__": metadata})
    tracemalloc.start()
    inventory = Checkpoint(LocalSource(tmp_path, typed="x")).inventory()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(inventory.headers) == 8
    assert kept < 500_000


def test_names_in_a_missing_shard_were_not_classified(checkpoint: Path) -> None:
    """The answer is no, not fewer names."""
    (checkpoint / shard_name(3, 3)).unlink()
    assert codes(classify_source(open_source(str(checkpoint)))) == ["index-missing-shard"]


@pytest.mark.parametrize("number", ["05", "18446744073709551616", "9" * 30], ids=["zero", "2^64", "long"])
def test_a_layer_number_that_no_loader_writes(tmp_path: Path, number: str) -> None:
    """It has a role by its name, but belongs to no layer that anybody looks for."""
    name = f"{TEXT}layers.{number}.input_layernorm.weight"
    report = take_census(open_source(str(write_checkpoint(tmp_path, tiny() | {name: Kind("BF16", (64,))}))))
    (finding,) = report.findings
    assert (finding.code.value, finding.tensor) == ("layer-gap", name)


def test_an_mtp_layer_in_place_of_a_trunk_layer_is_named(tmp_path: Path) -> None:
    """The hole is explained by what stands there."""
    declared = {"text_config": {"num_hidden_layers": 6}}
    (gap,) = take_census(open_source(str(write_checkpoint(tmp_path, tiny(), config=declared)))).findings
    assert gap.message == "text layer 5 is missing; there are 0-4; an MTP layer has the number 5"


def test_a_duplicate_that_nothing_settles_is_not_recorded(checkpoint: Path) -> None:
    """Nobody can say which of the two the inventory is."""
    (checkpoint / INDEX).unlink()
    write_shard(checkpoint / "zz.safetensors", {"lm_head.weight": Kind("F32", (96, 64))})
    report, text = record(open_source(str(checkpoint)), today="2026-01-01")
    assert (codes(report), report.complete) == (["duplicate-tensor"], False)
    assert not isinstance(text, str)


def test_a_refused_shard_may_hold_what_the_index_does_not_name(tmp_path: Path) -> None:
    """An MTP layer is not called missing while a header could not be read."""
    trunk = {name: kind for name, kind in tiny().items() if not name.startswith(f"{TEXT}layers.5.")}
    folder = write_checkpoint(tmp_path, trunk)
    assert codes(find_mtp(open_source(str(folder)))) == ["mtp-missing"]
    (folder / shard_name(1, 3)).write_bytes(b"x" * 30)
    assert codes(find_mtp(open_source(str(folder)))) == ["header-length"]
