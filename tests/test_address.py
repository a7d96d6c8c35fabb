# SPDX-License-Identifier: AGPL-3.0-only
"""Which repository a SOURCE names, in every form in which people copy one; nothing is asked of the Hub for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from loopback_hub import LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.errors import SourceError, UsageError
from glm5inspect.resolve import open_source
from glm5inspect.sources.address import RepoAddress, check_revision, is_full_commit, parse_address
from glm5inspect.sources.hub_options import HubOptions

if TYPE_CHECKING:
    from pathlib import Path

WEB = "https://huggingface.co"
COMMIT = "0127156789abcdef0127156789abcdef01271567"

ADDRESSES = {
    "owner/name": ("owner/name", None, None),
    "owner/name/": ("owner/name", None, None),
    "zai-org/GLM-5.3-Flash": ("zai-org/GLM-5.3-Flash", None, None),
    "0x/a_b.c-d": ("0x/a_b.c-d", None, None),
    "owner/name@main": ("owner/name", "main", None),
    "owner/name@v1.0": ("owner/name", "v1.0", None),
    "owner/name@feature/x": ("owner/name", "feature/x", None),
    "owner/name@refs/pr/3": ("owner/name", "refs/pr/3", None),
    "owner/name@c0ffee0": ("owner/name", "c0ffee0", None),
    f"owner/name@{COMMIT}": ("owner/name", COMMIT, None),
    "owner/name@größe": ("owner/name", "größe", None),
    "hf://owner/name": ("owner/name", None, None),
    "hf://owner/name/": ("owner/name", None, None),
    "hf://owner/name@rev": ("owner/name", "rev", None),
    "hf://owner/name@refs/pr/3": ("owner/name", "refs/pr/3", None),
    "hf://models/owner/name": ("owner/name", None, None),
    f"{WEB}/owner/name": ("owner/name", None, None),
    f"{WEB}/owner/name/": ("owner/name", None, None),
    "http://huggingface.co/owner/name": ("owner/name", None, None),
    "HTTPS://HuggingFace.co/owner/name": ("owner/name", None, None),
    "https://www.huggingface.co/owner/name": ("owner/name", None, None),
    "https://hf.co/owner/name": ("owner/name", None, None),
    f"{WEB}/owner/name?library=transformers#usage": ("owner/name", None, None),
    f"{WEB}/owner/name/tree/main": ("owner/name", "main", None),
    f"{WEB}/owner/name/tree/main/": ("owner/name", "main", None),
    f"{WEB}/owner/name/tree/{COMMIT}": ("owner/name", COMMIT, None),
    f"{WEB}/owner/name/tree/main/weights": ("owner/name", "main", "weights"),
    f"{WEB}/owner/name/tree/main/a/b%20c/": ("owner/name", "main", "a/b c"),
    f"{WEB}/owner/name/tree/feature%2Fx/weights": ("owner/name", "feature/x", "weights"),
    f"{WEB}/owner/name/tree/refs%2Fpr%2F3": ("owner/name", "refs/pr/3", None),
    f"{WEB}/owner/name/tree/refs/pr/3": ("owner/name", "refs/pr/3", None),
    f"{WEB}/owner/name/tree/refs/pr/3/weights": ("owner/name", "refs/pr/3", "weights"),
    f"{WEB}/owner/name/tree/refs/heads/x/weights/y": ("owner/name", "refs/heads/x", "weights/y"),
    f"{WEB}/owner/name/tree/refs/weights": ("owner/name", "refs", "weights"),
}
"""What a SOURCE is read as: repository, revision, sub-folder."""

NOT_ADDRESSES = [
    "",
    "nothing",
    "./owner/name",
    "../owner/name",
    "/owner/name",
    "~/owner/name",
    "owner/",
    "/name",
    "owner//name",
    "a/b/c",
    "owner/.hidden",
    "owner/na me",
    "owner/name\n",
    "owner/name\0",
    "owner/\x1b[31mname",
    "owner/model.safetensors",
    "owner/snapshot.json",
    "owner/model.gguf",
    "ówner/name",
    "s3://owner/name",
    "file:///owner/name",
    "@main",
]

REFUSED = {
    "datasets/owner/name": "a dataset, and only model repositories are read",
    "spaces/owner/name@main": "a Space, and only",
    "hf://datasets/owner/name": "a dataset, and only",
    "hf://spaces/owner/name@main": "a Space, and only",
    "hf://kernels/owner/name": "a kernel, and only",
    "hf://buckets/owner/name": "a bucket, and only",
    f"{WEB}/datasets/owner/name": "a dataset, and only",
    f"{WEB}/datasets/squad": "a dataset, and only",
    f"{WEB}/spaces/owner/name/tree/main": "a Space, and only",
    "hf://owner": "not a repository; write hf://owner/name",
    "hf://": "not a repository; write hf://owner/name",
    "hf:///owner/name": "not a repository; write hf://owner/name",
    "hf://owner/name/weights": "a folder in it is given with --subfolder",
    "hf://owner/model.safetensors": "not a repository",
    "hf://owner/na\x1b[2Jme": "not a repository",
    f"{WEB}/": "not the address of a repository, which is https://huggingface.co/owner/name",
    f"{WEB}/owner": "not the address of a repository",
    f"{WEB}/owner/na%00me": "not the address of a repository",
    f"{WEB}/../etc/passwd": "not the address of a repository",
    f"{WEB}/owner/name/blob/main/config.json": "not a page of the files of a repository",
    f"{WEB}/owner/name/resolve/main/config.json": "not a page of the files",
    f"{WEB}/owner/name/discussions/3": "not a page of the files",
    f"{WEB}/owner/name/tree": "give owner/name@REVISION",
    "https://example.org/owner/name": "not an address of the Hugging Face Hub; for a mirror set HF_ENDPOINT",
    "https://huggingface.co.example.org/owner/name": "not an address of the Hugging Face Hub",
    "https://huggingface.co@example.org/owner/name": "an address of example.org with a name or password in it",
    "https://me:hf_secret@huggingface.co/owner/name": "an address of huggingface.co with a name or password in it",
    "owner/name/tree/main": "a revision of a repository is written owner/name@revision",
    "https://huggingface.co/owner/name/blob/v1/config.json": "give owner/name@v1",
    "https://modelscope.cn/models/owner/name": "not an address of the Hugging Face Hub",
    "https://[::1/owner/name": "not a web address",
    "https://": "not an address of the Hugging Face Hub",
}
"""What is refused without a request, and what is said."""

IMPOSSIBLE = {
    "nothing": "",
    "blank": " ",
    "two words": "a b",
    "line feed": "main\n",
    "NUL": "a\0b",
    "escape": "\x1b[31mred",
    "second half of a C1 control": "a\x9bb",
    "up": "..",
    "up in the middle": "a/../b",
    "absolute": "/main",
    "two slashes": "a//b",
    "an option": "--help",
    "back in time": "main~1",
    "parent": "main^",
    "range": "a..b",
    "colon": "main:config.json",
    "glob": "v*",
    "question": "v?",
    "bracket": "v[1]",
    "backslash": "a\\b",
    "reflog": "main@{1}",
    "not Unicode": "a\udcffb",
}
"""Revisions that no repository can have."""


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items(), ids=ADDRESSES)
def test_forms(text: str, address: tuple[str, str | None, str | None]) -> None:
    """Every form leads to the repository, its revision and its folder."""
    assert parse_address(text) == RepoAddress(*address)


@pytest.mark.parametrize("text", NOT_ADDRESSES, ids=ascii)
def test_what_is_no_address(text: str) -> None:
    """Paths, names of files and other schemes are no repositories."""
    assert parse_address(text) is None


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=map(ascii, REFUSED))
def test_refused(text: str, said: str) -> None:
    """Other kinds of repositories, other hosts and other pages are refused in a sentence."""
    with pytest.raises(SourceError) as refusal:
        parse_address(text)
    assert said in str(refusal.value)


def test_a_mirror(hub: LoopbackHub) -> None:
    """A web address of the endpoint in use counts as one of the Hub."""
    assert parse_address(f"{hub.endpoint}/owner/name/tree/main") == ("owner/name", "main", None)


@pytest.mark.parametrize("revision", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_revisions(revision: str) -> None:
    """A revision that cannot be is wrong usage, however it is given, and is not sent anywhere."""
    with pytest.raises(UsageError, match="the revision is empty" if not revision else "cannot be a branch, tag or"):
        check_revision(revision, "--revision")
    with pytest.raises(UsageError):
        parse_address(f"owner/name@{revision}")
    with pytest.raises(UsageError):
        open_source("owner/name", revision=revision)


@pytest.mark.parametrize(
    ("text", "whole"),
    [(COMMIT, True), (COMMIT[:-1], False), (f"{COMMIT}0", False), (COMMIT.upper(), False), (f"{COMMIT}\n", False)],
    ids=["40 digits", "39", "41", "capitals", "line feed"],
)
def test_full_commit(text: str, whole: bool) -> None:  # noqa: FBT001 - a table's column
    """Only 40 lower-case digits never move."""
    assert is_full_commit(text) is whole


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("owner/name@main", ["--revision", "other"], "says main, and --revision says other"),
        (f"{WEB}/owner/name/tree/main", ["--revision", "v1"], "says main, and --revision says v1"),
        (f"{WEB}/owner/name/tree/main/weights", ["--subfolder", "x"], "says weights, and --subfolder says x"),
        ("owner/name@", [], "the revision is empty"),
        ("hf://owner/name@", [], "the revision is empty"),
        ("owner/name", ["--revision", ""], "is empty"),
        ("owner/name", ["--revision", "a b"], "cannot be a branch, tag or commit"),
        ("owner/name@main", ["--revision", ""], "is empty"),
        ("owner/name", ["--subfolder", ""], "is empty"),
        ("CHECKPOINT", ["--revision", "main"], "--revision is for repositories of the Hub"),
        ("snapshot:reference", ["--revision", "main"], "--revision is for repositories of the Hub"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_wrong_usage(hub: LoopbackHub, checkpoint: Path, source: str, options: list[str], said: str) -> None:
    """Arguments that contradict each other, or that an unset variable emptied, exit 2 before any request."""
    typed = source.replace("CHECKPOINT", str(checkpoint))
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["census", typed, *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert hub.asked == []


@pytest.mark.parametrize("command", [["census"], ["verify-dsa"], ["find-mtp"], ["show"], ["classify", "--from"]])
def test_refusal_on_the_command_line(hub: LoopbackHub, command: list[str]) -> None:
    """Every command refuses a dataset in one line, without a request; control characters do not reach the terminal."""
    result = CliRunner().invoke(app, [*command, "https://huggingface.co/datasets/owner/na\x1b[31mme"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert "a dataset, and only model repositories are read" in result.stderr
    assert "\x1b" not in result.stderr
    assert hub.asked == []


def test_agreeing_arguments(hub: LoopbackHub, checkpoint: Path) -> None:
    """The same revision and folder may be said twice."""
    hub.repos["owner/name"] = Repo(checkpoint.parent)
    text = f"{WEB}/owner/name/tree/main/checkpoint"
    source = open_source(text, revision="main", subfolder="checkpoint")
    assert (source.info.name, source.info.repo, source.info.revision) == (text, "owner/name", "main")
    assert len(source.inventory().tensors) == 271


def test_the_token_is_not_shown() -> None:
    """Options may be printed in a traceback or a log without giving the token away."""
    assert "secret" not in repr(HubOptions(token="secret"))  # noqa: S106 - of nobody


PIECES = st.sampled_from(
    ["hf://", "https://", "http://", "huggingface.co", "/", "@", "tree", "refs", "pr", "%2F", "%00", "..", "owner"]
)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=10).map("".join)))
@example("https://huggingface.co/owner/name/tree/%ff%fe")
@example("https://huggingface.co:port/owner/name/tree/main")
@example("https://huggingface.co/owner/name/tree/" + "a/" * 5000)
@example("hf://owner/name@" + "\u2028")
def test_any_text(text: str) -> None:
    """Whatever is typed is an address, none, or an error in words; an address can be named to the Hub."""
    try:
        address = parse_address(text)
    except (SourceError, UsageError):
        return
    if address is not None:
        assert address.repo.isascii()
        assert address.repo.count("/") == 1
        assert address.revision is None or check_revision(address.revision, "") == address.revision
        assert (address.revision or "main").isprintable()
