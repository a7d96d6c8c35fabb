# SPDX-License-Identifier: AGPL-3.0-only
"""The census: every tensor counted, every name given a role or refused, every header and the index checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glm5inspect.against import compare, whole_inventory
from glm5inspect.binding import bind
from glm5inspect.catalogue import Code
from glm5inspect.families import unknown_tensor
from glm5inspect.geometry import read_count
from glm5inspect.header import elements
from glm5inspect.integrity import integrity, refusals
from glm5inspect.inventory import is_expert_number
from glm5inspect.layers import LayerRow, draft_tree, layer_table, text_layers
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.report import Finding, Report, in_order, ranges
from glm5inspect.roles import is_norm, is_text_model, layer_prefix, parse_name
from glm5inspect.scope import Scope
from glm5inspect.summary import EncodingRow, encodings_by_part
from glm5inspect.understanding import understand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from glm5inspect.inventory import Group, Inventory, Progress, Source


@dataclass(frozen=True, slots=True)
class Tally:
    """How much there is of something.

    Attributes:
        tensors: Number of tensors.
        bytes: Bytes stored.
    """

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RoleTally(Tally):
    """How much there is of a role; ``dtypes`` maps each dtype to a number of tensors."""

    dtypes: dict[str, int]


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What the index claims; ``total_size`` is ``None`` when it is no integer, ``entries`` when there is no index."""

    present: bool
    total_size: int | None
    entries: int | None


@dataclass(frozen=True, slots=True)
class PatternRow:
    """Tensors of one census pattern, dtype and shape; ``layers`` and ``experts`` are ranges, ``None`` without index."""

    pattern: str
    role: str | None
    dtype: str
    shape: tuple[int, ...]
    layers: str | None
    experts: str | None
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """What a census counts. Names that stand in two shards count once.

    Attributes:
        tensors: Number of tensors.
        bytes: Bytes stored.
        elements: Stored elements: packed words and scales count as what they are.
        shards: Shard files; ``None`` for a snapshot that does not tell.
        patterns: Number of census patterns.
        layers: Number of layer indices, the MTP layer's included.
        by_role: Role name to tally, sorted; unknown tensors are in none.
        by_dtype: Dtype to tally, sorted.
        unknown: Names that no rule teaches, sorted.
        mtp_layers: Layers with names that only an MTP layer has.
        index: What the index claims.
        digest: SHA-256 over name, dtype and shape of every tensor, independent of sharding: the UTF-8 lines
            ``name TAB dtype TAB dimensions joined by x``, sorted as bytes, joined by LF; ``None`` for an incomplete
            census.
        pattern_table: ``None`` unless asked for.
        layer_table: ``None`` unless asked for.
        encodings: How each part is stored; empty when the config does not tell what is expected.
        parameters: Logical elements, whatever the encoding; ``None`` likewise.
    """

    tensors: int
    bytes: int
    elements: int
    shards: int | None
    patterns: int
    layers: int
    by_role: dict[str, RoleTally]
    by_dtype: dict[str, Tally]
    unknown: tuple[str, ...]
    mtp_layers: tuple[int, ...]
    index: IndexFacts
    digest: str | None
    pattern_table: tuple[PatternRow, ...] | None
    layer_table: tuple[LayerRow, ...] | None
    encodings: tuple[EncodingRow, ...] = ()
    parameters: int | None = None


def take_census(
    source: Source,
    *,
    patterns: bool = False,
    layers: bool = False,
    against: Source | None = None,
    scope: Scope = Scope.AUTO,
    dialect: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Count and check everything a source holds.

    Args:
        source: What to look at.
        patterns: Whether to list every pattern.
        layers: Whether to list every layer.
        against: Another source that must have the same tensors, dtypes and shapes.
        scope: Whether companions of any known encoding have a role, or those of the reference only.
        dialect: The dialect that is accepted without a finding.
        progress: Called after each header.

    Raises:
        SourceError: The other source is not whole, or one of the two cannot be read at all.
    """
    # First what may refuse to answer: once the shards of the source are read there is always a report.
    config = source.config()
    other = whole_inventory(against, progress) if against else None
    inventory = source.inventory(progress=progress)
    seen = understand(inventory, config, scope, dialect)
    marks = (seen.model.spoken.dialect.marker or ())[:1] if seen.model else ()
    if seen.foreign:
        findings = [*seen.findings, *refusals(inventory)]
    else:
        names = [finding for finding in check_names(inventory) if finding.tensor not in marks]
        findings = [*integrity(inventory), *seen.findings, *names, *check_layers(inventory, config)]
    if other:
        findings += compare(inventory, other)
    answer = count(inventory, patterns=patterns, layers=layers)
    answer = replace(answer, unknown=tuple(name for name in answer.unknown if name not in marks))
    if seen.model:
        rows = tuple(encodings_by_part(bind(inventory, seen.model.spoken.expected, declared_tile(config or {}))))
        answer = replace(answer, encodings=rows, parameters=sum(row.parameters for row in rows))
    return Report(
        command="census",
        source=inventory.info,
        answer=answer,
        findings=in_order(findings),
        complete=inventory.complete,
    )


def count(inventory: Inventory, *, patterns: bool = False, layers: bool = False) -> Census:
    """Count an inventory; see `take_census`."""
    groups = inventory.groups
    roles: dict[str, RoleTally] = {}
    dtypes: dict[str, Tally] = {}
    stored = 0
    for group in groups:
        number, nbytes = len(group.tensors), group.nbytes
        stored += number * elements(group.shape)
        kind = dtypes.get(group.dtype, Tally(0, 0))
        dtypes[group.dtype] = Tally(kind.tensors + number, kind.bytes + nbytes)
        if group.role is not None:
            tally = roles.setdefault(group.role.value, RoleTally(0, 0, {}))
            tally.dtypes[group.dtype] = tally.dtypes.get(group.dtype, 0) + number
            roles[group.role.value] = RoleTally(tally.tensors + number, tally.bytes + nbytes, tally.dtypes)
    index = inventory.index
    return Census(
        tensors=len(inventory.tensors),
        bytes=sum(tally.bytes for tally in dtypes.values()),
        elements=stored,
        shards=inventory.shards,
        patterns=len({group.pattern for group in groups}),
        layers=len({group.layer for group in groups} - {None}),
        by_role=dict(sorted(roles.items())),
        by_dtype=dict(sorted(dtypes.items())),
        unknown=tuple(sorted(tensor.name for group in groups if group.role is None for tensor in group.tensors)),
        mtp_layers=tuple(sorted(text_layers(groups).mtp)),
        index=IndexFacts(
            present=index is not None,
            total_size=index.total_size if index and type(index.total_size) is int else None,
            entries=len(index.weight_map) if index else None,
        ),
        digest=digest(groups) if inventory.complete else None,
        pattern_table=tuple(pattern_table(groups)) if patterns else None,
        layer_table=tuple(layer_table(groups)) if layers else None,
    )


def digest(groups: list[Group]) -> str:
    """Return the one value that pins an inventory; see `Census`."""
    lines: list[str] = []
    for group in groups:
        kind = f"\t{group.dtype}\t{'x'.join(map(str, group.shape))}"
        lines += [tensor.name + kind for tensor in group.tensors]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def pattern_table(groups: list[Group]) -> Iterator[PatternRow]:
    """List one row per pattern, dtype and shape, sorted by these."""
    rows: dict[tuple[str, str, tuple[int, ...]], list[Group]] = {}
    for group in groups:
        rows.setdefault((group.pattern, group.dtype, group.shape), []).append(group)
    for (pattern, dtype, shape), members in sorted(rows.items()):
        role = members[0].role
        experts = {parse_name(t.name).expert for group in members for t in group.tensors} if ".E" in pattern else set()
        yield PatternRow(
            pattern=pattern,
            role=role and role.value,
            dtype=dtype,
            shape=shape,
            layers=ranges(group.layer for group in members if group.layer is not None) or None,
            experts=ranges(expert for expert in experts if expert is not None) or None,
            tensors=sum(len(group.tensors) for group in members),
            bytes=sum(group.nbytes for group in members),
        )


def check_names(inventory: Inventory) -> Iterator[Finding]:
    """Report every name without a role, and every norm that is not in a norm role."""
    for group in inventory.groups:
        if group.role is None:
            yield from (unknown_tensor(tensor.name, group.layer, tensor.shard) for tensor in group.tensors)
        elif "norm" in group.pattern and is_text_model(group.role) and not is_norm(group.role):
            for tensor in group.tensors:
                message = f"{tensor.name}: named a norm, but its role is {group.role.value}"
                yield Finding(
                    Code.NORM_ROLE_MISMATCH,
                    message,
                    tensor=tensor.name,
                    layer=group.layer,
                    shard=tensor.shard,
                    actual=group.role.value,
                )


def check_layers(inventory: Inventory, config: Mapping[str, object] | None) -> Iterator[Finding]:
    """Report text layers that are missing, or that are more than the config declares."""
    declared, faults = read_count(config, "num_hidden_layers")
    yield from faults
    yield from _check_numbers(inventory)
    found = text_layers(inventory.known_groups)
    trunk = found.trunk
    if not trunk and found.mtp:
        if inventory.absence_is_known:
            yield draft_tree(found.mtp)
        return
    # All text layers together have no hole; an MTP layer stands for none of the declared trunk, nor the reverse.
    first_mtp = declared or 0
    told = declared is not None and inventory.absence_is_known  # a name that nobody saw may make it an MTP layer
    beyond = sorted(layer for layer in trunk if layer >= first_mtp) if told else []
    present = trunk | {layer for layer in found.mtp if layer >= first_mtp}
    stop = first_mtp if beyond else max(first_mtp, max(present, default=-1) + 1)
    gaps, missing = _gaps(present, stop)
    if missing and inventory.absence_is_known:
        message = f"text {_are('layer', gaps, missing)} missing; there are {ranges(present) or 'none'}"
        if taken := found.mtp - present:
            message += f"; an MTP layer has the number {ranges(taken)}"
        yield Finding(Code.LAYER_GAP, message, expected=f"0-{stop - 1}", actual=ranges(present) or None, count=missing)
    elif not trunk and inventory.tensors and inventory.absence_is_known:
        yield Finding(Code.LAYER_GAP, "there is no text layer at all", count=0)
    if beyond:
        which = _are("layer", ranges(beyond), len(beyond))
        message = f"text {which} beyond num_hidden_layers {declared}, and no MTP layer by name"
        yield Finding(Code.LAYER_GAP, message, expected=declared, actual=ranges(trunk), count=len(beyond))


def _check_numbers(inventory: Inventory) -> Iterator[Finding]:
    """Report layers and experts whose number no loader writes like this: too large, or with zeros in front."""
    numbers = set[str]().union(*(group.experts for group in inventory.groups))
    strange = {number for number in numbers if not is_expert_number(number)}
    for group in inventory.groups if strange else ():
        for number, tensor in zip(group.experts, group.tensors, strict=False):
            if number in strange:
                message = f"{tensor.name}: no loader writes the number of an expert like this"
                yield Finding(Code.EXPERT_IDS, message, tensor=tensor.name, layer=group.layer, shard=tensor.shard)
    for group in inventory.groups:
        if group.pattern.startswith(_LAYER):
            prefix = layer_prefix("?" if group.layer is None else group.layer)
            for tensor in group.tensors:
                if not tensor.name.startswith(prefix):
                    message = f"{tensor.name}: no loader writes a layer number like this"
                    yield Finding(Code.LAYER_GAP, message, tensor=tensor.name, layer=group.layer, shard=tensor.shard)


_LAYER = layer_prefix("N")


def _are(noun: str, which: str, number: int) -> str:
    """Name one or several, with the verb that fits."""
    return f"{noun} {which} is" if number == 1 else f"{noun}s {which} are"


def _gaps(present: set[int], stop: int) -> tuple[str, int]:
    """Return the indices of 0 to stop - 1 that are not present, as ranges, and their number; indices may be huge."""
    parts, missing, reached = [], 0, 0
    for index in [*sorted(index for index in present if index < stop), stop]:
        if index > reached:
            parts.append(str(reached) if index == reached + 1 else f"{reached}-{index - 1}")
            missing += index - reached
        reached = index + 1
    return ",".join(parts), missing
