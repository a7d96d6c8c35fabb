# SPDX-License-Identifier: AGPL-3.0-only
"""Read small tensors by exact byte ranges, as few as the layout of the shards allows.

Tensors that lie side by side are one range; of a remote shard, so are those with up to `GAP` bytes between them.
Writers that sort by dtype put all scalar scales of a shard side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.errors import SourceError
from glm5inspect.values.selection import affordable, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from glm5inspect.inventory import Inventory, Progress, Source
    from glm5inspect.values.selection import Wanted

GAP = 64 << 10
"""Bytes between two tensors of a remote shard that are rather read than asked for around."""

LONGEST = 8 << 20
"""Bytes of one range, unless a single tensor needs more."""


class Span(NamedTuple):
    """One range to read: bytes [start, stop) of the data section of a shard, and the tensors in it."""

    shard: str
    start: int
    stop: int
    tensors: tuple[Wanted, ...]


@dataclass(slots=True)
class Taken:
    """What was read.

    Attributes:
        raw: Each tensor that was read, with its bytes.
        wanted: Each tensor that there was to read, whether or not it was.
        bytes: Bytes read, those between tensors included.
        requests: How many ranges of remote shards were asked for.
        failed: Shards of which something could not be read, with the reason.
    """

    wanted: Sequence[Wanted]
    raw: dict[Wanted, bytes] = field(default_factory=dict)
    bytes: int = 0
    requests: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def spans(tensors: Iterable[Wanted], gap: int) -> list[Span]:
    """Put tensors into ranges, by shard and place.

    Args:
        tensors: In any order.
        gap: Bytes between two tensors that may be read along.
    """
    found: list[Span] = []
    members: list[Wanted] = []
    for tensor in sorted(tensors, key=lambda wanted: (wanted.shard, wanted.tensor.start, wanted.tensor.stop)):
        start, stop = tensor.tensor.start, tensor.tensor.stop
        last = found[-1] if found else None
        if last and last.shard == tensor.shard and start - last.stop <= gap and stop - last.start <= LONGEST:
            members.append(tensor)
            found[-1] = last._replace(stop=max(last.stop, stop))
        else:
            if found:
                found[-1] = found[-1]._replace(tensors=tuple(members))
            members = [tensor]
            found.append(Span(tensor.shard, start, stop, ()))
    if found:
        found[-1] = found[-1]._replace(tensors=tuple(members))
    return found


def sample(tensors: Sequence[Wanted], most: int) -> list[Wanted]:
    """Return as many remote tensors as that many ranges reach, of every topic its share, spread over the layers."""
    if len(spans(tensors, GAP)) <= most:
        return list(tensors)
    topics: dict[str, list[Wanted]] = {}
    for tensor in tensors:
        topics.setdefault(tensor.topic, []).append(tensor)
    queues = sorted(map(spread, topics.values()), key=lambda queue: len(spans(queue, GAP)))
    chosen: list[Wanted] = []
    for place, queue in enumerate(queues):  # what one topic leaves goes to those that need more
        share = (most - len(spans(chosen, GAP))) // (len(queues) - place)
        chosen += queue[: _longest_prefix(queue, share)]
    return chosen


def _longest_prefix(queue: Sequence[Wanted], most: int) -> int:
    """Return how many of the first tensors take no more ranges than that."""

    def fits(number: int) -> bool:
        return len(spans(queue[:number], GAP)) <= most

    high = 1
    while high < len(queue) and fits(high):  # by doubling: few of many may fit
        high *= 2
    low, high = 0, min(high, len(queue))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def take(source: Source, inventory: Inventory, wanted: Sequence[Wanted], most: int, progress: Progress | None) -> Taken:
    """Read tensors.

    Args:
        source: Where they lie.
        inventory: Whose headers say where.
        wanted: Which; of local shards, all that is affordable.
        most: The most ranges to ask of remote shards.
        progress: Called after each range.
    """
    taken = Taken(wanted)
    chosen = affordable(wanted)
    remote = {shard: source.is_remote(shard) for shard in {tensor.shard for tensor in chosen}}
    local = spans((tensor for tensor in chosen if not remote[tensor.shard]), 0)
    asked = spans(sample([tensor for tensor in chosen if remote[tensor.shard]], most), GAP)
    taken.requests = len(asked)
    todo = [span for span in (*local, *asked) if _is_inside(span, inventory, taken)]
    for done, (span, raw) in enumerate(zip(todo, source.read_data(_ranges(todo, inventory)), strict=True), 1):
        if isinstance(raw, SourceError):
            taken.failed.setdefault(span.shard, str(raw).removeprefix(f"{span.shard}: "))
            continue
        if len(raw) != span.stop - span.start:
            taken.failed.setdefault(
                span.shard, f"ends after {len(raw):,} of {span.stop - span.start:,} bytes asked for"
            )
            continue
        taken.bytes += len(raw)
        for tensor in span.tensors:
            taken.raw[tensor] = raw[tensor.tensor.start - span.start : tensor.tensor.stop - span.start]
        if progress:
            progress(done, len(todo), taken.bytes)
    return taken


def _is_inside(span: Span, inventory: Inventory, taken: Taken) -> bool:
    """Tell whether the file is long enough for a range; what lies beyond its end is not asked for."""
    header = inventory.headers[span.shard]
    if header.data_start + span.stop <= header.file_bytes:
        return True
    taken.failed.setdefault(span.shard, f"ends before {span.tensors[-1].tensor.name}")
    return False


def _ranges(todo: Iterable[Span], inventory: Inventory) -> Iterator[tuple[str, int, int]]:
    """Yield each range as bytes of its file."""
    for span in todo:
        start = inventory.headers[span.shard].data_start
        yield span.shard, start + span.start, start + span.stop
