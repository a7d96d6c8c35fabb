# SPDX-License-Identifier: AGPL-3.0-only
"""`diff` of real sources: renamed, damaged, hostile, at full size, and as a command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    TEXT,
    TINY_CONFIG,
    Kind,
    Tensors,
    declaring,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_raw,
)
from encoded import MemorySource
from loopback_hub import LoopbackHub, Repo
from typer.testing import CliRunner, Result

from glm5inspect.cli import app
from glm5inspect.difference import Difference, diff
from glm5inspect.errors import ConfigError, SourceError, UsageError
from glm5inspect.renaming import Rename, parse_rename
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from glm5inspect.report import Report

NORM = f"{TEXT}layers.3.input_layernorm.weight"
INDEX = "model.safetensors.index.json"


def run(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], catch_exceptions=False)


def answer(report: Report) -> Difference:
    """Return what was found."""
    assert isinstance(report.answer, Difference)
    return report.answer


def codes(report: Report) -> list[str]:
    """Return the codes of the findings, in order."""
    return [finding.code.value for finding in report.findings]


def renamed(*pairs: tuple[str, str]) -> Tensors:
    """Return the tiny checkpoint with parts of its names replaced."""
    tensors = tiny()
    for old, new in pairs:
        tensors = {name.replace(old, new): kind for name, kind in tensors.items()}
    return tensors


RENAMES: dict[str, tuple[Tensors, list[str]]] = {
    "a prefix": (
        renamed((TEXT, "model.")),
        [f"model.{name}={TEXT}{name}" for name in ("layers", "norm", "embed_tokens")],
    ),
    "within": (renamed((".self_attn.", ".attention.")), ["attention=self_attn"]),
    "at the end": (renamed((".weight_scale_2", ".global")), ["global=weight_scale_2"]),
    "one after the other": (renamed((".mlp.", ".ffn.")), ["ffn=b.c", "b.c=mlp"]),
    "with its dots": (renamed((".mlp.", ".a.b.")), [".a.b.=.mlp."]),
    "to nothing": (renamed((TEXT, f"wrapped.{TEXT}")), ["wrapped.="]),
}


@pytest.mark.parametrize(("tensors", "texts"), RENAMES.values(), ids=RENAMES)
def test_rename(tensors: Tensors, texts: list[str]) -> None:
    """Names of A are changed before anything is compared."""
    a, b = MemorySource(tensors, TINY_CONFIG), MemorySource(tiny(), TINY_CONFIG)
    assert answer(diff(a, b)).same is False
    report = diff(a, b, renames=[parse_rename(text) for text in texts])
    assert (report.findings, answer(report).same) == ((), True)


@pytest.mark.parametrize("old", ["norm.weigh", "anguage_model", "weight_scale_", "model.language", "layers.30"])
def test_only_whole_parts_are_renamed(old: str) -> None:
    """OLD stands between dots; where no name has it there, a warning says so, and nothing else changes."""
    source = MemorySource(tiny(), TINY_CONFIG)
    report = diff(source, source, renames=[Rename(old, "x")])
    assert codes(report) == ["no-match"]
    assert report.findings[0].message == f"--rename {old}=x: no name of A has {old} between dots"
    assert answer(report).same is True


def test_the_first_place_counts() -> None:
    """One rename changes a name once."""
    a = MemorySource({"a.b.a.b": Kind("U8", (1,))}, {})
    b = MemorySource({"x.b.a.b": Kind("U8", (1,))}, {})
    assert answer(diff(a, b, renames=[Rename("a", "x")])).same is True


def test_two_tensors_of_one_name_are_refused() -> None:
    """What a rename makes one cannot be compared."""
    source = MemorySource({"a.x": Kind("U8", (1,)), "b.x": Kind("U8", (1,))}, {})
    with pytest.raises(SourceError, match=r"in memory: renamed, a\.x and b\.x would both be b\.x"):
        diff(source, source, renames=[Rename("a", "b")])


@pytest.mark.parametrize("text", ["", "=", "=x", "x"])
def test_a_malformed_rename(text: str, checkpoint: Path) -> None:
    """It is wrong usage, not an empty rename."""
    with pytest.raises(UsageError, match="give OLD=NEW"):
        parse_rename(text)
    result = run(checkpoint, checkpoint, "--rename", text)
    assert result.exit_code == 2
    assert "give OLD=NEW" in result.stderr


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """A tiny checkpoint with one shard a layer."""
    return write_checkpoint(tmp_path / "layered", {}, parts=parts_by_layer(tiny()))


DAMAGES = {
    "a shard is not there": (False, True, "index-missing-shard"),
    "a shard is not readable": (True, True, "header-json"),
    "a number is missing, without an index": (False, False, "shard-numbering"),
    "a shard is not readable, without an index": (True, False, "header-json"),
}


@pytest.mark.parametrize("first", [True, False], ids=["A", "B"])
@pytest.mark.parametrize(("broken", "index", "code"), DAMAGES.values(), ids=DAMAGES)
def test_nothing_is_claimed_of_what_could_not_be_read(
    layered: Path,
    checkpoint: Path,
    broken: bool,  # noqa: FBT001 - a column
    index: bool,  # noqa: FBT001 - another one
    code: str,
    first: bool,  # noqa: FBT001 - another one
) -> None:
    """A side that is not whole is no difference by itself; the answer is incomplete, and says which side it is."""
    (layered / shard_name(4, 7)).unlink()
    if broken:
        write_raw(layered / shard_name(4, 7), BROKEN)
    if not index:
        (layered / INDEX).unlink()
    sides = (layered, checkpoint) if first else (checkpoint, layered)
    report = diff(*(open_source(str(side)) for side in sides))
    assert [c for c in codes(report) if c.startswith("diff-")] == []
    assert codes(report) == [code]
    assert (report.complete, answer(report).same) == (False, None)
    assert all(finding.message.startswith(f"B ({layered}): ") is not first for finding in report.findings)
    result = run(*sides)
    assert result.exit_code == 3
    assert "INCOMPLETE: no difference in what could be read; 1 error" in result.stdout


def test_what_differs_for_certain_is_told_though_not_everything_was_read(layered: Path, checkpoint: Path) -> None:
    """A tensor that both have in another dtype differs, whatever a lost shard holds; the exit code stays 3."""
    edit_json(layered / "config.json", lambda config: config["text_config"].update(hc_mult=2))
    (layered / shard_name(4, 7)).unlink()
    report = diff(open_source(str(checkpoint)), open_source(str(layered)))
    assert codes(report) == ["diff-config", "index-missing-shard"]
    assert (report.complete, answer(report).same) == (False, False)
    assert run(checkpoint, layered, "--exit-zero").exit_code == 3


def test_a_name_that_an_index_would_have_to_know_is_certainly_absent(layered: Path, tmp_path: Path) -> None:
    """With an index, what it does not name is in no lost shard either; what it names may be."""
    names = [f"{TEXT}layers.3.{name}" for name in ("more", "most")]
    more = write_checkpoint(tmp_path / "more", tiny() | dict.fromkeys(names, Kind("U8", (1,))))
    (layered / shard_name(4, 7)).unlink()
    report = diff(open_source(str(layered)), open_source(str(more)))
    assert [(row.change, row.pattern) for row in answer(report).rows] == [
        ("only-b", f"{TEXT}layers.N.more"),
        ("only-b", f"{TEXT}layers.N.most"),
    ]


def test_renamed_names_that_only_an_index_knows(tmp_path: Path, checkpoint: Path) -> None:
    """What lies in a lost shard of A is renamed like everything else, and still not missing."""
    a = write_checkpoint(tmp_path / "a", {}, parts=parts_by_layer(renamed((".mlp.", ".ffn."))))
    assert run(a, checkpoint, "--rename", "ffn=mlp").exit_code == 0
    (a / shard_name(4, 7)).unlink()
    result = run(a, checkpoint, "--rename", "ffn=mlp", "--format", "json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["diff"]["rows"] == []


def test_nothing_against_nothing_is_no_answer(tmp_path: Path) -> None:
    """Two sources without a tensor are not the same model."""
    empty = write_checkpoint(tmp_path / "empty", {}, shards=1, index=False)
    result = run(empty, empty)
    assert result.exit_code == 1
    assert result.stdout.count("error no-tensors") == 2


HOSTILE = {
    "[red]x[/red].weight": Kind("U8", (1,)),
    "\x1b[31mx\nerror: y": Kind("U8", (1,)),
    f"{TEXT}layers.{'9' * 5000}.mlp.gate.weight": Kind("U8", (1,)),
    f"{TEXT}layers.3.mlp.experts.{'9' * 5000}.x.weight": Kind("U8", (1,)),
    f"{TEXT}layers.3.mlp.experts.007.up_proj.weight": Kind("U8", (1,)),
    f"{TEXT}layers.03.input_layernorm.weight": Kind("U8", (1,)),
    f"model.visual.blocks.{'9' * 5000}.x": Kind("U8", (1,)),
    "model.visual.blocks.": Kind("U8", (1,)),
    "layers.N.*": Kind("U8", (1,)),
    "": Kind("U8", (1,)),
}


def test_hostile_names(tmp_path: Path) -> None:
    """Each is told once, escaped, and no control character comes out."""
    a = write_checkpoint(tmp_path / "a", tiny() | HOSTILE, shards=1)
    b = write_checkpoint(tmp_path / "\x1b[31mb", tiny(), shards=1)
    for sides, change in (((a, b), "only-a"), ((b, a), "only-b")):
        result = run(*sides)
        assert result.exit_code == 1
        assert "\x1b" not in result.stdout
        assert "[red]x[/red].weight: only in" in result.stdout
        assert "\\x1b[31mx\\nerror: y: only in" in result.stdout
        found = json.loads(run(*sides, "--format", "json").stdout)["diff"]["rows"]
        assert {row["change"] for row in found} == {change}
        assert sum(row["tensors"] for row in found) == len(HOSTILE)


def test_a_hostile_config(tmp_path: Path) -> None:
    """A value that is nested as deeply as it can be read is compared, and never a traceback."""
    folders = []
    for name in ("a", "b"):
        folder = write_checkpoint(tmp_path / name, tiny(), config=declaring(x="HERE"))
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"HERE"', "[" * 400 + f'"{name}"' + "]" * 400))
        folders.append(folder)
    result = run(*folders)
    assert result.exit_code == 0
    assert "note diff-config: config.json: x: [0] [" in result.stdout


def test_a_config_that_is_nested_too_deeply() -> None:
    """What is too deep to be compared is an error of its own kind."""
    configs = []
    for end in "ab":
        value: object = end
        for _ in range(10_000):
            value = [value]
        configs.append(declaring(x=value))
    with pytest.raises(ConfigError, match="nested too deeply"):
        diff(*(MemorySource(tiny(), config) for config in configs))


def test_many_kinds_at_one_place_take_no_square_of_time() -> None:
    """Experts that are all shaped otherwise are compared by name."""
    tensors = {f"layers.0.experts.{i}.w": Kind("U8", (i,)) for i in range(20_000)}
    other = {f"layers.0.experts.{i}.w": Kind("I8", (i,)) for i in range(20_000)}
    report = diff(MemorySource(tensors, {}), MemorySource(other, {}))
    assert [(row.change, row.experts, row.tensors) for row in answer(report).rows] == [("dtype", "0-19999", 20_000)]


def test_another_architecture() -> None:
    """It has its tensors too; nothing is said of encodings."""
    report = diff(open_source("snapshot:reference"), open_source("snapshot:glm-5.3-not-flash"))
    assert answer(report).same is False
    assert answer(report).encodings == ()
    assert answer(report).b.parameters is None


def test_a_snapshot_and_its_folder_are_the_same(reference: Path) -> None:
    """120 shards of the reference against its snapshot, both ways."""
    sources = (open_source(str(reference)), open_source("snapshot:reference"))
    for report in (diff(*sources), diff(*reversed(sources))):
        found = answer(report)
        assert (report.findings, found.same) == ((), True)
        assert (found.a.tensors, found.a.bytes, found.a.parameters) == (113_074, 194_644_803_576, 321_323_031_390)
        assert found.a == found.b


def test_what_nvidia_did_to_the_release() -> None:
    """Every number is counted by hand: modules by layers, bytes by the shapes of the release."""
    report = diff(open_source("snapshot:official-fp8"), open_source("snapshot:nvidia-nvfp4"))
    found = answer(report)
    dsa = "3,7,11,15,19,23,27,31,35,39,43"
    fp8, nvfp4 = "fp8-block 128x128", "nvfp4-modelopt"
    assert [(e.part, e.layers, e.a, e.b, e.modules, e.bytes_a, e.bytes_b) for e in found.encodings] == [
        ("routed experts", "3-44", fp8, nvfp4, 42 * 288 * 3, 36_288 * 8_390_656, 36_288 * 4_718_600),
        ("shared experts", "3-44", fp8, "plain BF16", 42 * 3, 126 * 8_390_656, 126 * 16_777_216),
        ("dense FFN", "0-2", fp8, nvfp4, 3 * 3, 9 * 50_343_936, 9 * 28_311_560),
        ("DSA", dsa, fp8, "plain BF16", 11 * 4, 11 * 100_687_872, 11 * 201_326_592),
        ("MTP", "45", fp8, "plain BF16", 867 + 4, 867 * 8_390_656 + 100_687_872, 867 * 16_777_216 + 201_326_592),
    ]
    assert {(row.change, row.a, row.b, row.tensors) for row in found.rows} == {
        ("dtype", "F32", "BF16", 45),
        ("dtype", "F32", "BF16", 42),
        ("dtype", "F32", "BF16", 34),
        ("dtype", "BF16", "F32", 34),
    }
    assert len(found.rows) == 4 + 1 + 2 + 3
    assert (found.a.tensors, found.b.tensors) == (76_108, 147_661)
    assert found.config == ()
    assert len(report.findings) == 15


def test_what_pruning_took_away() -> None:
    """Half of the experts, the MTP layer, and what the config says of both."""
    report = diff(open_source("snapshot:official-fp8"), open_source("snapshot:reap50-fp8"))
    assert [(row.change, row.layers, row.experts, row.tensors) for row in answer(report).rows] == [
        ("only-a", "45", None, 1_760),
        *(("only-a", "3-44", "144-287", 6_048) for _ in range(6)),
        ("shape", "3-44", None, 42),
        ("shape", "3-44", None, 42),
    ]
    assert [(change.key, change.a, change.b) for change in answer(report).config] == [
        ("n_routed_experts", "288", "144"),
        ("num_nextn_predict_layers", "1", "0"),
    ]


def test_the_table(checkpoint: Path, tmp_path: Path) -> None:
    """Word for word: what B is, totals, the roles that differ, findings and the verdict."""
    other = write_checkpoint(tmp_path / "other", tiny() | {NORM: Kind("F32", (64,))}, config=declaring(hc_mult=2))
    result = run(checkpoint, other)
    assert result.exit_code == 1
    assert result.stdout == (
        f"diff of directory {checkpoint}\n"
        f"B is {other}\n"
        "A: 271 tensors, 516,856 bytes (504.74 KiB)\n"
        "B: 271 tensors, 516,984 bytes (504.87 KiB)\n"
        "multi-token prediction: layer 5 (1 declared) in both\n"
        "\n"
        "Roles\n"
        "\n"
        " role        tensors in A   tensors in B   size in A   size in B\n"
        " ───────────────────────────────────────────────────────────────\n"
        " LayerNorm             12             12    1.50 KiB    1.62 KiB\n"
        "\n"
        "error diff-config: config.json: hc_mult: 4 -> 2\n"
        "error diff-dtype: model.language_model.layers.N.input_layernorm.weight: BF16 -> F32, "
        "1 tensor in layer 3 (128 -> 256 bytes)\n"
        "FAILED: 271 tensors against 271, 1 change; 2 errors, 0 warnings, 0 notes; not checked: tensor values\n"
    )


VERDICTS: dict[str, tuple[Tensors, dict[str, Any], list[str], int, str]] = {
    "the same": (tiny(), TINY_CONFIG, [], 0, "OK: the same inventory, 271 tensors; 0 errors"),
    "config": (tiny(), declaring(hc_mult=2), [], 1, "FAILED: the same inventory, 271 tensors, another config; 1 error"),
    "waived": (
        tiny() | {NORM: Kind("F32", (64,))},
        TINY_CONFIG,
        ["--ignore", "diff-dtype:*layernorm*"],
        0,
        "OK: 271 tensors against 271, 1 change; 0 errors, 0 warnings, 0 notes, 1 waived",
    ),
}


@pytest.mark.parametrize(("tensors", "config", "options", "code", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(
    tensors: Tensors, config: dict[str, Any], options: list[str], code: int, verdict: str, checkpoint: Path
) -> None:
    """0 for the same, 1 for a difference that nobody waived."""
    other = write_checkpoint(checkpoint.parent / "other", tensors, config=config)
    result = run(checkpoint, other, "--quiet", *options)
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1].startswith(verdict)


def test_json() -> None:
    """The keys within the answer, whatever it is."""
    report = json.loads(run("snapshot:official-fp8", "snapshot:reap50-fp8", "--format", "json").stdout)
    found = report["diff"]
    assert report["source"]["name"] == "snapshot:official-fp8"
    assert found["other"] == {
        "kind": "snapshot",
        "name": "snapshot:reap50-fp8",
        "repo": "patrickbdevaney/GLM-5.3-Flash-REAP50-FP8",
        "revision": None,
        "commit": None,
    }
    assert found["same"] is False
    assert found["a"].keys() == {"tensors", "bytes", "parameters"}
    assert found["roles"][0] == {
        "role": "DenseFfn",
        "a": {"tensors": 18, "bytes": 453_095_424},
        "b": {"tensors": 18, "bytes": 453_095_424},
    }
    rows = {"change", "pattern", "layers", "experts", "a", "b", "tensors", "bytes_a", "bytes_b"}
    assert all(row.keys() == rows for row in found["rows"])
    assert found["mtp"] == {
        "a": {"layers": "45", "encoding": "fp8-block 128x128", "declared": 1},
        "b": {"layers": None, "encoding": None, "declared": 0},
    }
    assert found["config"][0] == {"key": "n_routed_experts", "a": "288", "b": "144"}
    other = json.loads(run("snapshot:official-fp8", "snapshot:official-bf16", "--format", "json").stdout)["diff"]
    encodings = {"part", "layers", "a", "b", "modules", "bytes_a", "bytes_b"}
    assert other["encodings"]
    assert all(row.keys() == encodings for row in other["encodings"])


@pytest.mark.parametrize("arguments", [[], ["A"], ["A", ""], ["", "A"], ["A", "A", "A"]], ids=str)
def test_two_sources_are_required(arguments: list[str], checkpoint: Path) -> None:
    """One is no comparison, and an empty one is a mistake."""
    assert run(*(str(checkpoint) if word == "A" else word for word in arguments)).exit_code == 2


def test_nothing_is_written_over_either_side(checkpoint: Path, tmp_path: Path) -> None:
    """The report replaces no part of A or B."""
    other = write_checkpoint(tmp_path / "other", tiny())
    for folder in (checkpoint, other):
        result = run(checkpoint, other, "--output", folder / "config.json")
        assert result.exit_code == 3
        assert "nothing is written over it" in result.stderr
        assert json.loads((folder / "config.json").read_text()) == TINY_CONFIG


def test_repositories_of_the_hub(hub: LoopbackHub, checkpoint: Path) -> None:
    """Either side may be one; what it was resolved to is in the report."""
    hub.repos["owner/name"] = Repo(checkpoint, commit="c" * 40)
    for sides, key in (((checkpoint, "owner/name@main"), "other"), (("owner/name", checkpoint), "source")):
        result = run(*sides, "--format", "json")
        assert result.exit_code == 0
        report = json.loads(result.stdout)
        place = report["diff"]["other"] if key == "other" else report["source"]
        assert (place["kind"], place["repo"], place["commit"]) == ("hub", "owner/name", "c" * 40)
    assert "B is owner/name@main (owner/name at cccc" in run(checkpoint, "owner/name@main").stdout


def test_subfolder_is_about_a(checkpoint: Path) -> None:
    """B is taken as it stands."""
    result = run(checkpoint.parent, checkpoint, "--subfolder", checkpoint.name, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
