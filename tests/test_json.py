# SPDX-License-Identifier: AGPL-3.0-only
"""The JSON report is a contract: which keys there are, their order, and what never comes out of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind, edit_header, shard_name, tiny, write_checkpoint
from typer.testing import CliRunner

from glm5inspect import Finding, Report, __version__
from glm5inspect.catalogue import Code, Severity
from glm5inspect.cli import app
from glm5inspect.explain import Explained
from glm5inspect.render import Format, render
from glm5inspect.report import in_order

if TYPE_CHECKING:
    from pathlib import Path

INDEXER = f"{TEXT}layers.3.self_attn.indexer.wk.weight"
DIGEST = "303cb67e20a100a04b931a83a3a33ddf75653c5c46057c15c4a529bbdd8770ba"
MTP_NAMES = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight")

TOP = {"schema", "version", "command", "source", "ok", "complete", "summary", "findings", "accepted"}
SOURCE = {"kind", "name", "repo", "revision", "commit"}
FINDING = {"code", "severity", "message", "hint", "tensor", "layer", "shard", "expected", "actual", "count"}
CENSUS = {
    *("tensors", "bytes", "elements", "shards", "patterns", "layers", "by_role", "by_dtype", "unknown", "mtp_layers"),
    *("index", "digest", "pattern_table", "layer_table", "encodings", "parameters"),
}
KEYS = {
    "census": CENSUS,
    "show": {"tensors"},
    "classify": {"results"},
    "verify-dsa": {"geometry", "blocks"},
    "find-mtp": {"layers", "declared", "num_hidden_layers", "expected_layers", "encodings", "parameters"},
    "diff": {"same", "other", "a", "b", "roles", "rows", "encodings", "mtp", "config"},
    "record": {"repo", "revision", "recorded", "provenance", "tensors", "bytes", "rows"},
    "explain": {"entries"},
}


def ask(*arguments: str | Path) -> str:
    """Run a command and return its JSON report as text."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    assert result.stderr == ""
    return result.stdout


def answer(*arguments: str | Path) -> Any:  # noqa: ANN401 - JSON
    """Run a command and return the part of its JSON report that bears its name."""
    return json.loads(ask(*arguments))[str(arguments[0])]


COMMANDS = (
    ["census", "CHECKPOINT"],
    ["census", "CHECKPOINT", "--patterns", "--layers"],
    ["census", "snapshot:reference"],
    ["show", "CHECKPOINT", "*norm*"],
    ["show", "CHECKPOINT", "nothing-like-it"],
    ["classify", INDEXER, "what.is.this"],
    ["classify", "--from", "CHECKPOINT"],
    ["verify-dsa", "CHECKPOINT"],
    ["verify-dsa", "CHECKPOINT", "--layer", "0"],
    ["find-mtp", "CHECKPOINT"],
    ["record", "CHECKPOINT", "--output", "OUTPUT", "--recorded", "2026-01-31"],
    ["diff", "CHECKPOINT", "snapshot:reference"],
    ["explain"],
    ["explain", "dsa-shape"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_key_is_always_there(command: list[str], checkpoint: Path, tmp_path: Path) -> None:
    """The keys of the report do not depend on the answer; they are sorted, and two runs give the same bytes."""
    places = {"CHECKPOINT": str(checkpoint), "OUTPUT": str(tmp_path / "snapshot.json")}
    typed = [places.get(word, word) for word in command]
    text = ask(*typed)
    report = json.loads(text)
    assert text == json.dumps(report, sort_keys=True, indent=2) + "\n"
    assert text == ask(*typed)
    assert report.keys() == TOP | {command[0]}
    assert report["schema"] == "glm5inspect-report/1"
    assert report["version"] == __version__
    assert report["command"] == command[0]
    assert report[command[0]].keys() == KEYS[command[0]]
    assert report["summary"].keys() == {"error", "warning", "note", "waived"}
    assert all(finding.keys() == FINDING for finding in report["findings"])
    looked_at = [word for word in typed if word in (str(checkpoint), "snapshot:reference")]
    if looked_at:
        assert report["source"].keys() == SOURCE
        assert report["source"]["name"] == looked_at[0]
    else:
        assert report["source"] is None


def test_the_report_of_a_healthy_census(checkpoint: Path) -> None:
    """Nothing but the answer differs from an empty report."""
    report = json.loads(ask("census", checkpoint))
    del report["census"]
    assert report == {
        "schema": "glm5inspect-report/1",
        "version": __version__,
        "command": "census",
        "source": {"kind": "directory", "name": str(checkpoint), "repo": None, "revision": None, "commit": None},
        "ok": True,
        "complete": True,
        "summary": {"error": 0, "warning": 0, "note": 0, "waived": 0},
        "findings": [],
        "accepted": [],
    }


def test_a_snapshot_says_where_it_was_recorded() -> None:
    """Repository and commit of a bundled snapshot are those of the recording."""
    assert json.loads(ask("census", "snapshot:reference"))["source"] == {
        "kind": "snapshot",
        "name": "snapshot:reference",
        "repo": "LibertAIDAI/GLM-5.3-Flash-NVFP4",
        "revision": None,
        "commit": "9e0d74e3cef17f634e84fb8e2223707e02616290",
    }


def test_census(checkpoint: Path) -> None:
    """The census of a tiny checkpoint, number by number."""
    census = answer("census", checkpoint, "--patterns", "--layers")
    assert len(census["pattern_table"]) == 63
    assert census["pattern_table"][0] == {
        "pattern": "lm_head.weight",
        "role": "LmHead",
        "dtype": "BF16",
        "shape": [96, 64],
        "layers": None,
        "experts": None,
        "tensors": 1,
        "bytes": 12288,
    }
    assert {
        "pattern": f"{TEXT}layers.N.mlp.experts.E.down_proj.weight",
        "role": "MoeExpert",
        "dtype": "U8",
        "shape": [64, 16],
        "layers": "3-5",
        "experts": "0-3",
        "tensors": 12,
        "bytes": 12288,
    } in census["pattern_table"]
    assert census["layer_table"][5] == {
        "layer": 5,
        "mixer": "DSA",
        "ffn": "moe",
        "mtp": True,
        "tensors": 61,
        "bytes": 62320,
        "dtypes": {"BF16": 24, "F32": 13, "F8_E4M3": 12, "U8": 12},
    }
    assert len(census["by_role"]) == 20
    assert census["by_role"]["MoeRouter"] == {"tensors": 6, "bytes": 1584, "dtypes": {"BF16": 3, "F32": 3}}
    assert census["by_dtype"] == {
        "BF16": {"tensors": 132, "bytes": 473536},
        "F32": {"tensors": 67, "bytes": 1848},
        "F8_E4M3": {"tensors": 36, "bytes": 4608},
        "U8": {"tensors": 36, "bytes": 36864},
    }
    rest = CENSUS - {"by_role", "by_dtype", "pattern_table", "layer_table"}
    assert {key: census[key] for key in rest} == {
        "tensors": 271,
        "bytes": 516856,
        "elements": 278702,
        "shards": 3,
        "patterns": 62,
        "layers": 6,
        "unknown": [],
        "mtp_layers": [5],
        "index": {"present": True, "total_size": 516856, "entries": 271},
        "digest": DIGEST,
        "encodings": [],
        "parameters": None,
    }


def test_what_was_not_asked_for_is_null(tmp_path: Path) -> None:
    """Tables that were not asked for and facts of an index that is not there are null."""
    census = answer("census", write_checkpoint(tmp_path / "bare", tiny(), index=False))
    assert census["pattern_table"] is None
    assert census["layer_table"] is None
    assert census["index"] == {"present": False, "total_size": None, "entries": None}


def test_show(checkpoint: Path) -> None:
    """A tensor is shown with its span in the file; a snapshot has no files."""
    in_file = {"name": "lm_head.weight", "dtype": "BF16", "shape": [96, 64], "bytes": 12288, "role": "LmHead"}
    shard = checkpoint / shard_name(1, 3)
    start = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    shown = {**in_file, "shard": shard.name, "start": start, "stop": start + 12288}
    assert answer("show", checkpoint, "lm_head.*") == {"tensors": [shown]}
    recorded = answer("show", "snapshot:reference", "lm_head.*")["tensors"][0]
    assert [recorded[key] for key in ("shard", "start", "stop")] == [None, None, None]


def test_classify() -> None:
    """A known and an unknown name, in the order asked."""
    known = {"name": INDEXER, "role": "Indexer", "norm": False, "text_model": True, "mtp_only": False, "layer": 3}
    unknown = {"name": "wat.7", "role": None, "norm": False, "text_model": False, "mtp_only": False, "layer": None}
    assert answer("classify", "wat.7", INDEXER) == {
        "results": [
            {**unknown, "normalized": "wat.#"},
            {**known, "normalized": f"{TEXT}layers.#.self_attn.indexer.wk.weight"},
        ]
    }


def test_verify_dsa(checkpoint: Path) -> None:
    """Geometry as the config spells it, and one entry a block."""
    verified = answer("verify-dsa", checkpoint)
    assert verified["geometry"]["q_lora_rank"] == 24
    block = {"bound": 14, "expected": 14, "bytes": 18608, "ok": True, "unclaimed": []}
    assert verified["blocks"] == [{"layer": 3, **block}, {"layer": 5, **block}]


def test_find_mtp(checkpoint: Path) -> None:
    """The layer, its four names, its roles and its shards, beside what the config declares."""
    found = answer("find-mtp", checkpoint)
    (layer,) = found.pop("layers")
    unknown: dict[str, object] = {"encodings": [], "parameters": None}
    assert found == {"declared": 1, "num_hidden_layers": 5, "expected_layers": "5", **unknown}
    roles = layer.pop("dtypes_by_role")
    assert roles["MoeExpert"] == {"F32": 12, "F8_E4M3": 12, "U8": 12}
    names = dict.fromkeys(MTP_NAMES, True)
    assert layer == {"layer": 5, "names": names, "tensors": 61, "bytes": 62320, "shards": [shard_name(3, 3)]}
    assert answer("find-mtp", "snapshot:reference")["layers"][0]["shards"] is None


def test_record(checkpoint: Path, tmp_path: Path) -> None:
    """The report says what was recorded; the file itself is another matter."""
    options = ("--repo", "me/mine", "--recorded", "2026-01-31")
    assert answer("record", checkpoint, "--output", tmp_path / "snapshot.json", *options) == {
        "repo": "me/mine",
        "revision": None,
        "recorded": "2026-01-31",
        "provenance": "read from headers",
        "tensors": 271,
        "bytes": 516856,
        "rows": 63,
    }


def test_explain() -> None:
    """One entry for a code, all of the catalogue without one."""
    (entry,) = answer("explain", "dsa-shape")["entries"]
    assert entry.keys() == {"code", "severity", "title", "meaning", "cause", "remedy"}
    assert (entry["code"], entry["severity"]) == ("dsa-shape", "error")
    assert [entry["code"] for entry in answer("explain")["entries"]] == [code.value for code in Code]


def test_findings_are_sorted_and_never_folded(checkpoint: Path) -> None:
    """Findings of one kind on one pattern stay apart, by code, layer (null first), tensor and shard."""
    spoilt = [f"{TEXT}layers.{layer}.self_attn.wat" for layer in (4, 2, 10)]
    kinds = dict.fromkeys([*spoilt, "zeta", "alpha"], Kind("F32", (2,)))
    write_checkpoint(checkpoint, {**tiny(), **kinds})
    edit_header(checkpoint / shard_name(3, 3), lambda header: header.pop(next(reversed(header))), 0)
    report = json.loads(ask("census", checkpoint))
    unknown = [f for f in report["findings"] if f["code"] == "unknown-tensor"]
    names = ["alpha", spoilt[1], spoilt[0], spoilt[2]]
    assert [(f["layer"], f["tensor"]) for f in unknown] == list(zip([None, 2, 4, 10], names, strict=True))
    order = [
        (f["code"], -1 if f["layer"] is None else f["layer"], f["tensor"] or "", f["shard"] or "")
        for f in report["findings"]
    ]
    assert len({code for code, *_ in order}) > 2
    assert order == sorted(order)
    assert report["summary"]["error"] == sum(f["severity"] == "error" for f in report["findings"])


def test_a_finding_word_for_word(checkpoint: Path) -> None:
    """Every fact of a finding has its key, and a missing one is null."""
    write_checkpoint(checkpoint, {**tiny(), "zeta.9": Kind("F32", (2,))})
    assert json.loads(ask("census", checkpoint))["findings"] == [
        {
            "code": "unknown-tensor",
            "severity": "error",
            "message": "zeta.9: no rule says what this tensor is for",
            "hint": None,
            "tensor": "zeta.9",
            "layer": None,
            "shard": shard_name(3, 3),
            "expected": None,
            "actual": None,
            "count": 1,
        }
    ]


HOSTILE = ("[/x]", "a[red]b", "\x1b[31mred", "left\u202eright", "two\nlines", "nul\0", "del\x7f", "\x9bcsi", "\u00e9")


def test_hostile_names_come_out_as_ascii(tmp_path: Path) -> None:
    """No control character, escape sequence or other alphabet leaves; the names come back whole from the JSON."""
    tensors = tiny() | dict.fromkeys(HOSTILE, Kind("F32", (2,)))
    text = ask("census", write_checkpoint(tmp_path / "hostile", tensors), "--patterns")
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["census"]["unknown"] == sorted(HOSTILE)


def test_a_name_that_is_no_unicode_comes_out_as_ascii() -> None:
    """An argument with a byte that is not UTF-8 reaches Python as a lone surrogate."""
    text = ask("classify", "bad\udcff")
    assert "bad\\udcff" in text
    assert text.isascii()


def test_facts_of_every_shape_are_written() -> None:
    """Lists and objects in what was expected and found, and a severity of its own, reach the JSON as they are."""
    finding = Finding(Code.DSA_SHAPE, "m", Severity.WARNING, expected=[1, [2]], actual={"a": None})
    report = Report(command="explain", source=None, answer=Explained(()), findings=in_order([finding]))
    (written,) = json.loads(render(report, Format.JSON))["findings"]
    assert (written["severity"], written["expected"], written["actual"]) == ("warning", [1, [2]], {"a": None})
