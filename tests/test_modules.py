# SPDX-License-Identifier: AGPL-3.0-only
"""The module table: what the config asks for is exactly what the release holds, and each lost piece is told once."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind
from whole_model import CONFIG, answer, look, serious, stating, status, told, trunk, whole

from glm5inspect.architecture import Architecture, read_architecture
from glm5inspect.modules import Expected, expected_modules
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.roles import parse_name
from glm5inspect.scope import VALUE_CHECKS

if TYPE_CHECKING:
    from pathlib import Path

    from checkpoints import Tensors


def architecture(config: dict[str, Any] = CONFIG) -> Architecture:
    """Read an architecture in which nothing is wrong."""
    model, faults = read_architecture(config)
    assert faults == []
    assert model is not None
    return model


def official() -> list[Expected]:
    """Return everything that the official release must hold."""
    config = open_source("snapshot:official-bf16").config()
    assert config is not None
    rows = expected_modules(architecture(dict(config)), frozenset({45}))
    return [row for row in rows if not row.optional]


def test_the_reference_by_numbers() -> None:
    """Tensors and parameters of the geometry in the config, and how many of them belong in F32."""
    rows = official()
    assert sum(row.experts or 1 for row in rows) == 38_770
    assert sum((row.experts or 1) * math.prod(row.shape) for row in rows) == 321_323_031_390
    assert sum(row.row.wide for row in rows) == 291
    linear = Counter(row.part for row in rows for _ in range(row.experts or 1) if row.row.kind == "linear")
    assert linear["routed experts"] == 36_288
    assert linear["MTP"] == 876
    checks = Counter(row.check for row in rows for _ in range(row.experts or 1))
    assert checks == {
        "embed": 2,
        "norms": 93,
        "kda": 510,
        "dsa": 168,
        "hyper": 270,
        "ffn": 9,
        "moe": 37_367,
        "mtp": 4,
        "vision": 347,
    }


def test_everything_released_is_expected_and_nothing_else() -> None:
    """Name, layer, shape and number of experts: the table and the inventory of the release are the same set."""
    inventory = open_source("snapshot:official-bf16").inventory()
    stored = {(g.pattern, g.layer, g.shape): len(g.tensors) for g in inventory.groups}
    wanted = {
        (row.path if row.row.kind == "tensor" else f"{row.path}.weight", row.layer, row.shape): row.experts or 1
        for row in official()
    }
    assert stored == wanted


def test_a_whole_model_has_no_fault(tmp_path: Path) -> None:
    """Nothing but notes about its size, and the number of its parameters."""
    report = look(tmp_path, whole())
    assert told(report) == []
    assert report.judged(Policy()).ok
    assert answer(report).parameters == 328_970
    ended = {check: how for check, how in status(report).items() if check not in VALUE_CHECKS}
    assert set(ended.values()) == {"passed", "not-applicable"}


def kinds_of_tensors() -> dict[str, str]:
    """Return one name of each pattern of the whole model in each kind of layer, by an id."""
    names: dict[str, str] = {}
    for name in whole():
        pattern, layer, _ = parse_name(name)
        where = "" if layer is None else f"-{layer}" if layer in (3, 5) else "-KDA"
        names.setdefault(pattern.removeprefix(TEXT) + where, name)
    return names


NAMES = kinds_of_tensors()
ROUTER_ROWS = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")


def check_of(name: str) -> str:
    """Say which check a tensor is the business of."""
    rest = name.removeprefix(TEXT)
    for mark, check in {
        "model.visual": "vision",
        "layernorm.weight": "norms",
        "norm.weight": "norms",
        "embed_tokens": "embed",
        "lm_head": "embed",
        "hc_": "hyper",
        ".mlp.gate.": "moe",
        ".mlp.experts.": "moe",
        ".mlp.shared_experts.": "moe",
        ".mlp.": "ffn",
    }.items():
        if mark in rest and ".self_attn." not in rest and "enorm" not in rest and "hnorm" not in rest:
            return "mtp" if "shared_head" in rest else check
    if ".self_attn." in rest:
        return "dsa" if rest.startswith(("layers.3.", "layers.5.")) else "kda"
    return "mtp"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_lost_tensor_is_missed_by_its_check(tmp_path: Path, name: str) -> None:
    """Exactly one finding, under its name, of the check whose business it is."""
    tensors = whole()
    del tensors[name]
    report = look(tmp_path, tensors)
    check = check_of(name)
    code = {"dsa": "dsa-missing", "mtp": "mtp-incomplete"}.get(check, "module-missing")
    (finding,) = serious(report)
    assert (finding.check, finding.code.value) == (check, code)
    assert (finding.tensor or "").startswith(name.removesuffix(".weight"))
    assert status(report)[check] == "failed"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_tensor_of_another_shape(tmp_path: Path, name: str) -> None:
    """One row more is one finding; where it is a router's, the experts do not agree any more."""
    shape = whole()[name].shape
    larger = Kind(whole()[name].dtype, (shape[0] + 1, *shape[1:]))
    (finding,) = serious(look(tmp_path, whole() | {name: larger}))
    check = check_of(name)
    if name.endswith(ROUTER_ROWS):
        assert (finding.check, finding.code.value, finding.tensor) == ("moe", "expert-count", None)
        return
    code = "dsa-shape" if check == "dsa" else "module-shape"
    assert (finding.check, finding.code.value, finding.tensor) == (check, code, name)
    assert (finding.expected, finding.actual) == (list(shape), list(larger.shape))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_tensor_of_no_known_dtype(tmp_path: Path, name: str) -> None:
    """No weight is stored in 64-bit integers."""
    report = look(tmp_path, whole() | {name: Kind("I64", whole()[name].shape)})
    (finding,) = (finding for finding in serious(report) if finding.code.value != "mtp-encoding")
    check = check_of(name)
    code = "dsa-dtype" if check == "dsa" else "encoding-dtype"
    assert (finding.check, finding.code.value, finding.tensor) == (check, code, name)
    assert finding.actual == "I64"


UNCLAIMED = {
    "layers.0.hc_attn_extra": ("hyper", "module-unclaimed"),
    "layers.3.hc_attn_fn.weight": ("hyper", "module-unclaimed"),
    "layers.5.hc_attn_fn": ("hyper", "module-unclaimed"),
    "layers.0.self_attn.q_a_proj.weight": ("kda", "module-unclaimed"),
    "layers.3.self_attn.indexer.q_norm": ("dsa", "dsa-unclaimed"),
    "layers.3.self_attn.q_proj.weight": ("dsa", "dsa-unclaimed"),
    "layers.5.self_attn.indexer.bias": ("dsa", "dsa-unclaimed"),
    "layers.3.mlp.gate.bias": ("moe", "module-unclaimed"),
    "layers.3.mlp.experts.0.up_proj.bias": ("moe", "module-unclaimed"),
    "layers.3.mlp.up_proj.weight": ("ffn", "module-unclaimed"),
    "layers.0.mlp.gate.weight": ("moe", "module-unclaimed"),
    "layers.0.mlp.up_proj.bias": ("ffn", "module-unclaimed"),
    "layers.3.mlp.shared_experts.0.up_proj.weight": ("moe", "module-unclaimed"),
    "layers.2.shared_head.head.weight": ("embed", "module-unclaimed"),
}


@pytest.mark.parametrize(("rest", "told_as"), UNCLAIMED.items(), ids=UNCLAIMED)
def test_a_tensor_too_many(tmp_path: Path, rest: str, told_as: tuple[str, str]) -> None:
    """A name may have a role and still belong to nothing that the config asks for."""
    found = [(check, code) for check, code, name in told(look(tmp_path, whole() | {TEXT + rest: Kind("F32", (4,))}))]
    assert told_as in found


def test_a_vision_tower_nobody_declared(tmp_path: Path) -> None:
    """Without a `vision_config` nothing of it is expected, and the config is said to lack it."""
    config = {key: value for key, value in CONFIG.items() if key != "vision_config"}
    text = {name: kind for name, kind in whole().items() if not name.startswith("model.visual.")}
    report = look(tmp_path / "text", text, config)
    assert told(report) == []
    assert status(report)["vision"] == "not-applicable"
    report = look(tmp_path / "tower", whole(), config)
    assert told(report) == []
    (finding,) = (f for f in report.findings if f.expected == "vision_config")
    assert finding.severity.name == "WARNING"


@pytest.mark.parametrize("place", ["top", "text_config"])
@pytest.mark.parametrize(("tied", "missed"), [(True, []), (False, ["lm_head"]), (None, ["lm_head"])])
def test_a_tied_head_may_be_absent(tmp_path: Path, place: str, tied: bool | None, missed: list[str]) -> None:  # noqa: FBT001
    """It is the embedding then; whoever stores it all the same is not told off."""
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    (config if place == "top" else config["text_config"])["tie_word_embeddings"] = tied
    headless = {name: kind for name, kind in whole().items() if name != "lm_head.weight"}
    report = look(tmp_path / "headless", headless, config)
    assert told(report) == [("embed", "module-missing", name) for name in missed]
    assert answer(report).parameters == 328_970 - 6_144
    assert told(look(tmp_path / "with", whole(), config)) == []


def draft(*extra: str) -> Tensors:
    """Return the MTP layer alone, with embedding or head beside it."""
    mine = (f"{TEXT}layers.5.", *extra)
    return {name: kind for name, kind in whole().items() if name.startswith(mine)}


COPIES = {f"{TEXT}layers.5.{name}.weight": Kind("BF16", (96, 64)) for name in ("embed_tokens", "shared_head.head")}
DRAFTS: dict[str, tuple[Tensors, list[str], int]] = {
    "bare": (draft(), ["draft-tree"], 48_796),
    "embedding and head": (draft("lm_head", f"{TEXT}embed_tokens"), ["draft-tree"], 61_084),
    "copies": (draft() | COPIES, ["draft-tree", "mtp-copy", "mtp-copy"], 61_084),
}


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize(("tensors", "codes", "parameters"), DRAFTS.values(), ids=DRAFTS)
def test_a_draft_is_checked_as_that(
    tmp_path: Path,
    tensors: Tensors,
    codes: list[str],
    parameters: int,
    flat: bool,  # noqa: FBT001 - a column
) -> None:
    """No trunk, vision tower or final norm is missed; embedding and head may stand where drafts have them."""
    config = {**CONFIG["text_config"], "model_type": "glm5_next_mtp"} if flat else CONFIG
    report = look(tmp_path, tensors, config)
    assert [code for _, code, _ in told(report)] == codes
    assert report.judged(Policy()).ok
    assert (answer(report).draft, answer(report).parameters) == (True, parameters)
    assert (answer(report).mtp.state, answer(report).mtp.layer) == ("complete", 5)


def test_a_draft_with_a_packed_head(tmp_path: Path) -> None:
    """Half as wide and without scales is no head."""
    packed = {f"{TEXT}layers.5.shared_head.head.weight": Kind("U8", (96, 32))}
    report = look(tmp_path, draft() | packed)
    assert ("encodings", "encoding-incomplete") in [(check, code) for check, code, _ in told(report)]
    assert not report.judged(Policy()).ok


def test_copies_in_the_mtp_layer_are_noted(tmp_path: Path) -> None:
    """Beside a trunk too; their shape counts."""
    report = look(tmp_path / "fits", whole() | COPIES)
    assert told(report) == [("mtp", "mtp-copy", name) for name in sorted(COPIES)]
    assert report.judged(Policy()).ok
    name = f"{TEXT}layers.5.embed_tokens.weight"
    report = look(tmp_path / "short", whole() | {name: Kind("BF16", (95, 64))})
    (shape,) = (f for f in report.findings if f.code.value == "module-shape")
    assert (shape.tensor, shape.hint) == (name, "It is one row short.")


TRUNK_FIELDS = ("vocab_size", "num_hidden_layers", "intermediate_size", "moe_intermediate_size", "n_routed_experts")
FIELDS = [
    *(("text_config", field, 1) for field in (*TRUNK_FIELDS, "hc_mult")),
    *(("text_config", field, 0) for field in ("first_k_dense_replace", "n_shared_experts")),
    *(("linear", field, 1) for field in ("num_heads", "head_dim", "short_conv_kernel_size")),
    *(("vision_config", field, 1) for field in CONFIG["vision_config"]),
    *(("text_config", field, 1) for field in ("hidden_size", "q_lora_rank", "index_kpool", "v_head_dim")),
]


def without_or_with(place: str, field: str, value: object) -> dict[str, Any]:
    """Return the config with one field changed, or without it."""
    config = copy.deepcopy(CONFIG)
    part = config["text_config"]["linear_attn_config"] if place == "linear" else config[place]
    part[field] = value
    if value is ...:
        del part[field]
    return config


@pytest.mark.parametrize(("place", "field", "least"), FIELDS, ids=[f"{place}-{field}" for place, field, _ in FIELDS])
def test_a_field_that_is_missing_or_impossible(place: str, field: str, least: int) -> None:
    """One finding that names it, and no table of modules made of guesses."""
    for value in (..., None, least - 1, "4", 4.0, True, [4], 2**64):
        model, faults = read_architecture(without_or_with(place, field, value))
        assert model is None
        (fault,) = (fault for fault in faults if fault.code.value == "config-geometry")
        assert f"config.json: {field} is " in fault.message


def test_limits_of_what_is_believed() -> None:
    """A number that would make a table of millions of rows is not believed."""
    for place, field in (("text_config", "num_hidden_layers"), ("vision_config", "depth")):
        assert read_architecture(without_or_with(place, field, 10_000))[0] is None
    assert read_architecture(without_or_with("text_config", "n_routed_experts", 65_536))[0] is None
    assert read_architecture(stating(num_nextn_predict_layers=10_000))[0] is None
    model, _ = read_architecture(stating(num_nextn_predict_layers=None))
    assert model is not None
    assert list(model.mtp_layers()) == []


def test_without_a_geometry_no_module_is_looked_at(tmp_path: Path) -> None:
    """The fault is told, and the other checks say that they did not run."""
    report = look(tmp_path, whole(), stating(vocab_size=None))
    assert told(report) == [("classify", "config-geometry", None)]
    ended = status(report)
    assert (ended["integrity"], ended["classify"], ended["kda"]) == ("passed", "failed", "not-applicable")
    assert (answer(report).parameters, answer(report).mtp.state) == (None, "unknown")


PER_LAYER: dict[str, object] = {
    "list": [None, None, None, 4, 2, 4],
    "list of numbers": [0, 0, 0, 4, 2, 4],
    "object": {"4": 2},
    "object of all": {"3": 4, "4": 2, "5": 4},
}


def with_two_experts_in_layer_4() -> Tensors:
    """Return the whole model with half of the experts of one layer, and a router to match."""
    gone = tuple(f"{TEXT}layers.4.mlp.experts.{expert}." for expert in (2, 3))
    router = {
        f"{TEXT}layers.4.mlp.gate.weight": Kind("BF16", (2, 64)),
        f"{TEXT}layers.4.mlp.gate.e_score_correction_bias": Kind("F32", (2,)),
    }
    return {name: kind for name, kind in whole().items() if not name.startswith(gone)} | router


@pytest.mark.parametrize("stated", PER_LAYER.values(), ids=PER_LAYER)
def test_experts_per_layer_by_the_config(tmp_path: Path, stated: object) -> None:
    """Where the config has a list, each layer is held to its own number."""
    report = look(tmp_path / "fits", with_two_experts_in_layer_4(), stating(routed_experts_per_layer=stated))
    assert told(report) == []
    assert answer(report).pruned is None
    (finding,) = serious(look(tmp_path / "whole", whole(), stating(routed_experts_per_layer=stated)))
    assert (finding.code.value, finding.layer, finding.expected) == ("expert-count", 4, 2)


NO_NUMBERS: tuple[object, ...] = ("4", 4, [], {}, [None], [4, -1], ["4"], {"x": 4}, {"3": True}, {"3": 65_537})


@pytest.mark.parametrize("stated", NO_NUMBERS, ids=repr)
def test_experts_per_layer_that_are_none(stated: object) -> None:
    """What is no list of numbers is a fault of the config."""
    model, (fault,) = read_architecture(stating(routed_experts_per_layer=stated))
    assert model is None
    assert "routed_experts_per_layer" in fault.message


def test_layers_without_experts_of_their_own(tmp_path: Path) -> None:
    """Shared experts may be none, and dense layers none or all."""
    gone = {name: kind for name, kind in whole().items() if ".shared_experts." not in name}
    assert told(look(tmp_path / "none", gone, stating(n_shared_experts=0))) == []
    report = look(tmp_path / "moe", whole(), stating(first_k_dense_replace=0))
    assert {check for check, _, _ in told(report)} == {"moe", "ffn"}


def test_no_mtp_layer_is_told_once(tmp_path: Path) -> None:
    """Never tensor by tensor."""
    report = look(tmp_path, trunk())
    assert told(report) == [("mtp", "mtp-missing", None)]
    assert (answer(report).mtp.state, answer(report).mtp.layer) == ("missing", None)
