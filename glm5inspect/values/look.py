# SPDX-License-Identifier: AGPL-3.0-only
"""Read what is worth its bytes, and run the checks of values on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.geometry import text_config
from glm5inspect.values.checks import (
    MARKERS,
    check_helpers,
    check_markers,
    check_norms,
    check_pairs,
    check_scales,
    check_unread,
)
from glm5inspect.values.reading import take
from glm5inspect.values.selection import select
from glm5inspect.values.statistics import KindRow, PairRow, kind_rows, numbers_of, pair_rows
from glm5inspect.verification import ValuesRead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5inspect.binding import Binding
    from glm5inspect.inventory import Inventory, Progress, Source
    from glm5inspect.modules import Expected
    from glm5inspect.report import Finding
    from glm5inspect.scope import ValueOptions


class Looked(NamedTuple):
    """What was seen.

    Attributes:
        read: How much of it there was.
        pairs: How the global scales of gate and up differ.
        statistics: What each kind of tensor holds.
        outcomes: Check to how many subjects it looked at and what it found; ``None`` where none could be read.
        unread: Shards of which something could not be read.
    """

    read: ValuesRead
    pairs: tuple[PairRow, ...]
    statistics: tuple[KindRow, ...]
    outcomes: Mapping[str, tuple[int | None, list[Finding]]]
    unread: list[Finding]


def look_at_values(
    source: Source,
    inventory: Inventory,
    expected: Iterable[Expected],
    binding: Binding,
    config: Mapping[str, object],
    options: ValueOptions,
    progress: Progress | None,
) -> Looked:
    """Read the values of small tensors, and check them.

    Args:
        source: Where they lie.
        inventory: What is stored.
        expected: The module table, in the names stored.
        binding: What of it was found.
        config: ``config.json``, for the codebook that it declares.
        options: What is an error, and how much may be asked of a server.
        progress: Called after each range read.

    Raises:
        SourceError: There are no values, only a record of what there was.
    """
    taken = take(source, inventory, select(inventory, expected, binding), options.max_requests, progress)
    numbers = numbers_of(taken)
    pairs = tuple(pair_rows(taken, numbers))
    topics = {
        "scale-range": ({"scale", "block-scale"}, check_scales(taken, numbers)),
        "norm-values": ({"norm"}, check_norms(taken, numbers)),
        "helper-values": ({"helper"}, check_helpers(taken, numbers)),
        "markers": ({"marker", "weight-shape"}, check_markers(taken, _codebook(config))),
    }
    outcomes: dict[str, tuple[int | None, list[Finding]]] = {
        "scale-pairs": (
            _subjects(sum(row.pairs for row in pairs), sum(row.of for row in pairs)),
            list(check_pairs(pairs, options.max_scale_ratio)),
        )
    }
    for check, (own, findings) in topics.items():
        read = sum(wanted.topic in own for wanted in taken.raw)
        outcomes[check] = (_subjects(read, sum(wanted.topic in own for wanted in taken.wanted)), list(findings))
    blocks, of_blocks = (sum(w.topic == "block-scale" for w in several) for several in (taken.raw, taken.wanted))
    return Looked(
        read=ValuesRead(
            tensors=len(taken.raw) - blocks,
            of=len(taken.wanted) - of_blocks,
            block_scales=blocks,
            block_scales_of=of_blocks,
            bytes=taken.bytes,
            requests=taken.requests,
        ),
        pairs=pairs,
        statistics=tuple(kind_rows(taken, numbers)),
        outcomes=outcomes,
        unread=list(check_unread(taken)),
    )


def _subjects(read: int, of: int) -> int | None:
    """Return how many were looked at; ``None`` where there are some and none could be."""
    return read if read or not of else None


def _codebook(config: Mapping[str, object]) -> str | None:
    """Return the codebook of EXL3 that ``quantization_config`` declares; ``None`` for none or an unknown one."""
    for holder in (config, text_config(config)):
        block = holder.get("quantization_config")
        codebook = block.get("codebook") if isinstance(block, dict) else None
        if isinstance(codebook, str) and codebook in MARKERS:
            return codebook
    return None
