# SPDX-License-Identifier: AGPL-3.0-only
"""How one module is stored: told from suffixes, dtypes and shapes together, for any logical shape."""

from __future__ import annotations

import pytest
from checkpoints import Kind
from encoded import (
    LAYERS,
    WAYS,
    MemorySource,
    Way,
    awq,
    build,
    exl3,
    fp8,
    fp8_block,
    gptq,
    in_ranks,
    int8,
    int_packed,
    mlx,
    mxfp4,
    mxfp8,
    nvfp4_modelopt,
    nvfp4_packed,
    plain,
)

from glm5inspect.catalogue import Code, Severity
from glm5inspect.census import take_census
from glm5inspect.dsa import verify_dsa
from glm5inspect.encodings import COMPANIONS, ENCODINGS, PAYLOADS, SUFFIXES, Flaw, Part, Reading, read_module
from glm5inspect.mtp import find_mtp
from glm5inspect.verify import verify

SIZES = {"small": (160, 64), "one tile": (128, 128), "wide": (256, 4096), "tall": (4096, 256)}


def _read(stored: dict[str, Kind], shape: tuple[int, ...], tile: tuple[int, int] | None = None) -> Reading:
    return read_module({suffix: Part(*kind) for suffix, kind in stored.items()}, shape, tile)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in WAYS.items()])
def test_every_encoding(way: Way, size: tuple[int, int]) -> None:
    """What is stored by the table is read as that, with width and group, and without a flaw."""
    reading = _read(way.tensors(*size), size, way.tile)
    assert (reading.name, reading.flaws) == (way.name, ())


WIDTHS: list[Way] = [
    *(plain(dtype) for dtype in ("BF16", "F16", "F32")),
    *(int_packed(bits, group, extras=True) for bits in (2, 4, 8) for group in (16, 32, 64, 128, 256, 512)),
    *(gptq(bits, group) for bits in (2, 3, 4, 8) for group in (32, 64, 128, 512)),
    *(awq(4, group) for group in (32, 64, 128, 512)),
    *(exl3(bits, marker) for bits in range(1, 9) for marker in ("mcg", "mul1")),
    *(mlx(bits, group, dtype) for bits in (2, 3, 4, 5, 6, 8) for group, dtype in ((32, "BF16"), (64, "F16"))),
    *(mlx(bits, 128) for bits in (2, 3, 4, 5, 6, 8)),
]


def test_every_width_and_group() -> None:
    """Both are solved from the logical shape."""
    size = (256, 512)
    readings = [_read(way.tensors(*size), size) for way in WIDTHS]
    assert [reading.name for reading in readings] == [way.name for way in WIDTHS]
    assert not any(reading.flaws for reading in readings)


ODD = {
    "fp8-block cut at both edges": (fp8_block(128, 128), (1000, 129), {"weight_scale_inv": (8, 2)}),
    "fp8-block smaller than a block": (fp8_block(128, 128), (3, 5), {"weight_scale_inv": (1, 1)}),
    "fp8-block of one row": (fp8_block(1, 32), (7, 33), {"weight_scale_inv": (7, 2)}),
    "fp8-channel": (fp8("channel", "F32", lambda out: (out, 1)), (7, 33), {"weight_scale": (7, 1)}),
    "fp8-tensor": (fp8("tensor", "F32", lambda _: ()), (7, 33), {"weight_scale": ()}),
    "nvfp4-modelopt": (nvfp4_modelopt(), (7, 48), {"weight": (7, 24), "weight_scale": (7, 3)}),
    "nvfp4-packed": (nvfp4_packed(), (7, 48), {"weight_packed": (7, 24), "weight_scale": (7, 3)}),
    "mxfp8": (mxfp8("U8"), (7, 96), {"weight_scale": (7, 3)}),
    "mxfp4": (mxfp4("weight", "U8"), (7, 96), {"weight": (7, 48), "weight_scale": (7, 3)}),
    "int-packed": (int_packed(4, 32), (7, 96), {"weight_packed": (7, 12), "weight_scale": (7, 3)}),
    "int8-channel": (int8(offsets=True), (7, 33), {"weight_offset": (7, 1)}),
    "gptq": (gptq(4, 48), (24, 96), {"qweight": (12, 24), "qzeros": (2, 3), "scales": (2, 24)}),
    "awq": (awq(4, 48), (24, 96), {"qweight": (96, 3), "qzeros": (2, 3), "scales": (2, 24)}),
    "exl3": (exl3(3, "mcg"), (48, 80), {"trellis": (5, 3, 48), "suh": (80,), "svh": (48,)}),
    "mlx-affine": (mlx(6, 32), (7, 96), {"weight": (7, 18), "scales": (7, 3)}),
}


@pytest.mark.parametrize(("way", "size", "shapes"), ODD.values(), ids=ODD)
def test_odd_sizes(way: Way, size: tuple[int, int], shapes: dict[str, tuple[int, ...]]) -> None:
    """Sizes need be no round numbers; a block at an edge may be cut."""
    stored = way.tensors(*size)
    assert {suffix: stored[suffix].shape for suffix in shapes} == shapes
    reading = _read(stored, size, way.tile)
    assert (reading.name, reading.flaws) == (way.name, ())


SCALES = {
    "fp8-block 128x128": ("weight", Kind("F8_E4M3", (256, 512)), Kind("F32", (2, 4))),
    "fp8-block 64x64": ("weight", Kind("F8_E4M3", (256, 512)), Kind("BF16", (4, 8))),
    "fp8-channel": ("weight", Kind("F8_E4M3", (256, 512)), Kind("F32", (256, 1))),
    "fp8-tensor": ("weight", Kind("F8_E4M3", (256, 512)), Kind("BF16", ())),
    "mxfp8": ("weight", Kind("F8_E4M3", (256, 512)), Kind("U8", (256, 16))),
    "mxfp4": ("weight", Kind("U8", (256, 256)), Kind("U8", (256, 16))),
    "int8-channel": ("weight", Kind("I8", (256, 512)), Kind("F32", (256, 1))),
    "nvfp4-modelopt": ("weight", Kind("U8", (256, 256)), Kind("F8_E4M3", (256, 32))),
    "nvfp4-packed": ("weight_packed", Kind("U8", (256, 256)), Kind("F8_E4M3", (256, 32))),
    "int-packed 4-bit g128": ("weight_packed", Kind("I32", (256, 64)), Kind("BF16", (256, 4))),
}
_OTHERS = {
    "nvfp4-modelopt": {"weight_scale_2": Kind("F32", ())},
    "nvfp4-packed": {"weight_global_scale": Kind("F32", (1,))},
    "int-packed 4-bit g128": {"weight_shape": Kind("I64", (2,))},
}


@pytest.mark.parametrize(("name", "entry"), SCALES.items(), ids=SCALES)
def test_a_weight_scale_means_what_its_siblings_say(name: str, entry: tuple[str, Kind, Kind]) -> None:
    """One suffix serves many encodings; dtypes and shapes tell them apart."""
    payload, weight, scale = entry
    reading = _read({payload: weight, "weight_scale": scale, **_OTHERS.get(name, {})}, (256, 512))
    assert (reading.name, reading.flaws) == (name, ())


TILES = [
    pytest.param((32, 64), (8, 8), "fp8-block 32x64", None, id="an unusual one is known when it is declared"),
    pytest.param((128, 128), (256, 16), "fp8-block 128x128", (2, 4), id="what is declared is what counts"),
    pytest.param(None, (256, 16), "fp8-block 1x32", None, id="tiles of 1 by 32 are in use"),
    pytest.param(None, (256, 4), "fp8-block 1x128", None, id="so are tiles of 1 by 128"),
    pytest.param((1, 512), (256, 1), "fp8-block 1x512", None, id="a declared tile may be as wide as the weight"),
]


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize(("tile", "scale", "name", "expected"), TILES)
def test_block_sizes(
    tile: tuple[int, int] | None, scale: tuple[int, int], name: str, expected: tuple[int, int] | None, suffix: str
) -> None:
    """A config declares the block size; without one, those known to be in use are tried."""
    reading = _read({"weight": Kind("F8_E4M3", (256, 512)), suffix: Kind("F32", scale)}, (256, 512), tile)
    assert reading.name == name
    assert reading.flaws == (() if expected is None else (Flaw("shape", (suffix,), expected, scale),))


@pytest.mark.parametrize(
    ("grid", "name", "flaws"),
    [
        ((8, 8), "fp8-block 32x64", ()),
        ((7, 8), "fp8-block 128x128", (Flaw("shape", ("weight_scale_inv",), (2, 4), (7, 8)),)),
    ],
    ids=["fits", "fits none"],
)
def test_an_undeclared_block_size_comes_from_the_grid(
    grid: tuple[int, int], name: str, flaws: tuple[Flaw, ...]
) -> None:
    """The grid of scales tells it, where it is a power of two; else the module is held to the release's."""
    stored = {"weight": Kind("F8_E4M3", (256, 512)), "weight_scale_inv": Kind("F32", grid)}
    reading = _read(stored, (256, 512))
    assert (reading.name, reading.flaws) == (name, flaws)


def test_a_scale_a_row_is_no_narrow_block() -> None:
    """Where a weight is no wider than a known block, a scale for each row is that, unless blocks are declared."""
    stored = {"weight": Kind("F8_E4M3", (8192, 128)), "weight_scale": Kind("F32", (8192, 1))}
    assert _read(stored, (8192, 128)).name == "fp8-channel"
    assert _read(stored, (8192, 128), (1, 128)).name == "fp8-block 1x128"


def test_leading_axes_are_kept() -> None:
    """Stacked experts have one axis more, in the payload and in what goes with it."""
    stored = {
        "weight": Kind("U32", (288, 2048, 512)),
        "scales": Kind("BF16", (288, 2048, 64)),
        "biases": Kind("BF16", (288, 2048, 64)),
    }
    assert _read(stored, (288, 2048, 4096)).name == "mlx-affine 4-bit g64"
    assert _read(stored, (288, 2048, 2048)).name == "mlx-affine 8-bit g32"
    assert _read({"weight": Kind("BF16", (288, 4096, 4096))}, (288, 4096, 4096)).name == "plain"


RANKS = [
    pytest.param(2, True, id="2 of rows"),
    pytest.param(4, True, id="4 of rows"),
    pytest.param(2, False, id="2 of columns"),
    pytest.param(8, False, id="8 of columns"),
]


@pytest.mark.parametrize(("ranks", "by_row"), RANKS)
def test_slices_are_complete_and_alike(ranks: int, *, by_row: bool) -> None:
    """A module may be cut for tensor parallelism; no slice may be missing, incomplete, or unlike the others."""
    stored = in_ranks(exl3(3, "mul1"), ranks, by_row=by_row).tensors(256, 512)
    reading = _read(stored, (256, 512))
    assert (reading.name, reading.flaws) == (f"exl3 3-bit in {ranks} ranks", ())
    for rank in range(ranks - 1):  # without the last, it is one for fewer ranks
        rest = {suffix: kind for suffix, kind in stored.items() if not suffix.startswith(f"rank{rank}.")}
        (flaw,) = _read(rest, (256, 512)).flaws
        assert (flaw.kind, flaw.suffixes) == ("missing", (f"rank{rank}.trellis",))
    last = f"rank{ranks - 1}."
    assert _read({s: k for s, k in stored.items() if s != f"{last}suh"}, (256, 512)).flaws == (
        Flaw("missing", (f"{last}suh",)),
    )
    longer = (513,) if by_row else (512 // ranks + 1,)
    assert _read({**stored, f"{last}suh": Kind("F16", longer)}, (256, 512)).flaws == _flawed(
        "shape", f"{last}suh", (longer[0] - 1,), longer
    )
    fewer = _read({s: k for s, k in stored.items() if not s.startswith(last)}, (256, 512))
    assert fewer.flaws


def _flawed(kind: str, suffix: str, expected: str | tuple[int, ...], actual: str | tuple[int, ...]) -> tuple[Flaw]:
    return (Flaw(kind, (suffix,), expected, actual),)


FP8, NIBBLES, WORDS = Kind("F8_E4M3", (64, 96)), Kind("U8", (64, 48)), Kind("U32", (64, 12))
BLOCK, ROW, ONE = Kind("F32", (1, 1)), Kind("F32", (64, 1)), Kind("F32", ())
NEAREST: dict[str, tuple[dict[str, Kind], str, tuple[Flaw, ...]]] = {
    "fp8 alone": ({"weight": FP8}, "fp8-block", (Flaw("missing", ("weight_scale_inv",)),)),
    "int8 alone": ({"weight": Kind("I8", (64, 96))}, "int8-channel", (Flaw("missing", ("weight_scale",)),)),
    "bytes of pairs alone": ({"weight": NIBBLES}, "mxfp4", (Flaw("missing", ("weight_scale",)),)),
    "words alone": ({"weight": WORDS}, "mlx-affine", (Flaw("missing", ("scales", "biases")),)),
    "a dtype of nothing": (
        {"weight": Kind("I64", (64, 96))},
        "plain",
        _flawed("dtype", "weight", "BF16 or F16 or F32", "I64"),
    ),
    "a block scale alone": ({"weight_scale_inv": BLOCK}, "fp8-block", (Flaw("missing", ("weight",)),)),
    "a plain weight with a scale a row": (
        {"weight": Kind("BF16", (64, 96)), "weight_scale": ROW},
        "plain",
        (Flaw("extra", ("weight_scale",)),),
    ),
    "a plain weight with what NVFP4 leaves": (
        {
            "weight": Kind("BF16", (64, 96)),
            "input_scale": ONE,
            "weight_scale": Kind("F8_E4M3", (64, 6)),
            "weight_scale_2": ONE,
        },
        "plain",
        (Flaw("extra", ("input_scale", "weight_scale", "weight_scale_2")),),
    ),
    "both block scales": (
        {"weight": FP8, "weight_scale": BLOCK, "weight_scale_inv": BLOCK},
        "fp8-block",
        (Flaw("extra", ("weight_scale",)),),
    ),
    "NVFP4 without its last scale": (
        {"weight": NIBBLES, "weight_scale": Kind("F8_E4M3", (64, 6))},
        "nvfp4-modelopt",
        (Flaw("missing", ("weight_scale_2",)),),
    ),
    "NVFP4 with exponents": (
        {"weight": NIBBLES, "weight_scale": Kind("U8", (64, 6)), "weight_scale_2": ONE},
        "nvfp4-modelopt",
        _flawed("dtype", "weight_scale", "F8_E4M3", "U8"),
    ),
    "a global scale that is no list": (
        {"weight_packed": NIBBLES, "weight_scale": Kind("F8_E4M3", (64, 6)), "weight_global_scale": ONE},
        "nvfp4-packed",
        _flawed("shape", "weight_global_scale", (1,), ()),
    ),
    "a scale of all as a list": (
        {"weight": FP8, "weight_scale": Kind("F32", (1,))},
        "fp8-channel",
        _flawed("shape", "weight_scale", (64, 1), (1,)),
    ),
    "a weight of one row less": (
        {"weight": Kind("F8_E4M3", (63, 96)), "weight_scale": ROW},
        "fp8-channel",
        _flawed("shape", "weight", (64, 96), (63, 96)),
    ),
    "integers of 3 bits, which nobody packs so": (
        {
            "weight_packed": Kind("I32", (64, 9)),
            "weight_scale": Kind("BF16", (64, 3)),
            "weight_shape": Kind("I64", (2,)),
        },
        "int-packed",
        _flawed("shape", "weight_packed", (64, 12), (64, 9)),
    ),
    "a trellis of 9 bits": (
        {**exl3(4, "mcg").tensors(64, 96), "trellis": Kind("I16", (6, 4, 144))},
        "exl3",
        _flawed("shape", "trellis", (6, 4, 64), (6, 4, 144)),
    ),
    "transposed scales": (
        {"weight": WORDS, "scales": Kind("F16", (3, 64)), "biases": Kind("F16", (64, 3))},
        "mlx-affine",
        _flawed("shape", "scales", (64, 3), (3, 64)),
    ),
    "integers without scales": (
        {"weight_packed": Kind("I32", (64, 12)), "weight_shape": Kind("I64", (2,))},
        "int-packed",
        (Flaw("missing", ("weight_scale",)),),
    ),
}


@pytest.mark.parametrize(("stored", "name", "flaws"), NEAREST.values(), ids=NEAREST)
def test_what_fits_none_is_held_against_the_nearest(
    stored: dict[str, Kind], name: str, flaws: tuple[Flaw, ...]
) -> None:
    """One thing wrong is one flaw of the encoding that was meant."""
    reading = _read(stored, (64, 96))
    assert (reading.encoding.name, reading.flaws) == (name, flaws)


def test_the_order_of_the_tensors_is_nothing() -> None:
    """Suffixes are a set."""
    stored = WAYS["nvfp4-modelopt-activations"].tensors(64, 96)
    assert _read(dict(reversed(stored.items())), (64, 96)) == _read(stored, (64, 96))


def test_the_table_is_sound() -> None:
    """Payloads come first and are required; no suffix is payload and companion at once; parameters are neither."""
    assert all(encoding.slots[0].required for encoding in ENCODINGS)
    assert PAYLOADS == ("weight", "weight_packed", "qweight", "trellis")
    assert {"bias", "e_score_correction_bias", "A_log", "dt_bias"}.isdisjoint(SUFFIXES)
    assert COMPANIONS.isdisjoint(PAYLOADS)


CACHE_SCALES = [
    pytest.param(Kind("F32", ()), [], id="one for all heads"),
    pytest.param(Kind("F32", (4,)), [], id="one a head"),
    pytest.param(Kind("BF16", ()), [Code.ENCODING_DTYPE], id="another dtype"),
    pytest.param(Kind("F32", (4, 1)), [Code.ENCODING_SHAPE], id="another shape"),
]


@pytest.mark.parametrize("inside", ["", "attn."], ids=["beside", "inside"])
@pytest.mark.parametrize(("kind", "codes"), CACHE_SCALES)
def test_scales_of_the_kv_cache(kind: Kind, codes: list[Code], inside: str) -> None:
    """They are known beside an attention module of either mixer, to every command, and no weight's encoding."""
    scales = {f"{layer}self_attn.{inside}{letter}_scale": kind for layer in LAYERS[:2] for letter in "kv"}
    source = MemorySource({**build(plain("BF16")), **scales})
    errors = [finding for finding in verify(source).findings if finding.severity is Severity.ERROR]
    assert [error.code for error in errors] == codes * 4
    assert sorted(error.tensor or "" for error in errors) == sorted(scales)[: len(errors)]
    others = [*take_census(source).findings, *verify_dsa(source).findings, *find_mtp(source).findings]
    assert [finding.message for finding in others if finding.severity is Severity.ERROR] == []


def test_scales_of_the_kv_cache_elsewhere() -> None:
    """Outside an attention module they are unknown."""
    name = f"{LAYERS[1]}mlp.k_scale"
    findings = verify(MemorySource({**build(plain("BF16")), name: Kind("F32", ())})).findings
    assert [(f.code, f.tensor) for f in findings if f.severity is Severity.ERROR] == [(Code.UNKNOWN_TENSOR, name)]
