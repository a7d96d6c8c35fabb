# SPDX-License-Identifier: AGPL-3.0-only
"""A repository of the Hub is read as a folder is, with few requests and without its weights."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import (
    BROKEN,
    TINY_CONFIG,
    Kind,
    edit_header,
    edit_json,
    parts_by_layer,
    shard_name,
    tiny,
    write_checkpoint,
    write_header,
    write_raw,
    write_shard,
)
from loopback_hub import LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
LATER = "decade" + "0" * 34
INDEX = "model.safetensors.index.json"


@pytest.fixture
def repo(hub: LoopbackHub, checkpoint: Path) -> Repo:
    """The tiny checkpoint of three shards, as `owner/name`."""
    return hub.repos.setdefault("owner/name", Repo(checkpoint))


def words(value: object) -> str | None:
    """Return the id of a command in a table, and none for anything else."""
    return " ".join(map(str, value)) if isinstance(value, list) else None


def run(*arguments: str | Path) -> tuple[int, Any]:
    """Run a command for JSON; return its exit code and its report without the source, or what went wrong."""
    result = CliRunner().invoke(app, [*map(str, arguments), "-f", "json"])
    if not result.stdout:
        return result.exit_code, result.stderr
    report = json.loads(result.stdout)
    report.pop("source")
    return result.exit_code, report


def requests(hub: LoopbackHub, *arguments: str | Path) -> int:
    """Run a command that succeeds and return how many requests it took."""
    before = len(hub.requests())
    assert run(*arguments)[0] == 0
    return len(hub.requests()) - before


def test_source(hub: LoopbackHub, repo: Repo) -> None:
    """The report names what was typed, the repository, the revision and the commit it was at."""
    for source in (
        "owner/name",
        "hf://owner/name@main",
        f"{hub.endpoint}/owner/name/tree/main",
        f"owner/name@{COMMIT}",
    ):
        result = CliRunner().invoke(app, ["census", source, "-f", "json"])
        assert json.loads(result.stdout)["source"] == {
            "kind": "hub",
            "name": source,
            "repo": "owner/name",
            "revision": COMMIT if COMMIT in source else "main",
            "commit": repo.commit,
        }


@pytest.mark.parametrize(
    ("command", "damaged"),
    [
        (["census", "SOURCE"], 1),
        (["census", "SOURCE", "--patterns", "--layers"], 1),
        (["census", "SOURCE", "--against", "CHECKPOINT"], 1),
        (["census", "CHECKPOINT", "--against", "SOURCE"], 1),
        (["classify", "--from", "SOURCE"], 1),
        (["verify-dsa", "SOURCE"], 1),
        (["verify-dsa", "SOURCE", "--layer", "3"], 1),
        (["find-mtp", "SOURCE"], 0),
        (["show", "SOURCE"], 0),
        (["show", "SOURCE", "*.layers.5.*norm*"], 0),
    ],
    ids=words,
)
def test_same_answer_as_the_folder(repo: Repo, command: list[str], damaged: int) -> None:
    """But for where it was read, every report on a repository is the one on the folder, good or bad."""
    folder = str(repo.folder)
    remote = ["owner/name" if word == "SOURCE" else folder if word == "CHECKPOINT" else word for word in command]
    local = [folder if word == "owner/name" else word for word in remote]
    code, report = run(*remote)
    assert (code, report) == run(*local)
    assert (code, report["complete"]) == (0, True)

    edit_json(repo.folder / "config.json", lambda config: config["text_config"].update(kv_lora_rank=17))
    edit_header(
        repo.folder / shard_name(1, 3), lambda header: header.update({"unheard.of": header.pop("lm_head.weight")})
    )
    repo.commit = LATER
    code, report = run(*remote)
    assert (code, report) == run(*local)
    assert code == damaged


def without(*names: str) -> Callable[[Path], object]:
    """Return what removes files from a folder."""

    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def single(folder: Path) -> None:
    """Make a folder hold one file of weights."""
    shutil.rmtree(folder)
    write_shard(folder / "model.safetensors", tiny())


def only(*names: str) -> Callable[[Path], object]:
    """Return what makes a folder hold nothing but some files of no use."""

    def replace(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(json.dumps(TINY_CONFIG) if name == "config.json" else "anything")

    return replace


def in_folders(folder: Path) -> None:
    """Move the shards that an index names below the root, one of them deeper."""
    for number, place in ((1, "weights"), (2, "weights/deeper"), (3, "weights")):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / shard_name(number, 3)).rename(folder / place / shard_name(number, 3))
    text = (folder / INDEX).read_text()
    text = text.replace('"model-', '"weights/model-').replace("weights/model-00002", "weights/deeper/model-00002")
    (folder / INDEX).write_text(text)


def two_indexes(folder: Path) -> None:
    """Leave two indexes in a folder, neither of the usual name."""
    shutil.copy(folder / INDEX, folder / f"a.{INDEX}")
    (folder / INDEX).rename(folder / f"b.{INDEX}")


def shorten(path: Path, by: int) -> None:
    """Take bytes off the end of a file, or with a negative number put some there."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - by)


SHAPES: dict[str, tuple[Callable[[Path], object], int]] = {
    "no index": (without(INDEX), 0),
    "no config": (without("config.json"), 0),
    "neither": (without(INDEX, "config.json"), 0),
    "one file": (single, 0),
    "shards in folders": (in_folders, 0),
    "other name of the index": (lambda folder: (folder / INDEX).rename(folder / "x.safetensors.index.json"), 0),
    "a shard less": (without(shard_name(2, 3)), 1),
    "empty shard": (lambda folder: (folder / shard_name(2, 3)).write_bytes(b""), 1),
    "shard of 7 bytes": (lambda folder: (folder / shard_name(2, 3)).write_bytes(b"7 bytes"), 3),
    "shard that is none": (lambda folder: (folder / shard_name(2, 3)).write_bytes(BROKEN), 3),
    "pointer of Git LFS": (
        lambda folder: (folder / shard_name(2, 3)).write_text("version https://git-lfs.github.com/spec/v1\noid"),
        3,
    ),
    "header that is no JSON": (lambda folder: write_raw(folder / shard_name(2, 3), b"{no JSON}"), 3),
    "header longer than the shard": (lambda folder: write_raw(folder / shard_name(2, 3), b"{}", length=99), 3),
    "shard cut off": (lambda folder: shorten(folder / shard_name(2, 3), 1), 1),
    "bytes after the data": (lambda folder: shorten(folder / shard_name(2, 3), -1), 1),
    "malformed index": (lambda folder: (folder / INDEX).write_text("{"), 3),
    "index that leads out": (
        lambda folder: edit_json(folder / INDEX, lambda index: index["weight_map"].update(x="../x.safetensors")),
        3,
    ),
    "empty config": (lambda folder: (folder / "config.json").write_bytes(b""), 3),
    "a quantization config": (lambda folder: (folder / "hf_quant_config.json").write_text("{}"), 0),
    "hidden files": (lambda folder: (folder / f"._{shard_name(1, 3)}").write_bytes(BROKEN), 0),
    "config only": (only("config.json"), 3),
    "nothing of ours": (only("README.md"), 3),
    "only .bin": (only("config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"), 3),
    "only .gguf": (only("model-Q4.gguf"), 3),
    "adapter": (only("adapter_config.json", "adapter_model.safetensors"), 3),
    "two indexes": (two_indexes, 3),
}
"""What repositories look like, by what is done to the tiny checkpoint, and the exit code of a census."""


@pytest.mark.parametrize(("make", "code"), SHAPES.values(), ids=SHAPES)
def test_shapes_of_repositories(repo: Repo, make: Callable[[Path], object], code: int) -> None:
    """Whatever files there are or lack, a repository is judged as the folder is."""
    make(repo.folder)
    remote, local = run("census", "owner/name"), run("census", repo.folder)
    if isinstance(local[1], str):
        assert local[1].count("\n") == 1
        assert remote[1] == local[1].replace(str(repo.folder), remote[1].split(": ")[1])
    else:
        assert remote == local
    assert (remote[0], local[0]) == (code, code)


@pytest.mark.parametrize("prefetched", [99_993, 100_001, 262_136, 262_137, 600_000])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_headers_of_any_length(hub: LoopbackHub, tmp_path: Path, prefetched: int, index: bool) -> None:  # noqa: FBT001
    """A header is fetched whole, in at most two requests, however long it is and however well that could be guessed."""
    folder = write_checkpoint(tmp_path / "x", {"lm_head.weight": Kind("U8", (5,))}, shards=1, index=index, config=None)
    raw = b'{"lm_head.weight":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}'
    write_raw(folder / shard_name(1, 1), raw.ljust(prefetched), 5)
    hub.repos["owner/name"] = Repo(folder)
    assert run("show", "owner/name") == run("show", folder)
    short = prefetched + 8 > (262_144 if not index else 2048)
    assert hub.shards_asked() == [shard_name(1, 1)] * (1 + short)


def test_requests(hub: LoopbackHub, repo: Repo) -> None:
    """A first run takes one request a shard and five more, the next one only asks where the branch is."""
    assert requests(hub, "census", "owner/name") == 3 + 5
    assert hub.shards_asked() == [shard_name(number, 3) for number in (1, 2, 3)]
    assert requests(hub, "census", "owner/name") == 1
    assert requests(hub, "verify-dsa", "owner/name@main") == 1
    assert requests(hub, "census", f"owner/name@{repo.commit}") == 0
    assert requests(hub, "show", "owner/name", "--revision", repo.commit) == 0
    assert requests(hub, "show", "owner/name@c0ffee0") == 1


def test_full_commit_first(hub: LoopbackHub, repo: Repo) -> None:
    """A full commit is looked up once as well; then nothing is asked any more."""
    assert requests(hub, "census", f"owner/name@{repo.commit}") == 3 + 5
    assert requests(hub, "census", f"owner/name@{repo.commit}") == 0


def test_a_size_that_is_not_told(hub: LoopbackHub, repo: Repo) -> None:
    """A shard whose size the Hub does not tell cannot be checked: it is named, not asked for, and the rest is read."""
    repo.listed = {shard_name(2, 3): -1}
    code, report = run("census", "owner/name")
    assert (code, report["complete"]) == (3, False)
    assert [(finding["code"], finding["shard"]) for finding in report["findings"]] == [
        ("header-unreadable", shard_name(2, 3))
    ]
    assert "does not tell its size" in report["findings"][0]["message"]
    assert hub.shards_asked() == [shard_name(1, 3), shard_name(3, 3)]


def test_everything_names_the_commit(hub: LoopbackHub, repo: Repo) -> None:
    """Only the first request is about a branch; a branch that moves meanwhile mixes nothing."""
    run("census", "owner/name")
    first, *others = (asked.path for asked in hub.requests())
    assert first == "/api/models/owner/name/revision/main"
    assert len(others) == 3 + 4
    assert all(path.startswith(f"/owner/name/resolve/{repo.commit}/") for path in others)


def test_a_branch_that_moved(hub: LoopbackHub, repo: Repo) -> None:
    """The second run notices a new commit, and fetches what is new in it only; the old one is still known."""
    assert run("census", "owner/name")[0] == 0
    hub.asked.clear()
    repo.commit = LATER
    write_shard(repo.folder / shard_name(2, 3), {"unheard.of": Kind("U8", (3,))})
    code, report = run("census", "owner/name")
    assert (code, report) == run("census", repo.folder)
    assert code == 1
    assert hub.shards_asked() == [shard_name(2, 3)]
    assert run("census", f"owner/name@{COMMIT}")[0] == 0


@pytest.mark.parametrize(
    ("command", "shards"),
    [
        (["census"], [1, 2, 3, 4, 5, 6, 7]),
        (["verify-dsa"], [4, 6]),
        (["verify-dsa", "--layer", "3"], [4, 6]),
        (["verify-dsa", "--layer", "5"], [6]),
        (["find-mtp"], [5, 6]),
    ],
    ids=words,
)
def test_only_the_shards_that_are_needed(
    hub: LoopbackHub, tmp_path: Path, command: list[str], shards: list[int]
) -> None:
    """A question about some layers fetches their shards, those of the layer it compares with, and no other."""
    hub.repos["owner/name"] = Repo(write_checkpoint(tmp_path / "x", tiny(), parts=parts_by_layer(tiny())))
    assert requests(hub, *command, "owner/name") == len(shards) + 5
    assert hub.shards_asked() == [shard_name(number, 7) for number in shards]


def test_all_shards_when_the_index_is_wrong(hub: LoopbackHub, tmp_path: Path) -> None:
    """When a shard lacks what the index puts there, all are fetched, each once, also one the index does not name."""
    folder = write_checkpoint(tmp_path / "x", tiny(), parts=parts_by_layer(tiny()))
    edit_json(
        folder / INDEX,
        lambda index: index["weight_map"].update(dict.fromkeys(list(parts_by_layer(tiny())[5]), shard_name(4, 7))),
    )
    hub.repos["owner/name"] = Repo(folder)
    assert run("find-mtp", "owner/name") == run("find-mtp", folder)
    assert hub.shards_asked() == [shard_name(number, 7) for number in range(1, 8)]


@pytest.mark.parametrize(
    "source", [["owner/name", "--subfolder", "a/weights"], ["ENDPOINT/owner/name/tree/main/a/weights"]], ids=words
)
def test_subfolder(hub: LoopbackHub, checkpoint: Path, source: list[str]) -> None:
    """The model may lie below the root; what lies elsewhere is not looked at."""
    root = checkpoint.parent / "root"
    shutil.copytree(checkpoint, root / "a" / "weights")
    (root / "model.safetensors").write_bytes(BROKEN)
    (root / "a" / "config.json").write_bytes(BROKEN)
    hub.repos["owner/name"] = Repo(root)
    typed = [word.replace("ENDPOINT", hub.endpoint) for word in source]
    for command in ("census", "find-mtp", "verify-dsa", "show"):
        assert run(command, *typed) == run(command, checkpoint)
    assert len(hub.requests()) == 3 + 5 + 3


@pytest.mark.parametrize("subfolder", ["weights/", "./weights", "weights/.", "weights//"])
def test_spelling_of_a_subfolder(hub: LoopbackHub, checkpoint: Path, subfolder: str) -> None:
    """A folder may be written in all the ways in which a path may."""
    shutil.copytree(checkpoint, checkpoint.parent / "root" / "weights")
    hub.repos["owner/name"] = Repo(checkpoint.parent / "root")
    hub.repos["owner/plain"] = Repo(checkpoint)
    assert run("census", "owner/name", "--subfolder", subfolder)[0] == 0
    assert run("census", "owner/plain", "--subfolder", ".")[0] == 0


@pytest.mark.parametrize("subfolder", ["..", "weights/../..", "/weights", "gone", "config.json", "nul\0", "x" * 5000])
def test_subfolder_that_is_none(repo: Repo, subfolder: str) -> None:
    """A folder that leads out, or is not there, is an error of one line."""
    assert repo.closed is None
    code, said = run("census", "owner/name", "--subfolder", subfolder)
    assert (code, said.count("\n")) == (3, 1)
    assert "not a path below" in said or "no .safetensors file there" in said


def record(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    """Record a source and return the snapshot."""
    path = folder / "snapshot.json"
    path.unlink(missing_ok=True)
    result = CliRunner().invoke(app, ["record", *map(str, arguments), "-o", str(path), "--recorded", "2026-01-02"])
    assert result.exit_code == 0, result.output
    snapshot: dict[str, Any] = json.loads(path.read_text())
    return snapshot


@pytest.mark.parametrize(
    ("arguments", "labels", "revisions"),
    [
        (["owner/name"], ("owner/name", COMMIT), ["main"]),
        (["owner/name@main"], ("owner/name", COMMIT), ["main"]),
        (["owner/name", "--revision", "old"], ("owner/name", COMMIT), ["old"]),
        (["owner/name", "--repo", "me/mine"], ("me/mine", COMMIT), ["main"]),
        (["CHECKPOINT"], (None, None), []),
        (["CHECKPOINT", "--revision", "old", "--repo", "me/mine"], ("me/mine", "old"), []),
    ],
    ids=words,
)
def test_record(
    hub: LoopbackHub,
    repo: Repo,
    tmp_path: Path,
    arguments: list[str],
    labels: tuple[str | None, str | None],
    revisions: list[str],
) -> None:
    """A snapshot of a repository says which commit it is of; the revision is looked up, not copied."""
    repo.branches = ("main", "old")
    folder = str(repo.folder)
    snapshot = record(tmp_path, *[word.replace("CHECKPOINT", folder) for word in arguments])
    assert (snapshot.pop("repo"), snapshot.pop("revision")) == labels
    plain = record(tmp_path, folder)
    assert snapshot == {key: value for key, value in plain.items() if key not in ("repo", "revision")}
    asked = [request.path.rpartition("/")[2] for request in hub.requests("/revision/")]
    assert asked == revisions
    assert run("census", "owner/name", "--against", tmp_path / "snapshot.json")[0] == 0


def test_against_two_commits(hub: LoopbackHub, repo: Repo) -> None:
    """Two repositories are compared; a revision given with an option is about the first only."""
    other = shutil.copytree(repo.folder, repo.folder.parent / "other")
    hub.repos["owner/other"] = Repo(other, LATER, ("base",))
    arguments = ["census", "owner/name", "--revision", "main", "--against", "owner/other@base"]
    assert run(*arguments)[0] == 0
    assert run("census", "owner/name", "--revision", "main", "--against", "owner/other")[0] == 3
    write_header(other / shard_name(1, 3), {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    other_commit = "facade" + "0" * 34
    hub.repos["owner/other"].commit = other_commit
    assert run(*arguments) == run("census", repo.folder, "--against", other)
    assert run(*arguments)[0] == 1


@pytest.mark.parametrize(("jobs", "least"), [(1, 1), (3, 2), (8, 2)])
def test_requests_at_once(hub: LoopbackHub, tmp_path: Path, jobs: int, least: int) -> None:
    """Several requests are open at once, not more than --jobs says, and connections are used again."""
    from huggingface_hub import close_session  # noqa: PLC0415

    close_session()
    hub.repos["owner/name"] = Repo(write_checkpoint(tmp_path / "x", tiny(), parts=parts_by_layer(tiny())))
    hub.latency = 0.05
    assert requests(hub, "census", "owner/name", "--jobs", str(jobs)) == 7 + 5
    assert least <= hub.peak <= jobs
    assert 1 <= hub.connections <= jobs


def test_the_full_size(hub: LoopbackHub, reference: Path) -> None:
    """Of 195 GB in 120 shards, the first run fetches some 16 MB in 125 requests, over few connections."""
    from huggingface_hub import close_session  # noqa: PLC0415

    close_session()
    hub.repos["owner/name"] = Repo(reference)
    assert run("census", "owner/name") == run("census", reference)
    assert len(hub.requests()) == 125
    assert hub.shards_asked() == [shard_name(number, 120) for number in range(1, 121)]
    assert hub.connections <= 8
    assert hub.sent < 32 << 20
    assert requests(hub, "census", "owner/name") == 1
