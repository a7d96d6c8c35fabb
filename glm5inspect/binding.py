# SPDX-License-Identifier: AGPL-3.0-only
"""Hold what is stored against the module table: every expected module found, missing, or stored in another way.

A module's tensors are taken together and read as one encoding. Routed experts of a layer that are stored alike are read
once, however many they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.encodings import RANK, SCALE_SUFFIX, SLICED, SUFFIXES, Part, read_module
from glm5inspect.flaws import Place, judge, wrong_dtype, wrong_shape
from glm5inspect.inventory import is_expert_number
from glm5inspect.report import Finding, counted, layers_named, ranges
from glm5inspect.roles import in_layer, is_cache_scale
from glm5inspect.stored import StoredModule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.encodings import Reading, Shape
    from glm5inspect.inventory import Group, Inventory
    from glm5inspect.modules import Expected

_FLOATS = frozenset({"BF16", "F16", "F32"})
_NARROW = frozenset({"BF16", "F16"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of its own, such as a norm or a convolution, and what its bytes are counted with."""

    expected: Expected
    dtype: str
    bytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Modules that are stored, what they were held against, and how each of their tensors is stored."""

    module: StoredModule
    expected: Expected
    parts: Mapping[str, Part]


@dataclass(slots=True)
class Binding:
    """What was found of the module table.

    Attributes:
        modules: The modules found, experts that are stored alike together.
        tensors: The tensors of their own that were found.
        findings: What is wrong, by check.
        subjects: How many modules and tensors each check looked at, missing ones included.
        unclaimed: What is stored and no row claims, without names that are unknown.
        cache_scales: How many scales of a KV cache there are.
        experts: Layer to the numbers of experts stored, and of the rows of its router and bias.
    """

    modules: list[Bound] = field(default_factory=list)
    tensors: list[StoredTensor] = field(default_factory=list)
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    subjects: Counter[str] = field(default_factory=Counter)
    unclaimed: list[Group] = field(default_factory=list)
    cache_scales: int = 0
    experts: dict[int, dict[str, int]] = field(default_factory=dict)

    def report(self, check: str, finding: Finding) -> None:
        """Add a finding to a check."""
        self.findings.setdefault(check, []).append(finding)


class _Stored:
    """The groups of an inventory by layer and pattern, and which of them are claimed."""

    def __init__(self, inventory: Inventory) -> None:
        self.groups: dict[tuple[int | None, str], list[Group]] = {}
        for group in inventory.known_groups:
            self.groups.setdefault((group.layer, group.pattern), []).append(group)
        self.claimed: set[tuple[int | None, str]] = set()
        self.absence_is_known = inventory.absence_is_known
        self.sliced = any(f".{RANK}0." in group.pattern for group in inventory.known_groups)
        self.layers = {group.layer for group in inventory.known_groups}

    def take(self, layer: int | None, pattern: str) -> list[Group]:
        """Return the groups of a pattern and claim them."""
        groups = self.groups.get((layer, pattern))
        if groups is None:
            return []
        self.claimed.add((layer, pattern))
        return groups

    def believe(self, reading: Reading) -> Reading:
        """Return a reading without tensors that it misses, where these may be in what nobody could look at."""
        if self.absence_is_known:
            return reading
        return reading._replace(flaws=tuple(flaw for flaw in reading.flaws if flaw.kind != "missing"))

    def module(self, layer: int | None, path: str) -> dict[str, list[Group]]:
        """Return the groups of a module's tensors, by suffix, and claim them."""
        whole = {suffix: found for suffix in SUFFIXES if (found := self.take(layer, f"{path}.{suffix}"))}
        if whole or not self.sliced:
            return whole
        return {suffix: found for suffix in SLICED if (found := self.take(layer, f"{path}.{suffix}"))}


def bind(inventory: Inventory, expected: Iterable[Expected], tile: tuple[int, int] | None) -> Binding:
    """Hold an inventory against what is expected, under the names that are stored.

    Args:
        inventory: What is stored; what nobody could look at is neither there nor missing.
        expected: The module table, in the names stored.
        tile: The block size that a config declares for block FP8, ``None`` for none.
    """
    stored = _Stored(inventory)
    binding = Binding()
    experts: dict[int | None, list[tuple[Expected, dict[str, list[Group]]]]] = {}
    for row in expected:
        if row.row.kind == "tensor":
            _bind_tensor(stored, row, binding)
        elif row.experts is None:
            _bind_module(stored, row, binding, tile)
        else:
            experts.setdefault(row.layer, []).append((row, stored.module(row.layer, row.path)))
    for members in experts.values():
        _bind_experts(stored, members, binding, tile)
    _check_cache_scales(stored, binding)
    binding.unclaimed = [g for key, groups in stored.groups.items() if key not in stored.claimed for g in groups]
    return binding


def name_of(row: Expected, suffix: str = "") -> str:
    """Return the full name of what a row expects, experts left as ``E``."""
    path = in_layer(row.path, row.layer)
    return f"{path}.{suffix}" if suffix else path


def _bind_tensor(stored: _Stored, row: Expected, binding: Binding) -> None:
    groups = stored.take(row.layer, row.path)
    binding.subjects[row.check] += bool(groups) or not row.optional
    if not groups:
        _report_missing(stored, row, binding)
    place = _place(row)
    for group in groups:
        if not group.dtype:  # an index knows of it, and nobody could look
            continue
        binding.tensors.append(StoredTensor(row, group.dtype, group.nbytes, prod(row.shape)))
        if row.row.name in _ROUTER_ROWS and row.layer is not None and len(group.shape) == len(row.shape):
            binding.experts.setdefault(row.layer, {})[_ROUTER_ROWS[row.row.name]] = group.shape[0]
        elif group.shape != row.shape:
            binding.report(row.check, wrong_shape(place, "", row.shape, group.shape, place.codes.shape))
        allowed = {"BF16"} if row.check == "dsa" else _FLOATS
        if group.dtype not in allowed:
            wanted = " or ".join(sorted(allowed))
            binding.report(row.check, wrong_dtype(place, "", wanted, group.dtype, place.codes.dtype))


_ROUTER_ROWS = {"mlp.gate": "router rows", "mlp.gate.e_score_correction_bias": "bias"}


def _bind_module(stored: _Stored, row: Expected, binding: Binding, tile: tuple[int, int] | None) -> None:
    found = stored.module(row.layer, row.path)
    binding.subjects[row.check] += bool(found) or not row.optional
    if not found:
        _report_missing(stored, row, binding)
        return
    parts = {suffix: Part(groups[0].dtype, groups[0].shape) for suffix, groups in found.items()}
    if not all(part.dtype for part in parts.values()):
        return
    shape, reading = row.shape, read_module(parts, row.shape, tile)
    if row.row.name in _ROUTER_ROWS and row.layer is not None:
        shape, reading = _router(parts, shape, reading, tile)
        binding.experts.setdefault(row.layer, {})[_ROUTER_ROWS[row.row.name]] = shape[0]
    nbytes = sum(group.nbytes for groups in found.values() for group in groups)
    _add(row._replace(shape=shape), None, parts, stored.believe(reading), nbytes, binding)


def _router(
    parts: Mapping[str, Part], shape: Shape, reading: Reading, tile: tuple[int, int] | None
) -> tuple[Shape, Reading]:
    """Read a router that has another number of rows, and nothing else wrong, as one for that number of experts."""
    stored = parts[reading.encoding.payload].shape if reading.encoding.payload in parts else ()
    if reading.flaws and stored:
        longer = (stored[0], *shape[1:])
        other = read_module(parts, longer, tile)
        if not other.flaws:
            return longer, other
    return shape, reading


def _bind_experts(
    stored: _Stored,
    members: list[tuple[Expected, dict[str, list[Group]]]],
    binding: Binding,
    tile: tuple[int, int] | None,
) -> None:
    """Bind the routed experts of one layer: every projection of every expert."""
    layer, wanted = members[0][0].layer, members[0][0].experts or 0
    binding.subjects[members[0][0].check] += wanted * len(members)
    alike = [(row, _stored_alike(found)) for row, found in members]
    present = {expert for _, kinds in alike for experts, _, _ in kinds for expert in experts}
    if not present:
        for row, _ in members:
            _report_missing(stored, row, binding)
        return
    for row, kinds in alike:
        for experts, parts, nbytes in kinds:
            if all(part.dtype for part in parts.values()):
                _add(row, experts, parts, stored.believe(read_module(parts, row.shape, tile)), nbytes, binding)
        lacking = (present & set(range(wanted))).difference(*(experts for experts, _, _ in kinds))
        if lacking and stored.absence_is_known:
            _report_missing(stored, row, binding, sorted(lacking))
    if layer is not None and stored.absence_is_known:
        binding.experts.setdefault(layer, {})["experts"] = max(present) + 1
        if gaps := set(range(max(present) + 1)) - present:
            message = f"layer {layer}: {counted(len(gaps), 'routed expert')} missing, {ranges(gaps)}"
            found = ranges(present)
            finding = Finding(
                Code.EXPERT_IDS, message, layer=layer, expected=f"0-{max(present)}", actual=found, count=len(gaps)
            )
            binding.report(members[0][0].check, finding)


def _stored_alike(found: Mapping[str, list[Group]]) -> list[tuple[tuple[int, ...], dict[str, Part], int]]:
    """Return the experts that are stored alike, the most first: which, how each tensor, and the bytes of all."""
    sets = [set(groups[0].experts) for groups in found.values() if len(groups) == 1]
    if (
        len(sets) == len(found)
        and all(one == sets[0] for one in sets)
        and all(map(is_expert_number, sets[0] if sets else ()))
    ):
        parts = {suffix: Part(groups[0].dtype, groups[0].shape) for suffix, groups in found.items()}
        nbytes = sum(groups[0].nbytes for groups in found.values())
        return [(tuple(sorted(map(int, sets[0]))), parts, nbytes)] if sets else []
    each: dict[int, dict[str, tuple[Part, int]]] = {}
    for suffix, groups in found.items():
        for group in groups:
            part = Part(group.dtype, group.shape)
            for number, tensor in zip(group.experts, group.tensors, strict=True):
                if is_expert_number(number):  # the census tells of others
                    each.setdefault(int(number), {})[suffix] = (part, tensor.nbytes)
    kinds: dict[frozenset[tuple[str, Part]], list[int]] = {}
    for expert, tensors in each.items():
        kinds.setdefault(frozenset((suffix, part) for suffix, (part, _) in tensors.items()), []).append(expert)
    return sorted(
        (
            (tuple(sorted(numbers)), dict(kind), sum(n for i in numbers for _, n in each[i].values()))
            for kind, numbers in kinds.items()
        ),
        key=lambda entry: (-len(entry[0]), entry[0]),
    )


def _add(
    row: Expected,
    experts: tuple[int, ...] | None,
    parts: Mapping[str, Part],
    reading: Reading,
    nbytes: int,
    binding: Binding,
) -> None:
    """Note a module, or experts, as found, and report what is wrong with them."""
    module = StoredModule(
        path=name_of(row),
        layer=row.layer,
        part=row.part,
        linear=row.row.kind == "linear",
        experts=experts,
        suffixes=frozenset(suffix.partition(".")[2] if suffix.startswith(RANK) else suffix for suffix in parts),
        reading=reading,
        bytes=nbytes,
        parameters=prod(row.shape) * (1 if experts is None else len(experts)),
    )
    binding.modules.append(Bound(module, row, parts))
    place, plain = _place(row, experts), reading.encoding.name == "plain"
    for flaw in reading.flaws:
        binding.report(row.check if plain else "encodings", judge(place, reading, flaw, parts))
    weight = parts.get("weight")
    if row.check == "dsa" and plain and weight and weight.dtype in ("F16", "F32"):
        binding.report("dsa", wrong_dtype(place, "weight", "BF16", weight.dtype, Code.DSA_DTYPE))


def _place(row: Expected, experts: tuple[int, ...] | None = None) -> Place:
    path = name_of(row)
    path = path.replace(".E.", f".{experts[0]}.", 1) if experts else path
    return Place(path, row.row.name, row.layer, row.check, experts)


def _report_missing(stored: _Stored, row: Expected, binding: Binding, experts: list[int] | None = None) -> None:
    """Report that a module or tensor is not there; a layer of which nothing is there is a gap and reported as one."""
    if row.optional or not stored.absence_is_known or (row.layer is not None and row.layer not in stored.layers):
        return
    name, number = name_of(row), 1
    if row.experts is not None:
        number = len(experts) if experts else row.experts
        name = name.replace(".E.", f".{experts[0] if experts else 0}.", 1)
    more = f", as are those of {number - 1:,} more experts ({ranges(experts or range(row.experts or 0))})"
    message = f"{name}: missing{more if number > 1 else ''}"
    binding.report(
        row.check,
        Finding(
            _place(row).codes.missing, message, tensor=name, layer=row.layer, expected=list(row.shape), count=number
        ),
    )


def _check_cache_scales(stored: _Stored, binding: Binding) -> None:
    """Claim the scales of a KV cache, which are known companions of an attention module."""
    for (layer, pattern), groups in stored.groups.items():
        if is_cache_scale(pattern):
            stored.claimed.add((layer, pattern))
            binding.cache_scales += sum(len(group.tensors) for group in groups)
            for group in groups:
                is_other = group.dtype not in ("F32", "")
                if is_other or len(group.shape) > 1:
                    name, code = group.tensors[0].name, Code.ENCODING_DTYPE if is_other else Code.ENCODING_SHAPE
                    message = f"{name}: {group.dtype} {list(group.shape)} is no scale of a KV cache"
                    binding.report("encodings", Finding(code, message, tensor=name, layer=layer))


def check_habits(binding: Binding) -> Iterator[Finding]:
    """Report what is stored otherwise than in the release and can still be read, a pattern at a time.

    These are scales of block FP8 under another name, and tensors kept in fewer or more bits.
    """
    kinds: dict[tuple[Code, str, str], list[tuple[int | None, int]]] = {}
    for tensor in binding.tensors:
        row = tensor.expected
        if row.row.wide and tensor.dtype in _NARROW:
            kinds.setdefault((Code.PRECISION_NARROWED, row.path, tensor.dtype), []).append((row.layer, 1))
        elif not row.row.wide and tensor.dtype == "F32" and row.check != "dsa":
            kinds.setdefault((Code.PRECISION_WIDENED, row.path, "F32"), []).append((row.layer, 1))
    for bound in binding.modules:
        row, reading, place = bound.expected, bound.module.reading, (bound.module.layer, bound.module.count)
        weight = bound.parts.get("weight")  # of which nothing may be left but a companion
        if reading.encoding.name == "plain" and weight and weight.dtype == "F32" and row.check != "dsa":
            kinds.setdefault((Code.PRECISION_WIDENED, f"{row.path}.weight", "F32"), []).append(place)
        elif reading.encoding.name == SCALE_SUFFIX and "weight_scale" in bound.parts and not reading.flaws:
            kinds.setdefault((Code.SCALE_SUFFIX, f"{row.path}.weight_scale", ""), []).append(place)
    for (code, path, dtype), places in sorted(kinds.items(), key=lambda entry: (entry[0][0].value, *entry[0][1:])):
        layers = sorted(layer for layer, _ in places if layer is not None)
        number = sum(count for _, count in places)
        where = f" in {layers_named(layers)}" if layers else ""
        usual = "F32" if code is Code.PRECISION_NARROWED else "BF16"
        what = f"{dtype} where the reference has {usual}" if dtype else "scales of block FP8 under this name"
        yield Finding(
            code,
            f"{path}: {what}, {counted(number, 'tensor')}{where}",
            tensor=path,
            layer=layers[0] if len(layers) == 1 else None,
            expected=usual if dtype else "weight_scale_inv",
            actual=dtype or "weight_scale",
            count=number,
        )
