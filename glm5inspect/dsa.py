# SPDX-License-Identifier: AGPL-3.0-only
"""DSA blocks: sparse MLA without positions, and the indexer in front of it.

A block owns exactly 14 tensors under ``self_attn``: a missing one is a broken layer, one too many means that the
checkpoint is not the model we think it is. A projection may be stored in any known encoding, companions included,
unless the scope is that of the reference. Shapes follow the class ``Glm5NextForConditionalGeneration`` and the geometry
in ``config.json``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from glm5inspect.binding import bind
from glm5inspect.catalogue import Code, Severity
from glm5inspect.dsa_block import BLOCK
from glm5inspect.encodings import COMPANIONS, SUFFIXES, Part, Reading, read_module
from glm5inspect.expect import Expected, Verdicts, compare, compare_bytes
from glm5inspect.families import family_hint
from glm5inspect.flaws import Place, judge, shape_hint
from glm5inspect.geometry import (
    MAX_LAYERS,
    REFERENCE,
    Geometry,
    declared_dsa_layers,
    read_count,
    read_geometry,
)
from glm5inspect.integrity import placement_of, refusals
from glm5inspect.layers import draft_tree, text_layers
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.report import Finding, Report, in_order, ranges, some
from glm5inspect.roles import (
    MTP_ONLY_NAMES,
    classify,
    is_cache_scale,
    is_mtp_only_name,
    layer_index,
    layer_prefix,
    mixer_of,
    parse_name,
)
from glm5inspect.scope import Scope
from glm5inspect.understanding import look

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Inventory, Progress, Source
    from glm5inspect.modules import Expected as Row
    from glm5inspect.understanding import Understood

_ATTENTION = layer_prefix("N") + "self_attn."
_VERDICTS = Verdicts(Code.DSA_MISSING, Code.DSA_DTYPE, Code.DSA_SHAPE, Code.DSA_BYTES)
_ROPE_DIM = 64  # what an MLA with positions adds to kv_a_proj_with_mqa
_SWAPPED = {"self_attn.q_b_proj.weight": "kv_b_proj", "self_attn.kv_b_proj.weight": "q_b_proj"}


@dataclass(frozen=True, slots=True)
class Block:
    """One DSA block.

    Attributes:
        layer: 0-based.
        bound: How many of the expected tensors exist.
        expected: How many there must be.
        bytes: Stored by those that exist.
        ok: Whether nothing is wrong with the block.
        unclaimed: Attention tensors of the layer that no row of the table claims, sorted.
    """

    layer: int
    bound: int
    expected: int
    bytes: int
    ok: bool
    unclaimed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DsaAnswer:
    """The geometry that shapes were checked with, ``None`` when it is not usable, and the blocks checked."""

    geometry: dict[str, int] | None
    blocks: tuple[Block, ...]


def verify_dsa(
    source: Source,
    *,
    layers: Collection[int] = (),
    scope: Scope = Scope.AUTO,
    dialect: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check every DSA block of a source, or only those asked for.

    Args:
        source: What to look at; with an index only the shards that hold attention tensors of these layers are opened.
            An absence is only reported after a look at all of them.
        layers: Layer indices; empty means every DSA layer.
        scope: Whether projections may be stored in any known encoding, or as in the reference only.
        dialect: The dialect that is accepted without a finding.
        progress: Called after each header.
    """
    config, asked = source.config(), set(layers)

    def needs(names: Iterable[str]) -> set[str]:
        return needed_names(names, _declared(config), asked)

    inventory, seen = look(source, needs, scope, dialect, progress)
    report = _answer(inventory, seen, config, asked, scope)
    if inventory.partial and any(finding.code in _ABSENCES for finding in report.findings):
        report = _answer(*look(source, None, scope, dialect, progress), config, asked, scope)
    return report


def _answer(
    inventory: Inventory, seen: Understood, config: Mapping[str, object] | None, asked: set[int], scope: Scope
) -> Report:
    """Look through the names of another writer, if they are that, and check the blocks."""
    if seen.foreign:
        return _report(inventory, None, (), [*seen.findings, *refusals(inventory)])
    report = check(seen.inventory, config, asked, scope)
    if seen.model and seen.inventory is not inventory:
        report = _as_stored(report, inventory, seen.model.spoken.expected, declared_tile(config or {}))
    return replace(report, findings=in_order([*seen.findings, *report.findings]))


def _as_stored(report: Report, inventory: Inventory, expected: Iterable[Row], tile: tuple[int, int] | None) -> Report:
    """Hold the rows of each block against what is stored: another writer may have split, joined or turned them."""
    assert isinstance(report.answer, DsaAnswer)  # noqa: S101 - made by `check`
    layers = {block.layer for block in report.answer.blocks}
    rows = [row for row in expected if row.check == "dsa" and row.layer in layers]
    binding = bind(inventory, rows, tile)
    stored = {group.layer for group in inventory.known_groups}
    findings = [f for f in report.findings if f.code not in _OF_ROWS or f.layer not in stored]
    findings += [finding for check in ("dsa", "encodings") for finding in binding.findings.get(check, ())]
    wrong = {finding.layer for finding in findings if finding.severity is Severity.ERROR}
    found = [(bound.expected, bound.module.bytes) for bound in binding.modules]
    found += [(tensor.expected, tensor.bytes) for tensor in binding.tensors]
    blocks = []
    for block in report.answer.blocks:
        own = {row.path: nbytes for row, nbytes in found if row.layer == block.layer}
        lost = {origin for row in rows if row.layer == block.layer and row.path not in own for origin in row.origins}
        bound = len(BLOCK) - len(lost)
        ok = block.layer not in wrong and not lost
        blocks.append(replace(block, bound=bound, bytes=sum(own.values()), ok=ok))
    return replace(report, answer=replace(report.answer, blocks=tuple(blocks)), findings=in_order(findings))


_OF_ROWS = frozenset(
    {Code.DSA_MISSING, Code.DSA_DTYPE, Code.DSA_SHAPE} | {code for code in Code if code.value.startswith("encoding-")}
)
"""What `check` finds of single rows, and knows under the released names only."""


_ABSENCES = frozenset({Code.DSA_MISSING, Code.DSA_NONE, Code.DSA_NOT_A_LAYER, Code.ENCODING_INCOMPLETE})


def _declared(config: Mapping[str, object] | None) -> set[int]:
    return (declared_dsa_layers(config)[0] if config else None) or set()


def needed_names(names: Iterable[str], declared: set[int], asked: set[int]) -> set[str]:
    """Pick the names that the check is about: attention tensors of DSA layers, and names only an MTP layer has."""
    attention: dict[int | None, list[str]] = {}
    layers: set[int | None] = set(declared)
    mtp_names = []
    for name in names:
        if ".self_attn." in name:
            pattern, layer, _ = parse_name(name)
            if pattern.startswith(_ATTENTION):
                attention.setdefault(layer, []).append(name)
                if mixer_of(pattern, classify(pattern)) == "DSA":
                    layers.add(layer)
        elif name.endswith(MTP_ONLY_NAMES) and is_mtp_only_name(name):
            mtp_names.append(name)
            layers.add(layer_index(name))
    if asked:
        layers &= asked
    return {name for layer in layers for name in attention.get(layer, ())}.union(mtp_names)


def check(
    inventory: Inventory, config: Mapping[str, object] | None, asked: set[int], scope: Scope = Scope.REFERENCE
) -> Report:
    """Check the blocks of an inventory; see `verify_dsa`."""
    geometry, findings = (REFERENCE, []) if config is None else read_geometry(config)
    attention = _attention_names(inventory)
    layers, layer_findings = _dsa_layers(inventory, config, asked)
    faults = [finding for finding in layer_findings if finding.code is Code.CONFIG_GEOMETRY]
    if faults or not geometry:
        geometry, layers, findings = None, [], [*findings, *faults]
    else:
        findings += layer_findings
    tile = declared_tile(config or {})
    found = {layer: _Found(inventory, layer, geometry if scope is Scope.AUTO else None, tile) for layer in layers}
    if geometry:
        for layer in layers:
            findings += _check_block(inventory, layer, attention.get(layer, []), found[layer], geometry)
    wrong = {finding.layer for finding in findings if finding.severity is Severity.ERROR}
    blocks = tuple(_block(inventory, found[layer], attention.get(layer, []), ok=layer not in wrong) for layer in layers)
    names = needed_names(inventory.all_names, set(layers), asked) if layers else set()
    names.update(name for layer in layers for name in _block_names(layer))
    return _report(inventory, geometry, blocks, [*findings, *refusals(inventory), *placement_of(inventory, names)])


def _report(
    inventory: Inventory, geometry: Geometry | None, blocks: tuple[Block, ...], findings: list[Finding]
) -> Report:
    return Report(
        command="verify-dsa",
        source=inventory.info,
        answer=DsaAnswer(asdict(geometry) if geometry else None, blocks),
        findings=in_order(findings),
        complete=inventory.complete,
    )


class _Found:
    """What is stored of one block: of each row its tensor, or the tensors of its encoding.

    Attributes:
        layer: 0-based.
        tensors: Row by row; of an encoded projection its companions too, of a missing tensor none.
        readings: How the projections are encoded that are not plain, or not only.
    """

    def __init__(
        self, inventory: Inventory, layer: int, geometry: Geometry | None, tile: tuple[int, int] | None
    ) -> None:
        """Look for the tensors of a block; ``geometry`` is ``None`` where nothing may be encoded."""
        self.layer = layer
        self.tensors: list[list[TensorRecord]] = []
        self.readings: dict[str, tuple[Reading, dict[str, TensorRecord]]] = {}
        for row, name in zip(BLOCK, _block_names(layer), strict=True):
            plain = inventory.tensors.get(name)
            parts = {"weight": plain} if plain else {}
            if geometry and row.name.endswith(".weight") and len(row.dimensions) == 2:  # noqa: PLR2004 - a matrix
                base = name.removesuffix("weight")
                parts = {s: inventory.tensors[base + s] for s in SUFFIXES if base + s in inventory.tensors}
                stored = {suffix: Part(tensor.dtype, tensor.shape) for suffix, tensor in parts.items()}
                reading = read_module(stored, row.shape(geometry), tile) if stored else None
                if reading and (reading.encoding.name != "plain" or len(parts) > 1):
                    self.readings[row.name] = (reading, parts)
            self.tensors.append(list(parts.values()))

    @property
    def names(self) -> set[str]:
        """The names of all tensors found."""
        return {tensor.name for tensors in self.tensors for tensor in tensors}


def _attention_names(inventory: Inventory) -> dict[int, list[str]]:
    """Return the names under ``self_attn`` of each layer, unseen ones included, scales of the KV cache left out."""
    names: dict[int, list[str]] = {}
    for group in inventory.known_groups:
        is_known_scale = group.role is not None and is_cache_scale(group.pattern)
        if group.layer is not None and group.pattern.startswith(_ATTENTION) and not is_known_scale:
            names.setdefault(group.layer, []).extend(tensor.name for tensor in group.tensors)
    return names


def _block_names(layer: int) -> list[str]:
    prefix = layer_prefix(layer)
    return [prefix + row.name for row in BLOCK]


def _dsa_layers(
    inventory: Inventory, config: Mapping[str, object] | None, asked: set[int]
) -> tuple[list[int], list[Finding]]:
    """Decide which layers are checked, ascending, and report where config and tensors disagree about that."""
    declared, findings = declared_dsa_layers(config) if config is not None else (None, [])
    if declared is None:
        what = "does not declare its attention layers" if config else "is not there"
        instead = "the layers are those found in the tensors" + ("" if config else ", the geometry is the reference's")
        findings.append(Finding(Code.CONFIG_MISSING, f"config.json {what}: {instead}"))
    mixers = _mixers(inventory)
    stored = {layer for layer, mixer in mixers.items() if "DSA" in mixer}
    found = text_layers(inventory.known_groups)
    if found.mtp and not found.trunk and inventory.absence_is_known:
        findings.append(draft_tree(found.mtp))
        declared = None
    layers = stored | found.mtp | (declared or set())
    if declared is not None:
        for layer in sorted(stored - declared - found.mtp - _declared_mtp(config)):
            message = f"layer {layer} has DSA tensors, but config.json does not declare it"
            findings.append(Finding(Code.DSA_UNDECLARED_LAYER, message, layer=layer))
    for layer in sorted(layer for layer, mixer in mixers.items() if len(mixer) > 1):
        message = f"layer {layer} has KDA tensors ({some(mixers[layer]['KDA'])}) beside its DSA tensors"
        findings.append(Finding(Code.MIXED_MIXER, message, layer=layer, count=len(mixers[layer]["KDA"])))
    if asked:
        findings = [finding for finding in findings if finding.layer is None or finding.layer in asked]
        for layer in sorted(asked - layers):
            message = f"layer {layer} is not a DSA layer; these are {ranges(layers) or 'none'}"
            findings.append(Finding(Code.DSA_NOT_A_LAYER, message, layer=layer, actual=ranges(layers) or None))
        layers &= asked
    elif not layers:
        findings.append(Finding(Code.DSA_NONE, "no DSA block: neither the config nor the tensors name one"))
    return sorted(layers), findings


def _mixers(inventory: Inventory) -> dict[int, dict[str, list[str]]]:
    """Return, for each layer, the names that occur in one mixer only, by mixer."""
    mixers: dict[int, dict[str, list[str]]] = {}
    for group in inventory.known_groups:
        mixer = mixer_of(group.pattern, group.role)
        if mixer and group.layer is not None:
            names = mixers.setdefault(group.layer, {}).setdefault(mixer, [])
            names += [tensor.name.partition(".self_attn.")[2] for tensor in group.tensors]
    return mixers


def _declared_mtp(config: Mapping[str, object] | None) -> set[int]:
    """Return where the config puts MTP layers, which its lists of layers leave out."""
    first, _ = read_count(config, "num_hidden_layers")
    number, _ = read_count(config, "num_nextn_predict_layers")
    return set(range(first, first + min(number, MAX_LAYERS))) if first is not None and number else set()


def _check_block(
    inventory: Inventory, layer: int, attention: list[str], found: _Found, geometry: Geometry
) -> Iterator[Finding]:
    for row, name in zip(BLOCK, _block_names(layer), strict=True):
        tensor, encoded = inventory.tensors.get(name), False
        if row.name in found.readings:
            reading, parts = found.readings[row.name]
            encoded = reading.encoding.name != "plain"
            place = Place(name.removesuffix(".weight"), row.name, layer, "dsa")
            yield from _check_encoding(inventory, place, reading, parts)
        if not encoded and (tensor is not None or (name not in inventory.unseen and inventory.absence_is_known)):
            yield from compare(row, name, layer, tensor, geometry, _VERDICTS, _hint)
    for tensor in _unclaimed(inventory, attention, found.names.union(_block_names(layer))):
        yield Finding(
            Code.DSA_UNCLAIMED,
            f"{tensor.name}: no row of a DSA block claims it",
            hint=family_hint(tensor.name),
            tensor=tensor.name,
            layer=layer,
            shard=tensor.shard,
            actual=f"{tensor.dtype} {list(tensor.shape)}",
        )


def _check_encoding(
    inventory: Inventory, place: Place, reading: Reading, parts: Mapping[str, TensorRecord]
) -> Iterator[Finding]:
    """Report what is wrong with an encoded projection; of a plain one, only what should not be beside it."""
    encoded = reading.encoding.name != "plain"
    for flaw in reading.flaws:
        unseen = not inventory.absence_is_known or any(f"{place.path}.{s}" in inventory.unseen for s in flaw.suffixes)
        if flaw.kind == "extra" or (encoded and not (flaw.kind == "missing" and unseen)):
            yield judge(place, reading, flaw, list(parts))
    for tensor in parts.values() if encoded else ():
        yield from compare_bytes(tensor, place.layer, Code.DSA_BYTES)


def _unclaimed(inventory: Inventory, attention: Iterable[str], claimed: Iterable[str]) -> list[TensorRecord]:
    """Return the attention tensors that are stored and not claimed, sorted by name."""
    names = sorted(set(attention).difference(claimed))
    return [inventory.tensors[name] for name in names if name in inventory.tensors]


def _block(inventory: Inventory, found: _Found, attention: list[str], *, ok: bool) -> Block:
    bound = sum(any(tensor.name.rpartition(".")[2] not in COMPANIONS for tensor in row) for row in found.tensors)
    claimed = found.names.union(_block_names(found.layer))
    return Block(
        layer=found.layer,
        bound=bound,
        expected=len(BLOCK),
        bytes=sum(tensor.nbytes for tensors in found.tensors for tensor in tensors),
        ok=ok and bound == len(BLOCK),
        unclaimed=tuple(tensor.name for tensor in _unclaimed(inventory, attention, claimed)),
    )


def _hint(expected: Expected, tensor: TensorRecord | None, geometry: Geometry) -> str | None:
    """Name the trap that a missing or misshapen tensor of a block fell into, when it is one of the four known."""
    if tensor is None:
        if expected.name == "self_attn.indexer.k_norm.bias":
            return "k_norm is a LayerNorm, not an RMSNorm: its bias is required, without it keys are silently wrong."
        return None
    shape = expected.shape(geometry)
    if tensor.shape == shape[::-1]:
        return "It is transposed." + (" Pool slots come first." if expected.name.endswith("_ape") else "")
    if expected.name == "self_attn.kv_a_proj_with_mqa.weight" and tensor.shape[:1] == (
        geometry.kv_lora_rank + _ROPE_DIM,
    ):
        return f"It carries a rope part ({_ROPE_DIM} rows); this model has none (NoPE)."
    if other := _SWAPPED.get(expected.name):
        row = next(row for row in BLOCK if row.name == f"self_attn.{other}.weight")
        if tensor.shape[:1] == row.shape(geometry)[:1]:
            return f"This is the width of {other}: the two are swapped."
    return shape_hint(expected.name, shape, tensor.shape)
