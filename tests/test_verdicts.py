# SPDX-License-Identifier: AGPL-3.0-only
"""What every command says of the twelve bundled inventories: which are sound, and the others' faults, no more."""

from __future__ import annotations

import gc
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pytest
from whole_model import answer, status

from glm5inspect.census import Census, take_census
from glm5inspect.dsa import DsaAnswer, verify_dsa
from glm5inspect.mtp import MtpAnswer, find_mtp
from glm5inspect.report import Finding, Policy, Report
from glm5inspect.resolve import open_source
from glm5inspect.snapshot import bundled_names
from glm5inspect.verification import MtpState, Pruned
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = 321_323_031_390
WITHOUT_MTP = 313_890_438_974
MTP = 7_432_592_416
COMPLETE, MISSING = MtpState("complete", 45), MtpState("missing", None)
DSA = "3,7,11,15,19,23,27,31,35,39,43"


class Verdict(NamedTuple):
    """What is known of an inventory.

    Attributes:
        findings: Code and severity to the number of findings, and of what they speak of together.
        parameters: Of the whole; ``None`` for another architecture.
        bits: Stored for each parameter.
        experts: How routed experts are stored in the trunk, or nothing.
        mtp_experts: How those of the MTP layer are.
        mtp: Its state.
        blocks: Bytes of all DSA blocks.
        elsewhere: Codes that `census`, `find-mtp` and `verify-dsa` find.
        failed: The checks that fail.
    """

    findings: dict[tuple[str, str], tuple[int, int]]
    parameters: int | None
    bits: float | None
    experts: str | None
    mtp_experts: str | None
    mtp: MtpState
    blocks: int
    elsewhere: tuple[list[str], list[str], list[str]] = ([], [], [])
    failed: tuple[str, ...] = ()


NVFP4, FP8, BF16 = "nvfp4-modelopt", "fp8-block 128x128", "plain BF16"
PLAIN_BLOCKS = 2_997_946_368
MIXED = (1, 2)
OTHER = ["foreign-architecture"]

VERDICTS = {
    "reference": Verdict(
        {("quant-pattern-unused", "NOTE"): (5, 5)}, WHOLE, 4.846, NVFP4, NVFP4, COMPLETE, PLAIN_BLOCKS
    ),
    "official-fp8": Verdict(
        {("quant-pattern-unused", "NOTE"): (4, 4)}, WHOLE, 8.174, FP8, FP8, COMPLETE, 1_790_281_728
    ),
    "official-bf16": Verdict({}, WHOLE, 16.0, BF16, BF16, COMPLETE, PLAIN_BLOCKS),
    "libertai-w4a4": Verdict(
        {("quant-activations", "WARNING"): (1, 37_152), ("quant-pattern-unused", "NOTE"): (5, 5)},
        WHOLE,
        4.846,
        NVFP4,
        NVFP4,
        COMPLETE,
        PLAIN_BLOCKS,
    ),
    "nvidia-nvfp4": Verdict(
        {
            ("quant-undeclared", "ERROR"): (1, 876),
            ("precision-narrowed", "WARNING"): (7, 290),
            ("kv-scheme", "WARNING"): (1, 1),
            ("precision-widened", "NOTE"): (3, 102),
            ("encoding-mixed", "NOTE"): MIXED,
            ("mtp-encoding", "NOTE"): (1, 1),
        },
        WHOLE,
        5.089,
        NVFP4,
        BF16,
        COMPLETE,
        PLAIN_BLOCKS,
        ([], ["mtp-encoding"], []),
        ("quant-config",),
    ),
    "w4a16-packed": Verdict(
        {("encoding-mixed", "NOTE"): MIXED, ("mtp-encoding", "NOTE"): (1, 1)},
        WHOLE,
        4.75,
        "int-packed 4-bit g128",
        BF16,
        COMPLETE,
        PLAIN_BLOCKS,
        ([], ["mtp-encoding"], []),
    ),
    "exl3-4bpw": Verdict({}, WHOLE, 4.372, "exl3 4-bit", "exl3 4-bit", COMPLETE, PLAIN_BLOCKS),
    "mlx-4bit": Verdict(
        {("foreign-dialect", "NOTE"): (1, 2_998), ("mtp-missing", "ERROR"): (1, 1)},
        WITHOUT_MTP,
        4.525,
        "mlx-affine 4-bit g64",
        None,
        MISSING,
        819_450_368,
        (["foreign-dialect"], ["foreign-dialect", "mtp-missing"], ["foreign-dialect"]),
        ("mtp",),
    ),
    "transformers-saved": Verdict(
        {("foreign-dialect", "ERROR"): (1, 524), ("mtp-missing", "ERROR"): (1, 1)},
        WITHOUT_MTP,
        16.0,
        BF16,
        None,
        MISSING,
        2_748_117_504,
        (["foreign-dialect"], ["foreign-dialect", "mtp-missing"], ["foreign-dialect"]),
        ("classify", "mtp"),
    ),
    "reap50-fp8": Verdict(
        {
            ("mtp-absent", "NOTE"): (1, 1),
            ("config-differs", "NOTE"): (2, 2),
            ("quant-pattern-unused", "NOTE"): (4, 4),
        },
        161_662_756_766,
        8.341,
        FP8,
        None,
        MtpState("none", None),
        1_641_091_584,
        ([], ["mtp-absent"], []),
    ),
    "mtp-extract": Verdict(
        {("draft-tree", "NOTE"): (1, 1)},
        8_701_369_376,
        16.0,
        None,
        BF16,
        COMPLETE,
        249_828_864,
        (["draft-tree"], [], ["draft-tree"]),
    ),
    "glm-5.3-not-flash": Verdict(
        {("foreign-architecture", "ERROR"): (1, 1)},
        None,
        None,
        None,
        None,
        MtpState("unknown", None),
        0,
        (OTHER, OTHER, OTHER),
        ("classify",),
    ),
}
EACH = pytest.mark.parametrize(("name", "known"), VERDICTS.items(), ids=VERDICTS)


@pytest.fixture(autouse=True, scope="module")
def _no_collector() -> Iterator[None]:
    """Do as the command line does: nothing here makes cycles, and half of the time would go into looking for them."""
    gc.disable()
    yield
    gc.enable()


@lru_cache
def verified(name: str) -> Report:
    """Verify a bundled inventory, once for all tests."""
    return verify(open_source(f"snapshot:{name}"))


def found(name: str, code: str) -> list[Finding]:
    """Return the findings of one code."""
    return [finding for finding in verified(name).findings if finding.code.value == code]


def codes(report: Report) -> list[str]:
    """Return the codes of all findings."""
    return [finding.code.value for finding in report.findings]


def test_every_bundled_inventory_has_a_verdict() -> None:
    """None is bundled that nobody looked at."""
    assert bundled_names() == sorted(VERDICTS)


@EACH
def test_findings_of_verify(name: str, known: Verdict) -> None:
    """Exactly these, with their severities and what they speak of; what has no error is right."""
    report = verified(name)
    numbers, spoken = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for finding in report.findings:
        key = (finding.code.value, finding.severity.name)
        numbers[key] += 1
        spoken[key] += finding.count
    assert {key: (number, spoken[key]) for key, number in numbers.items()} == known.findings
    assert report.judged(Policy()).ok == (not any(severity == "ERROR" for _, severity in known.findings))
    assert report.complete
    assert {check for check, ended in status(report).items() if ended == "failed"} == set(known.failed)


@EACH
def test_the_summary_of_verify(name: str, known: Verdict) -> None:
    """Parameters, bits, encodings of the experts, the MTP layer, and which inventory it is."""
    verification = answer(verified(name))
    assert (verification.parameters, verification.bits_per_parameter) == (known.parameters, known.bits)
    rows = {(row.part, row.encoding): row for row in verification.encodings}
    experts = [row.encoding for row in rows.values() if row.part == "routed experts"]
    assert experts == ([known.experts] if known.experts else [])
    mtp = [row.encoding for row in rows.values() if row.part == "MTP"]
    assert mtp[:1] == ([known.mtp_experts] if known.mtp_experts else [])  # the largest first
    assert sum(row.bytes for row in rows.values()) in (verification.bytes, 0)
    assert (verification.mtp.state, verification.mtp.layer) == (known.mtp.state, known.mtp.layer)
    assert verification.mtp.as_declared is ("quant-config" not in known.failed)
    assert verification.largest_shard is None
    assert verification.draft == (name == "mtp-extract")
    assert verification.pruned == (Pruned(144, 288) if name == "reap50-fp8" else None)
    known_as = verification.fingerprint
    assert (known_as.snapshot, known_as.exact, known_as.differing_rows) == (name, True, 0)


@EACH
def test_the_other_commands(name: str, known: Verdict) -> None:
    """`census`, `find-mtp` and `verify-dsa` see through the same encodings and names."""
    source = open_source(f"snapshot:{name}")
    census, mtp, dsa = take_census(source), find_mtp(source), verify_dsa(source)
    assert isinstance(census.answer, Census)
    assert isinstance(mtp.answer, MtpAnswer)
    assert isinstance(dsa.answer, DsaAnswer)
    assert (codes(census), codes(mtp), codes(dsa)) == known.elsewhere
    assert census.answer.parameters == known.parameters
    assert census.answer.encodings == answer(verified(name)).encodings
    assert census.answer.unknown == () or name == "glm-5.3-not-flash"
    has_mtp = known.mtp.state == "complete"
    assert mtp.answer.parameters == (MTP if has_mtp else None)
    roles = {row.part: row.encoding for row in mtp.answer.encodings if row.part == "MoeExpert"}
    assert roles == ({"MoeExpert": known.mtp_experts} if has_mtp else {})
    assert sum(block.bytes for block in dsa.answer.blocks) == known.blocks
    assert {(block.bound, block.expected, block.ok) for block in dsa.answer.blocks} <= {(14, 14, True)}


def test_the_faults_of_the_nvfp4_build_in_words() -> None:
    """Layer 45 is plain and no entry leaves it out; the remedy can be pasted, in both prefixes."""
    (undeclared,) = found("nvidia-nvfp4", "quant-undeclared")
    assert (undeclared.layer, undeclared.count, undeclared.check) == (45, 876, "quant-config")
    assert '"model.language_model.layers.45*", "model.layers.45*"' in (undeclared.hint or "")
    assert "--hf-overrides" in (undeclared.hint or "")
    narrowed = {f.tensor or "": (f.count, f.expected, f.actual) for f in found("nvidia-nvfp4", "precision-narrowed")}
    leaves = {name.rpartition(".")[2]: facts for name, facts in narrowed.items()}
    assert leaves == {
        **dict.fromkeys(("hc_attn_base", "hc_attn_scale", "hc_ffn_base", "hc_ffn_scale"), (45, "F32", "BF16")),
        **dict.fromkeys(("A_log", "dt_bias"), (34, "F32", "BF16")),
        "e_score_correction_bias": (42, "F32", "BF16"),
    }
    widened = [(f.count, f.expected, f.actual) for f in found("nvidia-nvfp4", "precision-widened")]
    assert widened == [(34, "BF16", "F32")] * 3
    (mixed,) = found("nvidia-nvfp4", "encoding-mixed")
    assert mixed.message == "routed experts: nvfp4-modelopt in layers 3-44; plain in layer 45"


def test_the_saved_model_in_words() -> None:
    """524 of 1,609 names, and what they are."""
    (foreign,) = found("transformers-saved", "foreign-dialect")
    assert "524 of 1,609 names are not in the released layout" in foreign.message
    assert "(HyperConnection 270, MoeExpert 84, KdaDecay 68, KdaProjection 68, KdaConv 34)" in foreign.message
    (missing,) = found("transformers-saved", "mtp-missing")
    assert "Restore the layer" in (missing.hint or "")
    assert "set num_nextn_predict_layers to 0" in (missing.hint or "")


HELPERS = {"mHC": 180, "KDA": 68, "router": 42, "MTP": 1}


@pytest.mark.parametrize("name", ["reference", "official-fp8", "official-bf16", "libertai-w4a4", "exl3-4bpw"])
def test_291_helpers_are_kept_in_32_bits(name: str) -> None:
    """Of hyper-connections, KDA and routers; no other tensor that the model is made of."""
    rows = [row for row in answer(verified(name)).encodings if row.encoding == "plain F32"]
    assert {row.part: row.modules for row in rows} == HELPERS
    assert sum(row.modules for row in rows) == 291


def test_parts_of_the_reference() -> None:
    """Bytes, layers and bits of every part, `o_proj` with its mixer."""
    rows = answer(verified("reference")).encodings
    assert [(r.part, r.encoding, r.layers, r.modules, r.bytes, r.bits_per_parameter) for r in rows if r.layers != "45"][
        :5
    ] == [
        ("routed experts", NVFP4, "3-44", 36_288, 171_228_411_648, 4.5),
        ("shared experts", BF16, "3-44", 126, 2_113_929_216, 16.0),
        ("router", BF16, "3-44", 42, 99_090_432, 16.0),
        ("router", "plain F32", "3-44", 42, 48_384, 32.0),
        ("dense FFN", BF16, "0-2", 9, 905_969_664, 16.0),
    ]
    assert [(r.layers, r.bytes) for r in rows if r.part == "DSA"] == [(DSA, 2_748_117_504)]
    assert sum(r.bytes for r in rows if r.part == "MTP") == 4_446_537_728
    assert sum(r.parameters for r in rows) == WHOLE
    assert sum(r.parameters for r in rows if r.part == "vision") == 563_627_008


def test_a_snapshot_has_no_shards_to_open() -> None:
    """What was not looked at is said to be that."""
    report = verified("reference")
    ended = status(report)
    assert (ended["reference-parser"], ended["index"], ended["integrity"]) == ("not-read", "not-applicable", "passed")
    assert answer(report).not_read == ("tensor values",)


@pytest.mark.parametrize(("name", "code"), [("mlx-4bit", "mtp-missing"), ("reap50-fp8", "part-required")])
def test_a_required_layer_whatever_the_config_says(name: str, code: str) -> None:
    """Whether it is declared or not, it is missed once; the vision tower is there, and no finding."""
    report = verify(open_source(f"snapshot:{name}"), require=["mtp", "vision"])
    (required,) = (finding for finding in report.findings if finding.code.value in ("mtp-missing", "part-required"))
    assert (required.check, required.code.value) == ("mtp", code)
    assert not report.judged(Policy()).ok
