# SPDX-License-Identifier: AGPL-3.0-only
"""`verify`: every check with its subjects and its end, what the answer holds, and when it is *no*."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    TEXT,
    Kind,
    edit_header,
    edit_json,
    shard_name,
    write_checkpoint,
)
from loopback_hub import Repo
from typer.testing import CliRunner, Result
from whole_model import CONFIG, answer, serious, status, told, whole

from glm5inspect.checkpoint import Checkpoint
from glm5inspect.cli import app
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.scope import CHECKS, VALUE_CHECKS
from glm5inspect.sources.local import LocalSource
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpoints import Tensors
    from loopback_hub import LoopbackHub


INDEX = "model.safetensors.index.json"
SUBJECTS = {
    "integrity": 222,
    "index": 222,
    "classify": 222,
    "norms": 13,
    "embed": 2,
    "kda": 60,
    "dsa": 28,
    "hyper": 30,
    "ffn": 9,
    "moe": 51,
    "mtp": 4,
    "vision": 25,
    "encodings": 121,
    "quant-config": 0,
    "reference-parser": 3,
    "fingerprint": 1,
} | dict.fromkeys(VALUE_CHECKS, 0)
MISSED = f"{TEXT}layers.4.self_attn.A_log"


def run(*arguments: str | Path) -> Result:
    """Run a command line."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def told_by(*arguments: str | Path) -> dict[str, Any]:
    """Run a command line and return its JSON report."""
    report: dict[str, Any] = json.loads(run(*arguments, "--format", "json").stdout)
    return report


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """The whole tiny model in three shards, free to be damaged."""
    return write_checkpoint(tmp_path / "healthy", whole(), config=CONFIG)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The same with two faults: a KDA tensor less, and a shape of a DSA block."""
    tensors = {**whole(), f"{TEXT}layers.3.self_attn.q_a_layernorm.weight": Kind("BF16", (25,))}
    del tensors[MISSED]
    return write_checkpoint(tmp_path / "broken", tensors, config=CONFIG)


def test_every_check_of_a_healthy_checkpoint(healthy: Path) -> None:
    """Each says how many subjects it looked at; the one that had none does not count as passed."""
    report = verify(open_source(str(healthy)))
    assert [check.name for check in answer(report).checks] == list(CHECKS) == list(SUBJECTS)
    assert {check.name: check.subjects for check in answer(report).checks} == SUBJECTS
    expected = dict.fromkeys(SUBJECTS, "passed") | {"quant-config": "not-applicable"}
    expected |= dict.fromkeys(VALUE_CHECKS, "not-read")
    assert status(report) == expected
    assert {check.name: check.findings for check in answer(report).checks if check.findings} == {"fingerprint": 63}
    assert report.judged(Policy()).ok
    assert report.complete


def damage_index(folder: Path) -> None:
    """Promise a tensor that no shard has."""
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({"ghost": shard_name(1, 3)}))


def add_bytes(folder: Path) -> None:
    """Append a byte to a shard."""
    with (folder / shard_name(2, 3)).open("ab") as shard:
        shard.write(b"x")


def rewrite(tensors: Tensors, config: dict[str, Any] = CONFIG) -> Callable[[Path], object]:
    """Write other tensors or another config."""
    return lambda folder: write_checkpoint(folder, tensors, config=config)


def without(name: str) -> Callable[[Path], object]:
    """Write everything but one tensor."""
    return rewrite({other: kind for other, kind in whole().items() if other != name})


FP8 = f"{TEXT}layers.0.mlp.up_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "integrity": (add_bytes, "file-trailing"),
    "index": (damage_index, "index-missing-tensor"),
    "classify": (rewrite(whole() | {f"{TEXT}layers.4.wat": Kind("BF16", (2,))}), "unknown-tensor"),
    "norms": (without(f"{TEXT}norm.weight"), "module-missing"),
    "embed": (without("lm_head.weight"), "module-missing"),
    "kda": (without(MISSED), "module-missing"),
    "dsa": (without(f"{TEXT}layers.5.self_attn.indexer.k_norm.bias"), "dsa-missing"),
    "hyper": (without(f"{TEXT}layers.4.hc_ffn_fn"), "module-missing"),
    "ffn": (without(f"{TEXT}layers.2.mlp.up_proj.weight"), "module-missing"),
    "moe": (without(f"{TEXT}layers.4.mlp.shared_experts.up_proj.weight"), "module-missing"),
    "mtp": (without(f"{TEXT}layers.5.eh_proj.weight"), "mtp-incomplete"),
    "vision": (without("model.visual.downsample.bias"), "module-missing"),
    "encodings": (rewrite(whole() | {FP8: Kind("F8_E4M3", (128, 64))}), "encoding-incomplete"),
    "quant-config": (
        rewrite(whole(), {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
        "quant-undeclared",
    ),
}


@pytest.mark.parametrize(("check", "damage", "code"), [(check, *how) for check, how in DAMAGES.items()], ids=DAMAGES)
def test_a_check_fails_alone(healthy: Path, check: str, damage: Callable[[Path], object], code: str) -> None:
    """The fault is told by the check whose business it is, and fails that one and the whole."""
    damage(healthy)
    report = verify(open_source(str(healthy)))
    assert code in {finding.code.value for finding in report.findings if finding.check == check}
    assert {name for name, ended in status(report).items() if ended == "failed"} == {check}
    assert not report.judged(Policy()).ok
    row = next(row for row in answer(report).checks if row.name == check)
    assert row.findings == sum(finding.check == check for finding in report.findings)
    assert row.subjects > 0


class TornSource(LocalSource):
    """A folder whose first shard loses its last byte after its header was read."""

    def local_path(self, name: str) -> str | None:
        """Tear the shard, and say where it is."""
        path = self._folder / name
        if name == shard_name(1, 3):
            with path.open("r+b") as shard:
                shard.truncate(path.stat().st_size - 1)
        return str(path)


def test_what_only_the_library_refuses(healthy: Path) -> None:
    """A shard that users cannot load is an error, whatever its header says."""
    report = verify(Checkpoint(TornSource(healthy, typed="torn")))
    (finding,) = serious(report)
    assert (finding.code.value, finding.check, finding.shard) == (
        "parser-refused",
        "reference-parser",
        shard_name(1, 3),
    )
    assert "the safetensors library refuses it" in finding.message
    assert status(report)["reference-parser"] == "failed"


def test_the_library_is_asked_about_every_readable_shard(healthy: Path) -> None:
    """A fault of its tensors is no reason not to open a shard; one of its file is told once."""
    edit_header(healthy / shard_name(1, 3), lambda header: header.update({"wat": header.pop("lm_head.weight")}))
    report = verify(Checkpoint(TornSource(healthy, typed="torn")))
    assert "parser-refused" in {finding.code.value for finding in report.findings}
    add_bytes(healthy)
    report = verify(open_source(str(healthy)))
    assert [f.shard for f in report.findings if f.code.value == "parser-refused"] == []
    assert "file-trailing" in {finding.code.value for finding in report.findings}


def test_a_repository_is_not_on_this_machine(hub: LoopbackHub, healthy: Path) -> None:
    """The library cannot open what is elsewhere: that check is not read, and everything else is as of the folder."""
    hub.repos["owner/name"] = Repo(healthy)
    local, remote = told_by("verify", healthy), told_by("verify", "owner/name")
    checks = {check["name"]: check for check in remote["verify"]["checks"]}
    assert checks["reference-parser"] == {
        "name": "reference-parser",
        "subjects": 0,
        "findings": 0,
        "status": "not-read",
    }
    assert remote["ok"]
    assert remote["findings"] == local["findings"]
    for report in (local, remote):
        report["verify"]["checks"] = [c for c in report["verify"]["checks"] if c["name"] != "reference-parser"]
    assert remote["verify"] == local["verify"]


def test_a_shard_that_cannot_be_read(healthy: Path) -> None:
    """The answer is incomplete, exit 3 whatever is ignored, and what may be in there is not called missing."""
    (healthy / shard_name(2, 3)).write_bytes(BROKEN)
    result = run("verify", healthy, "--exit-zero", "--ignore", "integrity", "--format", "json")
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert (report["complete"], report["ok"]) == (False, False)
    assert {finding["code"] for finding in report["findings"]} == {"config-differs"}


def test_a_missing_shard_is_told_once(healthy: Path) -> None:
    """What the index puts there is not missing a second time."""
    (healthy / shard_name(2, 3)).unlink()
    report = verify(open_source(str(healthy)))
    assert [(check, code) for check, code, _ in told(report)] == [("index", "index-missing-shard")]
    assert report.complete


EXITS: dict[str, tuple[list[str], int]] = {
    "faults": ([], 1),
    "never": (["--fail-on", "never"], 0),
    "exit zero": (["--exit-zero"], 0),
    "another check": (["--select", "vision"], 0),
    "one of the checks": (["--select", "kda"], 1),
    "one of the codes": (["--select", "dsa-shape"], 1),
    "one waived": (["--ignore", "kda"], 1),
    "both waived": (["--ignore", "kda", "--ignore", "dsa"], 0),
    "check and code": (["--ignore", "module-missing", "--ignore", "dsa"], 0),
    "tensors": (["--ignore", f"kda:{MISSED}*", "--ignore", "dsa-shape:*.layers.3.*"], 0),
    "other tensors": (["--ignore", "kda:*.layers.0.*", "--ignore", "dsa"], 1),
    "a check and a code": (["--select", "vision", "--select", "module-missing"], 1),
    "no such check": (["--select", "kdb"], 2),
    "no such part": (["--require", "audio"], 2),
    "no such dialect": (["--dialect", "gguf"], 2),
    "no such scope": (["--scope", "all"], 2),
    "reference": (["--scope", "reference"], 1),
}


@pytest.mark.parametrize(("options", "code"), EXITS.values(), ids=EXITS)
def test_exit_codes(broken: Path, options: list[str], code: int) -> None:
    """Findings are 1, waived or not asked for 0, what is not understood 2; checks may be named like codes."""
    result = run("verify", broken, *options)
    assert result.exit_code == code
    assert bool(result.stdout) == (code != 2)


def test_a_healthy_checkpoint_exits_with_0(healthy: Path) -> None:
    """Notes do not make the answer *no*, and neither do warnings unless asked."""
    assert run("verify", healthy).exit_code == 0
    assert run("verify", healthy, "--fail-on", "warning").exit_code == 1  # keys of the config that are not there
    assert run("verify", healthy, "--fail-on", "warning", "--ignore", "fingerprint").exit_code == 0


def test_waived_findings_are_counted(broken: Path) -> None:
    """By check as by code; the table of checks still says what was found."""
    report = told_by("verify", broken, "--ignore", "kda", "--ignore", "config-differs")
    assert report["summary"] == {"error": 1, "warning": 0, "note": 0, "waived": 64}
    kda = next(check for check in report["verify"]["checks"] if check["name"] == "kda")
    assert (kda["findings"], kda["status"]) == (1, "failed")
    chosen = told_by("verify", broken, "--select", "kda")
    assert [finding["code"] for finding in chosen["findings"]] == ["module-missing"]
    assert chosen["summary"] == {"error": 1, "warning": 0, "note": 0, "waived": 0}


KEYS = {
    *("checks", "encodings", "parameters", "bits_per_parameter", "largest_shard", "mtp", "pruned", "draft"),
    *("fingerprint", "not_read", "dialect", "tensors", "bytes", "shards"),
    *("values", "scale_pairs", "statistics"),
}


@pytest.mark.parametrize("source", ["HEALTHY", "snapshot:mtp-extract", "snapshot:glm-5.3-not-flash"])
def test_keys_of_the_json_report(healthy: Path, source: str) -> None:
    """They do not depend on the answer."""
    text = run("verify", healthy if source == "HEALTHY" else source, "--format", "json").stdout
    report = json.loads(text)
    assert text == json.dumps(report, sort_keys=True, indent=2) + "\n"
    verified = report["verify"]
    assert verified.keys() == KEYS
    assert all(check.keys() == {"name", "subjects", "findings", "status"} for check in verified["checks"])
    encoding = {"part", "encoding", "layers", "modules", "bytes", "bits_per_parameter", "parameters"}
    assert all(row.keys() == encoding for row in verified["encodings"])
    assert verified["mtp"].keys() == {"state", "layer", "encoding", "as_declared"}
    assert verified["fingerprint"].keys() == {"snapshot", "exact", "differing_rows"}
    assert verified["not_read"] == ["tensor values"]
    assert verified["largest_shard"] is None or verified["largest_shard"].keys() == {"name", "bytes"}


def test_the_answer_number_by_number(healthy: Path) -> None:
    """What the JSON report says of the tiny model."""
    verified = told_by("verify", healthy)["verify"]
    assert verified["parameters"] == 328_970
    assert verified["bits_per_parameter"] == 16.021
    assert verified["largest_shard"] == {"name": shard_name(1, 3), "bytes": 246_408}
    assert verified["mtp"] == {
        "state": "complete",
        "layer": 5,
        "encoding": "plain BF16",
        "as_declared": True,
    }
    assert verified["pruned"] == {"experts": 4, "of": 288}
    assert verified["draft"] is False
    assert (verified["dialect"], verified["tensors"], verified["bytes"]) == ("released", 222, 658_792)
    assert verified["encodings"][4] == {
        "part": "dense FFN",
        "encoding": "plain BF16",
        "layers": "0-2",
        "modules": 9,
        "bytes": 147_456,
        "bits_per_parameter": 16.0,
        "parameters": 73_728,
    }
    assert sum(row["bytes"] for row in verified["encodings"]) == 658_792
    assert verified["checks"][5] == {"name": "kda", "subjects": 60, "findings": 0, "status": "passed"}


def test_the_summary_in_words(healthy: Path, broken: Path) -> None:
    """For people: how much, how many bits, the largest shard, the MTP layer, what was not read, and the verdict."""
    shown = run("verify", healthy).stdout
    for line in (
        f"verify of directory {healthy}\n",
        "3 shards, 222 tensors, 658,792 bytes (643.35 KiB)\n",
        "328,970 parameters, 16.021 bits each, pruned: 4 of 288 experts\n",
        f"largest shard: {shard_name(1, 3)}, 240.63 KiB\n",
        "not read: tensor values\n",
        "\nOK: 222 tensors, 15 checks; 0 errors, 6 warnings, 57 notes; not checked: tensor values\n",
    ):
        assert line in shown
    assert "multi-token prediction: complete" in shown
    assert " routed experts   plain BF16   3-4 " in shown
    assert " quant-config              0          0   not-applicable\n" in shown
    failed = run("verify", broken).stdout
    assert f"error module-missing: {MISSED}: missing\n" in failed
    assert "\nFAILED: 221 tensors, 15 checks; 2 errors, " in failed
