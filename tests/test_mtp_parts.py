# SPDX-License-Identifier: AGPL-3.0-only
"""What an MTP layer is held to: the trunk's experts and router, expert 0 for the encoding, numbers in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoints import TEXT, Kind, parts_by_layer, tiny, write_checkpoint

from glm5inspect.inventory import missing_numbers
from glm5inspect.mtp import find_mtp
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from checkpoints import Tensors

    from glm5inspect.report import Finding


def found(folder: Path, tensors: Tensors) -> list[Finding]:
    """Return what is found about the MTP layer of these tensors."""
    return list(find_mtp(open_source(str(write_checkpoint(folder, tensors)))).findings)


def test_a_draft_needs_a_router_too(tmp_path: Path) -> None:
    """Without a trunk to compare with, the router's weight is still expected."""
    draft = {name: kind for name, kind in parts_by_layer(tiny())[5].items() if ".mlp.gate." not in name}
    (finding,) = found(tmp_path, draft)
    assert finding.message == "layer 5 lacks 1 router tensor: mlp.gate.weight"


def test_expert_0_stands_for_the_trunk(tmp_path: Path) -> None:
    """How its other experts are stored does not count."""
    other = {f"{TEXT}layers.4.mlp.experts.1.gate_proj.weight": Kind("I8", (32, 32))}
    assert found(tmp_path / "other", tiny() | other) == []
    first = {f"{TEXT}layers.4.mlp.experts.0.gate_proj.weight": Kind("I8", (32, 32))}
    (finding,) = found(tmp_path / "first", tiny() | first)
    assert (finding.code.value, finding.expected) == ("mtp-encoding", ["F32", "F8_E4M3", "I8", "U8"])


def test_missing_experts_come_in_the_order_of_numbers(tmp_path: Path) -> None:
    """Ten comes after nine, and a finding lists no more than sixteen."""
    more = {f"{TEXT}layers.4.mlp.experts.{expert}.up_proj.weight": Kind("U8", (32, 32)) for expert in range(4, 24)}
    (finding,) = found(tmp_path, tiny() | more)
    assert finding.count == 20
    assert finding.expected == [f"mlp.experts.{expert}.up_proj.weight" for expert in range(4, 20)]
    assert finding.message.startswith("layer 5 lacks 20 expert tensors of experts 4-23: mlp.experts.4.up_proj.weight, ")


def test_only_five_digits_number_a_shard() -> None:
    """Other names may hold numbers for other reasons."""
    assert missing_numbers(["x-1-of-2.safetensors", "x-000001-of-000002.safetensors"]) == {}
    assert missing_numbers(["x-00001-of-00002.safetensors"]) == {"x-*-of-00002.safetensors": [2]}
