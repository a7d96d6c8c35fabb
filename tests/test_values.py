# SPDX-License-Identifier: AGPL-3.0-only
"""Values of small tensors: each fault is told once, and a healthy checkpoint is silent."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoints import TEXT, Kind, write_checkpoint
from typer.testing import CliRunner, Result
from valued import MULTIPLIERS, PER_LAYER, encoded, expert, fill, nvfp4
from whole_model import CONFIG, answer, serious, status, told, whole

from glm5inspect.catalogue import Severity
from glm5inspect.cli import app
from glm5inspect.resolve import open_source
from glm5inspect.scope import VALUE_CHECKS, ValueOptions
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Report

GATE = expert(3, 0, "gate_proj", "weight_scale_2")
NORM = f"{TEXT}layers.4.self_attn.o_norm.weight"
BIAS = f"{TEXT}layers.5.self_attn.indexer.k_norm.bias"
ROUTER = f"{TEXT}layers.4.mlp.gate.e_score_correction_bias"
NAN, INF = math.nan, math.inf


def look(folder: Path, values: Mapping[str, object], tensors: Tensors | None = None, **options: Any) -> Report:  # noqa: ANN401 - of `verify`
    """Write a checkpoint with values, healthy but for those given, and verify them."""
    config = options.pop("config", CONFIG)
    write_checkpoint(folder, nvfp4() if tensors is None else tensors, config=config)
    fill(folder, values)
    return verify(open_source(str(folder)), values=ValueOptions(**options))


def value_findings(report: Report) -> list[tuple[str | None, str, str | None]]:
    """Return check, code and tensor of what the checks of values found."""
    return [entry for entry in told(report) if entry[0] in VALUE_CHECKS]


def test_healthy_values_are_silent(tmp_path: Path) -> None:
    """Every check looked at what there is, and found nothing; everything that was to be read was."""
    report = look(tmp_path, {}, nvfp4(activations="input_scale"))
    assert value_findings(report) == []
    assert {check: status(report)[check] for check in VALUE_CHECKS} == {
        "scale-pairs": "passed",
        "scale-range": "passed",
        "norm-values": "passed",
        "helper-values": "passed",
        "markers": "not-applicable",
    }
    subjects = {row.name: row.subjects for row in answer(report).checks}
    # 36 modules with two scalar scales each, and with block scales that are few enough to be read all
    assert [subjects[check] for check in VALUE_CHECKS] == [24, 72 + 36, 28, 31, 0]
    values = answer(report).values
    assert values is not None
    assert (values.tensors, values.of, values.requests) == (131, 131, 0)
    assert (values.block_scales, values.block_scales_of) == (36, 36)
    assert answer(report).not_read == ("values of weights",)
    assert report.complete


def test_nothing_is_read_unless_asked(tmp_path: Path) -> None:
    """The checks are there and say that they did not look, as does the verdict."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG), {GATE: [0.0]})
    report = verify(open_source(str(folder)))
    assert {status(report)[check] for check in VALUE_CHECKS} == {"not-read"}
    assert (answer(report).values, answer(report).not_read) == (None, ("tensor values",))
    assert value_findings(report) == []


@pytest.mark.parametrize(
    ("scale", "activations", "suffix"),
    [
        ("weight_scale_2", None, "weight_scale_2"),
        ("weight_scale_2", "input_scale", "input_scale"),
        ("weight_global_scale", None, "weight_global_scale"),
        ("weight_global_scale", "input_global_scale", "input_global_scale"),
    ],
)
def test_one_pair_of_twelve(scale: str, activations: str | None, suffix: str, tmp_path: Path) -> None:
    """Gate 0.01 and up 0.1, or the reciprocals 100 and 10: one pair, ten times, in layer 3."""
    gate, up = (100.0, 10.0) if "global" in suffix else (0.01, 0.1)
    values = {expert(3, 0, "gate_proj", suffix): [gate], expert(3, 0, "up_proj", suffix): [up]}
    values |= {
        expert(layer, number, half, suffix): [0.25 + number]
        for layer, number in PER_LAYER[1:]
        for half in ("gate_proj", "up_proj")
    }
    report = look(tmp_path, values, nvfp4(scale=scale, activations=activations))
    (finding,) = [finding for finding in serious(report) if finding.check == "scale-pairs"]
    assert (finding.code.value, finding.severity, finding.count) == ("scale-pair-unequal", Severity.WARNING, 1)
    assert finding.tensor == expert(3, 0, "gate_proj", suffix)
    assert finding.message.startswith(f"{suffix}: 1 of 12 pairs of gate and up differ (8.3%), ratio median 1, ")
    assert finding.message.endswith("max 10, layers 3")
    (row,) = [row for row in answer(report).scale_pairs if row.scale == suffix]
    assert (row.pairs, row.of, row.unequal, row.median, row.layers) == (12, 12, 1, 1.0, "3")
    assert row.max == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize(("most", "is_error"), [(None, False), (9.9, True), (10.0, False), (10.1, False)])
def test_a_ratio_that_is_too_large(most: float | None, is_error: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A warning, and an error above the ratio that the caller can live with."""
    values = {GATE: [0.01], expert(3, 0, "up_proj", "weight_scale_2"): [0.1]}
    report = look(tmp_path, values, max_scale_ratio=most)
    (finding,) = [finding for finding in serious(report) if finding.check == "scale-pairs"]
    assert (finding.severity is Severity.ERROR) == is_error


FAULTS: dict[str, tuple[str, object, str, str, str]] = {
    "zero": (expert(4, 2, "down_proj", "weight_scale_2"), [0.0], "scale-range", "scale-invalid", ": zero"),
    "negative": (expert(4, 2, "down_proj", "weight_scale_2"), [-0.5], "scale-range", "scale-invalid", ": negative"),
    "NaN": (expert(4, 2, "down_proj", "weight_scale_2"), [NAN], "scale-range", "scale-invalid", ": NaN"),
    "infinite": (expert(4, 2, "down_proj", "weight_scale_2"), [INF], "scale-range", "scale-invalid", ": infinite"),
    "block scales": (
        expert(5, 0, "up_proj", "weight_scale"),
        b"\x38" * 126 + b"\x00\x7f",
        "scale-range",
        "scale-invalid",
        ": 1 NaN, 1 zero of 128 values",
    ),
    "norm of zeros": (NORM, [0.0] * 8, "norm-values", "norm-invalid", ": all 8 values are 0"),
    "norm with NaN": (NORM, [1.0] * 7 + [NAN], "norm-values", "norm-invalid", ": 1 of 8 values is NaN or infinite"),
    "norm with Inf": (
        NORM,
        [INF, -INF] + [1.0] * 6,
        "norm-values",
        "norm-invalid",
        "2 of 8 values are NaN or infinite",
    ),
    "constant norm": (NORM, [1.0] * 8, "norm-values", "norm-constant", ": all 8 values are 1"),
    "(1 + w)": (
        NORM,
        [-0.25, 0.125, 0.0, -0.125, 0.25, -0.0625, 0.0625, 0.5],
        "norm-values",
        "norm-offset",
        ": 38% of the values are negative, the median is 0.03125",
    ),
    "less than 0": (
        NORM,
        [-0.5 - i / 16 for i in range(8)],
        "norm-values",
        "norm-offset",
        "100% of the values are negative",
    ),
    "final norm": (f"{TEXT}norm.weight", [0.0] * 64, "norm-values", "norm-invalid", ": all 64 values are 0"),
    "MTP norm": (f"{TEXT}layers.5.enorm.weight", [1.0] * 64, "norm-values", "norm-constant", ": all 64 values are 1"),
    "zero bias": (BIAS, [0.0] * 8, "norm-values", "bias-zero", ": all 8 values are 0"),
    "bias with NaN": (BIAS, [NAN] * 8, "norm-values", "norm-invalid", ": 8 of 8 values are NaN or infinite"),
    "A_log with NaN": (
        f"{TEXT}layers.0.self_attn.A_log",
        [0.1, NAN, 0.3, 0.7],
        "helper-values",
        "helper-invalid",
        ": 1 of 4 values is NaN or infinite",
    ),
    "rounded bias": (ROUTER, [34.5, 34.25, 34.5, 34.25], "helper-values", "helper-rounded", ": all 4 values fit BF16"),
    "rounded scale": (
        f"{TEXT}layers.2.hc_ffn_scale",
        [0.5, 1.0, 2.0],
        "helper-values",
        "helper-rounded",
        ": all 3 values fit BF16",
    ),
}


@pytest.mark.parametrize(("name", "values", "check", "code", "said"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_told_once(name: str, values: object, check: str, code: str, said: str, tmp_path: Path) -> None:
    """By its own check, about its own tensor, in words."""
    report = look(tmp_path, {name: values})
    assert value_findings(report) == [(check, code, name)]
    (finding,) = [finding for finding in serious(report) if finding.check == check]
    assert finding.message.startswith(f"{name}: ")
    assert said in finding.message
    assert status(report)[check] == ("failed" if finding.severity is Severity.ERROR else "passed")


SILENT: dict[str, tuple[str, object]] = {
    "a few negative": (NORM, [-0.25, -0.125, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]),
    "a small norm": (NORM, [0.01 + i / 1024 for i in range(8)]),
    "any sign in a LayerNorm": (
        f"{TEXT}layers.5.self_attn.indexer.k_norm.weight",
        [-1.0, 1.0, -0.5, 0.5, 2, -2, 3, -3],
    ),
    "any sign in its bias": (BIAS, [-1.0, 1.0, -0.5, 0.5, 2, -2, 3, -3]),
    "one value that does not fit": (ROUTER, [34.5, 34.25, 34.5, 34.2]),
    "the greatest scale": (GATE.replace("gate", "down"), [3.4e38]),
    "the least scale": (GATE.replace("gate", "down"), [1e-45]),
}


@pytest.mark.parametrize(("name", "values"), SILENT.values(), ids=SILENT)
def test_what_is_no_fault(name: str, values: object, tmp_path: Path) -> None:
    """Near a fault, and none."""
    assert value_findings(look(tmp_path, {name: values})) == []


def test_a_difference_of_the_last_bit(tmp_path: Path) -> None:
    """It is one, and no rounding hides it."""
    report = look(
        tmp_path, {GATE: struct.pack("<I", 0x3C23D70A), GATE.replace("gate", "up"): struct.pack("<I", 0x3C23D70B)}
    )
    (finding,) = [finding for finding in serious(report) if finding.check == "scale-pairs"]
    assert "1 of 12 pairs of gate and up differ" in finding.message
    assert finding.message.endswith("max 1 + 9.3e-08, layers 3")


def test_scales_of_a_whole_tensor_are_compared_too(tmp_path: Path) -> None:
    """FP8 with one scale a matrix: loaders that fuse keep one of the two."""
    tensors = {name: kind for name, kind in whole().items() if ".mlp.experts." not in name}
    for layer, number in PER_LAYER:
        for half, shape in {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}.items():
            tensors[expert(layer, number, half, "weight")] = Kind("F8_E4M3", shape)
            tensors[expert(layer, number, half, "weight_scale")] = Kind("F32", ())
    scales = {name: [0.1] for name in tensors if name.endswith(".weight_scale")}
    report = look(tmp_path, scales | {expert(4, 2, "up_proj", "weight_scale"): [0.2]}, tensors)
    assert value_findings(report) == [("scale-pairs", "scale-pair-unequal", expert(4, 2, "gate_proj", "weight_scale"))]


def test_norms_with_one_fault_are_told_in_one_line(tmp_path: Path) -> None:
    """Their numbers differ, and the table folds them all the same."""
    offset = {f"{TEXT}layers.{layer}.self_attn.o_norm.weight": [layer - i for i in range(8)] for layer in (0, 1, 2, 4)}
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG), offset)
    told = [line for line in run(folder, "--select", "norm-values").stdout.splitlines() if line.startswith("warning")]
    pattern = "model.language_model.layers.N.self_attn.o_norm.weight"
    fault = "the values of an RMSNorm centre on or below 0"
    assert told == [f"warning norm-offset: {pattern}: 4 tensors in layers 0-2,4: {fault}"]


def test_many_alike_are_one_finding(tmp_path: Path) -> None:
    """Of one kind, layer and fault; another layer has one of its own, and invalid ones are in no ratio."""
    values = {expert(layer, number, "up_proj", "weight_scale_2"): [0.0] for layer, number in PER_LAYER[:8]}
    report = look(tmp_path, values)
    found = [finding for finding in serious(report) if finding.check in VALUE_CHECKS]
    assert [(finding.layer, finding.count) for finding in found] == [(3, 4), (4, 4)]
    assert found[0].message == f"{expert(3, 0, 'up_proj', 'weight_scale_2')}: zero, as are 3 more like it of layer 3"
    (row,) = answer(report).scale_pairs
    assert (row.pairs, row.of, row.unequal) == (4, 12, 0)


def test_16_bit_helpers_are_the_business_of_another_check(tmp_path: Path) -> None:
    """A helper that is stored as BF16 is narrowed, which headers tell; its values fit BF16 by nature."""
    tensors = nvfp4() | {ROUTER: Kind("BF16", (4,))}
    report = look(tmp_path, {}, tensors)
    assert value_findings(report) == []
    assert "precision-narrowed" in {finding.code.value for finding in report.findings}


def packed(suffix: str) -> Tensors:
    """Return the tiny model with experts as EXL3 with a marker, or as packed integers."""
    tensors = {name: kind for name, kind in whole().items() if ".mlp.experts." not in name}
    for layer, number in PER_LAYER:
        for half, (rows, columns) in {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}.items():
            module = expert(layer, number, half, "")
            if suffix == "weight_shape":
                tensors[f"{module}weight_packed"] = Kind("I32", (rows, columns // 8))
                tensors[f"{module}weight_scale"] = Kind("BF16", (rows, columns // 32))
                tensors[f"{module}weight_shape"] = Kind("I64", (2,))
                continue
            tensors[f"{module}trellis"] = Kind("I16", (columns // 16, rows // 16, 64))
            tensors[f"{module}suh"], tensors[f"{module}svh"] = Kind("F16", (columns,)), Kind("F16", (rows,))
            tensors[f"{module}{suffix}"] = Kind("I32", ())
    return tensors


def shapes() -> dict[str, object]:
    """Return the right ``weight_shape`` of every routed expert."""
    return {
        expert(layer, number, half, "weight_shape"): (64, 32) if half == "down_proj" else (32, 64)
        for layer, number in PER_LAYER
        for half in ("gate_proj", "up_proj", "down_proj")
    }


def exl3(codebook: str | None) -> dict[str, Any]:
    """Return the config with an EXL3 block."""
    return {**CONFIG, "quantization_config": {"quant_method": "exl3", "bits": 4, "codebook": codebook}}


@pytest.mark.parametrize(
    ("marker", "codebook", "wrong", "expected"),
    [
        ("mcg", "mcg", 0x83DCD12D, "0xcbac1fed"),
        ("mul1", "mul1", 0xCBAC1FED, "0x83dcd12d"),
        ("mcg", None, 1, "0xcbac1fed"),
        ("mul1", "unheard-of", 0, "0x83dcd12d"),
    ],
)
def test_markers(marker: str, codebook: str | None, wrong: int, expected: str, tmp_path: Path) -> None:
    """A marker holds the multiplier of the declared codebook, or where none is declared, of the one in its name."""
    healthy = look(tmp_path / "healthy", {}, packed(marker), config=exl3(codebook))
    assert value_findings(healthy) == []
    assert next(row for row in answer(healthy).checks if row.name == "markers").subjects == 36
    name = expert(4, 1, "up_proj", marker)
    report = look(tmp_path / "wrong", {name: wrong.to_bytes(4, "little")}, packed(marker), config=exl3(codebook))
    assert value_findings(report) == [("markers", "marker-mismatch", name)]
    (finding,) = [finding for finding in serious(report) if finding.check == "markers"]
    assert finding.message == f"{name}: {wrong:#010x} instead of {expected}"


def test_a_marker_of_another_codebook_than_declared(tmp_path: Path) -> None:
    """All 36 are wrong: one finding a layer and projection."""
    values = {
        expert(layer, number, half, "mcg"): MULTIPLIERS["mul1"].to_bytes(4, "little")
        for layer, number in PER_LAYER
        for half in ("gate_proj", "up_proj", "down_proj")
    }
    found = value_findings(look(tmp_path, values, packed("mcg"), config=exl3("mcg")))
    assert [code for _, code, _ in found] == ["marker-mismatch"] * 9


def test_weight_shapes(tmp_path: Path) -> None:
    """Rows and columns swapped: one finding, with both shapes."""
    assert value_findings(look(tmp_path / "healthy", shapes(), packed("weight_shape"))) == []
    name = expert(5, 3, "down_proj", "weight_shape")
    report = look(tmp_path / "wrong", shapes() | {name: (32, 64)}, packed("weight_shape"))
    assert value_findings(report) == [("markers", "weight-shape-mismatch", name)]
    (finding,) = [finding for finding in serious(report) if finding.check == "markers"]
    assert finding.message == f"{name}: [32, 64] instead of [64, 32]"


def test_statistics(tmp_path: Path) -> None:
    """Count, least, median, greatest and the finite share of each kind, by an independent computation."""
    own = {f"{TEXT}layers.{layer}.self_attn.A_log": [layer + 0.1, -layer, INF, NAN] for layer in (0, 1, 2, 4)}
    report = look(tmp_path, own)
    (row,) = [row for row in answer(report).statistics if row.kind == "self_attn.A_log"]
    numbers = np.array([[np.float32(layer + 0.1), -layer] for layer in (0, 1, 2, 4)], np.float64).ravel()
    assert (row.tensors, row.of, row.values, row.finite) == (4, 4, 16, 0.5)
    assert (row.min, row.max) == (-4.0, float(np.float32(4.1)))
    assert row.median == sorted(numbers)[3] / 2 + sorted(numbers)[4] / 2
    kinds = [row.kind for row in answer(report).statistics]
    assert kinds == sorted(kinds)
    assert "mlp.experts.E.gate_proj.weight_scale_2" in kinds
    json.dumps([row.min for row in answer(report).statistics], allow_nan=False)


def run(folder: object, *options: str) -> Result:
    """Verify values by the command line."""
    return CliRunner().invoke(app, ["verify", str(folder), "--values", *options], catch_exceptions=False)


def test_the_command_line(tmp_path: Path) -> None:
    """The tables are there, and the ratio decides between 0 and 1."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG), {GATE: [0.01], GATE.replace("gate", "up"): [0.1]})
    told = run(folder)
    assert told.exit_code == 0
    assert "warning scale-pair-unequal: weight_scale_2: 1 of 12 pairs of gate and up differ" in told.stdout
    assert "values: 95 of 95 small tensors and 36 of 36 block scales read, " in told.stdout
    assert "not checked: values of weights" in told.stdout.splitlines()[-1]
    assert run(folder, "--max-scale-ratio", "2").exit_code == 1
    assert run(folder, "--max-scale-ratio", "20").exit_code == 0
    assert run(folder, "--select", "scale-pairs", "--fail-on", "warning").exit_code == 1
    assert run(folder, "--ignore", "scale-pairs", "--select", "scale-pairs", "--fail-on", "warning").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [["--max-scale-ratio", "0.5"], ["--max-scale-ratio", "nan"], ["--max-requests", "0"], ["--max-requests", "x"]],
)
def test_options_that_make_no_sense(options: list[str]) -> None:
    """A ratio below 1, or no request at all, is wrong usage."""
    result = run("snapshot:reference", *options)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_snapshot_has_no_values() -> None:
    """Asked for and not there: one line and exit 3; never a clean answer."""
    result = run("snapshot:reference")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "glm5inspect: snapshot:reference: a snapshot has no tensor values; give the checkpoint itself\n"
    )


def test_cache_scales_are_scales(tmp_path: Path) -> None:
    """Those of the KV cache must be positive like any other."""
    names = {f"{TEXT}layers.3.self_attn.{letter}_scale": Kind("F32", ()) for letter in "kv"}
    assert value_findings(look(tmp_path / "healthy", {}, nvfp4() | names)) == []
    name = f"{TEXT}layers.3.self_attn.k_scale"
    report = look(tmp_path / "wrong", {name: [0.0]}, nvfp4() | names)
    assert value_findings(report) == [("scale-range", "scale-invalid", name)]


def test_what_headers_say_wrong_is_not_read(tmp_path: Path) -> None:
    """A norm of another shape has its finding already; nothing is made up from its bytes."""
    report = look(tmp_path, {NORM: encoded("BF16", [0.0] * 9)}, nvfp4() | {NORM: Kind("BF16", (9,))})
    assert value_findings(report) == []
    assert "module-shape" in {finding.code.value for finding in report.findings}


def test_numbers_as_the_file_has_them(tmp_path: Path) -> None:
    """Scales are little-endian F32, whatever the machine."""
    report = look(tmp_path, {GATE: struct.pack("<f", 0.5), GATE.replace("gate", "up"): struct.pack("<f", 0.5)})
    (row,) = [row for row in answer(report).statistics if row.kind == "mlp.experts.E.gate_proj.weight_scale_2"]
    assert (row.max, row.values) == (0.5, 12)
