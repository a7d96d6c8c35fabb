# SPDX-License-Identifier: AGPL-3.0-only
"""A repository of the Hub is read as a folder is, with few requests and without its weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from loopback_hub import LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app

if TYPE_CHECKING:
    from pathlib import Path


def test_same_answer_as_the_folder(hub: LoopbackHub, checkpoint: Path) -> None:
    """But for where it was read, the report is the one of the folder."""
    hub.repos["owner/name"] = Repo(checkpoint)
    results = [CliRunner().invoke(app, ["census", source, "-f", "json"]) for source in ("owner/name", str(checkpoint))]
    remote, local = (json.loads(result.stdout) for result in results)
    assert remote.pop("source") == {
        "kind": "hub",
        "name": "owner/name",
        "repo": "owner/name",
        "revision": "main",
        "commit": hub.repos["owner/name"].commit,
    }
    local.pop("source")
    assert remote == local
    assert len(hub.requests()) == 3 + 5
