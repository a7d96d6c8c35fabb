# SPDX-License-Identifier: AGPL-3.0-only
"""What one checkpoint has otherwise than another: tensors, how modules are encoded, and what the configs say.

A module that is stored otherwise on both sides is one matter, however many tensors it has. Everything else is compared
name for name; how tensors are cut into shards does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.binding import Binding, bind
from glm5inspect.catalogue import Code, Severity
from glm5inspect.changes import VISION_TOWERS, TensorChange, tensor_changes
from glm5inspect.config_changes import WHOLE, ConfigChange, config_changes
from glm5inspect.geometry import read_count
from glm5inspect.integrity import check_placement, emptiness, refusals
from glm5inspect.layers import text_layers
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.renaming import rename
from glm5inspect.report import Finding, Report, counted, in_order, ranges
from glm5inspect.summary import PARTS, encoding_of, encodings_by_part
from glm5inspect.understanding import assign_roles, read_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from glm5inspect.binding import Bound
    from glm5inspect.inventory import Inventory, Progress, Source
    from glm5inspect.renaming import Rename
    from glm5inspect.report import SourceInfo


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is of something: tensors, and bytes stored."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Side(Amount):
    """A whole side; ``parameters`` are logical elements, ``None`` where no config tells what is expected."""

    parameters: int | None


@dataclass(frozen=True, slots=True)
class RoleChange:
    """How much each side has of a role; ``None`` is the role of names that no rule teaches."""

    role: str | None
    a: Amount
    b: Amount


@dataclass(frozen=True, slots=True)
class EncodingChange:
    """Modules of one part that are encoded otherwise in B than in A.

    Attributes:
        part: One of `glm5inspect.summary.PARTS`.
        layers: As ranges, ``None`` outside the layers.
        a: The encoding in A, with width and group; a plain one with its dtype.
        b: The encoding in B.
        modules: How many they are.
        bytes_a: Stored in A.
        bytes_b: Stored in B.
    """

    part: str
    layers: str | None
    a: str
    b: str
    modules: int
    bytes_a: int
    bytes_b: int


@dataclass(frozen=True, slots=True)
class MtpSide:
    """Multi-token prediction: its layers as ranges, how most of it is stored, and how many layers are declared."""

    layers: str | None
    encoding: str | None
    declared: int | None


@dataclass(frozen=True, slots=True)
class MtpChange:
    """Multi-token prediction of both sides."""

    a: MtpSide
    b: MtpSide


@dataclass(frozen=True, slots=True)
class Other:
    """What B is, as `glm5inspect.report.SourceInfo` says it of A."""

    kind: str
    name: str
    repo: str | None
    revision: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The answer of `diff`.

    Attributes:
        same: Whether nothing differs that makes another model, or stores it otherwise; ``None`` when nothing is known
            to differ, and not everything could be read.
        other: What B is.
        a: How much A has.
        b: How much B has.
        roles: How much both have of each role.
        rows: Tensors that differ, by pattern.
        encodings: Modules that are encoded otherwise; their tensors are in no row.
        mtp: Multi-token prediction.
        config: Keys of ``config.json`` that differ.
    """

    same: bool | None
    other: Other
    a: Side
    b: Side
    roles: tuple[RoleChange, ...]
    rows: tuple[TensorChange, ...]
    encodings: tuple[EncodingChange, ...]
    mtp: MtpChange
    config: tuple[ConfigChange, ...]


class _Seen(NamedTuple):
    """One side, understood."""

    inventory: Inventory
    binding: Binding
    mtp: MtpSide


def diff(a: Source, b: Source, *, renames: Sequence[Rename] = (), progress: Progress | None = None) -> Report:
    """Compare two sources.

    Args:
        a: What to start from.
        b: What became of it.
        renames: What is replaced in the names of A before anything is compared.
        progress: Called after each header.

    Raises:
        SourceError: One of the two cannot be read at all, or two tensors would have the same name after renaming.
    """
    configs = (a.config(), b.config())
    inventories = (a.inventory(progress=progress), b.inventory(progress=progress))
    renamed, unused = rename(inventories[0], renames)
    # A conversion that left the config behind is read by that of the other side.
    one = _look(renamed, configs[0], configs[0] if configs[0] is not None else configs[1])
    other = _look(inventories[1], configs[1], configs[1] if configs[1] is not None else configs[0])
    whole = _is_whole(one.inventory) and _is_whole(other.inventory)
    encodings, told = _encoding_changes(one.binding, other.binding)
    rows = tensor_changes(one.inventory, other.inventory, told)
    config = config_changes(*configs)
    differs = bool(rows or encodings or any(change.builds for change in config))
    info = other.inventory.info
    answer = Difference(
        same=not differs if differs or whole else None,
        other=Other(info.kind, info.name, info.repo, info.revision, info.commit),
        a=_side(one),
        b=_side(other),
        roles=tuple(_roles(one.inventory, other.inventory)),
        rows=tuple(rows),
        encodings=tuple(encodings),
        mtp=MtpChange(one.mtp, other.mtp),
        config=config,
    )
    findings = [*_unread(inventories[0]), *_about_b(_unread(inventories[1]), info)]
    findings += [*map(_of_tensors, rows), *map(_of_modules, encodings), *map(_of_config, config)]
    for entry in unused:
        message = f"--rename {entry.old}={entry.new}: no name of A has {entry.old} between dots"
        findings.append(Finding(Code.NO_MATCH, message, weight=Severity.WARNING, expected=entry.old))
    return Report(
        command="diff", source=inventories[0].info, answer=answer, findings=in_order(findings), complete=whole
    )


def _look(inventory: Inventory, own: Mapping[str, object] | None, config: Mapping[str, object] | None) -> _Seen:
    """Give every name its role, and find the modules as far as a config tells them."""
    model = None if config is None else read_model(inventory, config, None)[0]
    assign_roles(inventory, model.spoken if model else None)
    binding = bind(inventory, model.spoken.expected, declared_tile(config)) if model else Binding()
    layers = text_layers(inventory.known_groups).mtp | (model.mtp if model else frozenset())
    encoding = next((row.encoding for row in encodings_by_part(binding) if row.part == "MTP"), None)
    return _Seen(inventory, binding, MtpSide(ranges(layers) or None, encoding, read_count(own, _DECLARED)[0]))


_DECLARED = "num_nextn_predict_layers"


def _is_whole(inventory: Inventory) -> bool:
    return inventory.absence_is_known and not inventory.missing


def _side(seen: _Seen) -> Side:
    parameters = sum(row.parameters for row in encodings_by_part(seen.binding))
    nbytes = sum(group.nbytes for group in seen.inventory.groups)
    return Side(len(seen.inventory.tensors), nbytes, parameters or None)


def _roles(a: Inventory, b: Inventory) -> Iterator[RoleChange]:
    sides: list[dict[str | None, Amount]] = []
    for inventory in (a, b):
        amounts: dict[str | None, Amount] = {}
        for group in inventory.groups:
            role = group.role.value if group.role else None
            before = amounts.get(role, _NOTHING)
            amounts[role] = Amount(before.tensors + len(group.tensors), before.bytes + group.nbytes)
        sides.append(amounts)
    for role in sorted(sides[0].keys() | sides[1].keys(), key=lambda role: (role is None, role or "")):
        yield RoleChange(role, *(amounts.get(role, _NOTHING) for amounts in sides))


_NOTHING = Amount(0, 0)


def _encoding_changes(
    a: Binding, b: Binding
) -> tuple[list[EncodingChange], dict[tuple[int | None, str], frozenset[str] | None]]:
    """Compare the modules that both have and that are read without a doubt.

    Returns:
        The changes, and which tensors they are about: see `glm5inspect.changes.tensor_changes`.
    """
    there: dict[tuple[int | None, str], list[Bound]] = {}
    for bound in b.modules:
        there.setdefault((bound.module.layer, bound.expected.path), []).append(bound)
    told: dict[tuple[int | None, str], frozenset[str] | None] = {}
    totals: dict[tuple[str, str, str], list[int]] = {}
    layers: dict[tuple[str, str, str], set[int]] = {}
    for one in a.modules:
        layer, path = one.module.layer, one.expected.path
        for other in there.get((layer, path), ()):
            experts = _shared_experts(one, other)
            number = 1 if experts is None else len(experts)
            if not number or not _encoded_otherwise(one, other):
                continue
            for suffix in one.module.suffixes | other.module.suffixes:
                place = (layer, f"{path}.{suffix}")
                told[place] = None if experts is None else experts | (told.get(place) or frozenset())
            key = (one.module.part, encoding_of(one), encoding_of(other))
            total = totals.setdefault(key, [0, 0, 0])
            for i, more in enumerate((number, *(number * s.module.bytes // s.module.count for s in (one, other)))):
                total[i] += more
            layers.setdefault(key, set()).update(() if layer is None else (layer,))
    rows = [EncodingChange(key[0], ranges(layers[key]) or None, *key[1:], *total) for key, total in totals.items()]
    return sorted(rows, key=lambda row: (PARTS.index(row.part), row.a, row.b)), told


def _shared_experts(one: Bound, other: Bound) -> frozenset[str] | None:
    """Return the experts of one path that both are about, as written; ``None`` for a module that is not one of many."""
    if one.module.experts is None:
        return None
    return frozenset(map(str, set(one.module.experts) & set(other.module.experts or ())))


def _encoded_otherwise(one: Bound, other: Bound) -> bool:
    """Tell whether two modules of one path are read without a doubt, in two encodings of the same logical shape.

    What is stored alike is alike, whatever block sizes the two configs declare.
    """
    doubtful = one.module.reading.flaws or other.module.reading.flaws or one.expected.shape != other.expected.shape
    return not doubtful and one.parts != other.parts and encoding_of(one) != encoding_of(other)


def _unread(inventory: Inventory) -> Iterator[Finding]:
    """Report why a side is not whole, or that it has nothing at all."""
    yield from refusals(inventory)
    yield from emptiness(inventory)
    if not _is_whole(inventory):
        lost = (Code.INDEX_MISSING_SHARD, Code.SHARD_NUMBERING)
        yield from (finding for finding in check_placement(inventory) if finding.code in lost)


def _about_b(findings: Iterator[Finding], info: SourceInfo) -> Iterator[Finding]:
    """Say of findings that they are about B."""
    for finding in findings:
        yield Finding(
            finding.code,
            f"B ({info.name}): {finding.message}",
            shard=finding.shard,
            expected=finding.expected,
            actual=finding.actual,
            count=finding.count,
        )


_CODES = {
    "only-a": Code.DIFF_ONLY_A,
    "only-b": Code.DIFF_ONLY_B,
    "dtype": Code.DIFF_DTYPE,
    "shape": Code.DIFF_SHAPE,
}


def _of_tensors(row: TensorChange) -> Finding:
    only = {"only-a": "only in A", "only-b": "only in B"}.get(row.change)
    kind = f"{row.a or row.b}, " if only else ""
    noun = "block" if row.pattern.startswith(VISION_TOWERS) else "layer"
    places = [f"{noun}{_plural(row.layers)} {row.layers}"] if row.layers else []
    places += [f"expert{_plural(row.experts)} {row.experts}"] if row.experts else []
    where = f" in {', '.join(places)}" if places else ""
    what = only or f"{row.a} -> {row.b}"
    return Finding(
        _CODES[row.change],
        f"{row.pattern}: {what}, {counted(row.tensors, 'tensor')}{where} ({kind}{_bytes(row)})",
        tensor=row.pattern,
        layer=_sole(row.layers) if noun == "layer" else None,
        expected=row.a,
        actual=row.b,
        count=row.tensors,
    )


def _of_modules(row: EncodingChange) -> Finding:
    where = f", layer{_plural(row.layers)} {row.layers}" if row.layers else ""
    return Finding(
        Code.DIFF_ENCODING,
        f"{row.part}{where}: {row.a} -> {row.b}, {counted(row.modules, 'module')}, {_bytes(row)}",
        layer=_sole(row.layers),
        expected=row.a,
        actual=row.b,
        count=row.modules,
    )


def _of_config(change: ConfigChange) -> Finding:
    what = f"{change.a or 'absent'} -> {change.b or 'absent'}"
    weight = None if change.builds else Severity.WARNING if change.key == WHOLE else Severity.NOTE
    where = change.key if change.key == WHOLE else f"{WHOLE}: {change.key}"
    return Finding(Code.DIFF_CONFIG, f"{where}: {what}", weight=weight, expected=change.a, actual=change.b)


def _bytes(row: TensorChange | EncodingChange) -> str:
    if row.bytes_a and row.bytes_b and row.bytes_a != row.bytes_b:
        return f"{row.bytes_a:,} -> {row.bytes_b:,} bytes"
    return counted(row.bytes_a or row.bytes_b, "byte")


def _plural(places: str | None) -> str:
    return "s" if places and not places.isdecimal() else ""


def _sole(places: str | None) -> int | None:
    return int(places) if places and places.isdecimal() else None
