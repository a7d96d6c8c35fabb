# SPDX-License-Identifier: AGPL-3.0-only
"""Which bytes are read for values: exact ranges, few requests, fair samples, and never a number from wrong bytes."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from checkpoints import BROKEN, Kind, shard_name, snapshot_tensors, split, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from valued import PER_LAYER, expert, fill, nvfp4, places
from whole_model import CONFIG, answer, status, told

from glm5inspect.checkpoint import Checkpoint
from glm5inspect.header import TensorRecord
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.scope import VALUE_CHECKS, ValueOptions
from glm5inspect.sources.local import LocalSource
from glm5inspect.values.reading import GAP, LONGEST, sample, spans
from glm5inspect.values.selection import BLOCK_SCALE_BYTES, MOST_BYTES, Wanted, affordable, spread
from glm5inspect.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from glm5inspect.errors import SourceError
    from glm5inspect.report import Report

READ = ValueOptions()


def wanted(
    start: int, stop: int, *, shard: str = "a", layer: int = 0, number: int | None = None, topic: str = "scale"
) -> Wanted:
    """Return a tensor at a place."""
    record = TensorRecord(f"{shard}.{start}", "U8", (stop - start,), start, stop, shard)
    return Wanted(topic, "kind", "", layer, number, (), "U8", record)


SPANS: dict[str, tuple[list[Wanted], int, list[tuple[str, int, int]]]] = {
    "nothing": ([], GAP, []),
    "side by side": ([wanted(0, 4), wanted(4, 8)], 0, [("a", 0, 8)]),
    "out of order": ([wanted(4, 8), wanted(0, 4)], 0, [("a", 0, 8)]),
    "apart": ([wanted(0, 4), wanted(5, 8)], 0, [("a", 0, 4), ("a", 5, 8)]),
    "as far as may be": ([wanted(0, 4), wanted(4 + GAP, 8 + GAP)], GAP, [("a", 0, 8 + GAP)]),
    "too far": ([wanted(0, 4), wanted(5 + GAP, 9 + GAP)], GAP, [("a", 0, 4), ("a", 5 + GAP, 9 + GAP)]),
    "other shards": ([wanted(0, 4), wanted(4, 8, shard="b")], GAP, [("a", 0, 4), ("b", 4, 8)]),
    "one in another": ([wanted(0, 100), wanted(10, 20)], 0, [("a", 0, 100)]),
    "too long together": (
        [wanted(0, LONGEST), wanted(LONGEST, LONGEST + 1)],
        0,
        [("a", 0, LONGEST), ("a", LONGEST, LONGEST + 1)],
    ),
}


@pytest.mark.parametrize(("tensors", "gap", "expected"), SPANS.values(), ids=SPANS)
def test_spans(tensors: list[Wanted], gap: int, expected: list[tuple[str, int, int]]) -> None:
    """What lies close together is one range, and every tensor is in one."""
    found = spans(tensors, gap)
    assert [(span.shard, span.start, span.stop) for span in found] == expected
    assert sorted(id(tensor) for span in found for tensor in span.tensors) == sorted(map(id, tensors))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10 * GAP), st.integers(1, 3 * GAP))), st.integers(0, GAP)
)
def test_spans_of_anything(places: list[tuple[str, int, int]], gap: int) -> None:
    """Whatever lies where: every tensor is inside its range, and ranges of a shard are further apart than the gap."""
    tensors = [wanted(start, start + length, shard=shard) for shard, start, length in places]
    found = spans(tensors, gap)
    assert sum(len(span.tensors) for span in found) == len(tensors)
    for span in found:
        assert all(span.start <= t.tensor.start <= t.tensor.stop <= span.stop for t in span.tensors)
        assert all(t.shard == span.shard for t in span.tensors)
        assert {span.start, span.stop} <= {edge for t in span.tensors for edge in (t.tensor.start, t.tensor.stop)}


def test_any_first_part_is_spread_evenly() -> None:
    """Over the layers first and over the experts of a layer after that; what one expert has stays together."""
    tensors = [
        wanted(start, start + 4, layer=layer, number=number)
        for layer in range(40)
        for number in range(32)
        for start in (0, 4)
    ]
    order = spread(tensors)
    assert Counter(map(id, order)) == Counter(map(id, tensors))
    for place in range(0, len(order), 2):
        assert (order[place].layer, order[place].expert) == (order[place + 1].layer, order[place + 1].expert)
    assert sorted(tensor.layer or 0 for tensor in order[:80:2]) == list(range(40))
    first_four = sorted(tensor.layer or 0 for tensor in order[:8:2])
    assert all(b - a >= 8 for a, b in pairwise(first_four))
    assert sorted(tensor.expert or 0 for tensor in order if tensor.layer == 7)[::2] == list(range(32))
    assert (
        len({tensor.expert for tensor in order[: 40 * 2]}) == 32
    )  # of as many as there are, each layer begins with another


def test_a_sample_is_fair() -> None:
    """No more ranges than asked for; a topic that needs few gets all, and the others share what is left."""
    far = GAP * 2
    scales = [wanted(n * far, n * far + 4, layer=n % 40, number=n // 40) for n in range(4000)]
    norms = [wanted(n * far + 99, n * far + 199, shard="n", layer=n, topic="norm") for n in range(40)]
    helpers = [wanted(n * far, n * far + 4, shard="h", layer=n % 40, topic="helper") for n in range(400)]
    everything = [*scales, *norms, *helpers]
    random.Random(7).shuffle(everything)  # noqa: S311 - no secret
    for most in (1, 10, 100, 500):
        chosen = sample(everything, most)
        assert most * 0.9 <= len(spans(chosen, GAP)) <= most
    topics = Counter(tensor.topic for tensor in chosen)
    assert topics == {"norm": 40, "helper": 230, "scale": 230}
    assert Counter(tensor.layer for tensor in chosen if tensor.topic == "scale").most_common()[0][1] <= 6
    assert sample(everything, 4440) == everything


class CountingSource(LocalSource):
    """A folder that counts the bytes of data that are read, and may take bytes away."""

    cut = 0

    def __init__(self, folder: Path) -> None:
        """Look at a folder, from now on."""
        super().__init__(folder, typed=str(folder))
        self.ranges: list[tuple[str, int, int]] = []

    def read_many(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Read, and note what."""
        self.ranges = list(ranges)
        for raw in super().read_many(self.ranges):
            yield raw[: len(raw) - self.cut] if isinstance(raw, bytes) else raw


def test_nothing_else_is_read(tmp_path: Path) -> None:
    """Every byte read belongs to a scale, a norm or a helper; none of them twice."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG))
    source = CountingSource(folder)
    values = answer(verify(Checkpoint(source), values=READ)).values
    found = places(folder)
    small = {
        (place.path.name, byte)
        for name, place in found.items()
        if place.dtype == "F32" or "norm" in name or name.endswith("weight_scale")
        for byte in range(place.start, place.stop)
    }
    read = [(name, byte) for name, start, stop in source.ranges for byte in range(start, stop)]
    assert len(read) == len({*read}) == (values.bytes if values else 0)
    assert {*read} <= small


def full_size(folder: Path, *, by_dtype: bool) -> Path:
    """Write the full reference, the tensors of each shard sorted as the safetensors library does it, or by name."""
    parts = split(snapshot_tensors("reference"), 120)
    order = ("F32", "BF16", "F8_E4M3", "U8")
    if by_dtype:
        parts = [dict(sorted(part.items(), key=lambda item: (order.index(item[1].dtype), item[0]))) for part in parts]
    return write_checkpoint(folder, {}, parts=parts, config=open_source("snapshot:reference").config())


def test_the_full_reference(tmp_path: Path) -> None:
    """12,384 pairs, 69 % of them unequal: right counts and quantiles, from less than 4 MB of 195 GB."""
    folder = full_size(tmp_path, by_dtype=False)
    rng = random.Random(54974)  # noqa: S311 - no secret
    ratios, values = [], {}
    for layer in range(3, 46):
        for number in range(288):
            exponent = rng.randrange(1, 9) if rng.random() < 0.69 else 0
            gate, up = 2.0**-7, 2.0 ** (exponent - 7) * (1.25 if exponent else 1)
            ratios.append(up / gate)
            values[expert(layer, number, "gate_proj", "weight_scale_2")] = [gate]
            values[expert(layer, number, "up_proj", "weight_scale_2")] = [up]
    fill(folder, values, healthily=False)
    source = CountingSource(folder)
    report = answer(verify(Checkpoint(source), values=READ))
    (row,) = report.scale_pairs
    ratios.sort()
    assert (row.pairs, row.of, row.unequal) == (12_384, 12_384, sum(ratio > 1 for ratio in ratios))
    assert 0.68 < row.unequal / row.pairs < 0.70
    # Linear interpolation between order statistics: the places are 6191.5 and 12259.17.
    assert row.median == (ratios[6191] + ratios[6192]) / 2
    assert row.p99 == pytest.approx(ratios[12259] * 0.83 + ratios[12260] * 0.17)
    assert (row.max, row.layers) == (ratios[-1], "3-45")
    assert report.values
    assert (report.values.tensors, report.values.of, report.values.requests) == (37_621, 37_621, 0)
    assert (report.values.block_scales, report.values.block_scales_of) == (2, 37_152)
    assert report.not_read == ("values of weights", "37,150 of 37,152 block scales")
    read = sum(stop - start for _, start, stop in source.ranges)
    assert report.values.bytes == read < 4_000_000


def test_block_scales_are_sampled(tmp_path: Path) -> None:
    """At most a megabyte of them: two modules of the reference, from two layers far apart."""
    source = CountingSource(full_size(tmp_path, by_dtype=True))
    report = answer(verify(Checkpoint(source), values=READ))
    blocks = [row for row in report.statistics if row.kind.endswith(".weight_scale")]
    assert sum(row.values for row in blocks) == 2 * 524_288 <= BLOCK_SCALE_BYTES
    large = [(name, stop - start) for name, start, stop in source.ranges if stop - start >= 524_288]
    assert large
    assert sum(size for _, size in large) < 1_200_000


class Gone(CountingSource):
    """A folder whose second shard is gone when its data is read."""

    def read_many(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:
        """Remove it, and read."""
        (self._folder / shard_name(2, 3)).unlink()
        return super().read_many(ranges)


def unread(report: Report) -> list[tuple[str | None, str | None]]:
    """Return check and shard of what could not be read."""
    return [(f.check, f.shard) for f in report.findings if f.code.value == "values-unread"]


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    """One line, an open answer; what lies elsewhere is looked at all the same."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG))
    report = verify(Checkpoint(Gone(folder)), values=READ)
    assert unread(report) == [("integrity", shard_name(2, 3))]
    (finding,) = [finding for finding in report.findings if finding.code.value == "values-unread"]
    assert finding.message == f"{shard_name(2, 3)}: values not read: No such file or directory"
    assert not report.complete
    values = answer(report).values
    assert values
    assert 0 < values.tensors < values.of == 95
    assert 0 < values.block_scales < values.block_scales_of == 36
    assert answer(report).not_read == (
        "values of weights",
        f"{36 - values.block_scales} of 36 block scales",
        f"{95 - values.tensors} of 95 other small tensors",
    )


class Short(CountingSource):
    """A folder whose reads end a byte early."""

    cut = 1


def test_reads_that_end_early(tmp_path: Path) -> None:
    """No number is made up of what came."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG))
    report = verify(Checkpoint(Short(folder)), values=READ)
    assert unread(report) == [("integrity", shard_name(number, 3)) for number in (1, 2, 3)]
    assert {status(report)[check] for check in VALUE_CHECKS} == {"not-read", "not-applicable"}
    assert all((row.values, row.min, row.max) == (0, None, None) for row in answer(report).statistics)
    assert not report.judged(Policy(fail_on=None)).ok


def test_offsets_past_the_end(tmp_path: Path) -> None:
    """A truncated shard has its finding, and its missing values make the answer open; the rest of it is read."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG))
    path = folder / shard_name(3, 3)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 40_000)
    report = verify(open_source(str(folder)), values=READ)
    assert unread(report) == [("integrity", shard_name(3, 3))]
    assert "file-truncated" in {code for _, code, _ in told(report)}
    assert not report.complete
    assert "ends before model.language_model" in next(
        finding.message for finding in report.findings if finding.code.value == "values-unread"
    )


def test_no_config_makes_it_read_without_end(tmp_path: Path) -> None:
    """A config may declare norms of any size: no more is read than eight times what the release has."""
    wide = 1 << 21
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "hidden_size": wide}}
    names = [f"model.language_model.layers.{layer}.input_layernorm.weight" for layer in range(5)]
    tensors = {name: Kind("BF16", (wide,)) for name in [*names, "model.language_model.norm.weight"]}
    source = CountingSource(write_checkpoint(tmp_path, tensors, shards=1, config=config))
    report = answer(verify(Checkpoint(source), values=READ))
    assert report.values
    assert (report.values.tensors, report.values.of, report.values.bytes) == (4, 6, MOST_BYTES)
    assert sum(stop - start for _, start, stop in source.ranges) == MOST_BYTES
    assert report.not_read == ("values of weights", "2 of 6 other small tensors")


def test_what_does_not_fit_is_passed_over() -> None:
    """Block scales of a dense layer may be larger than all that is read; those of the experts are read all the same."""
    dense = [wanted(0, 3 << 20, layer=layer, topic="block-scale") for layer in range(3)]
    experts = [
        wanted(0, 1 << 19, layer=layer, number=n, topic="block-scale") for layer in range(3, 9) for n in range(8)
    ]
    norm = wanted(0, 8192, layer=2, topic="norm")
    chosen = affordable([*dense, *experts, norm])
    assert chosen[0] is norm
    assert [tensor.tensor.nbytes for tensor in chosen[1:]] == [1 << 19] * 2
    assert chosen[1].layer != chosen[2].layer
    assert chosen[1].expert != chosen[2].expert


def test_shards_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """Nobody knows what small tensors they hold."""
    folder = fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG))
    (folder / shard_name(2, 3)).write_bytes(BROKEN)
    assert answer(verify(open_source(str(folder)), values=READ)).not_read[-1] == "whatever is in 1 shard"


def test_the_tiny_model_is_what_the_tests_say() -> None:
    """Twelve routed experts, so that twelve pairs are all there are."""
    assert len(PER_LAYER) == 12


def order_of(shards: Sequence[str]) -> list[str]:
    """Return shards in the order in which they are first named."""
    return list(dict.fromkeys(shards))


def test_every_shard_is_opened_once(tmp_path: Path) -> None:
    """Ranges of one shard are read one after the other, ascending."""
    source = CountingSource(fill(write_checkpoint(tmp_path, nvfp4(), config=CONFIG)))
    verify(Checkpoint(source), values=READ)
    names = [name for name, _, _ in source.ranges]
    assert names == sorted(names)
    assert order_of(names) == [shard_name(number, 3) for number in (1, 2, 3)]
    assert source.ranges == sorted(source.ranges)
