# SPDX-License-Identifier: AGPL-3.0-only
"""Names of other writers: recognised, told once, and looked through by every check."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from checkpoints import TEXT, Kind, WatchedSource, shard_name, write_checkpoint
from dialect_tables import CHANNELS_LAST, HALVES, JOINED, RENAMED, SWITCH, flat_text, mlx, msmodelslim, transformers
from whole_model import CONFIG, answer, look, serious, stating, status, told, whole

from glm5inspect.catalogue import Severity
from glm5inspect.census import Census, take_census
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.dsa import Block, DsaAnswer, verify_dsa
from glm5inspect.mtp import MtpAnswer, find_mtp
from glm5inspect.report import Policy, Waiver
from glm5inspect.resolve import open_source
from glm5inspect.scope import DIALECT_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Report


class Written(NamedTuple):
    """A tree of one dialect.

    Attributes:
        dialect: How it is reported.
        tensors: Makes it.
        share: How many of its names are not in the released layout, as told.
        kinds: The most frequent of these.
        parameters: Of the model that it holds.
        more: Codes beside `foreign-dialect`.
    """

    dialect: str
    tensors: Callable[[], Tensors]
    share: str
    kinds: str
    parameters: int
    more: list[str]


WITHOUT_MTP = 280_174  # of 328,970 parameters


def moved(prefix: str) -> Tensors:
    """Write the released names with the vision tower elsewhere."""
    return {name.replace("model.visual.", prefix): kind for name, kind in whole().items()}


TREES = {
    "transformers": Written(
        "transformers",
        transformers,
        "54 of 157",
        "HyperConnection 30, KdaDecay 8, KdaProjection 8, KdaConv 4, MoeExpert 4",
        WITHOUT_MTP,
        ["mtp-missing"],
    ),
    "msmodelslim": Written(
        "msmodelslim",
        msmodelslim,
        "50 of 217",
        "HyperConnection 30, KdaDecay 8, KdaProjection 8, KdaConv 4",
        341_258,  # two copies of 6,144 each
        ["mtp-copy", "mtp-copy"],
    ),
    "flat-text": Written("flat-text", flat_text, "196 of 197", "MoeExpert 36, KdaProjection 32,", 310_138, []),
    "mlx": Written("mlx", mlx, "189 of 189", "KdaProjection 32, HyperConnection 30, Vision 25,", 328_970, []),
    "mlx vision_tower": Written(
        "mlx", partial(mlx, "vision_tower."), "189 of 189", "KdaProjection 32, HyperConnection 30,", 328_970, []
    ),
    "vision_tower": Written("vision-tower", partial(moved, "vision_tower."), "25 of 222", "Vision 25", 328_970, []),
    "model.vision_tower": Written(
        "vision-tower", partial(moved, "model.vision_tower."), "25 of 222", "Vision 25", 328_970, []
    ),
    "mlx without MTP": Written(
        "mlx", partial(mlx, mtp=False), "160 of 160", "KdaProjection 32, ", WITHOUT_MTP, ["mtp-missing"]
    ),
}
EACH = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


def codes(report: Report) -> list[str]:
    """Return the codes of all findings."""
    return [finding.code.value for finding in report.findings]


@EACH
def test_a_dialect_is_told_once(tmp_path: Path, tree: Written) -> None:
    """One error with its numbers, however many names; everything is counted under the released ones."""
    report = look(tmp_path, tree.tensors())
    foreign, *others = serious(report)
    assert (foreign.code.value, foreign.severity, foreign.actual) == ("foreign-dialect", Severity.ERROR, tree.dialect)
    assert f"({tree.dialect}): {tree.share} names are not in the released layout ({tree.kinds}" in foreign.message
    assert foreign.count == int(tree.share.partition(" ")[0])
    assert foreign.tensor in tree.tensors()
    assert f"--dialect {tree.dialect}" in (foreign.hint or "")
    assert [finding.code.value for finding in others] == tree.more
    assert (answer(report).dialect, answer(report).parameters) == (tree.dialect, tree.parameters)
    failed = {name for name, ended in status(report).items() if ended == "failed"}
    assert failed == {"classify"} | {"mtp"} & {code.partition("-")[0] for code in tree.more if code == "mtp-missing"}


@EACH
def test_an_accepted_dialect_is_no_finding(tmp_path: Path, tree: Written) -> None:
    """`--dialect` silences that finding, and no other; another name does not fit."""
    report = look(tmp_path / "accepted", tree.tensors(), dialect=tree.dialect)
    assert [code for _, code, _ in told(report)] == tree.more
    assert status(report)["classify"] == "passed"
    other = "flat-text" if tree.dialect == "mlx" else "mlx"
    assert not look(tmp_path / "other", tree.tensors(), dialect=other).judged(Policy()).ok


def test_the_released_names_are_a_dialect_like_others(tmp_path: Path) -> None:
    """They may be asked for, and need not be."""
    assert told(look(tmp_path / "named", whole(), dialect="released")) == []
    assert answer(look(tmp_path / "found", whole())).dialect == "released"
    assert set(DIALECT_NAMES) == {"released"} | {tree.dialect for tree in TREES.values()}


LAYER_3, LAYER_4 = f"{TEXT}layers.3.", f"{TEXT}layers.4."
MLX_3 = "language_model.model.layers.3."
REWRITTEN = {
    "packed experts": (transformers, f"{LAYER_3}mlp.experts.gate_up_proj", "moe", "module"),
    "packed down": (transformers, f"{LAYER_4}mlp.experts.down_proj", "moe", "module"),
    "joined convolutions": (transformers, f"{LAYER_4}{JOINED}", "kda", "module"),
    "renamed": (transformers, f"{LAYER_4}{RENAMED['hc_attn_fn']}", "hyper", "module"),
    "gate": (transformers, f"{LAYER_4}self_attn.forget_gate.dt_bias", "kda", "module"),
    "same name": (transformers, f"{LAYER_3}self_attn.kv_b_proj.weight", "dsa", "dsa"),
    "single expert": (msmodelslim, f"{LAYER_4}mlp.experts.2.up_proj.weight", "moe", "module"),
    "released MTP": (msmodelslim, f"{TEXT}layers.5.self_attn.o_proj.weight", "dsa", "dsa"),
    "flat": (flat_text, "model.layers.0.hc_ffn_fn", "hyper", "module"),
    **{name: (mlx, MLX_3 + name, "moe", "module") for name in SWITCH},
    **{name: (mlx, MLX_3 + name, "dsa", "dsa") for name in HALVES},
    **{name: (mlx, "vision_model." + name, "vision", "module") for name in CHANNELS_LAST},
    "mlx convolutions": (mlx, f"language_model.model.layers.0.{JOINED}", "kda", "module"),
    "mlx head": (mlx, "language_model.lm_head.weight", "embed", "module"),
    "mlx block": (mlx, "vision_model.blocks.0.attn.qkv.weight", "vision", "module"),
}


@pytest.mark.parametrize(("tensors", "name", "check", "family"), REWRITTEN.values(), ids=REWRITTEN)
def test_what_was_rewritten_is_checked(
    tmp_path: Path, tensors: Callable[[], Tensors], name: str, check: str, family: str
) -> None:
    """A stacked, joined, split or renamed tensor that is lost or misshapen is told under the name stored."""
    kind = tensors()[name]
    lost = {other: kind for other, kind in tensors().items() if other != name}
    found = [entry for entry in told(look(tmp_path / "lost", lost)) if entry[0] == check and entry[1] != "mtp-missing"]
    assert [code for _, code, _ in found] == [f"{family}-missing"]
    assert name.startswith(found[0][2] or "?")
    turned = Kind(kind.dtype, (*kind.shape[:-1], kind.shape[-1] + 1))
    report = look(tmp_path / "turned", tensors() | {name: turned})
    (finding,) = (f for f in report.findings if f.code.value == f"{family}-shape")
    assert (finding.check, finding.tensor, finding.actual) == (check, name, list(turned.shape))
    assert finding.expected == list(kind.shape)


def test_rows_of_the_released_layout_do_not_fit(tmp_path: Path) -> None:
    """A convolution that kept its axes in a tree of channels last is misshapen."""
    name = f"language_model.model.layers.0.{JOINED}"
    report = look(tmp_path, mlx() | {name: Kind("BF16", (96, 1, 4))})
    assert ("kda", "module-shape", name) in told(report)


DECLARED: dict[str, tuple[dict[str, Any], Severity]] = {
    "quantization": ({"quantization": {"bits": 4, "group_size": 32}}, Severity.NOTE),
    "nothing": ({}, Severity.ERROR),
    "no object": ({"quantization": 4}, Severity.ERROR),
}


@pytest.mark.parametrize(("block", "severity"), DECLARED.values(), ids=DECLARED)
def test_mlx_may_declare_itself(tmp_path: Path, block: dict[str, Any], severity: Severity) -> None:
    """With its own `quantization` block in the config it is a note, and the rest is checked all the same."""
    report = look(tmp_path / "mlx", mlx(), {**CONFIG, **block})
    assert serious(report)[0].severity is severity
    policy = Policy(waivers=(Waiver("quant-config"),))
    assert report.judged(policy).ok == (severity is Severity.NOTE)
    foreign = look(tmp_path / "transformers", transformers(), {**CONFIG, **block})
    assert serious(foreign)[0].severity is Severity.ERROR


def test_mlx_quantized(tmp_path: Path) -> None:
    """Leading axes are kept: 4 bits in groups of 32, with scales and biases, of stacked experts too."""
    packed = {}
    for layer in (3, 4, 5):
        for name, kind in SWITCH.items():
            module = f"language_model.model.layers.{layer}.{name.removesuffix('.weight')}"
            experts, rows, width = kind.shape
            packed[f"{module}.weight"] = Kind("U32", (experts, rows, width // 8))
            packed |= {
                f"{module}.{suffix}": Kind("BF16", (experts, rows, width // 32)) for suffix in ("scales", "biases")
            }
    report = look(tmp_path / "whole", mlx() | packed)
    assert [code for _, code, _ in told(report)] == ["foreign-dialect", "quant-unstated"]
    assert answer(report).parameters == 328_970
    first, *_ = answer(report).encodings
    assert (first.part, first.encoding, first.layers) == ("routed experts", "mlx-affine 4-bit g32", "3-4")
    assert (first.modules, first.bits_per_parameter) == (6, 5.0)
    del packed["language_model.model.layers.4.mlp.switch_mlp.up_proj.biases"]
    report = look(tmp_path / "lost", mlx() | packed)
    (finding,) = (f for f in report.findings if f.code.value == "encoding-incomplete")
    assert finding.tensor == "language_model.model.layers.4.mlp.switch_mlp.up_proj.biases"


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@EACH
def test_blocks_and_layer_are_found_behind_other_names(
    tmp_path: Path,
    tree: Written,
    index: bool,  # noqa: FBT001 - a column
    shards: int,
) -> None:
    """`verify-dsa` and `find-mtp` answer as for the release, whatever they have to open for it."""
    folder = write_checkpoint(tmp_path, tree.tensors(), config=CONFIG, shards=shards, index=index)
    report = verify_dsa(open_source(str(folder)))
    assert isinstance(report.answer, DsaAnswer)
    layers = (3,) if tree.parameters == WITHOUT_MTP else (3, 5)
    assert codes(report) == ["foreign-dialect"]
    assert report.answer.blocks == tuple(Block(layer, 14, 14, 18_608, ok=True, unclaimed=()) for layer in layers)
    accepted = find_mtp(open_source(str(folder)), dialect=tree.dialect)
    assert isinstance(accepted.answer, MtpAnswer)
    assert codes(accepted) == [code for code in tree.more if code == "mtp-missing"]
    assert [layer.layer for layer in accepted.answer.layers] == ([] if accepted.findings else [5])
    for layer in accepted.answer.layers:
        assert set(layer.names.values()) == {True}
        assert "unknown" not in layer.dtypes_by_role
        assert accepted.answer.parameters == 48_796 + (12_288 if tree.dialect == "msmodelslim" else 0)


DAMAGED = {
    "split": ("self_attn.unembed_out.weight", "dsa-missing", 13),
    "renamed": ("self_attn.o_proj.weight", "dsa-missing", 13),
    "norm": ("self_attn.indexer.k_norm.bias", "dsa-missing", 13),
}


@pytest.mark.parametrize(("name", "code", "bound"), DAMAGED.values(), ids=DAMAGED)
def test_a_broken_block_behind_other_names(tmp_path: Path, name: str, code: str, bound: int) -> None:
    """It is told under the name stored, and half of a split projection is no projection."""
    tensors = mlx()
    kind = tensors.pop(MLX_3 + name)
    report = verify_dsa(open_source(str(write_checkpoint(tmp_path / "lost", tensors, config=CONFIG))), dialect="mlx")
    (finding,) = report.findings
    assert (finding.code.value, finding.layer) == (code, 3)
    assert (finding.tensor or "").startswith((MLX_3 + name).removesuffix(".weight"))
    assert isinstance(report.answer, DsaAnswer)
    assert [(block.bound, block.ok) for block in report.answer.blocks] == [(bound, False), (14, True)]
    stray = {f"{MLX_3}self_attn.wat": kind}
    report = verify_dsa(open_source(str(write_checkpoint(tmp_path / "stray", mlx() | stray, config=CONFIG))))
    assert codes(report) == ["foreign-dialect"]
    assert "unknown-tensor" in codes(look(tmp_path / "verified", mlx() | stray))


def test_a_declared_layer_of_which_nothing_is_there(tmp_path: Path) -> None:
    """Its block is missing tensor by tensor, whoever wrote the others."""
    tensors = {name: kind for name, kind in mlx().items() if not name.startswith(MLX_3)}
    report = verify_dsa(open_source(str(write_checkpoint(tmp_path, tensors, config=CONFIG))), dialect="mlx")
    assert codes(report) == ["dsa-missing"] * 14


def test_a_missing_shard_is_told_once_behind_other_names(tmp_path: Path) -> None:
    """What the index puts there is neither present nor missing."""
    folder = write_checkpoint(tmp_path, mlx(), config=CONFIG, shards=4)
    (folder / shard_name(2, 4)).unlink()
    for check in (verify_dsa, find_mtp):
        report = check(open_source(str(folder)), dialect="mlx")
        assert set(codes(report)) <= {"index-missing-shard"}
    assert codes(take_census(open_source(str(folder)), dialect="mlx")) == ["index-missing-shard"]


def test_only_needed_shards_are_opened_where_names_are_released(tmp_path: Path) -> None:
    """An export that keeps the names of attention and MTP layer is not read whole."""
    attention = {name: kind for name, kind in msmodelslim().items() if ".self_attn." in name or "layers.5." in name}
    other = {name: kind for name, kind in msmodelslim().items() if name not in attention}
    experts = {name: kind for name, kind in other.items() if ".mlp." in name}
    rest = {name: kind for name, kind in other.items() if name not in experts}
    files = WatchedSource(write_checkpoint(tmp_path, {}, parts=[attention, experts, rest], config=CONFIG))
    assert codes(verify_dsa(Checkpoint(files), dialect="msmodelslim")) == []
    assert files.opened() == [1]


@EACH
def test_a_census_behind_other_names(tmp_path: Path, tree: Written) -> None:
    """Every tensor has its role, and parameters and encodings are those of the release."""
    folder = write_checkpoint(tmp_path, tree.tensors(), config=CONFIG)
    report = take_census(open_source(str(folder)), dialect=tree.dialect)
    assert isinstance(report.answer, Census)
    assert codes(report) == []
    assert report.answer.unknown == ()
    assert report.answer.parameters == tree.parameters
    counted = sum(tally.tensors for tally in report.answer.by_role.values())
    assert counted == report.answer.tensors - (tree.dialect == "msmodelslim")  # the rotation has no role


def test_the_mark_of_msmodelslim(tmp_path: Path) -> None:
    """The rotation is known in its tree and nowhere else; without it these names are a mix."""
    rotated = look(tmp_path / "released", whole() | {"rot.weight": Kind("BF16", (64, 64))})
    assert told(rotated) == [("classify", "unknown-tensor", "rot.weight")]
    unmarked = {name: kind for name, kind in msmodelslim().items() if name != "rot.weight"}
    report = look(tmp_path / "unmarked", unmarked)
    assert "mixed-dialect" in [code for _, code, _ in told(report)]
    assert not report.judged(Policy()).ok
    asked = look(tmp_path / "asked", unmarked, dialect="msmodelslim")
    assert [code for _, code, _ in told(asked)] == ["mtp-copy", "mtp-copy"]


def renamed(tensors: Tensors, *names: str) -> Tensors:
    """Rename parts of every layer as transformers does."""
    pairs = [(name, RENAMED[name]) for name in names]
    return {
        next((full.removesuffix(old) + new for old, new in pairs if full.endswith(f".{old}")), full): kind
        for full, kind in tensors.items()
    }


HYPER = tuple(name for name in RENAMED if name.startswith("hc_"))
MIXES: dict[str, tuple[Tensors, list[str], list[str]]] = {
    "hyper-connections of transformers": (renamed(whole(), *HYPER), ["mixed-dialect"], ["released", "transformers"]),
    "one side of them": (renamed(whole(), "hc_ffn_base"), ["mixed-dialect"], ["released", "transformers"]),
    "released MTP layer beside transformers": (
        transformers() | {name: kind for name, kind in whole().items() if f"{TEXT}layers.5." in name},
        ["foreign-dialect", "mixed-dialect"],
        ["transformers", "released"],
    ),
    "one released layer beside MLX": (
        {name: kind for name, kind in mlx().items() if ".layers.2." not in name}
        | {name: kind for name, kind in whole().items() if ".layers.2." in name},
        ["foreign-dialect", "mixed-dialect"],
        ["mlx", "released"],
    ),
}


@pytest.mark.parametrize(("tensors", "expected", "dialects"), MIXES.values(), ids=MIXES)
def test_a_mix_of_two_dialects(tmp_path: Path, tensors: Tensors, expected: list[str], dialects: list[str]) -> None:
    """Always an error that names both; each module is checked under the name it has, and none is missed."""
    report = look(tmp_path / "mix", tensors)
    assert [code for _, code, _ in told(report)] == expected
    assert serious(report)[-1].actual == dialects
    assert serious(report)[-1].severity is Severity.ERROR
    assert answer(report).parameters == 328_970
    accepted = look(tmp_path / "accepted", tensors, dialect=dialects[0])
    assert [code for _, code, _ in told(accepted)] == ["mixed-dialect"]


def test_a_mix_is_checked_through(tmp_path: Path) -> None:
    """What is lost of the other dialect is missed under a name, and the check of blocks goes on."""
    tensors = renamed(whole(), *HYPER)
    del tensors[f"{TEXT}layers.2.{RENAMED['hc_ffn_base']}"]
    report = look(tmp_path, tensors)
    (lost,) = (finding for finding in report.findings if finding.code.value == "module-missing")
    assert (lost.check, lost.layer) == ("hyper", 2)
    assert codes(verify_dsa(open_source(str(tmp_path)))) == ["mixed-dialect"]
    assert codes(find_mtp(open_source(str(tmp_path)))) == ["mixed-dialect"]


def test_names_of_no_dialect_stay_unknown(tmp_path: Path) -> None:
    """Nothing is accepted because it looks similar."""
    strange = [f"{TEXT}layers.0.attn_hc.gain", "language_model.model.layers.0.mlp.wat", "model.layers.mtp.0.x"]
    tensors = transformers() | {name: Kind("BF16", (2,)) for name in strange}
    report = look(tmp_path, tensors, stating(num_nextn_predict_layers=0))
    unknown = {finding.tensor for finding in report.findings if finding.code.value == "unknown-tensor"}
    assert unknown == set(strange)
