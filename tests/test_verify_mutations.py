# SPDX-License-Identifier: AGPL-3.0-only
"""Damage every kind of module, in every encoding, in every way: one error each, of the right code, that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import BROKEN, Kind, Tensors, write_checkpoint
from encoded import (
    CONFIG,
    EMBEDDING,
    EXPERTS,
    HELPERS,
    LAYERS,
    LINEAR,
    MODULES,
    ROUTERS,
    SMALL,
    WAYS,
    MemorySource,
    Way,
    build,
    exl3,
    fp8_block,
    in_ranks,
    mlx,
    nvfp4_modelopt,
    plain,
)

from glm5inspect.catalogue import Code, Severity
from glm5inspect.census import take_census
from glm5inspect.dsa import verify_dsa
from glm5inspect.mtp import find_mtp
from glm5inspect.resolve import open_source
from glm5inspect.roles import parse_name
from glm5inspect.verification import Verification
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from glm5inspect.inventory import Source
    from glm5inspect.report import Finding

Change = Callable[[Kind], Kind | None]

EVERY_WAY = [pytest.param(way, id=name) for name, way in WAYS.items()]
ENCODED = [pytest.param(way, id=name) for name, way in WAYS.items() if name != "plain"]

_TARGETS = tuple(
    name
    for name in LINEAR
    if ".experts." not in name or name.endswith((".experts.0.gate_proj", ".experts.1.up_proj", ".experts.3.down_proj"))
)
"""Every linear module; of the routed experts one for each projection, and none of them whole."""


def _declaring(way: Way) -> dict[str, Any]:
    """Return the config, with the block size that a way to store needs."""
    if way.tile is None:
        return CONFIG
    return {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": list(way.tile)}}


def _errors(source: Source) -> list[Finding]:
    """Return the errors of a verification, without what it says of the quantization declared."""
    findings = verify(source).findings
    return [f for f in findings if f.severity is Severity.ERROR and f.check != "quant-config"]


def _told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return code and name of each finding, sorted."""
    return sorted((finding.code.value, finding.tensor or "") for finding in findings)


def _retyped(kind: Kind) -> Kind:
    return kind._replace(dtype="F64" if kind.dtype == "I64" else "I64")


def _longer(kind: Kind) -> Kind:
    return kind._replace(shape=(kind.shape[0] + 1, *kind.shape[1:]) if kind.shape else (1,))


def _shorter(kind: Kind) -> Kind | None:
    return kind._replace(shape=(kind.shape[0] - 1, *kind.shape[1:])) if kind.shape else None


def _transposed(kind: Kind) -> Kind | None:
    return kind._replace(shape=kind.shape[::-1]) if kind.shape != kind.shape[::-1] else None


SHAPES = {"longer": _longer, "shorter": _shorter, "transposed": _transposed}
CHANGES: dict[str, Change] = {"retyped": _retyped, **SHAPES}


def _usual(name: str, change: str) -> str:
    """Return the code for a change to a tensor of a plain checkpoint."""
    if name.startswith(tuple(f"{layer}self_attn." for layer in LAYERS[1:])):
        return {"removed": "dsa-missing", "retyped": "dsa-dtype"}.get(change, "dsa-shape")
    if change == "removed":
        head = ("eh_proj", "enorm", "hnorm", "shared_head")
        return "mtp-incomplete" if name.startswith(tuple(LAYERS[2] + own for own in head)) else "module-missing"
    if change in ("longer", "shorter") and name.startswith(ROUTERS):
        return "expert-count"
    return "encoding-dtype" if change == "retyped" else "module-shape"


@pytest.fixture(scope="module")
def healthy() -> Tensors:
    """A plain checkpoint, not to be changed."""
    return build(plain("BF16"))


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_whole_checkpoint_in_one_encoding_has_no_error(way: Way) -> None:
    """Every linear module is read as what it is, and nothing is missing, unclaimed or too much, by any command."""
    source = MemorySource(build(way), _declaring(way))
    report = verify(source)
    assert isinstance(report.answer, Verification)
    assert [f.message for f in report.findings if f.severity is Severity.ERROR] == []
    encoded = {row.encoding for row in report.answer.encodings if not row.encoding.startswith("plain")}
    assert encoded == ({way.name} if way.name != "plain" else set())
    assert [row.name for row in report.answer.checks if row.status == "failed"] == []
    others = [*take_census(source).findings, *verify_dsa(source).findings, *find_mtp(source).findings]
    assert [finding.message for finding in others if finding.severity is Severity.ERROR] == []


_HINTS = {
    "transposed": "It is transposed.",
    "longer": "It is one row too long.",
    "shorter": "It is one row short.",
}
PLAIN_TARGETS = (*(f"{name}.weight" for name in (*_TARGETS, EMBEDDING, *ROUTERS)), *SMALL, *HELPERS)


@pytest.mark.parametrize("name", PLAIN_TARGETS)
def test_each_tensor_of_a_plain_checkpoint(healthy: Tensors, name: str) -> None:
    """Removed, retyped, a row longer or shorter, or transposed: one error, and it names the tensor."""
    damaged = {"removed": {other: kind for other, kind in healthy.items() if other != name}}
    for change, apply in CHANGES.items():
        if kind := apply(healthy[name]):
            damaged[change] = {**healthy, name: kind}
    for change, tensors in damaged.items():
        errors = _errors(MemorySource(tensors))
        code = _usual(name, change)
        assert [error.code.value for error in errors] == [code], change
        if code == "expert-count":
            assert errors[0].layer == (1 if name.startswith(LAYERS[1]) else 2)
        else:
            assert errors[0].tensor in (name, name.removesuffix(".weight"))
        if code.endswith("-shape"):
            assert (errors[0].hint or "").removesuffix(" Pool slots come first.") == (_HINTS[change] or "")


def test_a_rope_part_is_named(healthy: Tensors) -> None:
    """Positions have 64 rows in other models; this one has none."""
    name = f"{LAYERS[1]}self_attn.kv_a_proj_with_mqa.weight"
    (error,) = _errors(MemorySource({**healthy, name: Kind("BF16", (96, 64))}))
    assert (error.code, error.tensor) == (Code.DSA_SHAPE, name)
    assert "rope part (64 rows)" in str(error.hint)


def _damage(tensors: Tensors, suffix: str, change: Change) -> tuple[Tensors, list[str]]:
    """Change the tensors of one suffix of every kind of module; return what is stored then, and which modules."""
    damaged, changed = dict(tensors), []
    for module in _TARGETS:
        if change is _transposed and suffix == "qweight" and len({*MODULES[module]}) == 1:
            continue  # of a square matrix that is what another packer writes
        if kind := change(tensors[f"{module}.{suffix}"]):
            damaged[f"{module}.{suffix}"] = kind
            changed.append(module)
    return damaged, sorted(changed)


@pytest.mark.parametrize("way", ENCODED)
def test_each_tensor_of_each_module_changed(way: Way) -> None:
    """A dtype or a shape that the encoding does not know is one error for each module, with the tensor's name."""
    tensors, config = build(way), _declaring(way)
    for suffix in way.tensors(64, 32):
        for change, apply in CHANGES.items():
            damaged, changed = _damage(tensors, suffix, apply)
            code = "encoding-dtype" if change == "retyped" else "encoding-shape"
            # Where scales and zero points disagree about the groups, nobody can say which of them is wrong.
            named = {suffix, "scales", "qzeros"} if suffix in ("scales", "qzeros") else {suffix}
            told = [(code, *name.rsplit(".", 1)) for code, name in _told(_errors(MemorySource(damaged, config)))]
            assert [(each, module) for each, module, _ in told] == [(code, module) for module in changed], suffix
            assert {leaf for *_, leaf in told} <= named, change


@pytest.mark.parametrize("way", ENCODED)
def test_each_tensor_of_each_module_removed(way: Way) -> None:
    """A companion that is missing is one error for each module, and so are companions that belong to nothing."""
    tensors, config = build(way), _declaring(way)
    for suffix in way.tensors(64, 32):
        removed = {f"{module}.{suffix}" for module in _TARGETS}
        errors = _errors(MemorySource({n: k for n, k in tensors.items() if n not in removed}, config))
        assert {error.code for error in errors} == (set() if suffix in way.optional else {Code.ENCODING_INCOMPLETE})
        named = [] if suffix in way.optional else sorted(_TARGETS)
        assert sorted(module for e in errors for module in _TARGETS if f"{module}." in f"{e.tensor}.") == named, suffix


@pytest.mark.parametrize("suffix", in_ranks(exl3(4, "mcg"), 2, by_row=True).tensors(64, 32))
def test_each_slice_of_an_expert(healthy: Tensors, suffix: str) -> None:
    """Experts may be cut for tensor parallelism; each tensor of each slice is missed, and held to its shape."""
    experts = [module for module in _TARGETS if ".experts." in module]
    sliced = in_ranks(exl3(4, "mcg"), 2, by_row=True)
    tensors = {name: kind for name, kind in healthy.items() if ".experts." not in name}
    for module, shape in LINEAR.items():
        if ".experts." in module:
            tensors |= {f"{module}.{own}": kind for own, kind in sliced.tensors(*shape).items()}
    assert _errors(MemorySource(tensors)) == []
    names = sorted(f"{module}.{suffix}" for module in experts)
    errors = _errors(MemorySource({name: kind for name, kind in tensors.items() if name not in names}))
    assert _told(errors) == [("encoding-incomplete", name) for name in names]
    for change, apply in CHANGES.items():
        changed = {name: kind for name in names if (kind := apply(tensors[name]))}
        code = "encoding-dtype" if change == "retyped" else "encoding-shape"
        assert _told(_errors(MemorySource({**tensors, **changed}))) == [(code, name) for name in changed], change


@pytest.mark.parametrize("way", [pytest.param(w, id=n) for n, w in WAYS.items() if "weight" not in w.tensors(64, 32)])
def test_each_module_stored_twice(way: Way) -> None:
    """A plain weight beside the tensors of an encoding is one error for each module."""
    tensors = build(way)
    tensors |= {f"{module}.weight": Kind("BF16", LINEAR[module]) for module in _TARGETS}
    errors = _errors(MemorySource(tensors))
    assert _told(errors) == [("encoding-ambiguous", f"{module}.weight") for module in sorted(_TARGETS)]


STRAYS = {
    "two block scales": (WAYS["fp8-block"], {"weight_scale": Kind("F32", (1, 1))}, "encoding-ambiguous"),
    "a scale of a plain weight": (plain("BF16"), {"weight_scale": Kind("F32", (64, 1))}, "encoding-incomplete"),
    "both markers": (WAYS["exl3-2-mcg"], {"mul1": Kind("I32", ())}, "encoding-ambiguous"),
    "a global scale of a row scale": (WAYS["fp8-channel"], {"weight_scale_2": Kind("F32", ())}, "encoding-ambiguous"),
}


@pytest.mark.parametrize("shape", [(), (4, 1)], ids=str)
def test_a_router_bias_that_is_no_list(healthy: Tensors, shape: tuple[int, ...]) -> None:
    """Its length says how many experts there are; without one its shape is wrong."""
    name = f"{ROUTERS[0]}.e_score_correction_bias"
    assert _told(_errors(MemorySource({**healthy, name: Kind("F32", shape)}))) == [("module-shape", name)]


@pytest.mark.parametrize(("way", "stray", "code"), STRAYS.values(), ids=STRAYS)
def test_each_module_with_a_tensor_too_many(way: Way, stray: Mapping[str, Kind], code: str) -> None:
    """What belongs to no encoding, or to another one, is one error for each module, with the tensor's name."""
    names = {f"{module}.{suffix}": kind for module in _TARGETS for suffix, kind in stray.items()}
    errors = _errors(MemorySource({**build(way), **names}, _declaring(way)))
    assert _told(errors) == [(code, name) for name in sorted(names)]


@pytest.mark.parametrize("way", [mlx(8, 32), fp8_block(128, 128), nvfp4_modelopt()], ids=lambda way: way.name)
def test_embedding_and_routers_may_be_encoded(way: Way) -> None:
    """They are no linear modules, and yet read and checked as these are; a router's rows are about experts."""
    tensors = build(way, dict.fromkeys((EMBEDDING, *ROUTERS), way))
    config = _declaring(way)
    assert _errors(MemorySource(tensors, config)) == []
    for one in ROUTERS:  # the routers of trunk and MTP layer need not be stored alike
        alone = find_mtp(MemorySource(build(way, {one: way}), config)).findings
        assert [finding.message for finding in alone if finding.severity is Severity.ERROR] == []
    scale = next(suffix for suffix in way.tensors(64, 32) if suffix != "weight")
    lost = {f"{module}.{scale}" for module in (EMBEDDING, *ROUTERS)}
    errors = _errors(MemorySource({name: kind for name, kind in tensors.items() if name not in lost}, config))
    assert [error.code for error in errors] == [Code.ENCODING_INCOMPLETE] * 3
    more = {f"{ROUTERS[0]}.{suffix}": kind for suffix, kind in way.tensors(EXPERTS + 1, 64).items()}
    errors = _errors(MemorySource({**tensors, **more}, config))
    assert [(error.code, error.layer) for error in errors] == [(Code.EXPERT_COUNT, 1)]
    torn = tensors[f"{ROUTERS[0]}.weight"]._replace(shape=(EXPERTS + 1, 7))
    errors = _errors(MemorySource({**tensors, f"{ROUTERS[0]}.weight": torn}, config))
    assert _told(errors) == [("encoding-shape", f"{ROUTERS[0]}.weight")]


def _without(tensors: Tensors, part: str) -> Tensors:
    return {name: kind for name, kind in tensors.items() if part not in name}


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("way", [plain("BF16"), nvfp4_modelopt(), mlx(4, 32)], ids=lambda way: way.name)
class TestExperts:
    """A layer is told of once, however many tensors its experts have."""

    def test_a_hole(self, way: Way, layer: int) -> None:
        """Experts that are missing between others are told by number."""
        errors = _errors(MemorySource(_without(build(way), f"layers.{layer}.mlp.experts.1.")))
        assert [(error.code, error.layer, error.count) for error in errors] == [(Code.EXPERT_IDS, layer, 1)]
        assert errors[0].message == f"layer {layer}: 1 routed expert missing, 1"

    def test_the_last_one(self, way: Way, layer: int) -> None:
        """The last one leaves no hole, but fewer than the router knows."""
        errors = _errors(MemorySource(_without(build(way), f"layers.{layer}.mlp.experts.3.")))
        assert [(error.code, error.layer) for error in errors] == [(Code.EXPERT_COUNT, layer)]
        assert errors[0].actual == {"experts": 3, "router rows": 4, "bias": 4}

    def test_one_more(self, way: Way, layer: int) -> None:
        """One that the router cannot reach is too many."""
        tensors, old, new = build(way), f"layers.{layer}.mlp.experts.3.", f"layers.{layer}.mlp.experts.4."
        tensors |= {name.replace(old, new): kind for name, kind in tensors.items() if old in name}
        errors = _errors(MemorySource(tensors))
        assert [(error.code, error.layer, error.expected) for error in errors] == [(Code.EXPERT_COUNT, layer, 4)]
        assert errors[0].actual == {"experts": 5, "router rows": 4, "bias": 4}

    def test_one_projection_of_all(self, way: Way, layer: int) -> None:
        """What all of them lack is one finding with their number."""
        tensors = {n: k for n, k in build(way).items() if f"layers.{layer}.mlp.experts." not in n or ".up_" not in n}
        errors = _errors(MemorySource(tensors))
        assert [(e.tensor, e.count) for e in errors] == [(f"{LAYERS[layer]}mlp.experts.0.up_proj", 4)]
        assert errors[0].code is Code.MODULE_MISSING

    def test_none(self, way: Way, layer: int) -> None:
        """A layer without any lacks its three projections."""
        errors = _errors(MemorySource(_without(build(way), f"layers.{layer}.mlp.experts.")))
        assert [(error.code, error.layer, error.count) for error in errors] == [(Code.MODULE_MISSING, layer, 4)] * 3

    def test_fewer_by_the_config(self, way: Way, layer: int) -> None:
        """A layer may have fewer when the config says so, and router and bias agree."""
        tensors = _without(build(way), f"layers.{layer}.mlp.experts.3.")
        tensors[f"{LAYERS[layer]}mlp.gate.weight"] = Kind("BF16", (3, 64))
        tensors[f"{LAYERS[layer]}mlp.gate.e_score_correction_bias"] = Kind("F32", (3,))
        text = {**CONFIG["text_config"], "routed_experts_per_layer": {str(layer): 3}}
        assert _errors(MemorySource(tensors, {**CONFIG, "text_config": text})) == []
        assert [error.code for error in _errors(MemorySource(tensors))] == [Code.EXPERT_COUNT]


_PRECISION = (Code.PRECISION_NARROWED, Code.PRECISION_WIDENED)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("name", HELPERS)
def test_each_helper_narrowed(healthy: Tensors, name: str, dtype: str) -> None:
    """A tensor that belongs in F32 is legal in 16 bits, with a warning that names it."""
    findings = verify(MemorySource({**healthy, name: HELPERS[name]._replace(dtype=dtype)})).findings
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    (finding,) = [f for f in findings if f.code in _PRECISION]
    assert (finding.code, finding.severity) == (Code.PRECISION_NARROWED, Severity.WARNING)
    assert f"layers.{finding.layer}." in name
    assert finding.tensor == name.replace(f"layers.{finding.layer}.", "layers.N.")
    assert (finding.expected, finding.actual) == ("F32", dtype)


@pytest.mark.parametrize(("dtype", "code"), [("F32", "precision-widened"), ("F16", None)])
def test_each_other_tensor_in_another_float(healthy: Tensors, dtype: str, code: str | None) -> None:
    """F32 instead of BF16 is noted once for all alike, F16 is fine; but a DSA block is BF16 or encoded."""
    names = PLAIN_TARGETS[: -len(HELPERS)]
    dsa = {name for name in names if name.startswith(tuple(f"{layer}self_attn." for layer in LAYERS[1:]))}
    findings = verify(MemorySource({**healthy, **{n: healthy[n]._replace(dtype=dtype) for n in names}})).findings
    assert _told(f for f in findings if f.severity is Severity.ERROR) == [("dsa-dtype", name) for name in sorted(dsa)]
    patterns = {parse_name(name).pattern.removesuffix(".weight") for name in {*names} - dsa} if code else set()
    told = [(f.code.value, (f.tensor or "").removesuffix(".weight")) for f in findings if f.code in _PRECISION]
    assert sorted(told) == [(code, pattern) for pattern in sorted(patterns)]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_each_tensor_in_two_shards(tmp_path: Path, way: Way) -> None:
    """A second copy is one error for each tensor, and the library, which loads either shard, adds none."""
    tensors = build(way)
    copies = {name: kind for name, kind in tensors.items() if name.rpartition(".")[0] in _TARGETS}
    folder = write_checkpoint(tmp_path, tensors, parts=[tensors, copies], index=False, config=_declaring(way))
    source = open_source(str(folder))
    assert _told(_errors(source)) == [("duplicate-tensor", name) for name in sorted(copies)]
    answer = verify(source).answer
    assert isinstance(answer, Verification)
    (library,) = [row for row in answer.checks if row.name == "reference-parser"]
    assert (library.subjects, library.findings, library.status) == (2, 0, "passed")


def _saying(**fields: object) -> dict[str, Any]:
    return {**CONFIG, "text_config": {**CONFIG["text_config"], **fields}}


WITHOUT_VISION = {key: value for key, value in CONFIG.items() if key != "vision_config"}
PARTS = {
    "shared experts": (".shared_experts.", _saying(n_shared_experts=0), 6),
    "head": ("lm_head.", {**CONFIG, "tie_word_embeddings": True}, 0),
}


@pytest.mark.parametrize(("part", "config", "number"), PARTS.values(), ids=PARTS)
def test_a_part_that_the_config_does_not_ask_for(
    healthy: Tensors, part: str, config: dict[str, Any], number: int
) -> None:
    """It is not missed; when it is there, no row claims it, but for a head beside a tied embedding."""
    assert _errors(MemorySource(_without(healthy, part), config)) == []
    errors = _errors(MemorySource(healthy, config))
    assert {error.code for error in errors} == ({Code.MODULE_UNCLAIMED} if number else set())
    assert sum(error.count for error in errors) == number


def test_a_layer_that_is_not_there_is_one_gap(healthy: Tensors) -> None:
    """Its modules are not missed one by one."""
    errors = _errors(MemorySource(_without(healthy, LAYERS[0])))
    assert [error.code for error in errors] == [Code.LAYER_GAP]


def test_an_mtp_layer_in_the_place_of_a_trunk_layer(healthy: Tensors) -> None:
    """It is checked as what it is, the trunk layer is missed as a whole."""
    types = ["linear_attention", "deepseek_sparse_attention", "linear_attention"]
    errors = _errors(MemorySource(healthy, _saying(num_hidden_layers=3, layer_types=types)))
    assert {error.code for error in errors} == {Code.LAYER_GAP, Code.MTP_POSITION}


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("broken", [True, False], ids=["broken", "lost"])
def test_what_nobody_could_look_at_is_not_missing(tmp_path: Path, *, broken: bool, index: bool) -> None:
    """A shard that is lost or refused is one error; nothing else is said of what it held."""
    tensors = build(nvfp4_modelopt())
    parts = [
        _without(tensors, "layers."),
        {n: k for n, k in tensors.items() if "layers." in n and ".experts.3." not in n},
        {n: k for n, k in tensors.items() if ".experts.3." in n},
    ]
    folder = write_checkpoint(tmp_path, tensors, parts=parts, index=index, config=CONFIG)
    for shard in sorted(folder.glob("*.safetensors")):
        kept = shard.read_bytes()
        if broken:
            shard.write_bytes(BROKEN)
        else:
            shard.unlink()
        codes = [error.code.value for error in _errors(open_source(str(folder)))]
        assert codes == ["header-length" if broken else "index-missing-shard" if index else "shard-numbering"]
        shard.write_bytes(kept)
