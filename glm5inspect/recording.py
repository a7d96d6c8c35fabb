# SPDX-License-Identifier: AGPL-3.0-only
"""Fold what a source holds into the text of a snapshot file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code, Severity
from glm5inspect.errors import SnapshotError
from glm5inspect.integrity import integrity
from glm5inspect.report import Report, in_order
from glm5inspect.snapshot import CONFIG_KEYS, Snapshot, dump_snapshot, take_snapshot
from glm5inspect.sources.base import CONFIG_NAME, QUANT_CONFIG_NAME

if TYPE_CHECKING:
    from glm5inspect.inventory import Progress, Source
    from glm5inspect.report import Finding

_IN_DOUBT = frozenset(
    {
        Code.NO_TENSORS,
        Code.INDEX_MISSING_SHARD,
        Code.SHARD_NUMBERING,
        Code.UNKNOWN_DTYPE,
        Code.SHAPE_BYTES,
        Code.DUPLICATE_TENSOR,
    }
)


def _leaves_doubt(finding: Finding) -> bool:
    """Tell whether nobody can say, after a finding, what the whole inventory would be."""
    return finding.code in _IN_DOUBT and finding.severity is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a snapshot file says of itself; `rows` is ``None`` when the source cannot be recorded as it is."""

    repo: str | None
    revision: str | None
    recorded: str | None
    provenance: str | None
    tensors: int
    bytes: int
    rows: int | None


def record(
    source: Source,
    *,
    today: str,
    repo: str | None = None,
    revision: str | None = None,
    recorded: str | None = None,
    provenance: str | None = None,
    progress: Progress | None = None,
) -> tuple[Report, str | SnapshotError]:
    """Record a source.

    Args:
        source: A checkpoint, or a snapshot, which is recorded as it was unless told otherwise.
        today: The day to record when none is given, ``YYYY-MM-DD``.
        repo: ``owner/name``; ``None`` keeps what the source says, so for the next three.
        revision: Commit, branch or tag.
        recorded: The day of the recording.
        provenance: How the inventory was obtained and verified.
        progress: Called after each header.

    Returns:
        The report, and the text of the snapshot file. When shards are missing or could not be read, or a tensor cannot
        be written as a row, the report is incomplete, and there is the reason instead of the text.
    """
    configs = {CONFIG_KEYS[name]: source.config(name) for name in (CONFIG_NAME, QUANT_CONFIG_NAME)}
    inventory = source.inventory(progress=progress)
    findings = in_order(integrity(inventory))
    info, old = inventory.info, source if isinstance(source, Snapshot) else None
    about = {
        "repo": info.repo if repo is None else repo,
        "revision": (info.commit or info.revision) if revision is None else revision,
        "recorded": recorded or (old.recorded if old else today),
        "provenance": provenance or (old.provenance if old else "read from headers"),
    }
    text: str | SnapshotError = SnapshotError("what the report names leaves the inventory in doubt")
    rows: int | None = None
    if inventory.complete and not any(map(_leaves_doubt, findings)):
        present = {key: config for key, config in configs.items() if config is not None}
        try:
            snapshot = take_snapshot(inventory, present, **about)
            text, rows = dump_snapshot(snapshot), len(snapshot.rows)
        except SnapshotError as error:
            text = error
    answer = Recorded(
        **about, tensors=len(inventory.tensors), bytes=sum(group.nbytes for group in inventory.groups), rows=rows
    )
    report = Report(command="record", source=info, answer=answer, findings=findings, complete=rows is not None)
    return report, text
