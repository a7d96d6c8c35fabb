# SPDX-License-Identifier: AGPL-3.0-only
"""The shard index: what it must look like, and what it and the headers say against each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import TEXT, Kind, edit_json, write_checkpoint, write_index, write_raw, write_shard

from glm5inspect.errors import IndexFileError
from glm5inspect.index import ABSENT, parse_index, unsafe_shard_name
from glm5inspect.integrity import integrity, placement_of
from glm5inspect.resolve import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from glm5inspect.report import Finding

    Edit = Callable[[Path], object]

NORM = f"{TEXT}layers.0.input_layernorm.weight"
A_LOG = f"{TEXT}layers.0.self_attn.A_log"
DOWN = f"{TEXT}layers.1.mlp.down_proj.weight"
SCALE = f"{TEXT}layers.1.mlp.down_proj.weight_scale_inv"
HEAD = "lm_head.weight"
KINDS = {
    NORM: Kind("BF16", (4,)),  # 8 bytes
    A_LOG: Kind("F32", (4,)),  # 16, so that layer 0 has 24
    DOWN: Kind("F8_E4M3", (4, 8)),  # 32
    SCALE: Kind("F32", (1, 1)),  # 4, so that layer 1 has 36
    HEAD: Kind("BF16", (8, 4)),  # 64
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
HOMES = {NORM: FIRST, A_LOG: FIRST, DOWN: SECOND, SCALE: SECOND, HEAD: SECOND}
TOTAL = 124
INDEX = "model.safetensors.index.json"


def kinds(*names: str) -> dict[str, Kind]:
    """Return what these tensors are."""
    return {name: KINDS[name] for name in names}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two healthy shards of five tensors, and their index."""
    return write_checkpoint(tmp_path / "c", {}, parts=[kinds(NORM, A_LOG), kinds(DOWN, SCALE, HEAD)], config=None)


def findings(source: Path) -> list[Finding]:
    """Return what is wrong with the files."""
    return list(integrity(open_source(str(source)).inventory()))


def maps(**changes: str | None) -> Edit:
    """Return an edit of the weight_map; ``None`` removes an entry."""
    names = {"NORM": NORM, "A_LOG": A_LOG, "DOWN": DOWN, "SCALE": SCALE, "HEAD": HEAD}

    def edit(index: dict[str, Any]) -> None:
        for key, shard in changes.items():
            index["weight_map"].pop(names.get(key, key), None)
            if shard is not None:
                index["weight_map"][names.get(key, key)] = shard

    return lambda folder: edit_json(folder / INDEX, edit)


def shard(name: str, **tensors: Kind) -> Edit:
    """Return an edit that writes another shard."""
    return lambda folder: write_shard(folder / name, tensors)


def both(*edits: Edit) -> Edit:
    """Return all edits, one after the other."""
    return lambda folder: [edit(folder) for edit in edits]


def move(name: str, *, index_too: bool) -> Edit:
    """Return an edit that moves a tensor of the second shard to the first."""

    def edit(folder: Path) -> None:
        write_shard(folder / FIRST, kinds(NORM, A_LOG, name))
        write_shard(folder / SECOND, {other: kind for other, kind in kinds(DOWN, SCALE, HEAD).items() if other != name})
        if index_too:
            edit_json(folder / INDEX, lambda index: index["weight_map"].update({name: FIRST}))

    return edit


def delete(*names: str) -> Edit:
    """Return an edit that deletes files."""

    def edit(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return edit


def dangle(folder: Path) -> None:
    """Make the first shard a link to nothing."""
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to("../blobs/0123")


def repeat_key(folder: Path) -> None:
    """Name a tensor twice in the index, in the same shard."""
    path = folder / INDEX
    path.write_text(path.read_text().replace('"weight_map": {', f'"weight_map": {{"{NORM}": "{FIRST}",'))


def repeat_map(folder: Path) -> None:
    """Write an empty weight_map before the real one."""
    path = folder / INDEX
    path.write_text(path.read_text().replace('"weight_map":', '"weight_map": {}, "weight_map":'))


OTHER_HEAD = {HEAD: Kind("F32", (4, 4))}  # as many bytes
E, W = "ERROR", "WARNING"

FAULTS: dict[str, tuple[Edit, list[tuple[str, str, str | None, str | None]]]] = {
    "nothing": (lambda _: None, []),
    "no index": (delete(INDEX), []),
    "tensor in no header": (maps(gone=FIRST), [("index-missing-tensor", E, "gone", FIRST)]),
    "tensor in another shard": (maps(HEAD=FIRST), [("index-wrong-shard", E, HEAD, SECOND)]),
    "tensor moved": (move(HEAD, index_too=False), [("index-wrong-shard", E, HEAD, FIRST)]),
    "tensor moved, index too": (move(HEAD, index_too=True), []),
    "tensor not listed": (maps(HEAD=None), [("index-unlisted-tensor", E, HEAD, SECOND)]),
    "shard missing": (delete(FIRST), [("index-missing-shard", E, None, FIRST)]),
    "shard empty": (lambda f: (f / FIRST).write_bytes(b""), [("index-missing-shard", E, None, FIRST)]),
    "shard a link to nothing": (dangle, [("index-missing-shard", E, None, FIRST)]),
    "shard missing in a folder that is not there": (
        maps(gone="weights/x.safetensors"),
        [("index-missing-shard", E, None, "weights/x.safetensors")],
    ),
    "shard missing below a file": (
        maps(gone=f"{FIRST}/x.safetensors"),
        [("index-missing-shard", E, None, f"{FIRST}/x.safetensors")],
    ),
    "shard with a name too long": (
        maps(gone="x" * 300 + ".safetensors"),
        [("index-missing-shard", E, None, "x" * 300 + ".safetensors")],
    ),
    "shard refused": (
        lambda f: write_raw(f / FIRST, b"[]"),
        [("header-json", E, None, FIRST)],
    ),
    "shard not listed": (
        shard("mtp.safetensors", new=KINDS[NORM]),
        [("index-unlisted-shard", E, None, "mtp.safetensors")],
    ),
    "unlisted shard empty": (
        lambda f: (f / "x.safetensors").write_bytes(b""),
        [("header-empty", E, None, "x.safetensors")],
    ),
    "unlisted shard without tensors": (shard("x.safetensors"), [("index-unlisted-shard", E, None, "x.safetensors")]),
    "unusual shard name, listed": (
        both(shard("mtp.safetensors", new=KINDS[NORM]), maps(new="mtp.safetensors")),
        [("index-total-size", W, None, None)],
    ),
    "key twice in the index": (repeat_key, [("index-duplicate-key", E, NORM, None)]),
    "weight_map twice": (repeat_map, [("index-duplicate-key", E, "weight_map", None)]),
    "same tensor twice, settled": (
        lambda f: write_shard(f / FIRST, kinds(NORM, A_LOG, HEAD)),
        [("duplicate-tensor", W, HEAD, FIRST)],
    ),
    "other dtype, though settled": (
        lambda f: write_shard(f / FIRST, {**kinds(NORM, A_LOG), **OTHER_HEAD}),
        [("duplicate-tensor", E, HEAD, FIRST)],
    ),
    "overlay that the index names": (
        both(shard("z-overlay.safetensors", **kinds(HEAD)), maps(HEAD="z-overlay.safetensors")),
        [("duplicate-tensor", W, HEAD, SECOND)],
    ),
    "overlay that the index does not name": (
        shard("a-overlay.safetensors", **kinds(HEAD)),
        [
            ("index-unlisted-shard", E, None, "a-overlay.safetensors"),
            ("duplicate-tensor", W, HEAD, "a-overlay.safetensors"),
        ],
    ),
    "same tensor twice, index names neither": (
        both(lambda f: write_shard(f / FIRST, kinds(NORM, A_LOG, HEAD)), maps(HEAD=None)),
        [("duplicate-tensor", E, HEAD, FIRST), ("index-unlisted-tensor", E, HEAD, FIRST)],
    ),
    "same tensor twice without an index": (
        both(lambda f: write_shard(f / FIRST, kinds(NORM, A_LOG, HEAD)), delete(INDEX)),
        [("duplicate-tensor", E, HEAD, FIRST)],
    ),
    "wrong size of a copy that does not count": (
        lambda f: write_shard(f / FIRST, {**kinds(NORM, A_LOG), HEAD: Kind("F4", (8, 15))}),
        [("shape-bytes", E, HEAD, FIRST), ("duplicate-tensor", E, HEAD, FIRST)],
    ),
    "scale apart from its weight": (move(SCALE, index_too=True), [("companion-split", W, SCALE, FIRST)]),
    "number missing, no index": (
        delete(INDEX, FIRST),
        [("shard-numbering", E, None, None)],
    ),
    "number missing, index": (delete(SECOND), [("index-missing-shard", E, None, SECOND)]),
    "numbered shard refused, no index": (
        both(delete(INDEX), lambda f: write_raw(f / FIRST, b"[]")),
        [("header-json", E, None, FIRST)],
    ),
    "two complete sets of numbers": (
        both(delete(INDEX), shard("mtp-00001-of-00001.safetensors", new=KINDS[NORM])),
        [],
    ),
    "names that are no numbers": (
        both(
            delete(INDEX),
            shard("a-00001-of-2.safetensors"),
            shard("b-x-of-00009.safetensors"),
            shard("model-of-.safetensors"),
        ),
        [],
    ),
}


@pytest.mark.parametrize(("edit", "expected"), FAULTS.values(), ids=FAULTS)
def test_fault(folder: Path, edit: Edit, expected: list[tuple[str, str, str | None, str | None]]) -> None:
    """One fault makes its own finding, where it is, and no other; what is in order makes none."""
    edit(folder)

    found = [(f.code.value, f.severity.name, f.tensor, f.shard) for f in findings(folder)]

    assert sorted(found, key=str) == sorted(expected, key=str)


WORDS: dict[str, tuple[Edit, str]] = {
    "wrong shard": (maps(HEAD=FIRST), f"{HEAD}: in {SECOND}, but the index says {FIRST}"),
    "not there": (delete(SECOND), f"{SECOND}: not there; the index puts 3 tensors there"),
    "empty": (lambda f: (f / SECOND).write_bytes(b""), f"{SECOND}: 0 bytes; the index puts 3 tensors there"),
    "dangling": (dangle, f"{FIRST}: a link to nothing; the index puts 2 tensors there"),
    "numbering": (both(delete(INDEX, FIRST)), "model-*-of-00002.safetensors: 1 of 2 shards are here; missing are 1"),
    "copies": (
        lambda f: write_shard(f / FIRST, {**kinds(NORM, A_LOG), **OTHER_HEAD}),
        f"{HEAD}: in {FIRST} (F32 [4, 4]) and {SECOND} (BF16 [8, 4]); the index says {SECOND}",
    ),
    "copies without an index": (
        both(shard("z.safetensors", **kinds(A_LOG)), delete(INDEX)),
        f"{A_LOG}: in {FIRST} (F32 [4]) and z.safetensors (F32 [4]); no index settles which one counts",
    ),
    "unlisted": (
        shard("mtp.safetensors", a=KINDS[NORM], b=KINDS[NORM]),
        "mtp.safetensors: 2 tensors, but the index does not name the file",
    ),
    "companions": (move(SCALE, index_too=True), f"{SCALE}: in {FIRST}, but its weight is in {SECOND}"),
}


@pytest.mark.parametrize(("edit", "message"), WORDS.values(), ids=WORDS)
def test_words(folder: Path, edit: Edit, message: str) -> None:
    """A finding about two places names both, and one about many tensors says how many."""
    edit(folder)

    assert [finding.message for finding in findings(folder)] == [message]


@pytest.mark.parametrize(
    ("payload", "scale"),
    [
        ("weight", "weight_scale"),
        ("weight", "weight_scale_2"),
        ("weight", "weight_scale_inv"),
        ("weight", "input_scale"),
        ("weight_packed", "weight_scale"),
        ("weight_packed", "weight_global_scale"),
        ("weight_packed", "weight_shape"),
    ],
)
def test_companions(tmp_path: Path, payload: str, scale: str) -> None:
    """Whatever its dialect, what belongs to a weight is missed in another shard, and not when it has no weight."""
    module = f"{TEXT}layers.3.mlp.experts.2.up_proj"
    parts = [{f"{module}.{payload}": KINDS[DOWN]}, {f"{module}.{scale}": KINDS[SCALE]}]
    split = write_checkpoint(tmp_path / "split", {}, parts=parts, config=None)
    together = write_checkpoint(tmp_path / "together", {}, parts=[{**parts[0], **parts[1]}], config=None)
    alone = write_checkpoint(tmp_path / "alone", {}, parts=parts[1:], config=None)

    assert [(f.code.value, f.tensor, f.layer) for f in findings(split)] == [("companion-split", f"{module}.{scale}", 3)]
    assert findings(together) == findings(alone) == []


def test_expert_across_shards(tmp_path: Path) -> None:
    """An expert whose projections lie in two shards is in order; the official release has one."""
    expert = f"{TEXT}layers.3.mlp.experts.1"
    parts = [
        {f"{expert}.{projection}.{name}": KINDS[kind] for name, kind in (("weight", DOWN), ("weight_scale_inv", SCALE))}
        for projection in ("up_proj", "down_proj")
    ]

    assert findings(write_checkpoint(tmp_path / "c", {}, parts=parts, config=None)) == []


def test_placement_of_some(folder: Path) -> None:
    """Asked about some tensors only, what is wrong elsewhere is passed over."""
    both(maps(HEAD=FIRST, gone=SECOND), delete(FIRST), shard("x.safetensors", new=KINDS[NORM]))(folder)
    inventory = open_source(str(folder)).inventory()

    assert [f.code.value for f in placement_of(inventory, {NORM})] == ["index-missing-shard"]
    assert [f.code.value for f in placement_of(inventory, {DOWN})] == []
    assert [f.code.value for f in placement_of(inventory, {"gone"})] == ["index-missing-tensor"]
    assert [f.code.value for f in placement_of(inventory, {"new"})] == ["index-unlisted-shard"]


def test_unseen(folder: Path) -> None:
    """A tensor that the index puts in a missing shard is not missed when another one holds it."""
    maps(HEAD="gone.safetensors", new="gone.safetensors", absent=FIRST)(folder)

    assert open_source(str(folder)).inventory().unseen == {"new"}
    assert sorted(f.code.value for f in findings(folder)) == ["index-missing-shard", "index-missing-tensor"]


def size(claim: object) -> Edit:
    """Return an edit of the total size."""
    return lambda folder: write_index(folder, HOMES, claim)


def metadata(value: object) -> Edit:
    """Return an edit of the index's whole metadata."""
    return lambda folder: edit_json(folder / INDEX, lambda index: index.update(metadata=value))


LAYER_0 = "The difference is exactly the bytes of layer 0, as if it had been left out."
FILES = "The difference is exactly the shards' headers: these are file sizes, not tensor bytes."
SIZES: dict[str, tuple[Edit, str, str | None]] = {
    "two more": (size(TOTAL + 2), "is 126, 2 bytes too much", None),
    "a layer left out": (size(TOTAL - 24), "is 100, 24 bytes too little", LAYER_0),
    "a layer too much": (size(TOTAL + 24), "is 148, 24 bytes too much", None),
    "beyond 2^53": (size(2**53 + 1), "is 9,007,199,254,740,993, 9,007,199,254,740,869 bytes too much", None),
    "zero": (size(0), "is 0, not a size", None),
    "negative": (size(-124), "is -124, not a size", None),
    "string": (size("124"), 'is "124", not a size', None),
    "float": (size(124.0), "is 124.0, not a size", None),
    "boolean": (size(True), "is true, not a size", None),  # noqa: FBT003
    "null": (size(None), "is null, not a size", None),
    "a list": (size([124]), "is [124], not a size", None),
    "absent": (metadata({}), "is absent", None),
    "metadata is a list": (metadata([]), "is absent", None),
    "metadata is null": (metadata(None), "is absent", None),
}


@pytest.mark.parametrize(("edit", "what", "hint"), SIZES.values(), ids=SIZES)
def test_total_size(folder: Path, edit: Edit, what: str, hint: str | None) -> None:
    """A total that is not the sum of the tensors' bytes is a warning that says by how much, and why if known."""
    edit(folder)

    (found,) = findings(folder)

    assert (found.code.value, found.severity.name) == ("index-total-size", "WARNING")
    assert found.message == f"{INDEX}: metadata.total_size {what}; the tensors have 124 bytes"
    assert (found.hint, found.expected) == (hint, TOTAL)


def test_total_size_of_files(folder: Path) -> None:
    """A total that counts the headers in is told as that."""
    size(sum(path.stat().st_size for path in folder.glob("*.safetensors")))(folder)

    assert [finding.hint for finding in findings(folder)] == [FILES]


@pytest.mark.parametrize("claim", [TOTAL, TOTAL - 64])
def test_total_size_beside_an_unlisted_tensor(folder: Path, claim: int) -> None:
    """With a tensor that the index does not name, the total may count it or not; only the tensor is reported."""
    maps(HEAD=None)(folder)
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=claim))

    assert [f.code.value for f in findings(folder)] == ["index-unlisted-tensor"]


GOOD_NAMES = ["x.safetensors", "weights/x.safetensors", "a/b/c.safetensors", "..x.safetensors", "a..b/x.safetensors"]
UNSAFE_NAMES: list[object] = [
    *("", ".", "..", "x", "x.bin", ".safetensors", "a/.safetensors", "x.safetensors/", "x.SAFETENSORS"),
    *("../x.safetensors", "a/../x.safetensors", "./x.safetensors", "a/./x.safetensors", "a//x.safetensors"),
    *("/etc/x.safetensors", "//h/x.safetensors", "https://h/x.safetensors", "file:x.safetensors", "C:x.safetensors"),
    *("a\\x.safetensors", "..\\..\\x.safetensors", "a\0.safetensors", "x.safetensors\n"),
    *(None, 1, 1.5, True, [], ["x.safetensors"], {}, {"x.safetensors": 1}),
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_safe_name(name: str) -> None:
    """A relative path below the checkpoint may be followed."""
    assert unsafe_shard_name(name) is None
    assert parse_index(json.dumps({"weight_map": {"t": name}}).encode(), name=INDEX).shards == (name,)


@pytest.mark.parametrize("name", UNSAFE_NAMES, ids=repr)
def test_unsafe_name(folder: Path, name: object) -> None:
    """Any other value is refused, with the tensor's name, before a shard is opened."""
    edit_json(folder / INDEX, lambda index: index["weight_map"].update(bad=name))

    with pytest.raises(IndexFileError, match=f"{INDEX}: bad is mapped to .*nothing was read"):
        open_source(str(folder)).inventory()


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "array": (b"[]", "not a JSON object"),
    "no map": (b'{"metadata":{}}', "weight_map is not an object"),
    "map is a list": (b'{"weight_map":[]}', "weight_map is not an object"),
    "map is null": (b'{"weight_map":null}', "weight_map is not an object"),
    "not UTF-8": (b'{"weight_map":{"\xff":"x"}}', "not UTF-8 at byte 16"),
    "NaN": (b'{"metadata":{"total_size":NaN},"weight_map":{}}', "not JSON (NaN)"),
    "lone surrogate": (b'{"weight_map":{"\\ud800":"x.safetensors"}}', "a lone surrogate"),
    "deep": (b'{"weight_map":' + b"[" * 100_000, "nested too deeply"),
    "digits": (b'{"metadata":{"total_size":' + b"9" * 5000 + b'},"weight_map":{}}', "thousands of digits"),
}


@pytest.mark.parametrize(("raw", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(raw: bytes, reason: str) -> None:
    """What is not the strict JSON of an index is refused with its name and the reason."""
    with pytest.raises(IndexFileError) as caught:
        parse_index(raw, name="a.safetensors.index.json")

    assert str(caught.value).startswith("a.safetensors.index.json: ")
    assert reason in str(caught.value)


def test_facts_of_an_index() -> None:
    """An index keeps its claims as they are: names, files in order, any total size, and the keys that stand twice."""
    index = parse_index(b'{"weight_map":{"b":"z.safetensors","a":"y.safetensors","b":"z.safetensors"}}', name="i")

    assert (index.name, index.shards, index.duplicates) == ("i", ("y.safetensors", "z.safetensors"), ("b",))
    assert index.weight_map == {"b": "z.safetensors", "a": "y.safetensors"}
    assert index.total_size is ABSENT
    assert parse_index(b'{"metadata":{"total_size":null},"weight_map":{}}', name="i").total_size is None
