# SPDX-License-Identifier: AGPL-3.0-only
"""Reports as tables a person wants to read, with Rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from glm5inspect.catalogue import Code, Severity
from glm5inspect.dsa_block import BLOCK
from glm5inspect.render.console import add_row, console_for, dtypes_text, new_table, print_lines, size
from glm5inspect.render.verification import show_verification, verification_subject
from glm5inspect.render.wording import columns, fold, source_lines, verdict
from glm5inspect.report import counted, printable, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

    from glm5inspect.census import Census, PatternRow
    from glm5inspect.dsa import DsaAnswer
    from glm5inspect.layers import LayerRow
    from glm5inspect.mtp import MtpAnswer
    from glm5inspect.recording import Recorded
    from glm5inspect.render import View
    from glm5inspect.report import Finding, Report

_ROWS = {row.name.removeprefix("self_attn."): number for number, row in enumerate(BLOCK)}
_CHECKS = (Code.DSA_MISSING, Code.DSA_DTYPE, Code.DSA_SHAPE, Code.DSA_BYTES)
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_PRESENCE = {True: "present", False: "MISSING", None: "not seen"}
_STRIP_LIMIT = 200  # layers drawn as a strip; more than a screen has columns is no glance any more


def render(report: Report, view: View) -> str:
    """Return the report as text, with the colours of the stream it is meant for."""
    console, out = console_for(view)
    body, subject = _BODIES[report.command]
    if not view.quiet:
        print_lines(console, *source_lines(report.command, report.source))
        body(console, report.answer)
    findings = sorted(report.findings, key=_block_order) if report.command == "verify-dsa" else report.findings
    for entry in fold(findings):
        style = _STYLES[entry.severity]
        head = Text.assemble(
            (entry.severity.name.lower(), style), " ", (entry.code.value, "bold"), f": {printable(entry.headline)}"
        )
        print_lines(console, head)
        print_lines(console, *(printable(detail) for detail in entry.details), indent=4)
    word = "bold green" if report.ok else "bold red"
    line = verdict(report, *subject(report.answer))
    print_lines(console, Text.assemble((line[: line.index(":")], word), line[line.index(":") :]))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _block_order(finding: Finding) -> tuple[int, int, int]:
    """Put findings about a DSA block into the order of its table, and of the checks of one tensor."""
    _, _, name = (finding.tensor or "").partition(".self_attn.")
    row = _ROWS.get(name, len(_ROWS))
    check = _CHECKS.index(finding.code) if finding.code in _CHECKS else len(_CHECKS)
    return (row, check, -1 if finding.layer is None else finding.layer)


def _census(console: Console, census: Census) -> None:
    if census.tensors:
        _roles(console, census)
    shards = "unknown number of shards" if census.shards is None else counted(census.shards, "shard")
    index = f"index of {census.index.entries:,} entries" if census.index.present else "no index"
    numbers = ((census.tensors, "tensor"), (census.patterns, "pattern"), (census.layers, "layer"))
    dtypes = (f"{printable(dtype)} {t.tensors:,} ({size(t.bytes)})" for dtype, t in census.by_dtype.items())
    print_lines(
        console,
        ", ".join([*(counted(number, noun) for number, noun in numbers), shards, index]),
        f"{counted(census.bytes, 'byte')} ({size(census.bytes)}), {counted(census.elements, 'stored element')}",
        f"dtypes: {', '.join(dtypes) or 'none'}",
        f"MTP layers: {ranges(census.mtp_layers) or 'none'}",
        f"digest: {census.digest or 'none, not everything was read'}",
        "",
    )
    if census.layer_table:
        _layers(console, census.layer_table)
    if census.pattern_table:
        print_lines(console, Text("Patterns", "bold"))
        for line in _patterns(census.pattern_table):
            console.print(line, soft_wrap=True)


def _roles(console: Console, census: Census) -> None:
    table = new_table("Roles", "role", "tensors>", "size>", "share>", "dtypes")
    for role, tally in census.by_role.items():
        share = f"{tally.bytes / census.bytes:.2%}" if census.bytes else "-"
        add_row(table, role, tally.tensors, size(tally.bytes), share, dtypes_text(tally.dtypes))
    if census.unknown:
        add_row(table, "unknown", len(census.unknown), "", "", "")
    console.print(table)


def _patterns(rows: tuple[PatternRow, ...]) -> list[str]:
    """Return one line a row: a table would cut patterns into pieces on any usual screen."""
    cells = [("pattern", "role", "dtype", "shape", "tensors", "size", "experts", "layers")]
    for row in rows:
        kind = (row.role or "unknown", row.dtype, str(list(row.shape)))
        cells.append((row.pattern, *kind, f"{row.tensors:,}", size(row.bytes), row.experts or "-", row.layers or "-"))
    return [*columns(cells), ""]


def _layers(console: Console, rows: tuple[LayerRow, ...]) -> None:
    """Print a strip with one column a layer, and one row for all layers that are alike."""
    if rows[-1].layer < _STRIP_LIMIT:
        print_lines(console, Text("Layers", "bold"), *_strip(rows))
    alike: dict[tuple[str, str, bool, int, int, str], list[int]] = {}
    for row in rows:
        key = (row.mixer, row.ffn, row.mtp, row.tensors, row.bytes, dtypes_text(row.dtypes))
        alike.setdefault(key, []).append(row.layer)
    table = new_table(None, "layers", "mixer", "ffn", "MTP", "tensors each>", "size each>", "dtypes")
    for (mixer, ffn, mtp, tensors, nbytes, dtypes), layers in alike.items():
        where = ranges(layers).replace(",", ", ")  # so that a narrow column breaks between layers, not within them
        add_row(table, where, mixer, ffn, "yes" if mtp else "", tensors, size(nbytes), dtypes)
    console.print(table)


def _strip(rows: tuple[LayerRow, ...]) -> Iterable[str]:
    last = rows[-1].layer
    by_layer = {row.layer: row for row in rows}
    marks = {"KDA": "K", "DSA": "D", "dense": "d", "moe": "m", "mixed": "!", "none": "-"}

    def draw(mark: Callable[[LayerRow], str]) -> str:
        return "".join(mark(by_layer[i]) if i in by_layer else " " for i in range(last + 1))

    yield "layer  " + "".join(f"{i:<10}" for i in range(0, last + 1, 10)).rstrip()
    yield "mixer  " + draw(lambda row: marks[row.mixer]) + "   K KDA, D DSA"
    yield "ffn    " + draw(lambda row: marks[row.ffn]) + "   d dense, m MoE"
    yield "MTP    " + draw(lambda row: "M" if row.mtp else " ")


def _dsa(console: Console, answer: DsaAnswer) -> None:
    if answer.geometry:
        print_lines(console, "geometry: " + ", ".join(f"{field} {value}" for field, value in answer.geometry.items()))
    table = new_table("DSA blocks", "layer>", "found>", "bytes>", "size>", "unclaimed>", "ok")
    for block in answer.blocks:
        bound = f"{block.bound} of {block.expected}"
        ok = "yes" if block.ok else "NO"
        add_row(table, block.layer, bound, block.bytes, size(block.bytes), len(block.unclaimed), ok)
    if answer.blocks:
        console.print(table)


def _mtp(console: Console, answer: MtpAnswer) -> None:
    trunk, declared = answer.num_hidden_layers, answer.declared
    fields = (("num_hidden_layers", trunk), ("num_nextn_predict_layers", declared))
    says = ", ".join(f"{field} {value}" for field, value in fields if value is not None) or "nothing of MTP layers"
    place = f", so MTP at layer {answer.expected_layers}" if answer.expected_layers and declared != 0 else ""
    print_lines(console, f"config.json says: {says}{place}")
    for layer in answer.layers:
        shards = (
            "" if layer.shards is None else f", in {counted(len(layer.shards), 'shard')}: {', '.join(layer.shards)}"
        )
        names = ", ".join(f"{name} {_PRESENCE[there]}" for name, there in layer.names.items())
        print_lines(
            console,
            printable(
                f"layer {layer.layer}: {counted(layer.tensors, 'tensor')}, {layer.bytes:,} bytes ({size(layer.bytes)})"
                + shards
            ),
            names,
        )
        if not layer.tensors:
            continue
        table = new_table(f"MTP layer {layer.layer}", "role", "tensors>", "dtypes")
        for role, dtypes in layer.dtypes_by_role.items():
            add_row(table, role, sum(dtypes.values()), dtypes_text(dtypes))
        console.print(table)


def _recorded(console: Console, answer: Recorded) -> None:
    rows = "nothing was recorded" if answer.rows is None else counted(answer.rows, "row")
    print_lines(console, f"{counted(answer.tensors, 'tensor')}, {answer.bytes:,} bytes: {rows}")
    print_lines(console, printable(f"provenance: {answer.provenance}"))


def _census_subject(census: Census) -> tuple[str, str]:
    what = "none of them unknown" if not census.unknown else f"{len(census.unknown):,} of them unknown"
    return f"{counted(census.tensors, 'tensor')}, {what}", "complete shapes and modules (verify does)"


def _dsa_subject(answer: DsaAnswer) -> tuple[str, str]:
    layers = [block.layer for block in answer.blocks]
    if not layers:
        return "no DSA block was checked", ""
    where = f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"
    bound, expected = sum(block.bound for block in answer.blocks), sum(block.expected for block in answer.blocks)
    return f"{counted(len(layers), 'DSA block')} ({where}), {bound} of {counted(expected, 'tensor')} found", ""


def _mtp_subject(answer: MtpAnswer) -> tuple[str, str]:
    seen = [layer.layer for layer in answer.layers if layer.tensors]
    unseen = [layer.layer for layer in answer.layers if not layer.tensors]
    parts = [f"MTP layer{'s' if len(seen) > 1 else ''} {ranges(seen)} found"] if seen else []
    parts += [f"MTP layer{'s' if len(unseen) > 1 else ''} {ranges(unseen)} only in the index"] if unseen else []
    unknown = answer.layers and answer.declared is None and answer.num_hidden_layers is None
    return ", ".join(parts) or "no MTP layer found", "number and place, which no config tells" if unknown else ""


_BODIES: dict[str, tuple[Callable[..., None], Callable[..., tuple[str, str]]]] = {
    "census": (_census, _census_subject),
    "verify-dsa": (_dsa, _dsa_subject),
    "find-mtp": (_mtp, _mtp_subject),
    "verify": (show_verification, verification_subject),
    "record": (_recorded, lambda answer: (counted(answer.tensors, "tensor"), "")),
}
