# SPDX-License-Identifier: AGPL-3.0-only
"""How the weight of one module may be stored: a table of encodings, and which of them a module is in.

A module is in an encoding by its stored tensors' suffixes, dtypes and shapes together, never by a suffix alone:
``weight_scale`` serves six of them. Widths and group sizes are solved from the shapes and the logical shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Shape = tuple[int, ...]


class Part(NamedTuple):
    """One stored tensor of a module: dtype as the format spells it, shape in elements."""

    dtype: str
    shape: Shape


class Layout(NamedTuple):
    """What the stored shapes of a module follow from.

    Attributes:
        lead: Leading axes that are kept as they are, such as stacked experts; usually none.
        out: Rows of the weight.
        width: Columns of the weight (inputs).
        bits: Bits of a packed value; 0 where the encoding fixes them.
        rows: Rows that share a scale; 0 where the encoding fixes them.
        group: Columns that share a scale; 0 likewise.
    """

    lead: Shape
    out: int
    width: int
    bits: int = 0
    rows: int = 0
    group: int = 0


class Slot(NamedTuple):
    """One tensor of an encoding.

    Attributes:
        suffix: After the module's path.
        dtypes: Those accepted.
        shape: Of a layout.
        required: Whether a module is incomplete without it.
    """

    suffix: str
    dtypes: tuple[str, ...]
    shape: Callable[[Layout], Shape]
    required: bool = True


class Encoding(NamedTuple):
    """One way to store a weight; the first slot is the payload.

    Attributes:
        name: As reported.
        slots: All tensors that it may have.
        solve: Yields the layouts that a logical shape and the stored tensors allow, the likeliest first.
        traits: What is said beside the name, of a layout.
    """

    name: str
    slots: tuple[Slot, ...]
    solve: Callable[[Layout, Mapping[str, Part]], Iterator[Layout]]
    traits: Callable[[Layout], str] = lambda layout: ""  # noqa: ARG005 - most encodings have none

    @property
    def payload(self) -> str:
        """The suffix of the tensor that holds the weight itself."""
        return self.slots[0].suffix


class Flaw(NamedTuple):
    """One way in which a module's stored tensors are not what their encoding asks for.

    Attributes:
        kind: ``missing``, ``extra``, ``dtype`` or ``shape``.
        suffixes: The tensors it is about; one, unless several are missing or too many.
        expected: Dtypes or shape; ``None`` for extra ones.
        actual: What is stored, ``None`` for missing ones.
    """

    kind: str
    suffixes: tuple[str, ...]
    expected: str | Shape | None = None
    actual: str | Shape | None = None


class Reading(NamedTuple):
    """How a module is stored: the encoding that its tensors fit best, and in what they do not fit."""

    encoding: Encoding
    layout: Layout
    flaws: tuple[Flaw, ...]

    @property
    def name(self) -> str:
        """The encoding with its width and group, as reported."""
        traits = self.encoding.traits(self.layout)
        return f"{self.encoding.name} {traits}" if traits else self.encoding.name


_FLOATS = ("BF16", "F16", "F32")
_BYTE_SCALES = ("U8", "F8_E8M0")
_WORD = 32  # bits of the integers that packed values are kept in
_PACKED_BITS = (4, 8, 2, 3, 5, 6)
_TILES = ((128, 128), *((rows, columns) for rows in (1, 16, 32, 64, 128, 256) for columns in (16, 32, 64, 128, 256)))
"""Block sizes that are tried where no config declares one; the first is that of the release."""


def _ceil(number: int, by: int) -> int:
    return -(-number // by) if by else 0


def _matrix(out: Callable[[Layout], int], width: Callable[[Layout], int]) -> Callable[[Layout], Shape]:
    return lambda x: (*x.lead, out(x), width(x))


def _scalar(_: Layout) -> Shape:
    return ()


def _one(_: Layout) -> Shape:
    return (1,)


_WEIGHT = _matrix(lambda x: x.out, lambda x: x.width)
_HALVED = _matrix(lambda x: x.out, lambda x: _ceil(x.width, 2))
_PER_ROW = _matrix(lambda x: x.out, lambda _: 1)
_BLOCKS = _matrix(lambda x: _ceil(x.out, x.rows), lambda x: _ceil(x.width, x.group))
_GROUPS = _matrix(lambda x: x.out, lambda x: _ceil(x.width, x.group))
_PACKED = _matrix(lambda x: x.out, lambda x: _ceil(x.width * x.bits, _WORD))
_INPUT_SCALE = Slot("input_scale", ("F32",), _scalar, required=False)


def _fixed(group: int = 0) -> Callable[[Layout, Mapping[str, Part]], Iterator[Layout]]:
    def solve(layout: Layout, _: Mapping[str, Part]) -> Iterator[Layout]:
        yield layout._replace(group=group)

    return solve


def _tiles(layout: Layout, _: Mapping[str, Part]) -> Iterator[Layout]:
    """Yield the block sizes to try, the declared one where there is one, else those known."""
    if layout.rows:
        yield layout
    else:
        yield from (layout._replace(rows=rows, group=group) for rows, group in _TILES)


def _search(
    widths: tuple[int, ...], group: int = 0, *scales: str
) -> Callable[[Layout, Mapping[str, Part]], Iterator[Layout]]:
    """Try every width with every group that an axis of the scales may count; what fits best is what it is.

    Args:
        widths: Bits of a packed value, the usual first.
        group: The usual group, for a module whose scales tell none; 0 for encodings without groups.
        scales: Suffixes of the tensors that have an axis of groups, the most telling first.
    """

    def solve(layout: Layout, stored: Mapping[str, Part]) -> Iterator[Layout]:
        counts = (n for suffix in scales if suffix in stored for n in stored[suffix].shape)
        exact = (layout.width // n for n in counts if n and layout.width % n == 0)
        for size in dict.fromkeys((*exact, group)):
            yield from (layout._replace(bits=bits, group=size) for bits in widths)

    return solve


def _fp8(
    name: str,
    scale: str,
    shape: Callable[[Layout], Shape],
    solve: Callable[[Layout, Mapping[str, Part]], Iterator[Layout]] = _fixed(),  # noqa: B008 - a constant
    traits: Callable[[Layout], str] = lambda _: "",
) -> Encoding:
    slots = (Slot("weight", ("F8_E4M3",), _WEIGHT), Slot(scale, ("F32", "BF16"), shape), _INPUT_SCALE)
    return Encoding(name, slots, solve, traits)


def _exl3(marker: str) -> Encoding:
    return Encoding(
        "exl3",
        (
            Slot("trellis", ("I16",), lambda x: (*x.lead, _ceil(x.width, 16), _ceil(x.out, 16), 16 * x.bits)),
            Slot("suh", ("F16",), lambda x: (*x.lead, x.width)),
            Slot("svh", ("F16",), lambda x: (*x.lead, x.out)),
            Slot(marker, ("I32",), _scalar),
        ),
        _search((4, 1, 2, 3, 5, 6, 7, 8)),
        lambda x: f"{x.bits}-bit",
    )


def _bits_and_group(layout: Layout) -> str:
    return f"{layout.bits}-bit g{layout.group}"


def _tile(layout: Layout) -> str:
    return f"{layout.rows}x{layout.group}"


SCALE_SUFFIX = "fp8-block"
"""The encoding whose scales some writers call ``weight_scale``, which some loaders do not look for."""

ENCODINGS: tuple[Encoding, ...] = (
    Encoding("plain", (Slot("weight", _FLOATS, _WEIGHT),), _fixed()),
    _fp8("fp8-block", "weight_scale_inv", _BLOCKS, _tiles, _tile),
    _fp8("fp8-channel", "weight_scale", _PER_ROW),
    _fp8("fp8-tensor", "weight_scale", _scalar),
    _fp8("fp8-block", "weight_scale", _BLOCKS, _tiles, _tile),
    Encoding(
        "nvfp4-modelopt",
        (
            Slot("weight", ("U8",), _HALVED),
            Slot("weight_scale", ("F8_E4M3",), _GROUPS),
            Slot("weight_scale_2", ("F32",), _scalar),
            _INPUT_SCALE,
        ),
        _fixed(16),
    ),
    Encoding(
        "nvfp4-packed",
        (
            Slot("weight_packed", ("U8",), _HALVED),
            Slot("weight_scale", ("F8_E4M3",), _GROUPS),
            Slot("weight_global_scale", ("F32",), _one),
            Slot("input_global_scale", ("F32",), _one, required=False),
        ),
        _fixed(16),
    ),
    Encoding("mxfp8", (Slot("weight", ("F8_E4M3",), _WEIGHT), Slot("weight_scale", _BYTE_SCALES, _GROUPS)), _fixed(32)),
    *(
        Encoding("mxfp4", (Slot(payload, ("U8",), _HALVED), Slot("weight_scale", _BYTE_SCALES, _GROUPS)), _fixed(32))
        for payload in ("weight", "weight_packed")
    ),
    Encoding(
        "int-packed",
        (
            Slot("weight_packed", ("I32",), _PACKED),
            Slot("weight_scale", ("BF16", "F16"), _GROUPS),
            Slot("weight_shape", ("I64",), lambda _: (2,)),
            Slot(
                "weight_zero_point",
                ("I32",),
                _matrix(lambda x: _ceil(x.out * x.bits, _WORD), lambda x: _ceil(x.width, x.group)),
                required=False,
            ),
            Slot("weight_g_idx", ("I32",), lambda x: (x.width,), required=False),
        ),
        _search((4, 8, 2), 128, "weight_scale", "weight_zero_point"),
        _bits_and_group,
    ),
    Encoding(
        "int8-channel",
        (
            Slot("weight", ("I8",), _WEIGHT),
            Slot("weight_scale", ("F32",), _PER_ROW),
            Slot("weight_offset", ("F32",), _PER_ROW, required=False),
        ),
        _fixed(),
    ),
    Encoding(
        "gptq",
        (
            Slot("qweight", ("I32",), lambda x: (_ceil(x.width * x.bits, _WORD), x.out)),
            Slot("qzeros", ("I32",), lambda x: (_ceil(x.width, x.group), _ceil(x.out * x.bits, _WORD))),
            Slot("scales", ("F16",), lambda x: (_ceil(x.width, x.group), x.out)),
            Slot("g_idx", ("I32",), lambda x: (x.width,), required=False),
        ),
        _search(_PACKED_BITS, 128, "scales", "qzeros"),
        _bits_and_group,
    ),
    Encoding(
        "awq",
        (
            Slot("qweight", ("I32",), lambda x: (x.width, _ceil(x.out * x.bits, _WORD))),
            Slot("qzeros", ("I32",), lambda x: (_ceil(x.width, x.group), _ceil(x.out * x.bits, _WORD))),
            Slot("scales", ("F16",), lambda x: (_ceil(x.width, x.group), x.out)),
        ),
        _search(_PACKED_BITS, 128, "scales", "qzeros"),
        _bits_and_group,
    ),
    _exl3("mcg"),
    _exl3("mul1"),
    Encoding(
        "mlx-affine",
        (
            Slot("weight", ("U32",), _PACKED),
            Slot("scales", ("BF16", "F16"), _GROUPS),
            Slot("biases", ("BF16", "F16"), _GROUPS),
        ),
        _search(_PACKED_BITS, 64, "scales", "biases"),
        _bits_and_group,
    ),
)
"""Every encoding; of several that fit a module equally well, or equally badly, the first counts."""

SUFFIXES = frozenset(slot.suffix for encoding in ENCODINGS for slot in encoding.slots)
"""Every suffix that a tensor of a module may have."""

PAYLOADS = tuple(dict.fromkeys(encoding.payload for encoding in ENCODINGS))
"""The suffixes of tensors that hold a weight itself."""

COMPANIONS = SUFFIXES.difference(PAYLOADS)
"""The suffixes of what goes with a weight: scales, zero points, shapes, markers."""

_MOST_RANKS = 16
RANK = "rank"
"""What the suffixes of a slice begin with, before the rank and a dot: ``rank0.trellis``."""

SLICED = tuple(
    f"{RANK}{rank}.{suffix}"
    for rank in range(_MOST_RANKS)
    for suffix in dict.fromkeys(slot.suffix for marker in ("mcg", "mul1") for slot in _exl3(marker).slots)
)
"""The suffixes of modules that are stored in slices, which EXL3 is for up to 16 ranks."""

_COSTS = {"payload": 4, "payload dtype": 7, "missing": 2, "extra": 1, "dtype": 2, "shape": 1}
"""How much each flaw counts against the encoding that would have it; what the weight itself is like counts most."""


def read_module(stored: Mapping[str, Part], shape: Shape, tile: tuple[int, int] | None = None) -> Reading:
    """Find the encoding that the stored tensors of a module fit best.

    Args:
        stored: How each tensor is stored, by suffix; at least one.
        shape: The logical shape (…, out, in), in elements.
        tile: The block size (rows, columns) that a config declares for block FP8; ``None`` when none does.
    """
    return _read(tuple(sorted(stored.items())), shape, tile)


@lru_cache(maxsize=4096)
def _read(stored: tuple[tuple[str, Part], ...], shape: Shape, tile: tuple[int, int] | None) -> Reading:
    parts = dict(stored)
    if all(suffix.startswith(RANK) for suffix in parts):
        return _read_slices(parts, shape)
    best: tuple[int, Reading] | None = None
    # A row of one declared block looks like a row with one scale; the config knows which it is.
    declared_first = sorted(ENCODINGS, key=lambda encoding: encoding.name != SCALE_SUFFIX) if tile else ENCODINGS
    for encoding in declared_first:
        rows, group = tile if tile and encoding.name == SCALE_SUFFIX else (0, 0)
        for layout in encoding.solve(Layout(shape[:-2], shape[-2], shape[-1], rows=rows, group=group), parts):
            flaws = tuple(_flaws(encoding, layout, parts))
            cost = sum(_cost(encoding, flaw) for flaw in flaws)
            if best is None or cost < best[0]:
                best = cost, Reading(encoding, layout, flaws)
            if not cost:
                return best[1]
    assert best is not None  # noqa: S101 - the table is not empty
    return best[1]


def _read_slices(stored: Mapping[str, Part], shape: Shape) -> Reading:
    """Read a module that is stored as one slice for each rank of tensor parallelism; all slices must be alike."""
    ranks: dict[int, dict[str, Part]] = {}
    for suffix, part in stored.items():
        number, _, rest = suffix.removeprefix(RANK).partition(".")
        ranks.setdefault(int(number), {})[rest] = part
    first = ranks[min(ranks)]
    total, reading = _slicing(first, shape, max(ranks) + 1)
    lost = [f"{RANK}{rank}.{reading.encoding.payload}" for rank in range(total) if rank not in ranks]
    flaws = [Flaw("missing", tuple(lost))] if lost else []
    for rank, parts in sorted(ranks.items()):
        for flaw in _flaws(reading.encoding, reading.layout, parts):
            names = tuple(f"{RANK}{rank}.{suffix}" for suffix in flaw.suffixes)
            flaws.append(flaw._replace(suffixes=names))
    traits = reading.encoding.traits
    encoding = reading.encoding._replace(traits=lambda layout: f"{traits(layout)} in {total} ranks")
    return Reading(encoding, reading.layout, tuple(flaws))


def _slicing(part: Mapping[str, Part], shape: Shape, least: int) -> tuple[int, Reading]:
    """Return how many slices like this one make the module, cut along its rows or its columns, and how it is stored."""
    best = None
    for total in range(least, _MOST_RANKS + 1):
        rows, columns = shape[-2] // total, shape[-1] // total
        for cut in ((*shape[:-2], rows, shape[-1]), (*shape[:-2], shape[-2], columns)):
            reading = read_module(part, cut)
            if best is None or not reading.flaws:
                best = (total, reading)
            if not reading.flaws:
                return best
    assert best is not None  # noqa: S101 - a rank is below the limit
    return best


def _flaws(encoding: Encoding, layout: Layout, stored: Mapping[str, Part]) -> Iterable[Flaw]:
    slots = {slot.suffix: slot for slot in encoding.slots}
    if missing := tuple(s.suffix for s in encoding.slots if s.required and s.suffix not in stored):
        yield Flaw("missing", missing)
    if extra := tuple(suffix for suffix in stored if suffix not in slots):
        yield Flaw("extra", extra)
    for suffix, part in stored.items():
        if slot := slots.get(suffix):
            if part.dtype not in slot.dtypes:
                yield Flaw("dtype", (suffix,), " or ".join(slot.dtypes), part.dtype)
            if part.shape != (expected := slot.shape(layout)):
                yield Flaw("shape", (suffix,), expected, part.shape)


def _cost(encoding: Encoding, flaw: Flaw) -> int:
    if flaw.kind == "dtype" and flaw.suffixes[0] == encoding.payload:
        return _COSTS["payload dtype"]
    payload = {"missing": {encoding.payload}, "extra": set(PAYLOADS)}.get(flaw.kind, set())
    return sum(_COSTS["payload" if suffix in payload else flaw.kind] for suffix in flaw.suffixes)
