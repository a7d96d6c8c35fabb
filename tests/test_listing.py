# SPDX-License-Identifier: AGPL-3.0-only
"""The small commands as calls: what is stored where, what names are for, and what may be recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoints import (
    TEXT,
    TINY_CONFIG,
    Kind,
    WatchedSource,
    edit_header,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_shard,
)
from safetensors import safe_open
from safetensors.numpy import save_file

from glm5inspect.catalogue import Code, Severity
from glm5inspect.checkpoint import Checkpoint
from glm5inspect.classification import Classification, Classified, classify_names, classify_source
from glm5inspect.explain import Explained, explain
from glm5inspect.families import foreign_family
from glm5inspect.listing import Listing, Shown, show
from glm5inspect.recording import Recorded, record
from glm5inspect.report import Policy
from glm5inspect.resolve import open_source
from glm5inspect.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from glm5inspect.report import Report

INDEX = "model.safetensors.index.json"
EH_PROJ = TEXT + "layers.5.eh_proj.weight"


def shown(report: Report) -> tuple[Shown, ...]:
    """Return what a report lists."""
    assert isinstance(report.answer, Listing)
    return report.answer.tensors


def names_of(report: Report) -> list[str]:
    """Return the names that a report lists."""
    return [tensor.name for tensor in shown(report)]


def told(report: Report) -> list[tuple[str, str, str | int | None]]:
    """Return code, severity and what was asked for, of each finding."""
    facts = [finding.shard or finding.tensor or finding.expected for finding in report.findings]
    codes = [(finding.code.value, finding.severity.name.lower()) for finding in report.findings]
    return [(*code, fact) for code, fact in zip(codes, facts, strict=True) if not isinstance(fact, (list, dict))]


def layered(folder: Path) -> Path:
    """Write the tiny checkpoint with one shard a layer: shard 4 holds layer 3."""
    return write_checkpoint(folder, tiny(), parts=parts_by_layer(tiny()))


def test_spans_are_where_the_library_reads(tmp_path: Path) -> None:
    """The bytes of a span are those of the tensor that the safetensors library loads."""
    path = tmp_path / "model.safetensors"
    numbers = np.random.default_rng(7)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "lm_head.weight": numbers.random((3, 5), dtype=np.float32),
        "b": numbers.integers(0, 255, (7,), dtype=np.uint8),
        "scalar": np.full((), 2.5),
        "empty": np.zeros((0, 4), dtype=np.int16),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    raw = path.read_bytes()
    found = {tensor.name: tensor for tensor in shown(show(open_source(str(path))))}
    assert sorted(found) == sorted(tensors)
    with safe_open(path, framework="numpy") as file:
        for name, tensor in found.items():
            loaded = file.get_tensor(name)
            assert tensor.start is not None
            assert tensor.stop is not None
            assert raw[tensor.start : tensor.stop] == loaded.tobytes()
            assert (tensor.shape, tensor.bytes) == (loaded.shape, loaded.nbytes)
            assert tensor.dtype == file.get_slice(name).get_dtype()
    assert max(tensor.stop or 0 for tensor in found.values()) == len(raw)
    assert (found["lm_head.weight"].role, found["b"].role) == ("LmHead", None)
    assert {tensor.shard for tensor in found.values()} == {"model.safetensors"}


def test_lists_all_sorted(checkpoint: Path) -> None:
    """Without a glob every tensor is listed, by name."""
    report = show(open_source(str(checkpoint)))
    assert names_of(report) == sorted(tiny())
    assert report.findings == ()


@pytest.mark.parametrize(
    ("globs", "number"),
    [
        (["*.layers.5.*norm.weight"], 8),
        (["*"], 271),
        (["lm_head.weight", "lm_head.*", "*head.weight"], 1),
        ([TEXT + "layers.[34].mlp.experts.?.up_proj.weight"], 8),
        ([TEXT + "layers.[!0-4].eh_proj.weight"], 1),
    ],
)
def test_globs(checkpoint: Path, globs: list[str], number: int) -> None:
    """A glob is matched against whole names; a tensor that two match is listed once."""
    report = show(open_source(str(checkpoint)), globs)
    assert len(names_of(report)) == number
    assert report.findings == ()


@pytest.mark.parametrize("glob", ["LM_HEAD.weight", "lm_head", "head.weight", "lm_head.weight ", ""])
def test_no_match(checkpoint: Path, glob: str) -> None:
    """A glob that matches no whole name, in this case of letters, is an error; beside one that does, a warning."""
    source = open_source(str(checkpoint))
    assert told(show(source, [glob])) == [("no-match", "error", glob)]
    beside = show(source, [glob, "lm_head.weight"])
    assert told(beside) == [("no-match", "warning", glob)]
    assert names_of(beside) == ["lm_head.weight"]


def test_odd_names(tmp_path: Path) -> None:
    """Line feeds and brackets in a name do not end or change a match."""
    path = write_shard(tmp_path / "m.safetensors", {"a\nb": Kind("U8", (1,)), "a[0]": Kind("U8", (1,))})
    assert names_of(show(open_source(str(path)), ["a*b"])) == ["a\nb"]
    assert names_of(show(open_source(str(path)), ["a[[]0]"])) == ["a[0]"]


def test_duplicates_are_listed(checkpoint: Path) -> None:
    """A name that stands in two shards is listed with both places."""
    write_shard(checkpoint / "extra.safetensors", {"lm_head.weight": Kind("F32", (1,))})
    found = shown(show(open_source(str(checkpoint)), ["lm_head.weight"]))
    places = [(tensor.shard, tensor.dtype, tensor.bytes) for tensor in found]
    assert places == [("extra.safetensors", "F32", 4), (shard_name(1, 3), "BF16", 12_288)]


@pytest.mark.parametrize(
    ("globs", "opened"),
    [
        (["*.layers.3.*"], [4]),
        (["*.layers.[02].input_layernorm.weight", EH_PROJ], [1, 3, 6]),
        (["lm_head.weight"], [7]),
        ([], [1, 2, 3, 4, 5, 6, 7]),
        (["nothing-like-it"], [1, 2, 3, 4, 5, 6, 7]),
        (["lm_head.weight", "nothing-like-it"], [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_opens_only_what_it_needs(tmp_path: Path, globs: list[str], opened: list[int]) -> None:
    """The index says which shards to open; what it does not know may be in any of them."""
    files = WatchedSource(layered(tmp_path / "c"))
    show(Checkpoint(files), globs)
    assert files.opened() == opened


def test_the_index_may_be_wrong(tmp_path: Path) -> None:
    """A tensor that is in another shard than the index says is found all the same."""
    folder = layered(tmp_path / "c")
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({EH_PROJ: shard_name(1, 7)}))
    assert [tensor.shard for tensor in shown(show(open_source(str(folder)), [EH_PROJ]))] == [shard_name(6, 7)]


def test_tensors_of_a_missing_shard(tmp_path: Path) -> None:
    """A name whose shard is not there does match: what is wrong is the shard, also when others are listed."""
    folder = layered(tmp_path / "c")
    (folder / shard_name(6, 7)).unlink()
    source = open_source(str(folder))
    missing = ("index-missing-shard", "error", shard_name(6, 7))
    assert told(show(source, [EH_PROJ])) == [missing]
    assert told(show(source, ["*.input_layernorm.weight", "nope"])) == [missing, ("no-match", "warning", "nope")]
    assert told(show(source)) == [missing]
    assert told(show(source, ["lm_head.weight"])) == []


def test_a_refused_shard_makes_the_list_incomplete(tmp_path: Path) -> None:
    """What could not be read is told, and the answer is neither yes nor no."""
    folder = layered(tmp_path / "c")
    (folder / shard_name(6, 7)).write_bytes(b"short")
    report = show(open_source(str(folder)), [EH_PROJ])
    assert told(report) == [("header-length", "error", shard_name(6, 7))]
    assert not report.complete
    assert show(open_source(str(folder)), ["lm_head.weight"]).complete


def test_a_snapshot_has_no_places() -> None:
    """A recorded inventory knows sizes, but neither shards nor spans."""
    report = show(open_source("snapshot:reference"), ["*.layers.45.eh_proj.weight"])
    name = "model.language_model.layers.45.eh_proj.weight"
    assert shown(report) == (Shown(name, "BF16", (4096, 8192), 67_108_864, "MtpProjection", None, None, None),)


@pytest.mark.parametrize("ask", [show, classify_source, lambda source: record(source, today="2026-01-01")[0]])
def test_no_tensor_at_all(tmp_path: Path, ask: Callable[[Checkpoint], Report]) -> None:
    """A checkpoint without a tensor never passes silently."""
    report = ask(Checkpoint(WatchedSource(write_checkpoint(tmp_path / "c", {}, shards=1, index=False))))
    assert [(f.code, f.severity) for f in report.findings] == [(Code.NO_TENSORS, Severity.ERROR)]


def test_classify_names() -> None:
    """Names are answered in the order asked; an unknown one is one error, however often it is asked."""
    norm, wat = TEXT + "layers.45.enorm.weight", TEXT + "layers.4.self_attn.wat"
    report = classify_names([wat, norm, "model.visual.x", wat])
    unknown = Classified(wat, None, False, False, False, 4, TEXT + "layers.#.self_attn.wat")  # noqa: FBT003
    assert report.answer == Classification(
        (
            unknown,
            Classified(
                name=norm,
                role="MtpNorm",
                norm=True,
                text_model=True,
                mtp_only=True,
                layer=45,
                normalized=TEXT + "layers.#.enorm.weight",
            ),
            Classified(
                name="model.visual.x",
                role="Vision",
                norm=False,
                text_model=False,
                mtp_only=False,
                layer=None,
                normalized="model.visual.x",
            ),
            unknown,
        )
    )
    assert report.source is None
    assert [(f.code, f.tensor, f.layer) for f in report.findings] == [(Code.UNKNOWN_TENSOR, wat, 4)]


def test_classify_source(checkpoint: Path) -> None:
    """The names of a source are answered sorted; what could not be read makes it incomplete."""
    report = classify_source(open_source(str(checkpoint)))
    assert isinstance(report.answer, Classification)
    assert [result.name for result in report.answer.results] == sorted(tiny())
    assert (report.findings, report.complete) == ((), True)
    assert report.source is not None
    (checkpoint / shard_name(2, 3)).write_bytes(b"")
    (checkpoint / INDEX).unlink()
    damaged = classify_source(open_source(str(checkpoint)))
    assert (told(damaged), damaged.complete) == ([("header-empty", "error", shard_name(2, 3))], False)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("model.layers.mtp.0.eh_proj.weight", "MTP layer in the convention of other models"),
        ("mtp.0.x", "MTP layer in the convention of other models"),
        ("language_model.model.layers.0.x", "MLX"),
        ("vision_tower.blocks.0.x", "vision tower"),
        ("base_model.model.lm_head.x", "LoRA"),
        ("model.layers.0.x", "flat text-only tree"),
        (TEXT + "layers.0.attn_hc.x", "transformers export"),
        (TEXT + "layers.3.mlp.switch_mlp.x", "MLX"),
        (TEXT + "layers.3.x.lora_A.weight", "LoRA"),
        (TEXT + "layers.3.self_attn.q_a_proj.weight_scale_inv", "block FP8"),
        (TEXT + "layers.3.self_attn.q_a_proj.weight_packed", "compressed-tensors"),
        (TEXT + "layers.3.self_attn.q_a_proj.input_scale", "quantization scales"),
        (TEXT + "layers.3.self_attn.q_a_proj.qweight", "GPTQ or AWQ"),
        (TEXT + "layers.3.self_attn.q_a_proj.trellis", "EXL3"),
        (TEXT + "layers.3.self_attn.q_a_proj.biases", "MLX quantization"),
        (TEXT + "layers.3.self_attn.k_scale", "KV-cache"),
        (TEXT + "layers.3.self_attn.wat", None),
        ("weight_scale", "quantization scales"),
        ("", None),
    ],
)
def test_hints(name: str, family: str | None) -> None:
    """A refused name is told which well-known family it looks like; that never makes it accepted."""
    (finding,) = classify_names([name]).findings
    if family is None:
        assert (finding.hint, foreign_family(name)) == (None, None)
    else:
        assert finding.hint is not None
        assert family in finding.hint


def text_of(recorded: object) -> str:
    """Return the text of a snapshot that could be recorded."""
    assert isinstance(recorded, str)
    return recorded


def test_records_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """What is recorded is the inventory, the configuration and what the caller says of it."""
    quant = {"quantization": {"quant_algo": "NVFP4"}}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps(quant))
    said = {"repo": "o/n", "revision": "main", "recorded": "2026-05-06", "provenance": "Made up."}
    report, text = record(open_source(str(checkpoint)), today="2026-01-01", **said)  # type: ignore[arg-type] # none of them is a function
    path = tmp_path / "s.json"
    path.write_text(text_of(text))
    fields = json.loads(text_of(text))
    assert {key: fields[key] for key in said} == said
    assert (fields["shards"], fields["tensors"]) == (3, 271)
    assert (fields["config"], fields["hf_quant_config"]) == (TINY_CONFIG, quant)
    assert report.answer == Recorded(**said, tensors=271, bytes=fields["bytes"], rows=len(fields["rows"]))
    back = open_source(str(path))
    assert isinstance(back, Snapshot)
    kinds = {tensor.name: Kind(tensor.dtype, tensor.shape) for tensor in back.inventory().tensors.values()}
    assert kinds == tiny()
    assert record(back, today="2030-01-01")[1] == text
    assert json.loads(text_of(record(back, today="2030-01-01", recorded="2031-01-01", repo="p/q")[1])) == fields | {
        "recorded": "2031-01-01",
        "repo": "p/q",
    }


def test_records_what_it_knows_by_itself(checkpoint: Path) -> None:
    """Without a word from the caller, the day is today, and the inventory was read from headers."""
    fields = json.loads(text_of(record(open_source(str(checkpoint)), today="2026-01-02")[1]))
    assert {key: fields[key] for key in ("repo", "revision", "recorded", "provenance")} == {
        "repo": None,
        "revision": None,
        "recorded": "2026-01-02",
        "provenance": "read from headers",
    }


def _spoil(folder: Path) -> None:
    (folder / shard_name(2, 3)).write_bytes(b"GGUF")


def _remove(folder: Path) -> None:
    (folder / shard_name(2, 3)).unlink()


def _cut(folder: Path) -> None:
    path = folder / shard_name(2, 3)
    path.write_bytes(path.read_bytes()[:-1])


def _reshape(folder: Path) -> None:
    edit_header(folder / shard_name(1, 3), lambda header: header["lm_head.weight"].update(shape=[1, 64]))


def _retype(folder: Path) -> None:
    edit_header(folder / shard_name(1, 3), lambda header: header["lm_head.weight"].update(dtype="F17"))


def _add(folder: Path) -> None:
    write_shard(folder / "extra.safetensors", {"x": Kind("U8", (1,))})


@pytest.mark.parametrize(
    ("damage", "code", "complete"),
    [
        (_spoil, Code.HEADER_FORMAT, False),
        (_remove, Code.INDEX_MISSING_SHARD, False),
        (_cut, Code.FILE_TRUNCATED, True),
        (_reshape, Code.SHAPE_BYTES, False),
        (_retype, Code.UNKNOWN_DTYPE, False),
        (_add, Code.INDEX_UNLISTED_SHARD, True),
    ],
)
def test_damaged_sources_are_not_recorded(
    checkpoint: Path,
    damage: Callable[[Path], None],
    code: Code,
    complete: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """What is incomplete gives findings and no snapshot; what is only wrong is recorded for whoever waives it."""
    damage(checkpoint)
    report, text = record(open_source(str(checkpoint)), today="2026-01-01")
    assert code in [finding.code for finding in report.findings]
    assert report.judged(Policy()).ok is False
    assert (report.complete, isinstance(text, str)) == (complete, complete)
    assert isinstance(report.answer, Recorded)
    assert (report.answer.rows is not None) is complete


def test_warnings_do_not_keep_from_recording(checkpoint: Path) -> None:
    """A wrong total in the index says nothing against the headers."""
    edit_json(checkpoint / INDEX, lambda index: index["metadata"].update(total_size=1))
    report, text = record(open_source(str(checkpoint)), today="2026-01-01")
    assert [finding.code for finding in report.findings] == [Code.INDEX_TOTAL_SIZE]
    assert text is not None


def test_explain_all() -> None:
    """Without a code the whole catalogue is explained, in its order."""
    report = explain()
    assert isinstance(report.answer, Explained)
    assert [entry.code for entry in report.answer.entries] == [code.value for code in Code]
    assert all(e.title and e.meaning and e.cause and e.remedy for e in report.answer.entries)
    assert {entry.severity for entry in report.answer.entries} == {"note", "warning", "error"}


def test_explain_some() -> None:
    """The codes asked for are explained, and no other."""
    report = explain([Code.DSA_SHAPE, Code.MTP_ABSENT])
    assert isinstance(report.answer, Explained)
    assert [(e.code, e.severity) for e in report.answer.entries] == [("dsa-shape", "error"), ("mtp-absent", "note")]
    assert (report.source, report.findings) == (None, ())
