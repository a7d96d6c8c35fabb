# SPDX-License-Identifier: AGPL-3.0-only
"""Oddities that nobody makes on purpose: each is told once, for what it is, and none breaks the tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind, Tensors
from encoded import CONFIG as ENCODED
from encoded import MODULES, MemorySource, build, exl3, in_ranks, plain
from typer.testing import CliRunner
from whole_model import CONFIG, look, told, whole

from glm5inspect.catalogue import Severity
from glm5inspect.census import take_census
from glm5inspect.cli import app
from glm5inspect.resolve import open_source
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

UP = f"{TEXT}layers.0.mlp.up_proj"
EXPERT = f"{TEXT}layers.3.mlp.experts."


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("weight_scale_inv", Kind("F32", (4, 2))),
        ("weight_scale", Kind("F32", (9, 9))),
        ("weight_scale_2", Kind("F32", (9, 9))),
        ("input_scale", Kind("F32", ())),
        ("mcg", Kind("I32", ())),
        ("scales", Kind("BF16", (1,))),
    ],
)
def test_a_companion_that_is_left_alone(tmp_path: Path, suffix: str, kind: Kind) -> None:
    """A module of which only a companion is left is incomplete, whatever its shape fits."""
    tensors = whole() | {f"{UP}.{suffix}": kind}
    del tensors[f"{UP}.weight"]
    found = [code for _, code, name in told(look(tmp_path, tensors)) if name and name.startswith(UP)]
    assert "encoding-incomplete" in found


NUMBERS = ["01", "007", "99999999999999999999", "9" * 5000, "123456"]


@pytest.mark.parametrize("number", NUMBERS, ids=["zero first", "zeros first", "2^64", "too many digits", "six digits"])
def test_a_number_that_no_loader_writes(tmp_path: Path, number: str) -> None:
    """An expert of such a number is told by its name, and costs nothing."""
    name = f"{EXPERT}{number}.up_proj.weight"
    tensors = whole() | {name: whole()[f"{EXPERT}1.up_proj.weight"]}
    assert told(look(tmp_path / "verify", tensors)) == [("classify", "expert-ids", name)]
    counted = take_census(open_source(str(tmp_path / "verify"))).findings
    assert [(finding.code.value, finding.tensor) for finding in counted] == [("expert-ids", name)]


def test_an_expert_too_many(tmp_path: Path) -> None:
    """One tensor of one more expert is a wrong count, and no reason to miss the rest of that expert."""
    tensors = whole() | {f"{EXPERT}4.up_proj.weight": whole()[f"{EXPERT}1.up_proj.weight"]}
    codes = {code for _, code, _ in told(look(tmp_path, tensors))}
    assert "expert-count" in codes
    assert "module-missing" not in codes


EXL3: dict[str, Any] = {**ENCODED, "quantization_config": {"quant_method": "exl3", "bits": 4, "codebook": "mcg"}}


def sliced() -> Tensors:
    """Store the routed experts in two slices each."""
    way = in_ranks(exl3(4, "mcg"), 2, by_row=True)
    return build(plain("BF16"), {module: way for module in MODULES if ".experts." in module})


def test_slices_and_their_declaration() -> None:
    """A marker in every slice is a marker."""
    report = verify(MemorySource(sliced(), EXL3))
    assert [f.code.value for f in report.findings if f.severity is Severity.ERROR] == []


def test_a_slice_that_is_lost() -> None:
    """That slices do not add up says how many there must be."""
    report = verify(MemorySource({name: kind for name, kind in sliced().items() if ".rank1." not in name}, EXL3))
    assert {f.code.value for f in report.findings if f.severity is Severity.ERROR} == {"encoding-incomplete"}


@pytest.mark.parametrize(
    "command",
    [["census"], ["verify-dsa"], ["find-mtp"]],
    ids=lambda command: command[0],
)
def test_checks_are_of_verify(command: list[str]) -> None:
    """The name of a check means nothing to another command, which must not pass for it."""
    result = CliRunner().invoke(app, [*command, "snapshot:mtp-extract", "--select", "encodings"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("outer", "inner"), [("deepseek_v3", "glm5_next_text"), ("glm5_next", "deepseek_v3")], ids=["outer", "inner"]
)
def test_half_a_foreign_model(tmp_path: Path, outer: str, inner: str) -> None:
    """A config of which one half is of another model is of another model."""
    config = {**CONFIG, "model_type": outer, "text_config": {**CONFIG["text_config"], "model_type": inner}}
    assert [code for _, code, _ in told(look(tmp_path, whole(), config))] == ["foreign-architecture"]


def without_tower() -> Tensors:
    """Leave the vision tower out."""
    return {name: kind for name, kind in whole().items() if not name.startswith("model.visual.")}


def test_no_tower(tmp_path: Path) -> None:
    """A tower that is not here is missed once."""
    report = look(tmp_path, without_tower())
    (finding,) = (finding for finding in report.findings if finding.code.value == "module-missing")
    assert (finding.check, finding.count) == ("vision", 25)


@pytest.mark.parametrize(
    "declared",
    [
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "exl3", "bits": 4.0},
    ],
    ids=["awq", "gptq", "exl3"],
)
def test_a_quantization_of_which_nothing_is_stored(declared: dict[str, Any]) -> None:
    """One module plain is the writer's choice; all of them plain is a wrong declaration."""
    source = MemorySource(build(plain("BF16")), {**ENCODED, "quantization_config": declared})
    report = verify(source)
    assert [f.code.value for f in report.findings if f.severity is Severity.ERROR] == ["quant-undeclared"]


def test_a_value_nested_as_deeply_as_the_parser_bears(tmp_path: Path) -> None:
    """A config may hold anything; what cannot be shown is not shown."""
    look(tmp_path, whole())
    deep = "[" * 900 + "]" * 900
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"text_config": {', f'"text_config": {{"rms_norm_eps": {deep},', 1)
    )
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code in (0, 1, 3)
