# SPDX-License-Identifier: AGPL-3.0-only
"""Tables a person wants to read, with Rich.

Everything that comes from a file goes through `printable`, and markup, highlighting and emoji are off: a name such as
``a[red]b`` must come out as it is. Off a terminal nothing is cut or wrapped, unless ``COLUMNS`` asks for it.
"""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glm5inspect.catalogue import Code, Severity
from glm5inspect.dsa import BLOCK
from glm5inspect.render.wording import columns, fold, source_lines, verdict
from glm5inspect.report import counted, printable, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
_NO_EDGE = 1 << 20  # columns of a console that never wraps
_LEAST_WIDTH = 72  # below it, Rich would crop numbers
_USUAL_WIDTH = 80  # of a terminal that does not tell
_MOST_DIGITS = 6  # of a number of columns
_STRIP_LIMIT = 200  # layers drawn as a strip; more than a screen has columns is no glance any more


def render(report: Report, view: View) -> str:
    """Return the report as text, with the colours of the stream it is meant for."""
    console, out = _console(view)
    body, subject = _BODIES[report.command]
    if not view.quiet:
        _print(console, *source_lines(report.command, report.source))
        body(console, report.answer)
    findings = sorted(report.findings, key=_block_order) if report.command == "verify-dsa" else report.findings
    for entry in fold(findings):
        style = _STYLES[entry.severity]
        head = Text.assemble(
            (entry.severity.name.lower(), style), " ", (entry.code.value, "bold"), f": {printable(entry.headline)}"
        )
        _print(console, head)
        _print(console, *(printable(detail) for detail in entry.details), indent=4)
    word = "bold green" if report.ok else "bold red"
    line = verdict(report, *subject(report.answer))
    _print(console, Text.assemble((line[: line.index(":")], word), line[line.index(":") :]))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


class _Memory(StringIO):
    """A text in memory that is bound for a stream of some encoding: Rich draws its lines with what that can hold."""

    encoding = "utf-8"

    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        if encoding:
            self.encoding = encoding


def _console(view: View) -> tuple[Console, StringIO]:
    """Make a console that writes to memory what would suit the stream."""
    out = _Memory(getattr(view.stream, "encoding", None))
    width = _width(view.stream)
    target = Console(file=view.stream or StringIO(), width=width)
    console = Console(
        file=out,
        force_terminal=target.is_terminal,
        color_system=target.color_system,  # type: ignore[arg-type] # the name of one, as Rich itself reports it
        no_color=target.no_color,
        width=width,
        height=25,  # Rich would else look at COLUMNS itself
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    return console, out


def _width(stream: TextIO | None) -> int:
    """Return the columns to fill: as many as COLUMNS says or the terminal has, else there is no edge.

    Never fewer than a table of numbers needs; a terminal narrower than that wraps by itself.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and len(columns) < _MOST_DIGITS and int(columns):
        return max(int(columns), _LEAST_WIDTH)
    try:
        width = os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH if stream else _NO_EDGE
    except OSError:  # not a terminal, or no file at all
        return _NO_EDGE
    return max(width, _LEAST_WIDTH)


def _print(console: Console, *lines: Text | str, indent: int = 0) -> None:
    """Print lines, wrapped between words on a terminal, and anywhere else whole, for whoever greps a name."""
    for line in lines:
        if console.is_terminal:
            console.print(Padding(line, (0, 0, 0, indent), expand=False) if indent else line)
        else:
            console.file.write(f"{' ' * indent}{line}\n")


def _block_order(finding: Finding) -> tuple[int, int, int]:
    """Put findings about a DSA block into the order of its table, and of the checks of one tensor."""
    _, _, name = (finding.tensor or "").partition(".self_attn.")
    row = _ROWS.get(name, len(_ROWS))
    check = _CHECKS.index(finding.code) if finding.code in _CHECKS else len(_CHECKS)
    return (row, check, -1 if finding.layer is None else finding.layer)


def _table(title: str | None, *names: str) -> Table:
    """Make a table; a column whose name ends in ``>`` is aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in names:
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(Text(printable(cell) if isinstance(cell, str) else f"{cell:,}") for cell in cells))


def size(nbytes: int) -> str:
    """Write a number of bytes for people, in the largest binary unit that leaves one digit before the point."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:  # noqa: PLR2004 - one unit up
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:,.2f} {unit}"


def _dtypes(dtypes: dict[str, int]) -> str:
    parts = sorted(dtypes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(dtype if len(parts) == 1 else f"{dtype} {number:,}" for dtype, number in parts)


def _census(console: Console, census: Census) -> None:
    if census.tensors:
        _roles(console, census)
    shards = "unknown number of shards" if census.shards is None else counted(census.shards, "shard")
    index = f"index of {census.index.entries:,} entries" if census.index.present else "no index"
    numbers = ((census.tensors, "tensor"), (census.patterns, "pattern"), (census.layers, "layer"))
    dtypes = (f"{printable(dtype)} {t.tensors:,} ({size(t.bytes)})" for dtype, t in census.by_dtype.items())
    _print(
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
        _print(console, Text("Patterns", "bold"))
        for line in _patterns(census.pattern_table):
            console.print(line, soft_wrap=True)


def _roles(console: Console, census: Census) -> None:
    table = _table("Roles", "role", "tensors>", "size>", "share>", "dtypes")
    for role, tally in census.by_role.items():
        share = f"{tally.bytes / census.bytes:.2%}" if census.bytes else "-"
        _row(table, role, tally.tensors, size(tally.bytes), share, _dtypes(tally.dtypes))
    if census.unknown:
        _row(table, "unknown", len(census.unknown), "", "", "")
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
        _print(console, Text("Layers", "bold"), *_strip(rows))
    alike: dict[tuple[str, str, bool, int, int, str], list[int]] = {}
    for row in rows:
        key = (row.mixer, row.ffn, row.mtp, row.tensors, row.bytes, _dtypes(row.dtypes))
        alike.setdefault(key, []).append(row.layer)
    table = _table(None, "layers", "mixer", "ffn", "MTP", "tensors each>", "size each>", "dtypes")
    for (mixer, ffn, mtp, tensors, nbytes, dtypes), layers in alike.items():
        where = ranges(layers).replace(",", ", ")  # so that a narrow column breaks between layers, not within them
        _row(table, where, mixer, ffn, "yes" if mtp else "", tensors, size(nbytes), dtypes)
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
        _print(console, "geometry: " + ", ".join(f"{field} {value}" for field, value in answer.geometry.items()))
    table = _table("DSA blocks", "layer>", "found>", "bytes>", "size>", "unclaimed>", "ok")
    for block in answer.blocks:
        bound = f"{block.bound} of {block.expected}"
        ok = "yes" if block.ok else "NO"
        _row(table, block.layer, bound, block.bytes, size(block.bytes), len(block.unclaimed), ok)
    if answer.blocks:
        console.print(table)


def _mtp(console: Console, answer: MtpAnswer) -> None:
    trunk, declared = answer.num_hidden_layers, answer.declared
    fields = (("num_hidden_layers", trunk), ("num_nextn_predict_layers", declared))
    says = ", ".join(f"{field} {value}" for field, value in fields if value is not None) or "nothing of MTP layers"
    place = f", so MTP at layer {answer.expected_layers}" if answer.expected_layers and declared != 0 else ""
    _print(console, f"config.json says: {says}{place}")
    for layer in answer.layers:
        shards = (
            "" if layer.shards is None else f", in {counted(len(layer.shards), 'shard')}: {', '.join(layer.shards)}"
        )
        names = ", ".join(f"{name} {_PRESENCE[there]}" for name, there in layer.names.items())
        _print(
            console,
            printable(
                f"layer {layer.layer}: {counted(layer.tensors, 'tensor')}, {layer.bytes:,} bytes ({size(layer.bytes)})"
                + shards
            ),
            names,
        )
        if not layer.tensors:
            continue
        table = _table(f"MTP layer {layer.layer}", "role", "tensors>", "dtypes")
        for role, dtypes in layer.dtypes_by_role.items():
            _row(table, role, sum(dtypes.values()), _dtypes(dtypes))
        console.print(table)


def _recorded(console: Console, answer: Recorded) -> None:
    rows = "nothing was recorded" if answer.rows is None else counted(answer.rows, "row")
    _print(console, f"{counted(answer.tensors, 'tensor')}, {answer.bytes:,} bytes: {rows}")
    _print(console, printable(f"provenance: {answer.provenance}"))


def _census_subject(census: Census) -> tuple[str, str]:
    what = "none of them unknown" if not census.unknown else f"{len(census.unknown):,} of them unknown"
    return f"{counted(census.tensors, 'tensor')}, {what}", "complete shapes and modules"


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
    "record": (_recorded, lambda answer: (counted(answer.tensors, "tensor"), "")),
}
