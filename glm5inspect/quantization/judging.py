# SPDX-License-Identifier: AGPL-3.0-only
"""What a declaration says of every module, and whether two declarations say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.quantization.patterns import Style, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from glm5inspect.quantization.declared import Declaration, Rule
    from glm5inspect.quantization.schemes import Scheme
    from glm5inspect.stored import StoredModule

PLAIN = "plain"
"""The name of the encoding of a module that is not quantized."""


class Slice(NamedTuple):
    """Modules that one rule of a declaration speaks of, or none does.

    Attributes:
        module: Of which they are all, or some experts.
        experts: Their numbers, ascending; ``None`` for a module that is not one of many.
        rule: ``None`` when the declaration does not name them.
        entry: The entry that names them; empty where the rule names everything.
    """

    module: StoredModule
    experts: tuple[int, ...] | None
    rule: Rule | None = None
    entry: str = ""

    @property
    def number(self) -> int:
        """How many modules these are."""
        return 1 if self.experts is None else len(self.experts)

    @property
    def first(self) -> str:
        """The full name of the first of them."""
        path = self.module.path
        return path.replace(".E.", f".{self.experts[0]}.", 1) if self.experts else path

    @property
    def plain(self) -> bool:
        """Whether they are stored without quantization."""
        return self.module.reading.encoding.name == PLAIN

    @property
    def scheme(self) -> Scheme | None:
        """How they are declared to be quantized, if they are."""
        return self.rule.scheme if self.rule else None

    def of(self, experts: set[int]) -> Slice:
        """Return the part of these modules that some experts are; what is not one of many stays whole."""
        return self if self.experts is None else self._replace(experts=tuple(sorted(experts)))


class Judged(NamedTuple):
    """What a declaration says of every module.

    Attributes:
        declaration: The declaration.
        slices: All modules, each once, in the order given.
        used: The entries that name a module, as the place of the rule and the place in its list.
    """

    declaration: Declaration
    slices: list[Slice]
    used: set[tuple[int, int]]


def judge(declaration: Declaration, linear: Sequence[StoredModule], targets: Sequence[Target]) -> Judged:
    """Find the rule that counts for every module; all others are matched too, to see which entries name nothing."""
    used: set[tuple[int, int]] = set()
    slices: list[Slice] = []
    for module, target in zip(linear, targets, strict=True):
        left = Slice(module, module.experts)
        for place, rule in enumerate(declaration.rules):
            if rule.patterns.style is Style.ALL:
                if left.number:
                    slices.append(left._replace(rule=rule))
                left = left._replace(experts=())
                continue
            hits = list(rule.patterns.hits(target))
            used.update((place, hit.entry) for hit in hits)
            rest = set(left.experts or ())
            whole = any(hit.experts is None for hit in hits)
            named = rest if whole else {expert for hit in hits for expert in hit.experts or ()} & rest
            if hits and (named or left.experts is None):
                entry = rule.patterns.entries[hits[0].entry]
                slices.append(left.of(named)._replace(rule=rule, entry=entry))
                left = left._replace(experts=tuple(sorted(rest - named)))
        if left.number:
            slices.append(left)
    return Judged(declaration, slices, used)


def disputes(one: Judged, other: Judged) -> Iterator[tuple[Slice, Slice]]:
    """Yield the modules of which two declarations cannot both be right, as each of them has it."""
    theirs: dict[str, list[Slice]] = {}
    for piece in other.slices:
        theirs.setdefault(piece.module.path, []).append(piece)
    for piece in one.slices:
        for opposite in theirs[piece.module.path]:
            experts = set(piece.experts or ()).intersection(opposite.experts or ())
            shared = bool(experts) or piece.experts is None
            if shared and _contradict(piece, one.declaration, opposite, other.declaration):
                yield piece.of(experts), opposite.of(experts)


def _contradict(one: Slice, its: Declaration, other: Slice, others: Declaration) -> bool:
    if (one.rule is None and not its.total) or (other.rule is None and not others.total):
        return False
    if one.scheme and other.scheme:
        return not one.scheme.agrees(other.scheme)
    declares = one.rule if one.scheme else other.rule if other.scheme else None
    return declares is not None and not declares.optional


def without(slices: Sequence[Slice], taken: Sequence[Slice]) -> list[Slice]:
    """Return slices without the modules of others."""
    gone: dict[str, set[int]] = {}
    for piece in taken:
        gone.setdefault(piece.module.path, set()).update(piece.experts or ())
    kept = []
    for piece in slices:
        lost = gone.get(piece.module.path)
        if lost is None:
            kept.append(piece)
        elif piece.experts is not None:
            kept.append(piece.of(set(piece.experts) - lost))
    return [piece for piece in kept if piece.number]
