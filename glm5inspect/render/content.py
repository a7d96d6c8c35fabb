# SPDX-License-Identifier: AGPL-3.0-only
"""What the answer of each command says to people: lines and tables, which a format for people draws in its own way.

Names in here are as untrusted as the files they come from; it is the format that makes them harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect.catalogue import Code
from glm5inspect.render.blocks import Grid, Lines
from glm5inspect.render.differences import difference_blocks, difference_subject
from glm5inspect.render.verification import (
    overview_blocks,
    overview_subject,
    verification_blocks,
    verification_subject,
)
from glm5inspect.render.wording import Folded, columns, dtypes_text, fold, size, verdict
from glm5inspect.report import counted, layers_named, printable, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from glm5inspect.census import Census, PatternRow
    from glm5inspect.classification import Classification, Classified
    from glm5inspect.dsa import DsaAnswer
    from glm5inspect.explain import Explained
    from glm5inspect.keeping import CacheState
    from glm5inspect.layers import LayerRow
    from glm5inspect.listing import Listing
    from glm5inspect.mtp import MtpAnswer, MtpLayer
    from glm5inspect.recording import Recorded
    from glm5inspect.render.blocks import Block
    from glm5inspect.report import Finding, Report

_CHECKS = (Code.DSA_MISSING, Code.DSA_DTYPE, Code.DSA_SHAPE, Code.DSA_BYTES)
_PRESENCE = {True: "present", False: "MISSING", None: "not seen"}
_STRIP_LIMIT = 200  # layers drawn as a strip; more than a screen has columns is no glance any more


class _Content(NamedTuple):
    """What there is to say about the answer of a command: its blocks, and what the verdict is about."""

    blocks: Callable[[Any], Iterable[Block]]
    subject: Callable[[Any], tuple[str, str]] | None = None


def blocks_of(report: Report) -> Iterable[Block]:
    """Return the answer of a report as lines and tables."""
    return CONTENT[report.topic].blocks(report.answer)


def answer_lines(report: Report) -> list[str]:
    """Return the answer of a report as plain lines, with nothing but spaces between columns."""
    lines = []
    for block in blocks_of(report):
        lines += [block.title] if block.title else []
        if isinstance(block, Grid):
            lines += columns(block.plain_rows())
        elif block.wrapped:
            lines += [row for line in block.lines for row in _paragraph(line)]
        else:
            lines += map(printable, block.lines)
    return lines


def _paragraph(text: str) -> list[str]:
    """Wrap a paragraph below its label."""
    from textwrap import wrap  # noqa: PLC0415 - for one command only

    label = len(text) - len(text.partition(":")[2].lstrip())
    return wrap(text, width=80, subsequent_indent=" " * label)


def verdict_of(report: Report) -> str | None:
    """Return the verdict in one line, ``None`` for a command that judges nothing (a catalogue, a folder)."""
    subject = CONTENT[report.topic].subject
    return verdict(report, *subject(report.answer)) if subject else None


def folded(report: Report) -> list[Folded]:
    """Return the findings of a report as they are told to people: those about a DSA block in the order of the block."""
    return fold(sorted(report.findings, key=_block_order) if report.command == "verify-dsa" else report.findings)


def _block_order(finding: Finding) -> tuple[int, int, int]:
    """Put findings about a DSA block into the order of its table, and of the checks of one tensor."""
    _, _, name = (finding.tensor or "").partition(".self_attn.")
    from glm5inspect.dsa_block import BLOCK  # noqa: PLC0415 - for one command only

    rows = [row.name.removeprefix("self_attn.") for row in BLOCK]
    row = rows.index(name) if name in rows else len(rows)
    check = _CHECKS.index(finding.code) if finding.code in _CHECKS else len(_CHECKS)
    return (row, check, -1 if finding.layer is None else finding.layer)


def _census(census: Census) -> Iterator[Block]:
    if census.tensors:
        yield _roles(census)
    shards = "unknown number of shards" if census.shards is None else counted(census.shards, "shard")
    index = f"index of {census.index.entries:,} entries" if census.index.present else "no index"
    numbers = ((census.tensors, "tensor"), (census.patterns, "pattern"), (census.layers, "layer"))
    dtypes = (f"{dtype} {t.tensors:,} ({size(t.bytes)})" for dtype, t in census.by_dtype.items())
    yield Lines(
        ", ".join([*(counted(number, noun) for number, noun in numbers), shards, index]),
        f"{counted(census.bytes, 'byte')} ({size(census.bytes)}), {counted(census.elements, 'stored element')}",
        f"dtypes: {', '.join(dtypes) or 'none'}",
        f"MTP layers: {ranges(census.mtp_layers) or 'none'}",
        f"digest: {census.digest or 'none, not everything was read'}",
        "",
    )
    if census.layer_table:
        yield from _layers(census.layer_table)
    if census.pattern_table:
        yield _patterns(census.pattern_table)


def _roles(census: Census) -> Grid:
    table = Grid("Roles", ("role", "tensors>", "size>", "share>", "dtypes"))
    for role, tally in census.by_role.items():
        share = f"{tally.bytes / census.bytes:.2%}" if census.bytes else "-"
        table.add(role, tally.tensors, size(tally.bytes), share, dtypes_text(tally.dtypes))
    if census.unknown:
        table.add("unknown", len(census.unknown), "", "", "")
    return table


def _patterns(rows: tuple[PatternRow, ...]) -> Grid:
    columns = ("pattern", "role", "dtype", "shape", "tensors", "size", "experts", "layers")
    table = Grid("Patterns", columns, plain=True)
    for row in rows:
        kind = (row.role or "unknown", row.dtype, str(list(row.shape)))
        table.add(row.pattern, *kind, f"{row.tensors:,}", size(row.bytes), row.experts or "-", row.layers or "-")
    return table


def _layers(rows: tuple[LayerRow, ...]) -> Iterator[Block]:
    """Yield a strip with one column a layer, and one row for all layers that are alike."""
    if rows[-1].layer < _STRIP_LIMIT:
        yield Lines(*_strip(rows), title="Layers", drawn=True)
    alike: dict[tuple[str, str, bool, int, int, str], list[int]] = {}
    for row in rows:
        key = (row.mixer, row.ffn, row.mtp, row.tensors, row.bytes, dtypes_text(row.dtypes))
        alike.setdefault(key, []).append(row.layer)
    table = Grid(None, ("layers", "mixer", "ffn", "MTP", "tensors each>", "size each>", "dtypes"))
    for (mixer, ffn, mtp, tensors, nbytes, dtypes), layers in alike.items():
        where = ranges(layers).replace(",", ", ")  # so that a narrow column breaks between layers, not within them
        table.add(where, mixer, ffn, "yes" if mtp else "", tensors, size(nbytes), dtypes)
    yield table


def _strip(rows: tuple[LayerRow, ...]) -> Iterator[str]:
    last = rows[-1].layer
    by_layer = {row.layer: row for row in rows}
    marks = {"KDA": "K", "DSA": "D", "dense": "d", "moe": "m", "mixed": "!", "none": "-"}

    def draw(mark: Callable[[LayerRow], str]) -> str:
        return "".join(mark(by_layer[i]) if i in by_layer else " " for i in range(last + 1))

    yield "layer  " + "".join(f"{i:<10}" for i in range(0, last + 1, 10)).rstrip()
    yield "mixer  " + draw(lambda row: marks[row.mixer]) + "   K KDA, D DSA"
    yield "ffn    " + draw(lambda row: marks[row.ffn]) + "   d dense, m MoE"
    yield "MTP    " + draw(lambda row: "M" if row.mtp else " ")


def _dsa(answer: DsaAnswer) -> Iterator[Block]:
    if answer.geometry:
        yield Lines("geometry: " + ", ".join(f"{field} {value}" for field, value in answer.geometry.items()))
    if not answer.blocks:
        return
    table = Grid("DSA blocks", ("layer>", "found>", "bytes>", "size>", "unclaimed>", "ok"))
    for block in answer.blocks:
        bound = f"{block.bound} of {block.expected}"
        ok = "yes" if block.ok else "NO"
        table.add(block.layer, bound, block.bytes, size(block.bytes), len(block.unclaimed), ok)
    yield table


def _mtp(answer: MtpAnswer) -> Iterator[Block]:
    trunk, declared = answer.num_hidden_layers, answer.declared
    fields = (("num_hidden_layers", trunk), ("num_nextn_predict_layers", declared))
    says = ", ".join(f"{field} {value}" for field, value in fields if value is not None) or "nothing of MTP layers"
    place = f", so MTP at layer {answer.expected_layers}" if answer.expected_layers and declared != 0 else ""
    yield Lines(f"config.json says: {says}{place}")
    for layer in answer.layers:
        yield from _mtp_layer(layer)


def _mtp_layer(layer: MtpLayer) -> Iterator[Block]:
    shards = "" if layer.shards is None else f", in {counted(len(layer.shards), 'shard')}: {', '.join(layer.shards)}"
    tensors = counted(layer.tensors, "tensor")
    yield Lines(
        f"layer {layer.layer}: {tensors}, {layer.bytes:,} bytes ({size(layer.bytes)}){shards}",
        ", ".join(f"{name} {_PRESENCE[there]}" for name, there in layer.names.items()),
    )
    if layer.tensors:
        table = Grid(f"MTP layer {layer.layer}", ("role", "tensors>", "dtypes"))
        for role, dtypes in layer.dtypes_by_role.items():
            table.add(role, sum(dtypes.values()), dtypes_text(dtypes))
        yield table


def _recorded(answer: Recorded) -> Iterator[Block]:
    rows = "nothing was recorded" if answer.rows is None else counted(answer.rows, "row")
    yield Lines(
        f"{counted(answer.tensors, 'tensor')}, {answer.bytes:,} bytes: {rows}", f"provenance: {answer.provenance}"
    )


def _classified(answer: Classification) -> Iterator[Block]:
    table = Grid(None, ("name", "role", "layer", "kind"), plain=True)
    for r in answer.results:
        table.add(r.name, r.role or "unknown", "-" if r.layer is None else str(r.layer), _kinds(r))
    if table.rows:
        yield table


def _kinds(result: Classified) -> str:
    kinds = [word for word, is_so in (("norm", result.norm), ("MTP only", result.mtp_only)) if is_so]
    return ", ".join(kinds) or "-"


def _shown(answer: Listing) -> Iterator[Block]:
    table = Grid(None, ("name", "dtype", "shape", "bytes", "role", "shard", "bytes of the file"), plain=True)
    for t in answer.tensors:
        span = "-" if t.start is None else f"[{t.start}, {t.stop})"
        table.add(t.name, t.dtype, str(list(t.shape)), str(t.bytes), t.role or "unknown", t.shard or "-", span)
    if table.rows:
        yield table


def _explained(answer: Explained) -> Iterator[Block]:
    if len(answer.entries) > 1:
        table = Grid(None, ("code", "severity", "title"), plain=True, headed=False)
        for entry in answer.entries:
            table.add(entry.code, entry.severity, entry.title)
        yield table
        return
    (entry,) = answer.entries
    yield Lines(f"{entry.code} ({entry.severity}): {entry.title}", "")
    yield Lines(f"Meaning: {entry.meaning}", f"Cause:   {entry.cause}", f"Remedy:  {entry.remedy}", wrapped=True)


def _cached(answer: CacheState) -> Iterator[Block]:
    yield Lines(f"{'cleared' if answer.cleared else 'kept in'} {answer.folder}")
    table = Grid(None, ("kind", "entries", "bytes"), plain=True)
    for kind in ("headers", "listings", "revisions", "values"):
        usage = getattr(answer, kind)
        table.add(kind, str(usage.entries), str(usage.bytes))
    yield table


def _census_subject(census: Census) -> tuple[str, str]:
    what = "none of them unknown" if not census.unknown else f"{len(census.unknown):,} of them unknown"
    return f"{counted(census.tensors, 'tensor')}, {what}", "complete shapes and modules (verify does)"


def _dsa_subject(answer: DsaAnswer) -> tuple[str, str]:
    layers = [block.layer for block in answer.blocks]
    if not layers:
        return "no DSA block was checked", ""
    where = layers_named(layers)
    bound, expected = sum(block.bound for block in answer.blocks), sum(block.expected for block in answer.blocks)
    return f"{counted(len(layers), 'DSA block')} ({where}), {bound} of {counted(expected, 'tensor')} found", ""


def _mtp_subject(answer: MtpAnswer) -> tuple[str, str]:
    seen = [layer.layer for layer in answer.layers if layer.tensors]
    unseen = [layer.layer for layer in answer.layers if not layer.tensors]
    parts = [f"MTP {layers_named(seen)} found"] if seen else []
    parts += [f"MTP {layers_named(unseen)} only in the index"] if unseen else []
    unknown = answer.layers and answer.declared is None and answer.num_hidden_layers is None
    return ", ".join(parts) or "no MTP layer found", "number and place, which no config tells" if unknown else ""


CONTENT: dict[str, _Content] = {
    "census": _Content(_census, _census_subject),
    "verify-dsa": _Content(_dsa, _dsa_subject),
    "find-mtp": _Content(_mtp, _mtp_subject),
    "diff": _Content(difference_blocks, difference_subject),
    "verify": _Content(verification_blocks, verification_subject),
    "sources": _Content(overview_blocks, overview_subject),
    "unanswered": _Content(lambda _: (), lambda answer: (f"not looked at: {answer.unanswered}", "")),
    "record": _Content(_recorded, lambda answer: (counted(answer.tensors, "tensor"), "")),
    "classify": _Content(_classified, lambda answer: (counted(len(answer.results), "name"), "")),
    "show": _Content(_shown, lambda answer: (counted(len(answer.tensors), "tensor"), "")),
    "explain": _Content(_explained),
    "cache": _Content(_cached),
}
"""By topic: every command of the command line, several sources, and one that could not be looked at."""
