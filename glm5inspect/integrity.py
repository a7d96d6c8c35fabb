# SPDX-License-Identifier: AGPL-3.0-only
"""What is wrong with the shards and with the index, whatever the tensors are for."""

from __future__ import annotations

import json
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code, Severity
from glm5inspect.header import DTYPE_BITS, needed_bits
from glm5inspect.index import ABSENT
from glm5inspect.inventory import group_tensors, missing_numbers
from glm5inspect.report import Finding, counted, ranges, some
from glm5inspect.roles import layer_index

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from glm5inspect.header import Header, TensorRecord
    from glm5inspect.index import Index
    from glm5inspect.inventory import Group, Inventory

COMPANIONS = (
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
)
"""Last segments of tensors that belong to the ``weight`` or ``weight_packed`` of the same module."""

_SPAN = itemgetter(3, 4)
_PAYLOADS = ("weight", "weight_packed")


def refusals(inventory: Inventory) -> Iterator[Finding]:
    """Report each shard whose header was refused; the answer is incomplete because of it."""
    for shard, error in inventory.refused.items():
        yield Finding(error.code, str(error), shard=shard)


def emptiness(inventory: Inventory) -> Iterator[Finding]:
    """Report that there is no tensor at all, unless one may be in what is missing or could not be read."""
    if not (inventory.tensors or inventory.missing or inventory.refused or inventory.partial):
        yield Finding(Code.NO_TENSORS, "the headers hold no tensor at all")


def integrity(inventory: Inventory) -> Iterator[Finding]:
    """Report everything that the headers and the index say against each other and against the files."""
    yield from refusals(inventory)
    yield from emptiness(inventory)
    for header in inventory.headers.values():
        yield from check_header(header)
    for group in [*inventory.groups, *group_tensors(inventory.superseded)]:
        yield from check_sizes(group)
    yield from check_placement(inventory)
    if inventory.index:
        yield from _check_total_size(inventory, inventory.index)


def check_header(header: Header) -> Iterator[Finding]:
    """Report what is wrong with one shard whose header could be read, but for the sizes of its tensors."""
    if fault := header.metadata_fault:
        weight = Severity.WARNING if fault.accepted else None
        message, wanted = f"{header.shard}: __metadata__ {fault.text}", "an object" if fault.kind else None
        yield Finding(
            Code.HEADER_METADATA,
            message,
            weight,
            shard=header.shard,
            expected=wanted,
            actual=fault.kind,
            count=fault.keys,
        )
    for name, keys in header.extra_keys.items():
        message = f"{name}: the entry also has {some(keys)}, which the format does not know"
        yield _about(Code.HEADER_EXTRA_KEY, message, name, header.shard, actual=list(keys))
    yield from _check_coverage(header)


def check_sizes(group: Group) -> Iterator[Finding]:
    """Report tensors whose bytes are not what their dtype and shape need; both are the same for the whole group."""
    bits = needed_bits(group.dtype, group.shape)
    if bits is None:
        yield from map(_unknown_dtype, group.tensors)
    elif fault := _width_fault(group.dtype, group.shape):
        for tensor in group.tensors:
            yield _shape_bytes(tensor, bits, fault)
    else:
        need = bits // 8
        for tensor in [t for t in group.tensors if t[4] - t[3] != need]:  # by position: this is asked of every tensor
            yield _shape_bytes(tensor, bits, f"stored are {counted(tensor.nbytes, 'byte')}")


def _unknown_dtype(tensor: TensorRecord) -> Finding:
    upper = tensor.dtype.upper()
    hint = f"The format spells it {upper}." if upper in DTYPE_BITS else None
    message = f"{tensor.name}: the dtype {tensor.dtype} is not one of the format"
    return _about(Code.UNKNOWN_DTYPE, message, tensor.name, tensor.shard, actual=tensor.dtype, hint=hint)


def _width_fault(dtype: str, shape: tuple[int, ...]) -> str | None:
    """Say why no number of bytes would be right for a dtype narrower than a byte, else ``None``."""
    bits = DTYPE_BITS[dtype]
    if bits == 4 and shape and shape[-1] % 2:  # noqa: PLR2004 - two elements a byte
        return f"an F4 tensor holds two elements a byte, but its last dimension {shape[-1]} is odd"
    if (needed_bits(dtype, shape) or 0) % 8:
        return "the tensor ends inside a byte"
    return None


def _shape_bytes(tensor: TensorRecord, bits: int, fault: str) -> Finding:
    need = -(-bits // 8)
    message = f"{tensor.name}: {tensor.dtype} {list(tensor.shape)} needs {counted(need, 'byte')}; {fault}"
    return _about(Code.SHAPE_BYTES, message, tensor.name, tensor.shard, expected=need, actual=tensor.nbytes)


def _check_coverage(header: Header) -> Iterator[Finding]:
    """Walk the data section in order of offsets, as the library does, and go on where it would stop."""
    shard, reached = header.shard, 0
    tensors = sorted(header.tensors, key=_SPAN)
    stops = [tensor[4] for tensor in tensors]  # by position: this is asked of every tensor
    if [tensor[3] for tensor in tensors] == [0, *stops[:-1]]:
        reached, tensors = stops[-1], []  # each begins where the one before it ends
    for tensor in tensors:
        start = tensor.start
        if start != reached:
            code, what = Code.OFFSET_GAP, f"{counted(start - reached, 'byte')} in front of it belong to no tensor"
            if start < reached:
                code, what = Code.OFFSET_OVERLAP, f"begins {counted(reached - start, 'byte')} before its neighbour ends"
            message = f"{tensor.name}: {what}"
            yield _about(code, message, tensor.name, shard, expected=reached, actual=start)
        reached = max(reached, tensor.stop)
    stored = header.file_bytes - header.data_start
    if stored > reached:
        message = f"{shard}: {counted(stored - reached, 'byte')} after the last tensor"
        yield Finding(
            Code.FILE_TRAILING, message, shard=shard, expected=header.data_start + reached, actual=header.file_bytes
        )
    elif stored < reached:
        beyond = [tensor.name for tensor in header.tensors if tensor.stop > stored]
        message = f"{shard}: {counted(reached - stored, 'byte')} short; beyond the end: {some(beyond)}"
        yield Finding(
            Code.FILE_TRUNCATED,
            message,
            shard=shard,
            expected=header.data_start + reached,
            actual=header.file_bytes,
            count=len(beyond),
        )


def check_placement(inventory: Inventory) -> Iterator[Finding]:
    """Report which tensors are where, against what the index or the shards' numbers say."""
    yield from _check_copies(inventory)
    yield from _check_companions(inventory)
    if inventory.index:
        yield from _check_index(inventory, inventory.index)
    else:
        for name, numbers in missing_numbers(inventory.headers.keys() | inventory.refused.keys()).items():
            total = int(name.rpartition("-of-")[2].partition(".")[0])
            here = total - len(numbers)
            message = f"{name}: {here} of {total} shards are here; missing are {ranges(numbers)}"
            if inventory.info.kind == "file":
                message = f"{inventory.info.name}: one shard of {total}; give the folder that holds them all"
            yield Finding(Code.SHARD_NUMBERING, message, expected=total, actual=here, count=len(numbers))


def placement_of(inventory: Inventory, names: Collection[str]) -> Iterator[Finding]:
    """Report of `check_placement` only what is about these tensors, or about shards that hold them or should."""
    weight_map = inventory.index.weight_map if inventory.index else {}
    shards = {weight_map.get(name) for name in names}
    shards |= {inventory.tensors[name].shard for name in names if name in inventory.tensors}
    for finding in check_placement(inventory):
        about_shard = finding.code is Code.SHARD_NUMBERING or (finding.shard and finding.shard in shards)
        if finding.tensor in names if finding.tensor is not None else about_shard:
            yield finding


def _check_copies(inventory: Inventory) -> Iterator[Finding]:
    """A copy that the index settles is only a warning, as long as it is the same kind of tensor."""
    weight_map = inventory.index.weight_map if inventory.index else {}
    for name, copies in inventory.copies.items():
        settled = weight_map.get(name) in [copy.shard for copy in copies]
        alike = len({copy[1:3] for copy in copies}) == 1
        places = [f"{copy.shard} ({copy.dtype} {list(copy.shape)})" for copy in copies]
        why = f"the index says {weight_map[name]}" if settled else "no index settles which one counts"
        yield _about(
            Code.DUPLICATE_TENSOR,
            f"{name}: in {' and '.join(places)}; {why}",
            name,
            copies[0].shard,
            weight=Severity.WARNING if settled and alike else Severity.ERROR,
            expected=weight_map.get(name),
            actual=[copy.shard for copy in copies],
            count=len(copies),
        )


def _check_companions(inventory: Inventory) -> Iterator[Finding]:
    """A scale that is not in its weight's shard is lost by some loaders."""
    homes = {(group.pattern, group.layer): group for group in inventory.groups if group.pattern.endswith(_PAYLOADS)}
    for group in inventory.groups:
        suffix = group.pattern.rpartition(".")[2]
        if suffix not in COMPANIONS:
            continue
        home = homes.get((group.pattern[: -len(suffix)] + _PAYLOADS[0], group.layer))
        for payload, tensor in _apart(inventory, group, home, len(suffix)):
            message = f"{tensor.name}: in {tensor.shard}, but its weight is in {payload.shard}"
            yield _about(
                Code.COMPANION_SPLIT,
                message,
                tensor.name,
                tensor.shard,
                expected=payload.shard,
                actual=tensor.shard,
            )


def _apart(
    inventory: Inventory, group: Group, home: Group | None, cut: int
) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """Yield weights and companions that are in different shards; a weight that is not there is another check's.

    Args:
        inventory: What is stored.
        group: The companions.
        home: The weights, where they are a group as well.
        cut: Characters of the companions' suffix.
    """
    if home and group.experts and home.experts == group.experts:  # the same experts in the same order
        for pair in zip(home.tensors, group.tensors, strict=True):
            if pair[0][5] != pair[1][5]:  # their shards; by position, since this is asked of most tensors
                yield pair
        return
    for tensor in group.tensors:
        module = tensor.name[:-cut]
        payload = inventory.tensors.get(module + _PAYLOADS[0]) or inventory.tensors.get(module + _PAYLOADS[1])
        if payload is not None and payload.shard != tensor.shard:
            yield payload, tensor


def _check_index(inventory: Inventory, index: Index) -> Iterator[Finding]:
    for key in index.duplicates:
        yield _about(Code.INDEX_DUPLICATE_KEY, f"{index.name}: {key} stands twice", key, None)
    counts = Counter(index.weight_map.values()) if inventory.missing else {}
    for shard, fault in inventory.missing.items():
        message = f"{shard}: {fault}; the index puts {counted(counts[shard], 'tensor')} there"
        yield Finding(Code.INDEX_MISSING_SHARD, message, shard=shard, actual=fault, count=counts[shard])
    for shard in inventory.unlisted:
        if shard in inventory.headers:
            held = len(inventory.headers[shard].tensors)
            message = f"{shard}: {counted(held, 'tensor')}, but the index does not name the file"
            yield Finding(Code.INDEX_UNLISTED_SHARD, message, shard=shard, count=held)
    yield from _check_index_entries(inventory, index)


def _check_index_entries(inventory: Inventory, index: Index) -> Iterator[Finding]:
    """Compare the index with the headers, entry by entry."""
    read, matched = inventory.headers.keys(), 0
    for name, tensor in inventory.tensors.items():
        said = index.weight_map.get(name)
        if said == tensor.shard:
            matched += 1
        elif said is None:
            if tensor.shard not in inventory.unlisted:
                message = f"{name}: in {tensor.shard}, but not in the index"
                yield _about(Code.INDEX_UNLISTED_TENSOR, message, name, tensor.shard, actual=tensor.shard)
        elif said in read:
            message = f"{name}: in {tensor.shard}, but the index says {said}"
            yield _about(Code.INDEX_WRONG_SHARD, message, name, tensor.shard, expected=said, actual=tensor.shard)
    if matched == len(index.weight_map):
        return
    for name, said in index.weight_map.items():
        if name not in inventory.tensors and said in read:
            message = f"{name}: the index says {said}, but no header has it"
            yield _about(Code.INDEX_MISSING_TENSOR, message, name, said, expected=said)


def _check_total_size(inventory: Inventory, index: Index) -> Iterator[Finding]:
    """Report a claim that is no size, or that is not the sum of the tensors named, when all of them could be seen."""
    tensors, claim = inventory.tensors, index.total_size
    is_size = type(claim) is int and claim > 0
    if is_size and claim == sum(group.nbytes for group in inventory.groups):
        return
    all_seen = index.weight_map.keys() <= tensors.keys()
    named = sum(tensors[name].nbytes for name in index.weight_map) if all_seen else None
    if is_size and named in (claim, None):
        return
    what = "is absent"
    hint: str | None = None
    actual: int | str | None = None
    if type(claim) is int and claim > 0 and named is not None:
        off = f"{counted(abs(named - claim), 'byte')} too {'much' if claim > named else 'little'}"
        what, hint, actual = f"is {claim:,}, {off}", _explain_difference(inventory, named - claim), claim
    elif claim is not ABSENT:
        what, actual = f"is {json.dumps(claim)[:60]}, not a size", json.dumps(claim)[:60]
    known = "" if named is None else f"; the tensors have {counted(named, 'byte')}"
    message = f"{index.name}: metadata.total_size {what}{known}"
    yield Finding(Code.INDEX_TOTAL_SIZE, message, hint=hint, expected=named, actual=actual)


def _explain_difference(inventory: Inventory, difference: int) -> str | None:
    """Name what has exactly the bytes by which the index is off: a layer it left out, or the headers it counted in."""
    layers: dict[int, int] = {}
    for group in inventory.groups:
        if group.layer is not None:
            layers[group.layer] = layers.get(group.layer, 0) + group.nbytes
    if same := [layer for layer, size in layers.items() if size == difference]:
        return f"The difference is exactly the bytes of layer {ranges(same)}, as if it had been left out."
    if difference == -sum(header.data_start for header in inventory.headers.values()):
        return "The difference is exactly the shards' headers: these are file sizes, not tensor bytes."
    return None


def _about(code: Code, message: str, name: str, shard: str | None, **facts: object) -> Finding:
    """Make a finding about one tensor, with its layer filled in."""
    return Finding(code, message, tensor=name, layer=layer_index(name), shard=shard, **facts)  # type: ignore[arg-type]
