# SPDX-License-Identifier: AGPL-3.0-only
"""Twenty ways in which checkpoints go wrong in the wild, each told by a finding or refusal of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from checkpoints import TEXT, Kind, edit_header, edit_json, shard_name, tiny, write_checkpoint, write_raw, write_shard
from typer.testing import CliRunner

from glm5inspect.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INDEX = "model.safetensors.index.json"
LAYER_3, LAYER_4 = f"{TEXT}layers.3.", f"{TEXT}layers.4."
SCALE = f"{LAYER_3}mlp.experts.1.down_proj.weight_scale"
A_LOG = f"{LAYER_4}self_attn.A_log"
WK = f"{LAYER_3}self_attn.indexer.wk.weight"
ABSENT = f"{LAYER_4}mlp.experts.4.up_proj.weight"
HEAD = "lm_head.weight"
LAST = "model.visual.blocks.0.norm1.weight"
FIRST, SECOND = shard_name(1, 2), shard_name(2, 2)


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command, and return its exit code, standard output and standard error."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def write(folder: Path, changed: dict[str, Kind] | None = None) -> Path:
    """Write the good checkpoint, or one in which some tensors are something else: two shards, index and config."""
    return write_checkpoint(folder, {**tiny(), **(changed or {})}, shards=2)


def data_bytes(shard: Path, more: int) -> None:
    """Make the data of a shard longer or shorter."""
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size + more)


def shift_last(folder: Path, by: int) -> None:
    """Move the last tensor of a shard; the data grows or shrinks by as much."""

    def edit(header: dict[str, Any]) -> None:
        header[LAST]["data_offsets"] = [offset + by for offset in header[LAST]["data_offsets"]]

    edit_header(folder / SECOND, edit)
    data_bytes(folder / SECOND, by)


def reshape(folder: Path) -> None:
    """Halve a dimension, and leave the bytes as they are."""
    edit_header(folder / FIRST, lambda header: header[HEAD].update(shape=[48, 64]))


def retype(folder: Path) -> None:
    """Give a tensor a dtype that the format does not know."""
    edit_header(folder / FIRST, lambda header: header[HEAD].update(dtype="F8_E9M9"))


def repeat_name(folder: Path) -> None:
    """Let a name stand twice in one header."""
    raw = (folder / FIRST).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip(b" ")
    entry = json.dumps(json.loads(header)[HEAD]).encode()
    write_raw(folder / FIRST, header[:-1] + b',"' + HEAD.encode() + b'":' + entry + b"}", len(raw) - 8 - length)


def copy_head(folder: Path) -> None:
    """Put a tensor of the first shard into the second too."""
    copied = {name: kind for name, kind in tiny().items() if name in home(folder, SECOND) or name == HEAD}
    write_shard(folder / SECOND, copied)


def home(folder: Path, shard: str) -> list[str]:
    """Return the tensors that the index puts in a shard."""
    weight_map: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return [name for name, where in weight_map.items() if where == shard]


def rename(folder: Path) -> None:
    """Give a tensor a name that nobody knows, in its header and in the index."""

    def edit(names: dict[str, Any]) -> None:
        names["lm_head.wait"] = names.pop(HEAD)

    edit_header(folder / FIRST, edit)
    edit_json(folder / INDEX, lambda index: edit(index["weight_map"]))


def without_mtp(folder: Path) -> None:
    """Write the checkpoint again without its last layer."""
    kept = {name: kind for name, kind in tiny().items() if ".layers.5." not in name}
    write_checkpoint(folder, kept, shards=2)


def index(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a fault of the index alone."""
    return lambda folder: edit_json(folder / INDEX, edit)


class Fault(NamedTuple):
    """A fault, and by what it is told.

    Attributes:
        make: Puts the fault into a good checkpoint.
        codes: All findings of the command, in order.
        tensor: What the first finding is about, a tensor or a census pattern, if it is about one.
        shard: The shard it is about, if it is about one.
        exit_code: How the command ends.
        command: The command; ``AGAINST`` stands for a snapshot of the good copy.
        also: Further options.
    """

    make: Callable[[Path], object]
    codes: list[str]
    tensor: str | None = None
    shard: str | None = None
    exit_code: int = 1
    command: str = "census"
    also: tuple[str, ...] = ()


AGAINST = ("--against", "good.json")
STRICT = ("--fail-on", "warning")
NAME = f"{TEXT}layers.N."

FAULTS = {
    "01 data cut short": Fault(lambda f: data_bytes(f / FIRST, -1), ["file-truncated"], None, FIRST),
    "02 trailing bytes": Fault(lambda f: data_bytes(f / FIRST, 16), ["file-trailing"], None, FIRST),
    "03 gap": Fault(lambda f: shift_last(f, 8), ["offset-gap"], LAST, SECOND),
    "04 overlap": Fault(lambda f: shift_last(f, -8), ["offset-overlap"], LAST, SECOND),
    "05 shape and dtype against bytes": Fault(reshape, ["shape-bytes"], HEAD, FIRST),
    "06 unknown dtype": Fault(retype, ["unknown-dtype"], HEAD, FIRST),
    "07 name twice in a header": Fault(repeat_name, ["header-duplicate"], None, FIRST, 3),
    "08 header length of 2^40": Fault(
        lambda f: write_raw(f / FIRST, b"{}", 4096, length=1 << 40), ["header-length"], None, FIRST, 3
    ),
    "09 header not JSON": Fault(lambda f: write_raw(f / FIRST, b"{not json}", 4096), ["header-json"], None, FIRST, 3),
    "10 index names a tensor that no shard has": Fault(
        index(lambda i: i["weight_map"].update({ABSENT: FIRST})),
        ["index-missing-tensor"],
        ABSENT,
        FIRST,
    ),
    "11 tensor not in the index": Fault(
        index(lambda i: i["weight_map"].pop(HEAD)), ["index-unlisted-tensor"], HEAD, FIRST
    ),
    "12 same tensor in two shards": Fault(copy_head, ["duplicate-tensor"], HEAD, FIRST, also=STRICT),
    "12 same tensor in two shards, let pass": Fault(copy_head, ["duplicate-tensor"], HEAD, FIRST, 0),
    "13 shard missing": Fault(lambda f: (f / SECOND).unlink(), ["index-missing-shard"], None, SECOND),
    "14 total_size wrong": Fault(
        index(lambda i: i["metadata"].update(total_size=1)), ["index-total-size"], also=STRICT
    ),
    "14 total_size wrong, let pass": Fault(
        index(lambda i: i["metadata"].update(total_size=1)), ["index-total-size"], exit_code=0
    ),
    "16 no MTP layer": Fault(without_mtp, ["mtp-missing"], command="find-mtp"),
    "17 unknown name": Fault(rename, ["unknown-tensor"], "lm_head.wait", FIRST),
    "18 scale of half its width": Fault(
        lambda f: write(f, {SCALE: Kind("F8_E4M3", (64, 1))}),
        ["census-shape"],
        f"{NAME}mlp.experts.E.down_proj.weight_scale",
        also=AGAINST,
    ),
    "19 A_log in BF16": Fault(
        lambda f: write(f, {A_LOG: Kind("BF16", (4,))}), ["census-dtype"], f"{NAME}self_attn.A_log", also=AGAINST
    ),
    "20 attention shape, against the good copy": Fault(
        lambda f: write(f, {WK: Kind("BF16", (4, 64))}),
        ["census-shape"],
        f"{NAME}self_attn.indexer.wk.weight",
        also=AGAINST,
    ),
    "20 attention shape, by the config": Fault(
        lambda f: write(f, {WK: Kind("BF16", (4, 64))}), ["dsa-shape"], WK, SECOND, command="verify-dsa"
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """The fault is told by its own finding and by nothing else, and the command ends as it should."""
    monkeypatch.chdir(tmp_path)
    assert run("record", write(tmp_path / "good"), "--output", "good.json", "--quiet")[0] == 0
    fault.make(write(tmp_path / "bad"))

    exit_code, stdout, _ = run(fault.command, "bad", "--format", "json", *fault.also)
    report = json.loads(stdout)

    assert [finding["code"] for finding in report["findings"]] == fault.codes
    assert (report["findings"][0]["tensor"], report["findings"][0]["shard"]) == (fault.tensor, fault.shard)
    assert exit_code == fault.exit_code
    assert (report["ok"], report["complete"]) == (exit_code == 0, exit_code != 3)


def test_fault_15(tmp_path: Path) -> None:
    """15, an index that leads out of the checkpoint: refused with one line on standard error and no report."""
    write(tmp_path / "other")
    folder = write(tmp_path / "bad")
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({HEAD: f"../other/{FIRST}"}))

    for command in ("census", "verify-dsa", "find-mtp"):
        exit_code, stdout, stderr = run(command, folder, "--format", "json")

        assert (exit_code, stdout, stderr.count("\n")) == (3, "", 1)
        assert f"{HEAD} is mapped to '../other/{FIRST}', which is not a path below the checkpoint" in stderr


@pytest.mark.parametrize("source", ["good", "good.json"])
@pytest.mark.parametrize("command", ["census", "verify-dsa", "find-mtp"])
def test_good_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, source: str) -> None:
    """The checkpoint that all faults are made in is itself in order, and so is its snapshot, however strictly asked."""
    monkeypatch.chdir(tmp_path)
    assert run("record", write(tmp_path / "good"), "--output", "good.json", "--quiet")[0] == 0
    against = AGAINST if command == "census" else ()

    exit_code, stdout, _ = run(command, source, "--format", "json", *STRICT, *against)

    assert exit_code == 0
    assert [f["code"] for f in json.loads(stdout)["findings"] if f["severity"] != "note"] == []


@pytest.mark.parametrize(
    ("shard", "expected"),
    [("{}", (1, ["no-tensors"])), ("{", (3, ["header-json"])), ("", (3, ["header-empty"]))],
    ids=["no tensors", "refused", "empty"],
)
def test_no_tensors(tmp_path: Path, shard: str, expected: tuple[int, list[str]]) -> None:
    """Headers without a single tensor are an error; where one could not be read, there may have been some."""
    path = write_raw(tmp_path / "model.safetensors", shard.encode())
    if not shard:
        path.write_bytes(b"")

    exit_code, stdout, _ = run("census", tmp_path, "--format", "json", "--ignore", "config-missing")

    assert (exit_code, [finding["code"] for finding in json.loads(stdout)["findings"]]) == expected


@pytest.mark.parametrize(
    "exception", ["--exit-zero", "--fail-on=never", "--ignore=header-json", "--select=file-trailing"]
)
def test_unanswered_stays_unanswered(tmp_path: Path, exception: str) -> None:
    """A shard that could not be read makes the answer incomplete, whatever is waived."""
    folder = write(tmp_path / "bad")
    FAULTS["09 header not JSON"].make(folder)

    exit_code, stdout, _ = run("census", folder, "--format", "json", exception)

    assert exit_code == 3
    assert json.loads(stdout)["complete"] is False
