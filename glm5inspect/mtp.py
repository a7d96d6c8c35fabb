# SPDX-License-Identifier: AGPL-3.0-only
"""The multi-token-prediction layer, located from the checkpoint by the four names that only it carries.

In the released model it is the layer after the last trunk layer: a DSA block, a mixture of experts, and four head
tensors. Nothing about its place is assumed; `num_hidden_layers` and `num_nextn_predict_layers` are what it is held to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.binding import bind
from glm5inspect.catalogue import Code
from glm5inspect.dsa_block import BLOCK
from glm5inspect.encodings import SUFFIXES
from glm5inspect.families import MTP_PREFIXES
from glm5inspect.geometry import read_count
from glm5inspect.integrity import placement_of, refusals
from glm5inspect.layers import TextLayers, groups_by_layer, text_layers
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.report import Fact, Finding, Report, counted, in_order, ranges, some
from glm5inspect.roles import (
    LAYER_PREFIX,
    MTP_ONLY_NAMES,
    is_mtp_only_name,
    layer_index,
    layer_prefix,
    parse_name,
)
from glm5inspect.scope import Scope
from glm5inspect.summary import EncodingRow, encodings_by_part
from glm5inspect.understanding import look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.inventory import Group, Inventory, Progress, Source
    from glm5inspect.understanding import Understood

_LAYER = layer_prefix("N")
_LAYERS = LAYER_PREFIX.partition("#")[0]
_ROUTER = f"{_LAYER}mlp.gate."
_EXPERTS = f"{_LAYER}mlp.experts.E."
_PAYLOADS = ("weight", "weight_packed", "qweight", "trellis")  # in the order in which a missing one is named


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """One MTP layer.

    Attributes:
        layer: 0-based.
        names: Each of the four names that only an MTP layer has, and whether it is there; ``None`` for one that the
            index puts in a shard that is missing or could not be read.
        tensors: Number of tensors of the layer.
        bytes: Bytes stored.
        dtypes_by_role: Role name to dtype to number of tensors.
        shards: The shards that hold the layer, sorted; ``None`` for a snapshot.
    """

    layer: int
    names: dict[str, bool | None]
    tensors: int
    bytes: int
    dtypes_by_role: dict[str, dict[str, int]]
    shards: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class MtpAnswer:
    """What was found, and what the config says about it.

    Attributes:
        layers: The MTP layers found by name, ascending.
        declared: ``num_nextn_predict_layers``; ``None`` when nothing is declared.
        num_hidden_layers: Number of trunk layers; ``None`` when nothing is declared.
        expected_layers: Where MTP layers belong, as ranges; ``None`` when the config does not tell.
        encodings: How the modules of these layers are stored, by role; empty when the config does not tell.
        parameters: Their logical elements, whatever the encoding; ``None`` likewise.
    """

    layers: tuple[MtpLayer, ...]
    declared: int | None
    num_hidden_layers: int | None
    expected_layers: str | None
    encodings: tuple[EncodingRow, ...] = ()
    parameters: int | None = None


def find_mtp(
    source: Source, *, scope: Scope = Scope.AUTO, dialect: str | None = None, progress: Progress | None = None
) -> Report:
    """Locate the MTP layer and check that it is whole and where the config puts it.

    With an index, only the shards that hold the layer are opened, and the one with expert 0 of the last trunk layer
    that has experts. An absence is only reported after a look at all of them.
    """
    config = source.config()
    inventory, seen = look(source, needed_names, scope, dialect, progress)
    report = _answer(inventory, seen, config)
    if inventory.partial and any(finding.code in _ABSENCES for finding in report.findings):
        report = _answer(*look(source, None, scope, dialect, progress), config)
    return report


def _answer(inventory: Inventory, seen: Understood, config: Mapping[str, object] | None) -> Report:
    """Look through the names of another writer, if they are that, and check the layer."""
    if seen.foreign:
        answer = MtpAnswer((), None, None, None, (), None)
        findings = in_order([*seen.findings, *refusals(inventory)])
        return Report(
            command="find-mtp", source=inventory.info, answer=answer, findings=findings, complete=inventory.complete
        )
    report = check(seen.inventory, config)
    assert isinstance(report.answer, MtpAnswer)  # noqa: S101 - made there
    answer = report.answer
    if seen.model and seen.model.mtp:
        own = [row for row in seen.model.spoken.expected if row.layer in seen.model.mtp]
        binding = bind(inventory, own, declared_tile(config or {}))
        rows = tuple(encodings_by_part(binding, by_role=True))
        answer = replace(answer, encodings=rows, parameters=sum(row.parameters for row in rows))
    return replace(report, answer=answer, findings=in_order([*seen.findings, *report.findings]))


_ABSENCES = frozenset({Code.MTP_MISSING, Code.MTP_ABSENT, Code.MTP_INCOMPLETE, Code.MTP_COUNT})


def needed_names(names: Iterable[str]) -> set[str]:
    """Pick the names that the check is about.

    These are all tensors of layers with a name that only an MTP layer has, tensors named by another convention, and
    expert 0 of the last other layer that has experts.
    """
    listed = list(names)
    mtp = {layer_index(name) for name in listed if name.endswith(MTP_ONLY_NAMES) and is_mtp_only_name(name)}
    wanted = {name for name in listed if name.startswith(MTP_PREFIXES)}
    if mtp:
        wanted.update(name for name in listed if name.startswith(_LAYERS) and layer_index(name) in mtp)
    first_experts: dict[int, list[str]] = {}
    for name in listed:
        if ".mlp.experts.0." in name:
            pattern, layer, _ = parse_name(name)
            if layer is not None and layer not in mtp and pattern.startswith(_EXPERTS):
                first_experts.setdefault(layer, []).append(name)
    return wanted.union(first_experts[max(first_experts)] if first_experts else ())


def check(inventory: Inventory, config: Mapping[str, object] | None) -> Report:
    """Check the MTP layers of an inventory; see `find_mtp`."""
    layers = text_layers(inventory.known_groups)
    by_layer = groups_by_layer(inventory.known_groups)
    found = sorted(layers.mtp)
    findings = check_place(inventory, config)
    if found and inventory.absence_is_known:
        trunk_has = _trunk(by_layer, layers.trunk)
        for layer in found:
            findings += _check_whole(layer, by_layer[layer], trunk_has)
    names = needed_names(inventory.all_names)
    trunk, declared = (read_count(config, field)[0] for field in _FIELDS)
    return Report(
        command="find-mtp",
        source=inventory.info,
        answer=MtpAnswer(
            layers=tuple(_describe(inventory, layer, by_layer[layer]) for layer in found),
            declared=declared,
            num_hidden_layers=trunk,
            expected_layers=None if trunk is None else _expected(trunk, declared),
        ),
        findings=in_order([*findings, *refusals(inventory), *placement_of(inventory, names)]),
        complete=inventory.complete,
    )


_FIELDS = ("num_hidden_layers", "num_nextn_predict_layers")


def check_place(inventory: Inventory, config: Mapping[str, object] | None) -> list[Finding]:
    """Hold number and place of the MTP layers to the config, and their dtypes to the trunk's."""
    (trunk, faults), (declared, more_faults) = (read_count(config, field) for field in _FIELDS)
    layers = text_layers(inventory.known_groups)
    findings = [*faults, *more_faults]
    foreign = sorted(
        tensor.name
        for group in inventory.known_groups
        if group.pattern.startswith(MTP_PREFIXES)
        for tensor in group.tensors
    )
    if foreign:
        message = f"{foreign[0]}: named by another convention, {counted(len(foreign), 'tensor')} in all"
        findings.append(Finding(Code.MTP_FOREIGN_PREFIX, message, tensor=foreign[0], count=len(foreign)))
    if layers.mtp:
        findings += _check_declaration(layers.mtp, trunk, declared)
        findings += _check_encodings(groups_by_layer(inventory.known_groups), layers)
    elif not foreign and inventory.absence_is_known:
        findings.append(_nothing_found(declared))
    return findings


def _nothing_found(declared: int | None) -> Finding:
    if declared == 0:
        return Finding(Code.MTP_ABSENT, "no MTP layer, and config.json declares none", expected=0, actual=0)
    says = "declares nothing" if declared is None else f"declares {declared}"
    return Finding(
        Code.MTP_MISSING,
        f"no layer carries a name that only an MTP layer has, and config.json {says}",
        hint="Restore the layer from the release, or set num_nextn_predict_layers to 0.",
        expected=declared,
        actual=0,
    )


def _expected(trunk: int, declared: int | None) -> str:
    last = trunk + max(1, declared or 0) - 1
    return str(trunk) if last == trunk else f"{trunk}-{last}"


def _check_declaration(found: set[int], trunk: int | None, declared: int | None) -> Iterator[Finding]:
    """Hold the number and the place of the layers found to the config."""
    if declared == 0:
        message = f"MTP layer {ranges(found)} found by name, but config.json declares 0"
        yield Finding(Code.MTP_UNDECLARED, message, expected=0, actual=len(found), count=len(found))
    elif declared is not None and declared != len(found):
        message = f"{counted(len(found), 'MTP layer')} found ({ranges(found)}), but config.json declares {declared}"
        yield Finding(Code.MTP_COUNT, message, expected=declared, actual=len(found))
    if trunk is not None:
        expected = _expected(trunk, declared)
        for layer in sorted(found):
            if not trunk <= layer < trunk + max(1, declared or 0):
                message = f"the MTP layer is {layer}, but num_hidden_layers {trunk} puts it at {expected}"
                yield Finding(Code.MTP_POSITION, message, layer=layer, expected=expected, actual=layer)


class _Trunk(NamedTuple):
    """What the trunk's MoE layers have, and an MTP layer must have too.

    Attributes:
        router: Router tensors, relative to the layer; at least the weight, and nothing of how it is encoded.
        experts: Expert and projection of every routed expert.
    """

    router: set[str]
    experts: set[tuple[str, str]]


def _trunk(by_layer: Mapping[int, list[Group]], trunk: set[int]) -> _Trunk:
    """Look at the trunk once, however many MTP layers there are."""
    router = {"mlp.gate.weight"}
    experts: set[tuple[str, str]] = set()
    for layer in sorted(trunk):
        own = (g.pattern.removeprefix(_LAYER) for g in by_layer[layer] if g.pattern.startswith(_ROUTER))
        router.update(name for name in own if name.rpartition(".")[2] not in SUFFIXES)
        experts.update(_experts(by_layer[layer]))
    return _Trunk(router, experts)


def _experts(groups: Iterable[Group]) -> dict[tuple[str, str], set[str]]:
    """Return, for every expert and projection of a layer, the last segments of its tensors' names."""
    leaves: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        if group.pattern.startswith(_EXPERTS):
            projection, _, leaf = group.pattern.removeprefix(_EXPERTS).rpartition(".")
            for tensor in group.tensors:
                expert = tensor.name.partition(".experts.")[2].partition(".")[0]
                leaves.setdefault((expert, projection), set()).add(leaf)
    return leaves


def _check_whole(layer: int, groups: list[Group], trunk: _Trunk) -> Iterator[Finding]:
    """Report which parts of the layer are missing: head, DSA block, router, experts; one finding a part."""
    prefix = layer_prefix(layer)
    names = {tensor.name.removeprefix(prefix) for group in groups for tensor in group.tensors}
    parts = {
        "head tensor": _lacking(MTP_ONLY_NAMES, names),
        "tensor": _lacking((row.name for row in BLOCK), names),
        "router tensor": _lacking(sorted(trunk.router), names),
        "expert tensor": _missing_experts(groups, trunk),
    }
    for part, missing in parts.items():
        if missing:
            experts = {expert for name in missing if (expert := parse_name(name).expert) is not None}
            which = f" of expert{'s' if len(experts) > 1 else ''} {ranges(experts)}" if experts else ""
            which = " of the DSA block" if part == "tensor" else which
            message = f"layer {layer} lacks {counted(len(missing), part)}{which}: {some(missing)}"
            only = prefix + missing[0] if len(missing) == 1 else None
            expected: Fact = list(missing[:16])
            yield Finding(Code.MTP_INCOMPLETE, message, tensor=only, layer=layer, expected=expected, count=len(missing))


def _lacking(wanted: Iterable[str], names: set[str]) -> list[str]:
    """Return what is not among the names: a module may be stored otherwise than as `weight` when it is quantized."""
    return [
        name
        for name in wanted
        if name not in names and not any(f"{name.removesuffix('.weight')}.{leaf}" in names for leaf in _PAYLOADS)
    ]


def _missing_experts(groups: list[Group], trunk: _Trunk) -> list[str]:
    """Return the expert tensors that a layer lacks, relative to it.

    It must have every expert and projection that the trunk has. Which tensor that is depends on how the layer's own
    experts are stored, which may be another encoding than the trunk's.
    """
    own = _experts(groups)
    payload = next((leaf for leaf in _PAYLOADS if any(leaf in leaves for leaves in own.values())), _PAYLOADS[0])
    lacking = [key for key in trunk.experts | own.keys() if not own.get(key, set()).intersection(_PAYLOADS)]
    lacking.sort(key=lambda key: (len(key[0]), key))
    return [f"mlp.experts.{expert}.{projection}.{payload}" for expert, projection in lacking]


def _check_encodings(by_layer: Mapping[int, list[Group]], layers: TextLayers) -> Iterator[Finding]:
    """Compare the dtypes of MTP experts with those of expert 0 of the last trunk layer that has experts."""
    experts = {
        layer: [group for group in by_layer[layer] if group.pattern.startswith(_EXPERTS)] for layer in layers.text
    }
    last = max((layer for layer in layers.trunk if experts[layer]), default=None)
    if last is None:
        return
    there = sorted({group.dtype for group in experts[last] if "0" in group.experts})
    for layer in sorted(layers.mtp):
        here = sorted({group.dtype for group in experts[layer]})
        if here and there and here != there and "" not in (*here, *there):  # all of them were seen
            message = (
                f"the experts of layer {layer} are stored as {', '.join(here)},"
                f" those of layer {last} as {', '.join(there)}"
            )
            yield Finding(Code.MTP_ENCODING, message, layer=layer, expected=list(there), actual=list(here))


def _describe(inventory: Inventory, layer: int, groups: list[Group]) -> MtpLayer:
    prefix = layer_prefix(layer)
    seen = [group for group in groups if group.dtype]
    dtypes: dict[str, dict[str, int]] = {}
    for group in seen:
        of_role = dtypes.setdefault(group.role.value if group.role else "unknown", {})
        of_role[group.dtype] = of_role.get(group.dtype, 0) + len(group.tensors)
    shards = {tensor.shard for group in seen for tensor in group.tensors}
    return MtpLayer(
        layer=layer,
        names={
            name: None if prefix + name in inventory.unseen else prefix + name in inventory.tensors
            for name in MTP_ONLY_NAMES
        },
        tensors=sum(len(group.tensors) for group in seen),
        bytes=sum(group.nbytes for group in seen),
        dtypes_by_role={role: dict(sorted(of_role.items())) for role, of_role in sorted(dtypes.items())},
        shards=None if None in shards else tuple(sorted(shard for shard in shards if shard)),
    )
