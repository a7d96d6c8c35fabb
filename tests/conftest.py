# SPDX-License-Identifier: AGPL-3.0-only
"""What many tests look at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from checkpoints import tiny, write_checkpoint, write_stand_in
from loopback_hub import LoopbackHub

if TYPE_CHECKING:
    from pathlib import Path

for variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(variable, None)  # how wide and colourful the terminal is where the tests run is not their business

HUB = LoopbackHub()
os.environ["HF_ENDPOINT"] = HUB.endpoint  # which huggingface_hub reads once, when it is imported


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A healthy tiny checkpoint of three shards, free to be damaged."""
    return write_checkpoint(tmp_path / "checkpoint", tiny())


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full-size stand-in of the reference: 120 shards, 113,074 tensors, not to be written to."""
    return write_stand_in(tmp_path_factory.mktemp("full") / "reference", "reference", shards=120)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """An empty Hub on this machine, with empty caches of its own; this process and its children ask no other."""
    from huggingface_hub import constants  # noqa: PLC0415 - not before HF_ENDPOINT is set

    HUB.reset()
    home = tmp_path / "hf"
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("GLM5INSPECT_CACHE", str(tmp_path / "headers"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    return HUB
