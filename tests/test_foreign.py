# SPDX-License-Identifier: AGPL-3.0-only
"""Another architecture is refused in one sentence; and what is known of a checkpoint that has no config."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import Kind, shard_name, snapshot_tensors, write_checkpoint, write_shard
from typer.testing import CliRunner
from whole_model import CONFIG, answer, look, serious, status, told, whole

from glm5inspect.cli import app
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.verification import MtpState
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from checkpoints import Tensors

REFUSING = ("census", "verify-dsa", "find-mtp", "verify")
SIBLING: Tensors = {
    "model.embed_tokens.weight": Kind("BF16", (96, 64)),
    "model.layers.0.self_attn.q_a_proj.weight": Kind("BF16", (24, 64)),
    "model.layers.0.self_attn.indexer.wk.weight": Kind("BF16", (8, 64)),
    "model.layers.1.eh_proj.weight": Kind("BF16", (64, 128)),
}
"""What models of the same family are named like."""


def report_of(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Run a command line and return its exit code and JSON report."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"], catch_exceptions=False)
    report: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, report


def typed(model_type: object, text_type: object = ...) -> dict[str, Any]:
    """Return the config with another type of model, ``...`` for none."""
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    for part, value in ((config, model_type), (config["text_config"], text_type)):
        part["model_type"] = value
        if value is ...:
            del part["model_type"]
    return config


FOREIGN: dict[str, tuple[Tensors, dict[str, Any] | None]] = {
    "glm_moe_dsa": (SIBLING, {"model_type": "glm_moe_dsa"}),
    "deepseek": (SIBLING, {"model_type": "deepseek_v3"}),
    "text model": (SIBLING, typed(..., "kimi_k2")),
    "our names": (whole(), typed("glm_moe_dsa", "glm_moe_dsa")),
    "no config": (SIBLING, None),
    "nothing of it": ({"lm_head.weight": Kind("BF16", (96, 64))}, None),
}


@pytest.mark.parametrize(("tensors", "config"), FOREIGN.values(), ids=FOREIGN)
def test_another_architecture(tmp_path: Path, tensors: Tensors, config: dict[str, Any] | None) -> None:
    """One error and no other check, in every command that checks; listing, recording and classifying go on."""
    folder = write_checkpoint(tmp_path / "foreign", tensors, config=config)
    for command in REFUSING:
        code, report = report_of(command, folder)
        assert (code, [finding["code"] for finding in report["findings"]]) == (1, ["foreign-architecture"])
        assert report["complete"]
    code, shown = report_of("show", folder, "*")
    assert (code, len(shown["show"]["tensors"])) == (0, len(tensors))
    _, classified = report_of("classify", "--from", folder)
    assert len(classified["classify"]["results"]) == len(tensors)
    assert "foreign-architecture" not in {finding["code"] for finding in classified["findings"]}
    code, recorded = report_of("record", folder, "--output", tmp_path / "snapshot.json")
    assert (code, recorded["record"]["tensors"]) == (0, len(tensors))


def test_what_is_told_of_another_architecture(tmp_path: Path) -> None:
    """What it is, and that no check but one ran."""
    report = look(tmp_path, SIBLING, {"model_type": "glm_moe_dsa"}, require=["mtp", "vision"])
    (finding,) = report.findings
    assert "model_type is glm_moe_dsa" in finding.message
    assert (finding.actual, finding.expected) == ("glm_moe_dsa", ["glm5_next", "glm5_next_mtp", "glm5_next_text"])
    ended = status(report)
    assert ended.pop("classify") == "failed"
    assert set(ended.values()) == {"not-applicable", "not-read"}
    assert (answer(report).parameters, answer(report).mtp) == (None, MtpState("unknown", None))
    assert answer(report).encodings == ()


def test_a_shard_of_it_that_cannot_be_read(tmp_path: Path) -> None:
    """Whose model it is says the config; that the answer is incomplete is said as well."""
    folder = write_checkpoint(tmp_path, SIBLING, shards=2, index=False, config={"model_type": "glm_moe_dsa"})
    (folder / shard_name(2, 2)).write_bytes(b"no header")
    for command in REFUSING:
        code, report = report_of(command, folder)
        assert (code, report["complete"]) == (3, False)
        assert [finding["code"] for finding in report["findings"]] == ["foreign-architecture", "header-length"]


OURS: dict[str, dict[str, Any]] = {
    "glm5_next": typed("glm5_next", ...),
    "text": typed("glm5_next_text"),
    "draft": typed("glm5_next_mtp"),
    "nobody says": typed(..., ...),
    "no text": typed(5, None),
}


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_our_own_types(tmp_path: Path, config: dict[str, Any]) -> None:
    """The model, its text part and its draft; a config that does not tell is no other model's."""
    assert told(look(tmp_path, whole(), config)) == []


MARKS = ("model.layers.0.self_attn.indexer.index_kpool_compress_ape", "model.layers.0.hc_attn_fn", "x.attn_hc.fn")


@pytest.mark.parametrize("name", MARKS)
def test_one_name_tells_whose_model_it_is(tmp_path: Path, name: str) -> None:
    """Where there is no config."""
    folder = write_checkpoint(tmp_path, SIBLING | {name: Kind("BF16", (8,))}, config=None)
    for command in REFUSING:
        _, report = report_of(command, folder)
        assert "foreign-architecture" not in {finding["code"] for finding in report["findings"]}


def test_one_shard_of_many_is_not_called_foreign(tmp_path: Path) -> None:
    """It may hold nothing but experts, which are named alike everywhere; so may what is left of a set."""
    experts = {name: kind for name, kind in whole().items() if ".mlp.experts." in name}
    alone = write_shard(tmp_path / "model.safetensors", experts)
    assert "foreign-architecture" not in {finding.code.value for finding in verify(open_source(str(alone))).findings}
    folder = write_checkpoint(tmp_path / "rest", {}, parts=[experts, whole()], index=False, config=None)
    (folder / shard_name(2, 2)).unlink()
    _, report = report_of("census", folder)
    assert [finding["code"] for finding in report["findings"]] == ["shard-numbering"]


def test_no_config_at_all(tmp_path: Path) -> None:
    """Sizes are those of the official release then, and a warning says so."""
    report = look(tmp_path / "draft", snapshot_tensors("mtp-extract"), None)
    assert [(check, code) for check, code, _ in told(report)] == [
        ("classify", "config-missing"),
        ("classify", "draft-tree"),
    ]
    assert report.judged(Policy()).ok
    assert answer(report).parameters == 8_701_369_376
    tiny = look(tmp_path / "tiny", whole(), None)
    assert not tiny.judged(Policy()).ok
    assert {"config-missing", "module-shape", "dsa-shape"} <= {f.code.value for f in serious(tiny)}


def test_an_empty_config_says_no_sizes(tmp_path: Path) -> None:
    """Every field that is missing is named once, and nothing is guessed."""
    report = look(tmp_path, whole(), {})
    fields = [finding.message for finding in report.findings if finding.code.value == "config-geometry"]
    assert len(fields) == len(set(fields)) >= 20
    assert answer(report).parameters is None


def test_the_scope_of_the_reference_knows_no_other_model(tmp_path: Path) -> None:
    """There a name is one of the reference or unknown, whoever's it may be."""
    folder = write_checkpoint(tmp_path, SIBLING, config={"model_type": "glm_moe_dsa"})
    _, report = report_of("census", folder, "--scope", "reference")
    assert {finding["code"] for finding in report["findings"]} == {"layer-gap", "unknown-tensor"}
