# SPDX-License-Identifier: AGPL-3.0-only
"""`diff`: what differs between two checkpoints is told once, by pattern, and nothing else is."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    TEXT,
    TINY_CONFIG,
    Kind,
    Tensors,
    declaring,
    parts_by_layer,
    split,
    tiny,
    write_checkpoint,
    write_shard,
)
from encoded import CONFIG, LAYERS, LINEAR, WAYS, MemorySource, build, fp8_block, nvfp4_modelopt, plain

from glm5inspect.catalogue import Severity
from glm5inspect.changes import TensorChange
from glm5inspect.config_changes import ConfigChange
from glm5inspect.difference import Difference, EncodingChange, MtpSide, Side, diff
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from glm5inspect.report import Finding, Report

NORM = f"{TEXT}layers.3.input_layernorm.weight"
NORMS = f"{TEXT}layers.N.input_layernorm.weight"
SCALE = f"{TEXT}layers.{{}}.mlp.experts.{{}}.up_proj.weight_scale_2"
SCALES = f"{TEXT}layers.N.mlp.experts.E.up_proj.weight_scale_2"
SAME: dict[str, Any] = {**TINY_CONFIG}


def compared(
    a: Tensors, b: Tensors, config_a: Mapping[str, Any] | None = SAME, config_b: Mapping[str, Any] | None = SAME
) -> Report:
    """Compare two checkpoints that are nowhere but here."""
    return diff(MemorySource(a, config_a), MemorySource(b, config_b))  # type: ignore[arg-type] # None is a config too


def answer(report: Report) -> Difference:
    """Return what was found."""
    assert isinstance(report.answer, Difference)
    return report.answer


def codes(report: Report) -> list[str]:
    """Return the codes of the findings, in order."""
    return [finding.code.value for finding in report.findings]


def without(tensors: Tensors, *parts: str) -> Tensors:
    """Return tensors without those that have one of these parts in their names."""
    return {name: kind for name, kind in tensors.items() if not any(part in name for part in parts)}


def nested(config: Mapping[str, Any], *keys: str, value: object) -> dict[str, Any]:
    """Return a config with another value somewhere inside it."""
    changed = copy.deepcopy(dict(config))
    inner = changed
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return changed


WAYS_TO_STORE: dict[str, Callable[[Path], Path]] = {
    "the same file": lambda folder: write_checkpoint(folder, tiny()),
    "one shard": lambda folder: write_checkpoint(folder, tiny(), shards=1),
    "a shard a layer": lambda folder: write_checkpoint(folder, {}, parts=parts_by_layer(tiny())),
    "shards the other way round": lambda folder: write_checkpoint(folder, {}, parts=reversed(split(tiny(), 4))),
    "tensors the other way round": lambda folder: write_checkpoint(folder, dict(reversed(tiny().items())), shards=2),
    "no index": lambda folder: write_checkpoint(folder, tiny(), index=False),
}


@pytest.mark.parametrize("write", WAYS_TO_STORE.values(), ids=WAYS_TO_STORE)
def test_how_tensors_are_cut_into_shards_does_not_matter(
    write: Callable[[Path], Path], checkpoint: Path, tmp_path: Path
) -> None:
    """The same tensors in other shards, or in another order, are the same inventory, both ways."""
    sources = (open_source(str(checkpoint)), open_source(str(write(tmp_path / "other"))))
    for report in (diff(*sources), diff(*reversed(sources))):
        assert (report.findings, report.complete, answer(report).same) == ((), True, True)
        assert answer(report).a == answer(report).b == Side(271, 516_856, None)
        assert (answer(report).rows, answer(report).encodings, answer(report).config) == ((), (), ())
        assert all(row.a == row.b for row in answer(report).roles)


ROWS: dict[str, tuple[Tensors, Tensors, TensorChange, str]] = {
    "only in A": (
        tiny(),
        without(tiny(), NORM),
        TensorChange("only-a", NORMS, "3", None, "BF16 [64]", None, 1, 128, 0),
        f"{NORMS}: only in A, 1 tensor in layer 3 (BF16 [64], 128 bytes)",
    ),
    "only in B": (
        without(tiny(), *(SCALE.format(layer, expert) for layer in (3, 4) for expert in (0, 1, 3))),
        tiny(),
        TensorChange("only-b", SCALES, "3-4", "0-1,3", None, "F32 []", 6, 0, 24),
        f"{SCALES}: only in B, 6 tensors in layers 3-4, experts 0-1,3 (F32 [], 24 bytes)",
    ),
    "another dtype": (
        tiny(),
        tiny() | {f"{TEXT}layers.{layer}.input_layernorm.weight": Kind("F32", (64,)) for layer in (0, 1, 5)},
        TensorChange("dtype", NORMS, "0-1,5", None, "BF16", "F32", 3, 384, 768),
        f"{NORMS}: BF16 -> F32, 3 tensors in layers 0-1,5 (384 -> 768 bytes)",
    ),
    "another shape": (
        tiny(),
        tiny() | {SCALE.format(3, expert): Kind("F32", (1,)) for expert in range(4)},
        TensorChange("shape", SCALES, "3", "0-3", "[]", "[1]", 4, 16, 16),
        f"{SCALES}: [] -> [1], 4 tensors in layer 3, experts 0-3 (16 bytes)",
    ),
    "outside the layers": (
        tiny(),
        tiny() | {"lm_head.weight": Kind("BF16", (128, 64))},
        TensorChange("shape", "lm_head.weight", None, None, "[96, 64]", "[128, 64]", 1, 12_288, 16_384),
        "lm_head.weight: [96, 64] -> [128, 64], 1 tensor (12,288 -> 16,384 bytes)",
    ),
    "layers that the other has nothing of": (
        tiny(),
        without(tiny(), ".layers.5.", ".layers.4."),
        TensorChange("only-a", f"{TEXT}layers.N.*", "4-5", None, "BF16, F32, F8_E4M3, U8", None, 125, 134_952, 0),
        f"{TEXT}layers.N.*: only in A, 125 tensors in layers 4-5 (BF16, F32, F8_E4M3, U8, 134,952 bytes)",
    ),
    "the vision tower": (
        without(tiny(), "model.visual."),
        tiny(),
        TensorChange("only-b", "model.visual.*", "0", None, None, "BF16", 2, 0, 1_568),
        "model.visual.*: only in B, 2 tensors in block 0 (BF16, 1,568 bytes)",
    ),
    "a tensor of the vision tower": (
        tiny(),
        without(tiny(), "model.visual.blocks.0.norm1."),
        TensorChange("only-a", "model.visual.blocks.N.norm1.weight", "0", None, "BF16 [16]", None, 1, 32, 0),
        "model.visual.blocks.N.norm1.weight: only in A, 1 tensor in block 0 (BF16 [16], 32 bytes)",
    ),
    "all that there is of a layer is one tensor": (
        tiny(),
        tiny() | {f"{TEXT}layers.9.x": Kind("U8", (2,))},
        TensorChange("only-b", f"{TEXT}layers.N.x", "9", None, None, "U8 [2]", 1, 0, 2),
        f"{TEXT}layers.N.x: only in B, 1 tensor in layer 9 (U8 [2], 2 bytes)",
    ),
}


CODES = {"only-a": "diff-only-a", "only-b": "diff-only-b", "dtype": "diff-dtype", "shape": "diff-shape"}


@pytest.mark.parametrize(("a", "b", "row", "message"), ROWS.values(), ids=ROWS)
def test_one_row_and_one_finding_a_change(a: Tensors, b: Tensors, row: TensorChange, message: str) -> None:
    """What differs in the same way is one row, and one finding that says the same; nothing else is told."""
    report = compared(a, b)
    assert answer(report).rows == (row,)
    assert answer(report).same is False
    (finding,) = report.findings
    assert finding.message == message
    assert finding.code.value == CODES[row.change]
    assert finding.severity is Severity.ERROR
    assert (finding.tensor, finding.expected, finding.actual) == (row.pattern, row.a, row.b)
    assert finding.count == row.tensors
    assert finding.layer == {"3": 3, "9": 9}.get(row.layers or "")


def test_dtype_and_shape_are_told_apart() -> None:
    """A tensor with another dtype and another shape is in two rows, so that neither can hide behind the other."""
    report = compared(tiny(), tiny() | {NORM: Kind("F32", (1, 64))})
    assert codes(report) == ["diff-dtype", "diff-shape"]
    assert [(row.a, row.b) for row in answer(report).rows] == [("BF16", "F32"), ("[64]", "[1, 64]")]


def test_swapped_names_differ() -> None:
    """As many tensors of one kind on both sides are not the same when their names are not."""
    moved = {name.replace(".experts.3.", ".experts.4."): kind for name, kind in tiny().items()}
    report = compared(tiny(), moved)
    assert {(row.change, row.experts) for row in answer(report).rows} == {("only-a", "3"), ("only-b", "4")}
    assert sum(row.tensors for row in answer(report).rows) == 2 * 3 * 9


def test_roles_are_totalled() -> None:
    """Each role of either side is there, with tensors and bytes; names without a role come last."""
    report = compared(tiny(), without(tiny(), "lm_head") | {"what": Kind("U8", (3,))})
    roles = {row.role: ((row.a.tensors, row.a.bytes), (row.b.tensors, row.b.bytes)) for row in answer(report).roles}
    assert roles["LmHead"] == ((1, 12_288), (0, 0))
    assert roles[None] == ((0, 0), (1, 3))
    assert list(roles)[-1] is None
    assert roles["MoeExpert"] == ((108, 41_616), (108, 41_616))


def test_a_module_that_is_encoded_otherwise_is_one_matter() -> None:
    """Weights and scales of both sides are told by part and encodings, and in no row."""
    report = compared(build(plain("BF16")), build(nvfp4_modelopt()), CONFIG, CONFIG)
    found = answer(report)
    assert found.rows == ()
    assert set(codes(report)) == {"diff-encoding"}
    assert [(row.part, row.layers, row.modules) for row in found.encodings] == [
        ("routed experts", "1", 12),
        ("shared experts", "1", 3),
        ("dense FFN", "0", 3),
        ("KDA", "0", 9),
        ("DSA", "1", 8),
        ("embeddings", None, 1),
        ("vision", None, 9),
        ("MTP", "2", 24),
    ]
    assert found.encodings[0] == EncodingChange(
        "routed experts", "1", "plain BF16", "nvfp4-modelopt", 12, 49_152, 13_872
    )
    assert [finding.message for finding in report.findings if "routed" in finding.message] == [
        "routed experts, layer 1: plain BF16 -> nvfp4-modelopt, 12 modules, 49,152 -> 13,872 bytes"
    ]
    assert found.a.parameters == found.b.parameters is not None
    assert None not in {row.role for row in found.roles}
    assert found.mtp.a == MtpSide("2", "plain BF16", 1)
    assert found.mtp.b == MtpSide("2", "nvfp4-modelopt", 1)


@pytest.mark.parametrize("name", sorted(WAYS.keys() - {"plain"}))
def test_every_encoding(name: str) -> None:
    """Whatever the 69 linear modules are encoded in, no tensor of theirs is told by itself."""
    tile = WAYS[name].tile
    config = (
        {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [*tile]}} if tile else CONFIG
    )
    for a, b in ((WAYS["plain"], WAYS[name]), (WAYS[name], plain("F16"))):
        report = compared(build(a), build(b), config, config)
        assert answer(report).rows == ()
        assert sum(row.modules for row in answer(report).encodings) == len(LINEAR) == 69
        told = {row.b if a is WAYS["plain"] else row.a for row in answer(report).encodings}
        assert told == {WAYS[name].name}


@pytest.mark.parametrize("other", [None, CONFIG], ids=["no config", "nothing declared"])
def test_a_block_size_that_only_one_config_declares(other: dict[str, Any] | None) -> None:
    """The same tensors are the same, however a config says that they are to be read."""
    declared = {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}
    tensors = build(fp8_block(32, 32))
    for sides in ((declared, other), (other, declared)):
        assert answer(compared(tensors, tensors, *sides)).same is True


def test_some_experts_are_encoded_otherwise() -> None:
    """Only those experts are told, each kind with its share of the bytes."""
    ups = [f"{LAYERS[1]}mlp.experts.{expert}.up_proj" for expert in range(4)]
    ways = {ups[1]: nvfp4_modelopt(), ups[3]: nvfp4_modelopt(), ups[2]: WAYS["mxfp8"]}
    report = compared(build(fp8_block(128, 128)), build(fp8_block(128, 128), ways), CONFIG, CONFIG)
    assert answer(report).rows == ()
    assert answer(report).encodings == (
        EncodingChange("routed experts", "1", "fp8-block 128x128", "mxfp8", 1, 2_052, 2_112),
        EncodingChange("routed experts", "1", "fp8-block 128x128", "nvfp4-modelopt", 2, 4_104, 2_312),
    )


def test_another_size_is_not_another_encoding() -> None:
    """Where the two configs give a module another shape, its tensors say so."""
    larger = nested(CONFIG, "text_config", "vocab_size", value=192)
    head = {f"lm_head.{suffix}": kind for suffix, kind in nvfp4_modelopt().tensors(192, 64).items()}
    embedding = {f"{TEXT}embed_tokens.weight": Kind("BF16", (192, 64))}
    report = compared(build(plain("BF16")), build(plain("BF16")) | head | embedding, CONFIG, larger)
    assert answer(report).encodings == ()
    assert [(row.change, row.pattern, row.b) for row in answer(report).rows if row.change == "shape"] == [
        ("shape", "lm_head.weight", "[192, 32]"),
        ("shape", f"{TEXT}embed_tokens.weight", "[192, 64]"),
    ]


def test_names_that_no_loader_writes_hide_behind_no_module() -> None:
    """A second tensor at the place of a module that is encoded otherwise is told."""
    odd = {f"{TEXT}layers.01.mlp.experts.1.up_proj.weight": Kind("BF16", (32, 64))}
    odd |= {f"{TEXT}layers.1.mlp.experts.01.up_proj.weight": Kind("BF16", (32, 64))}
    odd |= {f"{TEXT}layers.00.self_attn.o_proj.weight": Kind("BF16", (64, 512))}
    report = compared(build(plain("BF16")) | odd, build(nvfp4_modelopt()), CONFIG, CONFIG)
    assert sum(row.modules for row in answer(report).encodings) == 69
    assert [(row.change, row.layers, row.tensors) for row in answer(report).rows] == [
        ("only-a", "1", 2),
        ("only-a", "0", 1),
    ]


def test_experts_that_only_one_side_has_are_told_by_name() -> None:
    """Pruned experts are not there, whatever the others are encoded in."""
    pruned = without(build(nvfp4_modelopt()), f"{LAYERS[1]}mlp.experts.2.", f"{LAYERS[1]}mlp.experts.3.")
    report = compared(build(plain("BF16")), pruned, CONFIG, CONFIG)
    assert answer(report).encodings[0].modules == 6
    assert {(row.change, row.experts, row.tensors) for row in answer(report).rows} == {("only-a", "2-3", 2)}
    assert len(answer(report).rows) == 3


def test_a_module_with_a_flaw_is_compared_by_its_tensors() -> None:
    """What cannot be read without a doubt is not called an encoding."""
    path = f"{LAYERS[1]}self_attn.o_proj"
    damaged = without(build(plain("BF16"), {path: nvfp4_modelopt()}), f"{path}.weight_scale")
    report = compared(build(plain("BF16")), damaged, CONFIG, CONFIG)
    assert answer(report).encodings == ()
    assert [(row.change, row.a, row.b) for row in answer(report).rows] == [
        ("dtype", "BF16", "U8"),
        ("shape", "[64, 96]", "[64, 48]"),
    ]


def test_the_same_encoding_with_another_companion_is_told_by_its_tensors() -> None:
    """Scales of activations are tensors that the other side has not."""
    report = compared(build(nvfp4_modelopt()), build(nvfp4_modelopt(activations=True)), CONFIG, CONFIG)
    assert answer(report).encodings == ()
    assert {row.change for row in answer(report).rows} == {"only-b"}
    assert sum(row.tensors for row in answer(report).rows) == 69
    assert all(row.pattern.endswith(".input_scale") for row in answer(report).rows)


def test_a_side_without_a_config_is_read_by_that_of_the_other() -> None:
    """A conversion that left config.json behind is compared all the same, with a warning."""
    for configs in ((CONFIG, None), (None, CONFIG)):
        report = compared(build(plain("BF16")), build(nvfp4_modelopt()), *configs)
        assert answer(report).rows == ()
        assert len(answer(report).encodings) == 8
        (warning,) = (finding for finding in report.findings if finding.code.value == "diff-config")
        assert warning.severity is Severity.WARNING
        assert answer(report).mtp.b.encoding == "nvfp4-modelopt"


def test_without_any_config_tensors_are_compared() -> None:
    """Nobody knows which module a tensor belongs to, so each says for itself how it differs."""
    way = {f"{LAYERS[0]}mlp.up_proj": nvfp4_modelopt()}
    report = compared(build(plain("BF16")), build(plain("BF16"), way), None, None)
    assert (answer(report).encodings, answer(report).a.parameters) == ((), None)
    up = f"{TEXT}layers.N.mlp.up_proj"
    assert [(row.change, row.pattern, row.a, row.b) for row in answer(report).rows] == [
        ("dtype", f"{up}.weight", "BF16", "U8"),
        ("only-b", f"{up}.weight_scale", None, "F8_E4M3 [128, 4]"),
        ("only-b", f"{up}.weight_scale_2", None, "F32 []"),
        ("shape", f"{up}.weight", "[128, 64]", "[128, 32]"),
    ]


def test_an_mtp_layer_that_was_left_out() -> None:
    """One row for the layer, one key of the config, and both states side by side."""
    report = compared(tiny(), without(tiny(), ".layers.5."), SAME, declaring(num_nextn_predict_layers=0))
    found = answer(report)
    assert codes(report) == ["diff-config", "diff-only-a"]
    assert [(row.pattern, row.layers, row.tensors) for row in found.rows] == [(f"{TEXT}layers.N.*", "5", 61)]
    assert found.config == (ConfigChange("num_nextn_predict_layers", "1", "0"),)
    assert (found.mtp.a, found.mtp.b) == (MtpSide("5", None, 1), MtpSide(None, None, 0))
    assert report.findings[1].layer == 5


def vision_less(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without its vision tower."""
    return {key: value for key, value in config.items() if key != "vision_config"}


KINDS = TINY_CONFIG["text_config"]["layer_types"]
CHANGES: dict[str, tuple[dict[str, Any], list[ConfigChange], Severity | None]] = {
    "nothing": (copy.deepcopy(SAME), [], None),
    "experts": (declaring(n_routed_experts=2), [ConfigChange("n_routed_experts", "4", "2")], Severity.ERROR),
    "a key that is gone": (declaring(hc_mult=None), [ConfigChange("hc_mult", "4", None)], Severity.ERROR),
    "what is computed": (declaring(swiglu_limit=7.0), [ConfigChange("swiglu_limit", None, "7.0")], Severity.ERROR),
    "true is not 1": (declaring(hc_mult=4.0), [ConfigChange("hc_mult", "4", "4.0")], Severity.ERROR),
    "anything else": (declaring(eos_token_id=[1]), [ConfigChange("eos_token_id", None, "[1]")], Severity.NOTE),
    "one's own business": (declaring(dtype="float16"), [], None),
    "quantization": ({**SAME, "quantization_config": {"quant_method": "fp8"}}, [], None),
    "one's own business in the tower": (nested(SAME, "vision_config", "dtype", value="float16"), [], None),
    "an object within": (
        nested(SAME, "text_config", "linear_attn_config", "head_dim", value=16),
        [ConfigChange("linear_attn_config.head_dim", "8", "16")],
        Severity.ERROR,
    ),
    "the vision tower": (
        nested(SAME, "vision_config", "depth", value=2),
        [ConfigChange("vision_config.depth", "1", "2")],
        Severity.ERROR,
    ),
    "no vision tower": (vision_less(SAME), [ConfigChange("vision_config", '"present"', None)], Severity.ERROR),
    "a list from where it differs": (
        declaring(layer_types=[*KINDS[:4], "deepseek_sparse_attention"]),
        [ConfigChange("layer_types", '[4] "linear_attention"', '[4] "deepseek_sparse_attention"')],
        Severity.ERROR,
    ),
    "another model": ({**SAME, "model_type": "llama"}, [ConfigChange("model_type", None, '"llama"')], Severity.ERROR),
    "the same model by another name": ({**SAME, "model_type": "glm5_next_text"}, [], None),
    "a key of the whole": (
        {**SAME, "tie_word_embeddings": True},
        [ConfigChange("tie_word_embeddings", None, "true")],
        Severity.ERROR,
    ),
    "the whole is asked first": (
        {**declaring(hc_mult=2), "hc_mult": 4},
        [],
        None,
    ),
    "anything else of the whole": (
        {**SAME, "image_token_id": 7},
        [ConfigChange("image_token_id", None, "7")],
        Severity.NOTE,
    ),
    "experts of a token": (
        declaring(num_experts_per_tok=2),
        [ConfigChange("num_experts_per_tok", None, "2")],
        Severity.ERROR,
    ),
    "a longer list": (
        declaring(layer_types=[*KINDS, "linear_attention"]),
        [ConfigChange("layer_types", "5 entries", "6 entries")],
        Severity.ERROR,
    ),
    "a long value": (
        declaring(note="x" * 99),
        [ConfigChange("note", None, f'"{"x" * 56}...')],
        Severity.NOTE,
    ),
}


@pytest.mark.parametrize(("config", "changes", "severity"), CHANGES.values(), ids=CHANGES)
def test_config(config: dict[str, Any], changes: list[ConfigChange], severity: Severity | None) -> None:
    """Keys that build another model are errors, others notes; what only says how weights are stored is left out."""
    report = compared(tiny(), tiny(), SAME, config)
    assert list(answer(report).config) == changes
    findings: list[Finding] = list(report.findings)
    assert [finding.severity for finding in findings] == [severity for _ in changes]
    assert answer(report).same is (severity is not Severity.ERROR)


def test_a_shard_by_itself_is_not_the_whole(checkpoint: Path, tmp_path: Path) -> None:
    """A file whose name does not say that there are others is compared as what it holds."""
    other = write_shard(tmp_path / "one.safetensors", tiny())
    report = diff(open_source(str(checkpoint)), open_source(str(other)))
    assert codes(report) == ["diff-config"]
    assert report.findings[0].message == "config.json: present -> absent"
    assert answer(report).same is True
