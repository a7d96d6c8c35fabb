# SPDX-License-Identifier: AGPL-3.0-only
"""The multi-token-prediction layer, located from the checkpoint by the four names that only it carries.

In the released model it is the layer after the last trunk layer: a DSA block, a mixture of experts, and four head
tensors. Nothing about its place is assumed; `num_hidden_layers` and `num_nextn_predict_layers` are what it is held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.catalogue import Code
from glm5inspect.dsa import BLOCK
from glm5inspect.families import MTP_PREFIXES
from glm5inspect.geometry import read_count
from glm5inspect.integrity import placement_of, refusals
from glm5inspect.layers import groups_by_layer, text_layers
from glm5inspect.report import Fact, Finding, Report, counted, in_order, ranges, some
from glm5inspect.roles import (
    LAYER_PREFIX,
    MTP_ONLY_NAMES,
    is_mtp_only_name,
    layer_index,
    layer_prefix,
    parse_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.inventory import Group, Inventory, Progress, Source

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
    """

    layers: tuple[MtpLayer, ...]
    declared: int | None
    num_hidden_layers: int | None
    expected_layers: str | None


def find_mtp(source: Source, *, progress: Progress | None = None) -> Report:
    """Locate the MTP layer and check that it is whole and where the config puts it.

    With an index, only the shards that hold the layer are opened, and the one with expert 0 of the last trunk layer
    that has experts. An absence is only reported after a look at all of them.
    """
    config = source.config()
    inventory = source.inventory(needed_names, progress)
    report = check(inventory, config)
    if inventory.partial and any(finding.code in _ABSENCES for finding in report.findings):
        report = check(source.inventory(progress=progress), config)
    return report


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
    trunk, faults = read_count(config, "num_hidden_layers")
    declared, more_faults = read_count(config, "num_nextn_predict_layers")
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
    by_layer = groups_by_layer(inventory.known_groups)
    found = sorted(layers.mtp)
    if found:
        trunk_has = _trunk(by_layer, layers.trunk)
        findings += _check_declaration(layers.mtp, trunk, declared)
        for layer in found:
            if inventory.absence_is_known:
                findings += _check_whole(layer, by_layer[layer], trunk_has)
            findings += _check_encoding(layer, by_layer[layer], trunk_has)
    elif not foreign and inventory.absence_is_known:
        findings.append(_nothing_found(declared))
    names = needed_names(inventory.all_names)
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
        router: Router tensors, relative to the layer; at least the weight.
        experts: Expert and projection of every routed expert.
        last: The last layer with routed experts; ``None`` when there is none.
        dtypes: How expert 0 of that layer is stored; an empty one for what nobody has seen.
    """

    router: set[str]
    experts: set[tuple[str, str]]
    last: int | None
    dtypes: set[str]


def _trunk(by_layer: Mapping[int, list[Group]], trunk: set[int]) -> _Trunk:
    """Look at the trunk once, however many MTP layers there are."""
    router = {"mlp.gate.weight"}
    experts: set[tuple[str, str]] = set()
    last: int | None = None
    for layer in sorted(trunk):
        router.update(g.pattern.removeprefix(_LAYER) for g in by_layer[layer] if g.pattern.startswith(_ROUTER))
        if own := _experts(by_layer[layer]):
            experts.update(own)
            last = layer
    groups = [group for group in by_layer.get(-1 if last is None else last, ()) if group.pattern.startswith(_EXPERTS)]
    first = {g.dtype for g in groups if any(".mlp.experts.0." in tensor.name for tensor in g.tensors)}
    return _Trunk(router, experts, last, first)


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
    # A module may be stored in several tensors, and not necessarily as `weight`, when it is quantized.
    modules = {module for module, _, leaf in (name.rpartition(".") for name in names) if leaf in _PAYLOADS}
    parts = {
        "head tensor": [name for name in MTP_ONLY_NAMES if name not in names],
        "tensor": [r.name for r in BLOCK if r.name not in names and r.name.removesuffix(".weight") not in modules],
        "router tensor": sorted(trunk.router - names),
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


def _check_encoding(layer: int, groups: list[Group], trunk: _Trunk) -> Iterator[Finding]:
    """Compare the dtypes of the layer's experts with those of expert 0 of the last trunk layer that has experts."""
    dtypes = {group.dtype for group in groups if group.pattern.startswith(_EXPERTS)}
    all_seen = "" not in dtypes | trunk.dtypes
    if dtypes and trunk.dtypes and dtypes != trunk.dtypes and all_seen:
        here, there = sorted(dtypes), sorted(trunk.dtypes)
        message = (
            f"the experts of layer {layer} are stored as {', '.join(here)},"
            f" those of layer {trunk.last} as {', '.join(there)}"
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
