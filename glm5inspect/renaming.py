# SPDX-License-Identifier: AGPL-3.0-only
"""Give the tensors of an inventory other names, as a conversion did, so that they can be compared with its result."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from glm5inspect.inventory import Inventory


class Rename(NamedTuple):
    """Whole segments of a dotted name, and what stands there instead."""

    old: str
    new: str

    @property
    def place(self) -> re.Pattern[str]:
        """Matches where the old segments stand: between the beginning, dots and the end of a name."""
        before, after = ("" if self.old[0] == "." else r"(?<![^.])", "" if self.old[-1] == "." else r"(?![^.])")
        return re.compile(f"{before}{re.escape(self.old)}{after}")


def parse_rename(text: str) -> Rename:
    """Take ``OLD=NEW`` apart; NEW may be empty.

    Raises:
        UsageError: There is no ``=``, or nothing before it.
    """
    old, equals, new = text.partition("=")
    if not (old and equals):
        raise UsageError(f"--rename {text}: give OLD=NEW")
    return Rename(old, new)


def rename(inventory: Inventory, renames: Sequence[Rename]) -> tuple[Inventory, list[Rename]]:
    """Return an inventory under other names, and the renames that no name asked for.

    In each name, the first place of each rename counts; they are made one after the other.

    Raises:
        SourceError: Two tensors would have the same name.
    """
    if not renames:
        return inventory, []
    names = {name: name for name in (*inventory.tensors, *inventory.unseen)}
    unused = []
    for entry in renames:
        place, new = entry.place, entry.new
        changed = {name: place.sub(lambda _: new, now, count=1) for name, now in names.items() if place.search(now)}  # noqa: B023 - called here
        names |= changed
        unused += [] if changed else [entry]
    _refuse_equal(inventory.info.name, names.items())
    tensors = {names[name]: tensor._replace(name=names[name]) for name, tensor in inventory.tensors.items()}
    index = inventory.index
    if index:
        index = replace(index, weight_map={names.get(name, name): shard for name, shard in index.weight_map.items()})
    return replace(inventory, tensors=tensors, index=index, copies={}), unused


def _refuse_equal(where: str, names: Iterable[tuple[str, str]]) -> None:
    taken: dict[str, str] = {}
    for old, new in names:
        if new in taken:
            raise SourceError(f"{where}: renamed, {taken[new]} and {old} would both be {new}")
        taken[new] = old
