# SPDX-License-Identifier: AGPL-3.0-only
"""What names are for: the rules one by one, and all names of the reference."""

from __future__ import annotations

from collections import Counter

import pytest
from checkpoints import REFERENCE_ROLES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glm5inspect.header import TensorRecord
from glm5inspect.inventory import group_tensors
from glm5inspect.resolve import open_source
from glm5inspect.roles import (
    TensorRole,
    account,
    classify,
    is_mtp_only_name,
    is_norm,
    is_text_model,
    layer_index,
    mixer_of,
    normalize,
    parse_name,
)

LAYER = "model.language_model.layers.4."

WHOLE = {
    "lm_head.weight": "LmHead",
    "model.language_model.embed_tokens.weight": "Embedding",
    "model.language_model.norm.weight": "FinalNorm",
    "model.visual.blocks.7.attn.qkv.weight": "Vision",
    "model.visual.": "Vision",
    "model.vision": "Vision",
    "model.vision_tower.x": "Vision",
}
IN_LAYER = {
    "MtpProjection": ["eh_proj.weight"],
    "MtpNorm": ["enorm.weight", "hnorm.weight", "shared_head.norm.weight"],
    "KdaProjection": [
        f"self_attn.{p}.weight"
        for p in ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj")
    ],
    "KdaConv": [f"self_attn.{p}_conv1d.weight" for p in "qkv"],
    "KdaDecay": ["self_attn.A_log", "self_attn.dt_bias"],
    "KdaNorm": ["self_attn.o_norm.weight"],
    "MlaProjection": [
        f"self_attn.{p}.weight" for p in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    ],
    "MlaNorm": ["self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight"],
    "IndexerNorm": ["self_attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.bias"],
    "Indexer": [
        "self_attn.indexer.wq_b.weight",
        "self_attn.indexer.index_kpool_compress_ape",
        "self_attn.indexer.",
        "self_attn.indexer.k_norm.scale",
    ],
    "HyperConnection": ["hc_attn_fn", "hc_ffn_base", "hc_", "hc_any.tail.at.all"],
    "LayerNorm": ["input_layernorm.weight", "post_attention_layernorm.weight"],
    "MoeRouter": ["mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.gate."],
    "MoeExpert": ["mlp.experts.0.down_proj.weight", "mlp.experts.E.up_proj.weight_scale_2", "mlp.experts.287."],
    "MoeShared": ["mlp.shared_experts.up_proj.weight", "mlp.shared_experts."],
    "DenseFfn": ["mlp.gate_proj.weight", "mlp.up_proj.weight_scale", "mlp.down_proj."],
}

UNKNOWN = (
    "",
    ".",
    "model.language_model.layers.4.self_attn.wat",
    "model.language_model.layers.3.eh_proj",
    "model.layers.mtp.0.eh_proj.weight",
    "mtp.0.eh_proj.weight",
    "lm_head.weight.",
    "lm_head.bias",
    " lm_head.weight",
    "LM_HEAD.weight",
    "model.language_model.norm.bias",
    "model.visualx",
    "model.visual",
    "visual.blocks.0.x",
    "model.language_model.layers.4",
    LAYER,
    "x." + LAYER + "input_layernorm.weight",
    "model.language_model.layers..input_layernorm.weight",
    "model.language_model.layers.-1.input_layernorm.weight",
    "model.language_model.layers.\u0664.input_layernorm.weight",
    "model.language_model.layers.E4.input_layernorm.weight",
    LAYER + "input_layernorm.weight.extra",
    LAYER + "input_layernorm.bias",
    LAYER + "self_attn.q_proj.weight_scale",
    LAYER + "self_attn.q_conv1d.bias",
    LAYER + "self_attn.A_log.weight",
    LAYER + "self_attn.o_norm.bias",
    LAYER + "self_attn.indexer",
    LAYER + "Hc_attn_fn",
    LAYER + "mlp.gate",
    LAYER + "mlp.experts.gate_up_proj",
    LAYER + "mlp.experts.x.up_proj.weight",
    LAYER + "mlp.experts.7",
    LAYER + "mlp.shared_expert.up_proj.weight",
    LAYER + "mlp.gate_proj",
)


@pytest.mark.parametrize(
    ("name", "role"), [*WHOLE.items(), *((LAYER + rest, role) for role, rests in IN_LAYER.items() for rest in rests)]
)
def test_each_rule(name: str, role: str) -> None:
    """Every rule gives its role, under the published spelling."""
    assert role == classify(name)


@pytest.mark.parametrize("index", ["0", "45", "007", "9" * 5000, "N", "E"])
def test_any_layer_index(index: str) -> None:
    """A layer is any run of digits, or the letters of a census."""
    assert TensorRole.LAYER_NORM is classify(f"model.language_model.layers.{index}.input_layernorm.weight")


@pytest.mark.parametrize("name", UNKNOWN)
def test_refuses_untaught_names(name: str) -> None:
    """A name close to a taught one is not guessed."""
    assert classify(name) is None


def test_vocabulary() -> None:
    """Every role but the reserved one is given by some rule."""
    assert {role.value for role in TensorRole} == {*WHOLE.values(), *IN_LAYER, "KdaGate"}


def test_predicates() -> None:
    """Six roles are norms; all but the vision tower belong to the text model."""
    norms = {role.value for role in TensorRole if is_norm(role)}
    assert norms == {"FinalNorm", "KdaNorm", "MlaNorm", "IndexerNorm", "LayerNorm", "MtpNorm"}
    assert [role.value for role in TensorRole if not is_text_model(role)] == ["Vision"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.layers.7.x", "a.layers.#.x"),
        ("a.layers.N.x", "a.layers.#.x"),
        ("experts.E.b.0", "experts.#.b.#"),
        ("0.N.E.00", "#.#.#.#"),
        ("n.e.NE.N1.1N", "n.e.NE.N1.1N"),
        ("\u0663.\u00b2.\uff13", "\u0663.\u00b2.\uff13"),
        ("-1.+1.1_0. 1.1 .0x1.1e3", "-1.+1.1_0. 1.1 .0x1.1e3"),
        ("..", ".."),
        ("", ""),
        (".5.", ".#."),
        ("5", "#"),
        ("1\n", "1\n"),
    ],
)
def test_normalize(name: str, expected: str) -> None:
    """Only whole segments of ASCII digits and the two letters become an index."""
    assert expected == normalize(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.7.x", 7),
        ("layers.0", 0),
        ("layers.007.x", 7),
        ("layers.18446744073709551615.x", 18446744073709551615),
        ("layers.18446744073709551616.x", None),
        ("layers.00000000000000000003.x", 3),
        ("layers.000000000000000000003.x", None),
        ("layers." + "9" * 10_000, None),
        ("layers.N.x", None),
        ("layers.x.layers.3", None),
        ("layers.layers.3", None),
        ("layers.4.layers.3", 4),
        ("mylayers.3.layers.5", 5),
        ("Layers.3", None),
        ("layers", None),
        ("layers.", None),
        ("layers.-1", None),
        ("layers.\u0663", None),
        ("blocks.3", None),
        ("", None),
    ],
)
def test_layer_index(name: str, expected: int | None) -> None:
    """The segment after the first `layers` counts, below 2^64."""
    assert expected == layer_index(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (LAYER + "eh_proj.weight", True),
        (LAYER + "enorm.weight", True),
        (LAYER + "hnorm.weight", True),
        (LAYER + "shared_head.norm.weight", True),
        ("model.language_model.layers.N.enorm.weight", True),
        ("model.language_model.layers.3.eh_proj", False),
        (LAYER + "eh_proj.weight.x", False),
        (LAYER + "shared_head.head.weight", False),
        (LAYER + "input_layernorm.weight", False),
        ("model.layers.mtp.0.eh_proj.weight", False),
        ("mtp.0.eh_proj.weight", False),
        ("model.layers.45.eh_proj.weight", False),
        ("eh_proj.weight", False),
    ],
)
def test_mtp_only_names(name: str, expected: bool) -> None:  # noqa: FBT001 - a column of the table
    """Four names locate the MTP layer, whole and under the released prefix only."""
    assert expected is is_mtp_only_name(name)


@pytest.mark.parametrize(
    ("name", "pattern", "layer", "expert"),
    [
        ("a.layers.3.experts.12.w", "a.layers.N.experts.E.w", 3, 12),
        ("experts.1.layers.2", "experts.E.layers.N", 2, 1),
        ("layers.3.experts.x.experts.4", "layers.N.experts.x.experts.4", 3, None),
        ("layers.03.experts.00", "layers.N.experts.E", 3, 0),
        ("layers.99999999999999999999.x", "layers.N.x", None, None),
        ("model.visual.blocks.7.x", "model.visual.blocks.7.x", None, None),
        ("layers.N.experts.E", "layers.N.experts.E", None, None),
        ("experts.experts.5.x", "experts.experts.5.x", None, None),
        ("layers.experts.5", "layers.experts.E", None, 5),
    ],
)
def test_parse_name(name: str, pattern: str, layer: int | None, expert: int | None) -> None:
    """Only the index after the first `layers` and the first `experts` is cut out; others stay."""
    assert (pattern, layer, expert) == parse_name(name)


def test_account() -> None:
    """Counts add up by role; an unknown name is listed once, in the order of the input, and still counted."""
    mtp = "model.language_model.layers.{}.enorm.weight"
    pairs = [
        ("zebra.1", 2),
        (mtp.format(9), 1),
        ("lm_head.weight", 3),
        ("ant", 1),
        (mtp.format(2), 1),
        ("zebra.2", 1),
        ("zebra.1", 4),
        (mtp.format("N"), 4),
        (mtp.format(9), 1),
    ]
    found = account(iter(pairs))
    assert found.total == 18
    assert list(found.by_role.items()) == [("LmHead", 3), ("MtpNorm", 7)]
    assert found.unknown == ("zebra.1", "ant", "zebra.2")
    assert found.mtp_layers == (2, 9)


def test_account_of_nothing() -> None:
    """No name makes an empty account."""
    found = account([])
    assert (found.total, found.by_role, found.unknown, found.mtp_layers) == (0, {}, (), ())


def test_known_answers_of_the_reference() -> None:
    """All 113,074 names of the reference are accounted for, in 407 patterns."""
    names = list(open_source("snapshot:reference").inventory().tensors)
    found = account((name, 1) for name in names)
    assert found.total == 113_074
    assert list(found.by_role.items()) == sorted(REFERENCE_ROLES.items())
    assert (found.unknown, found.mtp_layers) == ((), (45,))
    assert len({parse_name(name).pattern for name in names}) == 407
    assert Counter(layer_index(name) is None for name in names) == {True: 350, False: 112_724}


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("self_attn.A_log", "KDA"),
        ("self_attn.kv_b_proj.weight", "DSA"),
        ("self_attn.indexer.wk.weight", "DSA"),
        ("self_attn.o_proj.weight", None),
        ("input_layernorm.weight", None),
        ("wat", None),
    ],
)
def test_mixer_of(rest: str, expected: str | None) -> None:
    """A mixer is told by what only it has; an output projection tells nothing."""
    assert expected == mixer_of(LAYER + rest, classify(LAYER + rest))


SEGMENTS = st.sampled_from(
    [
        "experts",
        "layers",
        "model",
        "language_model",
        "mlp",
        "hc_x",
        "N",
        "E",
        "",
        "0",
        "7",
        "07",
        "\u0663",
        "9" * 21,
        "x",
    ]
)
NAMES = st.lists(SEGMENTS, min_size=1, max_size=9).map(".".join)
PREFIXED = st.tuples(st.sampled_from(["", "model.language_model.layers.3.mlp.experts.", "experts."]), NAMES).map(
    "".join
)
KINDS = st.sampled_from([("F32", (), 4), ("BF16", (2,), 4), ("BF16", (1, 2), 4)])


@given(st.dictionaries(PREFIXED, KINDS, max_size=30))
@example({"experts.experts.5.x": ("F32", (), 4), "experts.experts.6.x": ("F32", (), 4)})
@example({"a.experts.5.x": ("F32", (), 4), "a.experts.\u0663.x": ("F32", (), 4), "a.experts.6.x": ("F32", (), 4)})
@settings(deadline=None)
def test_groups_agree_with_the_names(kinds: dict[str, tuple[str, tuple[int, ...], int]]) -> None:
    """Every tensor is in exactly one group, and the group says of it what its own name says."""
    tensors = [TensorRecord(name, dtype, shape, 0, size, None) for name, (dtype, shape, size) in kinds.items()]
    groups = group_tensors(tensors)
    assert sorted(tensor for group in groups for tensor in group.tensors) == sorted(tensors)
    keys = [(group.pattern, group.layer, group.dtype, group.shape) for group in groups]
    assert len(keys) == len(set(keys))
    for group in groups:
        for name, dtype, shape, *_ in group.tensors:
            said = (*parse_name(name)[:2], classify(name), dtype, shape)
            assert said == (group.pattern, group.layer, group.role, group.dtype, group.shape), name
        assert group.nbytes == 4 * len(group.tensors)
