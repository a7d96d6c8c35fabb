# SPDX-License-Identifier: AGPL-3.0-only
"""The recorded inventory: lossless, the same bytes again, and nothing malformed let in."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glm5inspect.census import count
from glm5inspect.errors import SnapshotError
from glm5inspect.header import TensorRecord
from glm5inspect.inventory import Inventory
from glm5inspect.recording import record
from glm5inspect.report import SourceInfo
from glm5inspect.resolve import open_source
from glm5inspect.snapshot import (
    Snapshot,
    bundled_names,
    dump_snapshot,
    load_snapshot,
    parse_snapshot,
    snapshot_folder,
    take_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

INFO = SourceInfo("snapshot", "typed", "resolved")
NOBODY = {"repo": None, "revision": None, "recorded": None, "provenance": None}

BUNDLED = {
    "exl3-4bpw": (150_226, 175_622_979_576, 120),
    "glm-5.3-not-flash": (118_629, 755_617_140_416, None),
    "libertai-w4a4": (150_226, 194_644_952_184, 121),
    "mlx-4bit": (2_998, 177_548_583_160, None),
    "mtp-extract": (891, 17_402_739_328, None),
    "nvidia-nvfp4": (147_661, 204_418_524_996, 33),
    "official-bf16": (38_770, 642_646_653_816, 120),
    "official-fp8": (76_108, 328_326_771_576, 62),
    "reap50-fp8": (38_060, 168_543_740_536, 62),
    "reference": (113_074, 194_644_803_576, 120),
    "transformers-saved": (1_609, 627_781_468_408, None),
    "w4a16-packed": (111_346, 190_794_864_504, None),
}
DIGESTS = {
    "reference": "e833a4dd6b1be69ae8392d5b55f57d0e8e788d440dc2434d3e697efc2ff55007",
    "official-fp8": "815417c9cc8e83987862b74d9a9aa7127c0f80f475d28f505b97b3388010dc1f",
}


def inventory_of(tensors: Iterable[TensorRecord], shards: int | None = 1) -> Inventory:
    """Return an inventory of these tensors."""
    return Inventory(info=INFO, tensors={tensor.name: tensor for tensor in tensors}, shards=shards)


def fold(tensors: Iterable[TensorRecord], configs: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """Return the text of the snapshot of these tensors."""
    return dump_snapshot(take_snapshot(inventory_of(tensors), configs or {}, **NOBODY))


def scalars(*names: str) -> list[TensorRecord]:
    """Return tensors of 4 bytes."""
    return [TensorRecord(name, "F32", (), 0, 4, None) for name in names]


def parse(text: str | Mapping[str, object]) -> Snapshot:
    """Parse the text of a snapshot, or the object that is in it."""
    return parse_snapshot((text if isinstance(text, str) else json.dumps(text)).encode(), INFO)


def rows_of(text: str) -> list[dict[str, Any]]:
    """Return the rows of a snapshot's text."""
    rows: list[dict[str, Any]] = json.loads(text)["rows"]
    return rows


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled(name: str) -> None:
    """A bundled snapshot holds what was published, and folds and records into its own bytes again."""
    text = (snapshot_folder() / f"{name}.json").read_text()
    source = open_source(f"snapshot:{name}")
    inventory = source.inventory()
    nbytes = sum(tensor.nbytes for tensor in inventory.tensors.values())
    assert (len(inventory.tensors), nbytes, inventory.shards) == BUNDLED[name]
    assert isinstance(source, Snapshot)
    assert len(source.provenance or "") > 20
    assert source.recorded == str(date.fromisoformat(source.recorded or ""))
    configs = source.configs
    assert dump_snapshot(source) == text
    again = take_snapshot(
        inventory,
        configs,
        repo=source.repo,
        revision=source.revision,
        recorded=source.recorded,
        provenance=source.provenance,
    )
    assert dump_snapshot(again) == text
    report, recorded = record(source, today="1999-01-01")
    assert report.findings == ()
    assert recorded == text


@pytest.mark.parametrize(("name", "digest"), DIGESTS.items())
def test_digests(name: str, digest: str) -> None:
    """The inventories that were verified are pinned to the last dimension, by the tool's digest and by hand."""
    inventory = open_source(f"snapshot:{name}").inventory()
    lines = sorted(f"{t.name}\t{t.dtype}\t{'x'.join(map(str, t.shape))}".encode() for t in inventory.tensors.values())
    assert digest == hashlib.sha256(b"\n".join(lines)).hexdigest() == count(inventory).digest


def test_bundled_are_listed() -> None:
    """Every bundled snapshot is known by its name."""
    assert bundled_names() == sorted(BUNDLED)


def test_a_row_a_line(tmp_path: Path) -> None:
    """A checkpoint becomes rows by pattern, dtype and shape; ranges are written as integers sort."""
    tensors = scalars("b", *(f"x.layers.{i}.w" for i in (10, 2, 3, 9)))
    tensors += [TensorRecord("x.layers.4.w", "BF16", (2,), 0, 4, None)]
    path = tmp_path / "s.json"
    path.write_text(fold(tensors))
    assert path.read_text().endswith(
        '"shards": 1,\n"tensors": 6,\n"bytes": 24,\n"rows": [\n'
        ' {"pattern": "b", "dtype": "F32", "shape": []},\n'
        ' {"pattern": "x.layers.N.w", "dtype": "BF16", "shape": [2], "layers": "4"},\n'
        ' {"pattern": "x.layers.N.w", "dtype": "F32", "shape": [], "layers": "2-3,9-10"}\n]}\n'
    )
    assert len(load_snapshot(path, typed="t").inventory().tensors) == 6


def test_layers_with_other_experts_form_other_rows() -> None:
    """A product that is not full is cut into rows that are; layers with the same experts share one."""
    held = {0: (0, 1, 2), 1: (1,), 2: (0, 1, 2), 3: (1,)}
    names = [f"layers.{layer}.experts.{expert}.w" for layer, experts in held.items() for expert in experts]
    rows = rows_of(fold(scalars(*names)))
    assert [(row["layers"], row["experts"]) for row in rows] == [("0,2", "0-2"), ("1,3", "1")]


@pytest.mark.parametrize(
    "name",
    [
        "layers.03.w",
        "layers.00.w",
        "layers.18446744073709551616.w",
        "x.layers.y.layers.N.z",
        "layers.\u0663.w",
        "layers",
    ],
)
def test_other_indices_stay_in_the_name(name: str) -> None:
    """What is no canonical decimal below 2^64 after the first `layers` is not folded."""
    text = fold(scalars(name))
    (row,) = rows_of(text)
    assert (row["pattern"], "layers" in row) == (name, False)
    assert list(parse(text).inventory().tensors) == [name]


@pytest.mark.parametrize(
    "name", ["layers.N.w", "a.layers.N", "experts.E.w", "layers.3.experts.E", "layers.N.experts.1"]
)
def test_a_literal_index_is_refused(name: str) -> None:
    """A name that already looks like a pattern cannot be told from one."""
    with pytest.raises(SnapshotError, match="literal"):
        fold(scalars(name))


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"), [("F99", (), 4), ("F32", (2,), 4), ("F4", (3,), 1), ("F6_E2M3", (1,), 1)]
)
def test_what_does_not_add_up_is_not_recorded(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    """A tensor whose bytes do not follow from dtype and shape cannot be a row."""
    with pytest.raises(SnapshotError, match="do not fit"):
        fold([TensorRecord("a", dtype, shape, 0, nbytes, None)])


INDICES = st.sampled_from(
    ["0", "1", "2", "3", "9", "10", "03", "18446744073709551615", "18446744073709551616", "x", ""]
)
NAMES = st.one_of(
    st.tuples(INDICES, INDICES, st.sampled_from(["w", "v"])).map(lambda t: f"m.layers.{t[0]}.e.experts.{t[1]}.{t[2]}"),
    st.tuples(INDICES, st.sampled_from([".w", ""])).map(lambda t: f"layers.{t[0]}{t[1]}"),
    st.tuples(INDICES, INDICES).map(lambda t: f"experts.{t[0]}.layers.{t[1]}"),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
KINDS = st.sampled_from(
    [
        ("F32", (), 4),
        ("F32", (0, 3), 0),
        ("F4", (2, 4), 4),
        ("BF16", (10, 2), 40),
        ("BF16", (9, 2), 36),
        ("U8", (1,), 1),
    ]
)


@given(st.dictionaries(NAMES, KINDS, max_size=40))
@example({f"layers.{i}.experts.{j}.w": ("F32", (), 4) for i in range(4) for j in range(i + 1)})
@settings(deadline=None)
def test_round_trip(kinds: dict[str, tuple[str, tuple[int, ...], int]]) -> None:
    """Any inventory comes back whole, in few bytes that do not depend on the order it was read in."""
    tensors = [TensorRecord(name, dtype, shape, 0, size, None) for name, (dtype, shape, size) in kinds.items()]
    text = fold(tensors)
    back = parse(text)
    assert back.inventory().tensors == {tensor.name: tensor for tensor in tensors}
    assert dump_snapshot(back) == text == fold(reversed(tensors))


def test_null_fields() -> None:
    """Repository, revision and the rest may be unknown; shards too."""
    fields = json.loads(fold(scalars("a"))) | {"shards": None}
    snapshot = parse(fields)
    assert (snapshot.repo, snapshot.revision, snapshot.recorded, snapshot.provenance, snapshot.shards) == (None,) * 5
    assert (snapshot.info.repo, snapshot.info.revision, snapshot.info.commit) == (None, None, None)
    assert (snapshot.config(), snapshot.inventory().shards) == (None, None)
    assert json.loads(dump_snapshot(snapshot)) == fields


@pytest.mark.parametrize(
    ("revision", "branch", "commit"),
    [("main", "main", None), ("9e" * 20, None, "9e" * 20), ("9E" * 20, "9E" * 20, None)],
)
def test_a_revision_may_be_a_commit(revision: str, branch: str | None, commit: str | None) -> None:
    """Forty hexadecimal digits are a commit, the rest are names of one."""
    info = parse(json.loads(fold(scalars("a"))) | {"revision": revision, "repo": "o/n"}).info
    assert (info.repo, info.revision, info.commit) == ("o/n", branch, commit)


def test_configs_are_kept_whole() -> None:
    """Both configuration files survive with every value and the order of their keys."""
    config = {"z": [1, 1e-06, None, True, "\u00e9\u2028"], "a": {"nested": {}, "empty": []}, "rows": "not these"}
    quant = {"quantization": {"exclude_modules": ["lm_head"]}}
    text = fold(scalars("a"), {"config": config, "hf_quant_config": quant})
    snapshot = parse(text)
    assert list((snapshot.config() or {}).items()) == list(config.items())
    assert snapshot.config("hf_quant_config.json") == quant
    assert dump_snapshot(snapshot) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "\ud800"], ids=repr)
def test_config_that_is_not_json(value: object) -> None:
    """A snapshot that nobody could read again is not written."""
    with pytest.raises(SnapshotError, match="cannot be recorded"):
        fold(scalars("a"), {"config": {"deep": [value]}})


ROW: dict[str, Any] = {"pattern": "layers.N.experts.E", "dtype": "F32", "shape": [2], "layers": "0-1", "experts": "3"}
GOOD: dict[str, Any] = {"format": "glm5inspect-snapshot/1", "tensors": 2, "bytes": 16, "rows": [ROW]}

BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "format-next": ({"format": "glm5inspect-snapshot/2"}, "glm5inspect-snapshot/2"),
    "format-none": ({"format": None}, "format is None"),
    "tensors": ({"tensors": 3}, "add up to 2 tensors, but the file says 3"),
    "tensors-none": ({"tensors": None}, "says None"),
    "tensors-float": ({"tensors": 2.0}, "says 2.0"),
    "bytes": ({"bytes": 15}, "add up to 16 bytes"),
    "bytes-text": ({"bytes": "16"}, "says '16'"),
    "unsorted": (
        {"rows": [ROW, {"pattern": "a", "dtype": "U8", "shape": []}], "tensors": 3, "bytes": 17},
        "the rows are not sorted",
    ),
    "a-stray-key": ({"comment": "by hand"}, "the key comment is not one of this format"),
    "rows-none": ({"rows": None}, "no rows"),
    "rows-object": ({"rows": {}}, "rows is not"),
    "shards-bool": ({"shards": True}, "shards is not"),
    "shards-negative": ({"shards": -1}, "shards is -1"),
    "repo-number": ({"repo": 5}, "repo is not"),
    "config-list": ({"config": []}, "config is not"),
    "quant-text": ({"hf_quant_config": "x"}, "hf_quant_config is not"),
    "overlap": ({"rows": [ROW, ROW], "tensors": 4, "bytes": 32}, "overlap"),
    "overlap-literal": (
        {"rows": [{"pattern": "layers.1.experts.3", "dtype": "U8", "shape": []}, ROW], "tensors": 3, "bytes": 17},
        "overlap",
    ),
}

BAD_RANGES: list[Any] = [
    *("", "-", "0-", "-1", "1-0", "0,1", "0-1,1", "0-1,2", "1,0", "0,0", "0-0", "00-1", "0-01", " 0-1", "0 -1"),
    *("0-1,", ",0-1", "0--1", "0-1-2", "+0-1", "0x0-1", "0_0-1", "\u0660-1", "a", "1e0", "0-1.0", "N"),
    *(0, 1.5, True, None, [], [0, 1], {}, "0-99999999999", "9" * 4000, "9" * 5000),
    *("18446744073709551616", "18446744073709551615-18446744073709551616"),
]

BAD_ROWS: dict[str, Any] = {
    "not-an-object": 5,
    "a-list": [],
    "a-text": "row",
    "null": None,
    **{f"no-{key}": {k: v for k, v in ROW.items() if k != key} for key in ROW},
    "another-key": ROW | {"comment": "by hand"},
    "pattern-number": ROW | {"pattern": 1},
    "pattern-without-index": ROW | {"pattern": "layers.x.experts.E"},
    "pattern-literal": ROW | {"pattern": "layers.0.experts.E"},
    "pattern-later-index": ROW | {"pattern": "layers.x.layers.N.experts.E"},
    "pattern-other-letter": ROW | {"pattern": "layers.E.experts.N"},
    "dtype-unknown": ROW | {"dtype": "F99"},
    "dtype-list": ROW | {"dtype": []},
    "dtype-null": ROW | {"dtype": None},
    "shape-text": ROW | {"shape": "2"},
    "shape-object": ROW | {"shape": {}},
    "shape-negative": ROW | {"shape": [-2]},
    "shape-float": ROW | {"shape": [2.0]},
    "shape-bool": ROW | {"shape": [True]},
    "shape-nested": ROW | {"shape": [[2]]},
    "shape-huge": ROW | {"shape": [1 << 32, 1 << 32]},
    "shape-huge-beside-0": ROW | {"shape": [0, 1 << 64]},
    "shape-long": ROW | {"shape": [2] * 100_000},
    "inside-a-byte": ROW | {"dtype": "F4", "shape": [3]},
    **{f"layers {layers!r:.20}": ROW | {"layers": layers} for layers in BAD_RANGES},
}


def test_the_good_one() -> None:
    """What the malformed ones are made of is accepted."""
    assert sorted(parse(GOOD).inventory().tensors) == ["layers.0.experts.3", "layers.1.experts.3"]


@pytest.mark.parametrize(("change", "said"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_malformed_file(change: dict[str, Any], said: str) -> None:
    """A file that does not add up, or is of another kind, is refused with the reason."""
    with pytest.raises(SnapshotError, match=said):
        parse(GOOD | change)


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
def test_malformed_row(row: object) -> None:
    """A row is taken in the one form that is written, and refused with its number in any other."""
    with pytest.raises(SnapshotError, match="row 2 is malformed"):
        parse(GOOD | {"rows": [ROW, row]})


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"\xff", id="not-utf8"),
        pytest.param(b"{" * 100_000, id="open"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
        pytest.param(json.dumps(GOOD).encode()[:-1], id="cut-short"),
        pytest.param(json.dumps(GOOD | {"config": {"a": float("nan")}}).encode(), id="nan"),
        pytest.param(json.dumps(GOOD | {"config": {"a": "\ud800"}}).encode(), id="surrogate"),
        pytest.param(json.dumps(GOOD).encode()[:-1] + b', "tensors": 2}', id="twice"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", id="lfs-pointer"),
    ],
)
def test_not_a_snapshot(raw: bytes) -> None:
    """Whatever is not strict JSON is refused, and never another exception."""
    with pytest.raises(SnapshotError):
        parse_snapshot(raw, INFO)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"layers": "0-99999", "experts": "0-99999"}, id="product"),
        pytest.param({"layers": "0-99999999999999"}, id="range"),
        pytest.param(
            {"pattern": "x" * 5_000 + "layers.N.experts.E", "layers": "0-999", "experts": "0-999"}, id="names"
        ),
        pytest.param({"shape": [1] * 500_000}, id="shape"),
        pytest.param({"layers": "9" * 4_000, "experts": "0-99999"}, id="digits"),
    ],
)
def test_hostile_sizes(change: dict[str, Any]) -> None:
    """What would expand to more than it may is refused before it is expanded."""
    raw = json.dumps(GOOD | {"rows": [ROW | change], "tensors": 100_000, "bytes": 800_000}).encode()
    tracemalloc.start()
    with pytest.raises(SnapshotError):
        parse_snapshot(raw, INFO)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000


def test_too_long_a_file(tmp_path: Path) -> None:
    """A file that is far too long to be a snapshot is not read whole."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(SnapshotError, match="over 67,108,864 bytes"):
        load_snapshot(path, typed="t")


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that cannot be opened is named."""
    with pytest.raises(SnapshotError, match=r"gone\.json: cannot be read"):
        load_snapshot(tmp_path / "gone.json", typed="t")


def test_errors_name_the_file(tmp_path: Path) -> None:
    """A refusal says which file it is about."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps(GOOD | {"format": "glm5inspect-snapshot/0"}))
    with pytest.raises(SnapshotError, match=r"old\.json: .*glm5inspect-snapshot/0.*glm5inspect-snapshot/1 only"):
        open_source(str(path))
