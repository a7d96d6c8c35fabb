# SPDX-License-Identifier: AGPL-3.0-only
"""What else `verify` tells: parts that are required or pruned, the nearest inventory, the config, the scope."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind, snapshot_tensors, write_header
from typer.testing import CliRunner
from whole_model import CONFIG, answer, look, serious, stating, told, trunk, whole

from glm5inspect.cli import app
from glm5inspect.dsa import verify_dsa
from glm5inspect.fingerprint import Fingerprint, differing_keys, official_config
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.scope import Scope
from glm5inspect.verification import Pruned
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Finding

REQUIRED: dict[str, tuple[Tensors, dict[str, Any], list[str], list[str]]] = {
    "all there": (whole(), CONFIG, ["mtp", "vision"], []),
    "no MTP, none declared": (trunk(), stating(num_nextn_predict_layers=0), [], ["mtp-absent"]),
    "no MTP, required": (trunk(), stating(num_nextn_predict_layers=0), ["mtp"], ["mtp-absent", "part-required"]),
    "MTP, none declared": (whole(), stating(num_nextn_predict_layers=0), ["mtp"], ["mtp-undeclared"]),
    "no geometry, required": (trunk(), stating(hidden_size=None), ["mtp"], ["config-geometry", "part-required"]),
    "no tower, required": (
        {name: kind for name, kind in whole().items() if not name.startswith("model.visual")},
        {key: value for key, value in CONFIG.items() if key != "vision_config"},
        ["vision"],
        ["part-required"],
    ),
    "tower, not declared": (
        whole(),
        {key: value for key, value in CONFIG.items() if key != "vision_config"},
        ["vision"],
        [],
    ),
}


@pytest.mark.parametrize(("tensors", "config", "parts", "codes"), REQUIRED.values(), ids=REQUIRED)
def test_parts_that_are_required(
    tmp_path: Path, tensors: Tensors, config: dict[str, Any], parts: list[str], codes: list[str]
) -> None:
    """The absence of a part is an error whatever the config says; its presence is none."""
    report = look(tmp_path, tensors, config, require=parts)
    assert sorted({code for _, code, _ in told(report)}) == codes
    options = [word for part in parts for word in ("--require", part)]
    result = CliRunner().invoke(app, ["verify", str(tmp_path), *options], catch_exceptions=False)
    assert result.exit_code == (not report.judged(Policy()).ok)
    assert report.judged(Policy()).ok == (not {"part-required", "module-unclaimed"}.intersection(codes))


def experts_left(keep: tuple[int, ...], *, router: int) -> Tensors:
    """Return the whole model with some experts of every layer, and routers of so many rows."""
    gone = tuple(f".experts.{expert}." for expert in set(range(4)) - set(keep))
    tensors = {name: kind for name, kind in whole().items() if not any(mark in name for mark in gone)}
    for layer in (3, 4, 5):
        tensors[f"{TEXT}layers.{layer}.mlp.gate.weight"] = Kind("BF16", (router, 64))
        tensors[f"{TEXT}layers.{layer}.mlp.gate.e_score_correction_bias"] = Kind("F32", (router,))
    return tensors


def test_pruned(tmp_path: Path) -> None:
    """Where experts, routers, biases and config agree, a number; where they do not, errors and no number."""
    consistent = look(tmp_path / "2", experts_left((0, 1), router=2), stating(n_routed_experts=2))
    assert told(consistent) == []
    assert answer(consistent).pruned == Pruned(2, 288)
    router = look(tmp_path / "router", experts_left((0, 1), router=4), stating(n_routed_experts=2))
    assert [(f.code.value, f.layer) for f in serious(router)] == [("expert-count", layer) for layer in (3, 4, 5)]
    assert answer(router).pruned is None
    assert serious(router)[0].actual == {"bias": 4, "experts": 2, "router rows": 4}
    holes = look(tmp_path / "holes", experts_left((0, 3), router=2), stating(n_routed_experts=2))
    assert {"expert-ids"} <= {finding.code.value for finding in serious(holes)}
    assert not holes.judged(Policy()).ok


def changed(path: Path, name: str, edit: Callable[[Tensors], object]) -> Fingerprint:
    """Return the fingerprint of a bundled inventory with something changed."""
    tensors = snapshot_tensors(name)
    edit(tensors)
    config = open_source(f"snapshot:{name}").config()
    return answer(look(path, tensors, config)).fingerprint


def test_fingerprints(tmp_path: Path) -> None:
    """The same inventory by whatever shards, the nearest one, or none when nothing is alike."""
    assert changed(tmp_path / "same", "mtp-extract", lambda _: None) == Fingerprint("mtp-extract", True, 0)  # noqa: FBT003
    norm, head = f"{TEXT}layers.45.enorm.weight", "lm_head.weight"
    lost = changed(tmp_path / "lost", "mtp-extract", lambda tensors: tensors.pop(norm))
    assert lost == Fingerprint("mtp-extract", exact=False, differing_rows=1)
    wide = changed(tmp_path / "wide", "mtp-extract", lambda t: t.update({head: Kind("F32", (154_880, 4096))}))
    assert wide == Fingerprint("mtp-extract", exact=False, differing_rows=2)
    strange = write_header(tmp_path / "x.safetensors", {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    assert answer(verify(open_source(str(strange)))).fingerprint == Fingerprint(None, exact=False, differing_rows=None)


def official(**fields: object) -> dict[str, Any]:
    """Return the official config with other fields of ``text_config``; ``None`` removes one."""
    config: dict[str, Any] = copy.deepcopy(dict(official_config()))
    config["text_config"] = {k: v for k, v in (config["text_config"] | fields).items() if v is not None}
    return config


def weights(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return what each finding says, and how much it weighs."""
    return [(finding.message, finding.severity.name) for finding in findings]


def test_what_a_config_changes() -> None:
    """A key that is absent or different is a note; one without which there is no model, a warning."""
    assert differing_keys(official(), has_vision=True) == []
    assert differing_keys(official(model_type="glm5_next_mtp", own="x"), has_vision=True) == []
    different = weights(differing_keys(official(index_topk=1024), has_vision=True))
    assert different == [("config.json: index_topk is 1024, and 2048 in the official release", "NOTE")]
    ((message, severity),) = weights(differing_keys(official(swiglu_limit=None), has_vision=True))
    assert message.startswith("config.json: swiglu_limit is missing; it is ")
    assert severity == "WARNING"
    tower = official()
    tower["vision_config"]["depth"] = 23
    assert [f.message for f in differing_keys(tower, has_vision=True)] == [
        "config.json: vision_config.depth is 23, and 24 in the official release"
    ]
    del tower["vision_config"]
    missing = weights(differing_keys(tower, has_vision=True))
    assert missing == [("config.json: vision_config is missing, and there is a vision tower", "WARNING")]
    assert differing_keys(tower, has_vision=False) == []
    flat = official()["text_config"]
    assert differing_keys(flat, has_vision=False) == []


def test_the_scope_of_the_reference(tmp_path: Path) -> None:
    """Nothing but its names and its dtypes: companions are unknown, and a DSA projection is BF16."""
    name = f"{TEXT}layers.3.self_attn.q_a_proj.weight"
    scale = f"{TEXT}layers.3.self_attn.q_a_proj.weight_scale_inv"
    tensors = whole() | {name: Kind("F8_E4M3", (24, 64)), scale: Kind("F32", (1, 1))}
    report = look(tmp_path, tensors, scope=Scope.REFERENCE)
    stored = {"encoding-mixed", "quant-unstated"}  # said of what is stored, in any scope
    found = {(check, code, tensor) for check, code, tensor in told(report) if code not in stored}
    assert found == {
        ("classify", "unknown-tensor", scale),
        ("dsa", "dsa-dtype", name),
        ("dsa", "dsa-unclaimed", scale),
    }
    assert {code for _, code, _ in told(look(tmp_path, tensors))} == stored
    assert told(look(tmp_path, whole(), scope=Scope.REFERENCE)) == []
    strict = verify_dsa(open_source(str(tmp_path)), scope=Scope.REFERENCE)
    assert strict.judged(Policy()).ok


WORDS = {
    "mtp-extract": [
        "unknown number of shards, 891 tensors, 17,402,739,328 bytes (16.21 GiB)",
        "8,701,369,376 parameters, 16.000 bits each",
        "; a draft tree",
        "fingerprint: the same inventory as snapshot:mtp-extract",
    ],
    "mlx-4bit": ["313,890,438,974 parameters, 4.525 bits each", "names: mlx", "declared, and not here"],
    "reap50-fp8": [
        "161,662,756,766 parameters, 8.341 bits each, pruned: 144 of 288 experts",
        "multi-token prediction: none, and none declared",
        "OK: 38,060 tensors, ",
    ],
    "glm-5.3-not-flash": ["multi-token prediction: not known", "1 check; 1 error"],
    "nvidia-nvfp4": ["33 shards, 147,661 tensors", "14 checks; 1 error, 8 warnings, 5 notes"],
}


@pytest.mark.parametrize(("name", "lines"), WORDS.items(), ids=WORDS)
def test_other_summaries_in_words(name: str, lines: list[str]) -> None:
    """A draft, other names, experts left out, another architecture, and the verdict with its counts."""
    shown = CliRunner().invoke(app, ["verify", f"snapshot:{name}"], catch_exceptions=False).stdout
    assert [line for line in lines if line not in shown] == []
    assert "not read: tensor values\n" in shown
    assert ("\nParts\n" in shown) == (name != "glm-5.3-not-flash")


def test_nothing_known_is_alike(tmp_path: Path) -> None:
    """Then no inventory is named; the size of a shard is that of its file, header and all."""
    strange = write_header(tmp_path / "x.safetensors", {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    shown = CliRunner().invoke(app, ["verify", str(strange)], catch_exceptions=False).stdout
    assert "fingerprint: " not in shown
    assert f"largest shard: {strange.name}, 65 B\n" in shown
