# SPDX-License-Identifier: AGPL-3.0-only
"""What many tests look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoints import tiny, write_checkpoint, write_stand_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A healthy tiny checkpoint of three shards, free to be damaged."""
    return write_checkpoint(tmp_path / "checkpoint", tiny())


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full-size stand-in of the reference: 120 shards, 113,074 tensors, not to be written to."""
    return write_stand_in(tmp_path_factory.mktemp("full") / "reference", "reference", shards=120)
