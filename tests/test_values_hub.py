# SPDX-License-Identifier: AGPL-3.0-only
"""Values of small tensors in a repository of the Hub: the same numbers, few requests, no number from bad answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import shard_name, snapshot_tensors, split, write_checkpoint
from loopback_hub import Fault, LoopbackHub, Repo
from typer.testing import CliRunner, Result
from valued import expert, fill, nvfp4
from whole_model import CONFIG

from glm5inspect.cli import app
from glm5inspect.resolve import open_source
from glm5inspect.sources import hub_client

if TYPE_CHECKING:
    from pathlib import Path

NAME = "owner/name"
GATE = expert(3, 0, "gate_proj", "weight_scale_2")


def run(source: object, *options: str) -> Result:
    """Verify values by the command line, in JSON."""
    typed = ["verify", str(source), "--values", "--format", "json", *options]
    return CliRunner().invoke(app, typed, catch_exceptions=False)


def ask(source: object, *options: str) -> Any:  # noqa: ANN401 - plain data
    """Return the report."""
    return json.loads(run(source, *options).stdout)


@pytest.fixture
def folder(tmp_path: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model with values, published; nobody waits before asking again."""
    monkeypatch.setattr(hub_client, "_FIRST_PAUSE", 0.001)
    folder = fill(write_checkpoint(tmp_path / "here", nvfp4(), config=CONFIG), {GATE: [0.5]})
    hub.repos[NAME] = Repo(folder)
    return folder


def data_requests(hub: LoopbackHub) -> int:
    """Return how many ranges were asked for that do not begin a shard."""
    return sum(
        asked.span is not None and not asked.span.startswith("bytes=0-") for asked in hub.requests(".safetensors")
    )


def test_the_same_numbers_as_here(folder: Path, hub: LoopbackHub) -> None:
    """Everything but what was asked of a server, and the library's own opinion, is as of the folder."""
    here, there = ask(folder), ask(NAME)
    assert there["verify"]["values"]["requests"] == data_requests(hub) == 3
    assert here["verify"]["values"]["requests"] == 0
    for report in (here, there):
        del report["source"], report["verify"]["values"]["requests"], report["verify"]["values"]["bytes"]
        report["verify"]["checks"] = [row for row in report["verify"]["checks"] if row["name"] != "reference-parser"]
    assert there == here
    assert [finding["code"] for finding in here["findings"] if finding["severity"] != "note"].count(
        "scale-pair-unequal"
    ) == 1


@pytest.mark.usefixtures("folder")
def test_what_was_fetched_is_kept(hub: LoopbackHub) -> None:
    """A second run asks for no data, and one without a network has the same answer."""
    first = ask(NAME)
    hub.asked.clear()
    assert ask(NAME) == first
    assert hub.requests(".safetensors") == []
    offline = ask(NAME, "--offline")
    assert offline["verify"] == first["verify"]
    assert ask(NAME, "--no-cache")["verify"] == first["verify"]
    assert data_requests(hub) == 3


def test_shards_that_are_cached_are_read_there(folder: Path, hub: LoopbackHub, tmp_path: Path) -> None:
    """A download has everything: no request for it, and no limit on what is read."""
    cached = tmp_path / "hf" / "hub" / "models--owner--name" / "snapshots" / hub.repos[NAME].commit
    cached.mkdir(parents=True)
    for path in folder.iterdir():
        (cached / path.name).symlink_to(path)
    report = ask(NAME, "--max-requests", "1")
    assert report["verify"]["values"] == ask(folder)["verify"]["values"]
    assert hub.requests(".safetensors") == []


@pytest.mark.usefixtures("folder")
def test_a_sample_says_so(hub: LoopbackHub) -> None:
    """With fewer requests than needed, the report says what share was read, and that the rest was not."""
    report = ask(NAME, "--max-requests", "2")
    values = report["verify"]["values"]
    assert values["requests"] == data_requests(hub) <= 2
    assert 0 < values["tensors"] < values["of"] == 95
    left = f"{95 - values['tensors']} of 95 other small tensors"
    assert report["verify"]["not_read"][-1] == left
    assert report["complete"]
    told = CliRunner().invoke(app, ["verify", NAME, "--values", "--max-requests", "2", "--quiet"]).stdout
    assert left in told.splitlines()[-1]


def published(folder: Path, hub: LoopbackHub, *, by_dtype: bool) -> None:
    """Publish the full reference, each shard sorted as the safetensors library does it, or by name."""
    parts = split(snapshot_tensors("reference"), 120)
    order = ("F32", "BF16", "F8_E4M3", "U8")
    if by_dtype:
        parts = [dict(sorted(part.items(), key=lambda item: (order.index(item[1].dtype), item[0]))) for part in parts]
    config = open_source("snapshot:reference").config()
    hub.repos[NAME] = Repo(write_checkpoint(folder, {}, parts=parts, config=config))


def test_shards_sorted_by_dtype(tmp_path: Path, hub: LoopbackHub) -> None:
    """All scalar scales and helpers of a shard lie side by side: one request; norms in BF16 take 160 more in all."""
    published(tmp_path / "full", hub, by_dtype=True)
    report = ask(NAME)
    values = report["verify"]["values"]
    assert (values["tensors"], values["of"]) == (37_621, 37_621)
    spans = [
        asked.span for asked in hub.requests(".safetensors") if asked.span and not asked.span.startswith("bytes=0-")
    ]
    assert values["requests"] == len(spans) == 279
    assert report["verify"]["not_read"] == ["values of weights", "37,150 of 37,152 block scales"]


def test_shards_sorted_by_name(tmp_path: Path, hub: LoopbackHub) -> None:
    """37,439 ranges would be needed: 500 are asked for, and every kind of tensor and every layer has its share."""
    published(tmp_path / "full", hub, by_dtype=False)
    halves = [
        (layer, number, half) for layer in range(3, 46) for number in range(288) for half in ("gate_proj", "up_proj")
    ]
    scales = {expert(*half, "weight_scale_2"): [0.5] for half in halves}
    fill(tmp_path / "full", scales, healthily=False)
    values = ask(NAME)["verify"]
    assert 450 < values["values"]["requests"] == data_requests(hub) <= 500
    assert values["values"]["tensors"] < values["values"]["of"] == 37_621
    read = {row["kind"]: (row["tensors"], row["of"]) for row in values["statistics"]}
    assert read["input_layernorm.weight"] == (46, 46)
    assert all(number for kind, (number, _) in read.items() if not kind.endswith(".weight_scale"))
    gates, of = read["mlp.experts.E.gate_proj.weight_scale_2"]
    assert of == 12_384
    assert gates >= 43
    (pairs,) = values["scale_pairs"]
    assert 43 <= pairs["pairs"] <= pairs["of"] == 12_384


@pytest.mark.parametrize(
    "mode", ["truncate", "shifted", "grown", "unnamed", "reset", "squeezed", "page", "excess", 500, 404, 403]
)
def test_answers_that_are_not_what_was_asked(mode: str | int, folder: Path, hub: LoopbackHub) -> None:
    """Too short, from elsewhere, of another file, or none: one line, exit 3, and no number from it."""
    assert CliRunner().invoke(app, ["verify", NAME]).exit_code == 0  # the headers are known now
    hub.faults = [Fault(mode, match=shard_name(2, 3))]
    result = run(NAME)
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "values-unread"]
    assert (finding["shard"], finding["severity"]) == (shard_name(2, 3), "error")
    assert "\n" not in finding["message"]
    assert not report["complete"]
    hub.faults = []
    assert json.loads(run(NAME).stdout)["complete"], "what was refused was kept"
    good = {row["kind"]: row for row in ask(folder)["verify"]["statistics"]}
    for row in report["verify"]["statistics"]:
        assert row["values"] <= good[row["kind"]]["values"]
        if row["values"]:
            assert row["min"] >= good[row["kind"]]["min"]
            assert row["max"] <= good[row["kind"]]["max"]


def test_faults_that_pass(folder: Path, hub: LoopbackHub) -> None:
    """What fails and then works has been asked for again."""
    right = ask(folder)["verify"]["statistics"]
    hub.faults = [Fault(503, match=shard_name(1, 3), times=2), Fault("truncate", match=shard_name(3, 3), times=1)]
    report = ask(NAME)
    assert report["ok"]
    assert report["verify"]["statistics"] == right


def test_a_server_that_ignores_ranges(folder: Path, hub: LoopbackHub) -> None:
    """It is read from as far as needed, and the numbers are right."""
    right = ask(folder)["verify"]["statistics"]
    hub.faults = [Fault("whole", match=".safetensors")]
    assert ask(NAME)["verify"]["statistics"] == right


def test_hopeless_servers_are_not_asked_hundreds_of_times(
    tmp_path: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few ranges in a row that could not be had, the others are not tried."""
    monkeypatch.setattr(hub_client, "_FIRST_PAUSE", 0.001)
    published(tmp_path / "full", hub, by_dtype=True)
    assert CliRunner().invoke(app, ["verify", NAME]).exit_code == 0
    hub.asked.clear()
    hub.faults = [Fault(500, match=".safetensors")]
    result = run(NAME, "--jobs", "4")
    assert result.exit_code == 3
    assert len(hub.requests(".safetensors")) < 60
