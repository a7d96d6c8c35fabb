# SPDX-License-Identifier: AGPL-3.0-only
"""All shards and the index of one checkpoint, as far as a question needs them: facts, before any judgement.

A header is read when it is first needed, with two small reads and no tensor data ever. Every tensor is looked at once
here; what follows works on groups of tensors that share pattern, layer, dtype and shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from glm5inspect.header import TensorRecord
from glm5inspect.roles import TensorRole, classify, is_digits, parse_name
from glm5inspect.sources.base import CONFIG_NAME, SHARD_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from glm5inspect.errors import HeaderError, SourceError
    from glm5inspect.header import Header
    from glm5inspect.index import Index
    from glm5inspect.report import SourceInfo

    Progress = Callable[[int, int, int], None]
    """Called with shards read so far, shards to read, and bytes of headers read so far."""

    Needs = Callable[[Iterable[str]], set[str]]
    """Picks the tensors a question is about from all the names of an index."""


_EXPERT_DIGITS = 5  # of the largest number of experts that is believed


class Source(Protocol):
    """Whatever an inventory can be taken of: a checkpoint or a recorded snapshot."""

    @property
    def info(self) -> SourceInfo:
        """What the source is, for the report."""
        ...

    def config(self, name: str = CONFIG_NAME) -> Mapping[str, object] | None:
        """Return a configuration file, or ``None`` when there is none."""
        ...

    def local_path(self, shard: str) -> str | None:
        """Return where a shard lies on this machine, or ``None`` when it does not."""
        ...

    def is_remote(self, shard: str) -> bool:
        """Tell whether a read of a shard is a request to a server.

        Raises:
            SourceError: There is no tensor data, only a record of what there was.
        """
        ...

    def read_data(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read ranges [start, stop) of shards, each in bytes of its file, and yield each or why it cannot be had.

        Raises:
            SourceError: There is no tensor data, only a record of what there was.
        """
        ...

    def inventory(self, needs: Needs | None = None, progress: Progress | None = None) -> Inventory:
        """Take the inventory; with ``needs``, only of the shards that hold these tensors, as far as an index tells."""
        ...


@dataclass
class Group:
    """Tensors of one census pattern, layer, dtype and shape.

    Attributes:
        pattern: See `glm5inspect.roles.NameParts`.
        layer: 0-based, ``None`` outside the layers.
        role: ``None`` for names that no rule teaches.
        dtype: As stored.
        shape: In elements.
        tensors: The members, in the order of the inventory.
        experts: The index after ``experts`` in each member's name, as written; empty where names have none.
    """

    pattern: str
    layer: int | None
    role: TensorRole | None
    dtype: str
    shape: tuple[int, ...]
    tensors: list[TensorRecord] = field(default_factory=list)
    experts: list[str] = field(default_factory=list)

    @cached_property
    def nbytes(self) -> int:
        """Bytes stored by all members together; asked for when the group is whole."""
        return sum(tensor.stop - tensor.start for tensor in self.tensors)


@dataclass(kw_only=True)
class Inventory:
    """What is stored, name by name.

    Attributes:
        info: Where it was read.
        tensors: Every tensor by name, each once: of several copies the one that the index names, else the one in the
            first shard by name.
        copies: Of the names that stand in several shards, all copies, by shard name.
        shards: How many shard files there are, read or not; ``None`` when a snapshot does not tell.
        headers: The headers read, by shard.
        refused: Why a shard could not be read, by shard.
        index: ``None`` when there is none.
        missing: Shards that the index names and that are not there, with what is there instead.
        unlisted: Shards that are there and that the index does not name.
        partial: Whether shards were left unread because the question did not need them.
    """

    info: SourceInfo
    tensors: dict[str, TensorRecord]
    copies: dict[str, list[TensorRecord]] = field(default_factory=dict)
    shards: int | None
    headers: dict[str, Header] = field(default_factory=dict)
    refused: dict[str, HeaderError] = field(default_factory=dict)
    index: Index | None = None
    missing: dict[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    partial: bool = False

    @property
    def complete(self) -> bool:
        """Whether every shard that the question needed could be read."""
        return not self.refused

    @cached_property
    def groups(self) -> list[Group]:
        """All tensors, grouped; in the order in which the groups first occur."""
        return group_tensors(self.tensors.values())

    @cached_property
    def unseen(self) -> set[str]:
        """Names that the index puts in a shard that was not read, for whatever reason; they may be there."""
        if self.index is None or self.headers.keys() >= set(self.index.shards):
            return set()
        return {
            name
            for name, shard in self.index.weight_map.items()
            if shard not in self.headers and name not in self.tensors
        }

    @cached_property
    def known_groups(self) -> list[Group]:
        """The groups, and those of the unseen names, of which nothing but the name is known (no dtype, no bytes)."""
        if not self.unseen:
            return self.groups
        return [*self.groups, *group_tensors(TensorRecord(name, "", (), 0, 0, None) for name in sorted(self.unseen))]

    @property
    def all_names(self) -> Iterable[str]:
        """Every name that is stored or that the index claims; some stand twice."""
        return chain(self.tensors, self.index.weight_map if self.index else ())

    @property
    def superseded(self) -> list[TensorRecord]:
        """Copies that do not count, because the name stands in another shard that does."""
        return [copy for name, copies in self.copies.items() for copy in copies if copy is not self.tensors[name]]

    @property
    def absence_is_known(self) -> bool:
        """Whether a name that is neither stored nor unseen is certainly not there.

        A refused shard may hold anything, whatever an index says; so may one that, without an index, the numbering says
        is missing.
        """
        return not self.refused and (self.index is not None or not missing_numbers(self.headers))


def group_tensors(tensors: Iterable[TensorRecord]) -> list[Group]:
    """Group tensors by pattern, layer, dtype and shape, looking at each once."""
    groups: dict[tuple[str, str | None, str, tuple[int, ...]], Group] = {}
    merged: dict[tuple[str, int | None, str, tuple[int, ...]], Group] = {}
    for tensor in tensors:
        name, dtype, shape, *_ = tensor
        # Experts are what a checkpoint has most of. Their index is cut out of the name here, so that the name is
        # taken apart once for all experts of a layer.
        head, _, rest = name.partition(".experts.")
        expert, dot, tail = rest.partition(".")
        key: tuple[str, str | None, str, tuple[int, ...]]
        if dot and expert.isdigit() and expert.isascii() and head[: len("experts.")] not in ("experts", "experts."):
            key = (head, tail, dtype, shape)
        else:
            key = (name, None, dtype, shape)
        group = groups.get(key)
        if group is None:
            pattern, layer, number = parse_name(name)
            group = groups[key] = merged.setdefault(
                (pattern, layer, dtype, shape), Group(pattern, layer, classify(pattern), dtype, shape)
            )
            if key[1] is None:
                expert = "" if number is None else str(number)
        group.tensors.append(tensor)
        if expert:
            group.experts.append(expert)
    return list(merged.values())


def is_expert_number(text: str) -> bool:
    """Tell whether the index of an expert is written as every loader writes it, and is one that there may be."""
    return text == "0" or (text[:1] != "0" and len(text) <= _EXPERT_DIGITS)


def missing_numbers(shards: Iterable[str]) -> dict[str, list[int]]:
    """Return, for every set of shards named ``…-00001-of-000NN.safetensors``, the numbers that are missing.

    Args:
        shards: Names of shard files; others than numbered ones do not count.

    Returns:
        What the set's names have in common (with ``*`` for the number) to the missing numbers, ascending; complete sets
        are left out.
    """
    sets: dict[str, set[int]] = {}
    for shard in shards:
        head, _, total = shard.removesuffix(SHARD_SUFFIX).rpartition("-of-")
        prefix, _, number = head.rpartition("-")
        if is_digits(number) and is_digits(total) and len(number) == len(total) == 5:  # noqa: PLR2004 - fixed width
            sets.setdefault(f"{prefix}-*-of-{total}{SHARD_SUFFIX}", set()).add(int(number))
    missing = {}
    for name, numbers in sets.items():
        last = int(name[-len("00000" + SHARD_SUFFIX) : -len(SHARD_SUFFIX)])
        if lacking := [n for n in range(1, last + 1) if n not in numbers]:
            missing[name] = lacking
    return missing
