# SPDX-License-Identifier: AGPL-3.0-only
"""What the ``safetensors`` library itself says of each shard: what it refuses, nobody can load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.report import Finding

if TYPE_CHECKING:
    from collections.abc import Collection

    from glm5inspect.inventory import Inventory, Source


def ask_library(
    source: Source, inventory: Inventory, refused: Collection[str | None]
) -> tuple[int | None, list[Finding]]:
    """Open every shard of this machine with the library.

    Args:
        source: Says where shards lie.
        inventory: Its shards.
        refused: Shards with an error of their own already, which the library would only repeat.

    Returns:
        How many shards were opened, ``None`` when they are not on this machine; and what the library refused.
    """
    paths = {shard: source.local_path(shard) for shard in inventory.headers}
    if not paths or not all(paths.values()):
        return None, []
    from safetensors import SafetensorError, safe_open

    findings = []
    for shard, path in paths.items():
        if shard in refused:
            continue
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            message = f"{shard}: the safetensors library refuses it: {str(error)[:200]}"
            findings.append(Finding(Code.PARSER_REFUSED, message, shard=shard))
    return len(paths), findings
