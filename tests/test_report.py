# SPDX-License-Identifier: AGPL-3.0-only
"""Findings in their order, the caller's policy, text fit for a terminal, and files written whole or not at all."""

from __future__ import annotations

import os
import random
import stat
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5inspect.catalogue import BY_SLUG, Code, Severity
from glm5inspect.errors import OutputError
from glm5inspect.explanations import EXPLANATIONS
from glm5inspect.output import write_file
from glm5inspect.report import Finding, Policy, Report, Waiver, in_order, printable, ranges, some

UNKNOWN = Finding(Code.UNKNOWN_TENSOR, "unknown", tensor="a.layers.3.x", layer=3)
UNKNOWN_4 = Finding(Code.UNKNOWN_TENSOR, "unknown", tensor="a.layers.4.x", layer=4)
SPLIT = Finding(Code.COMPANION_SPLIT, "split", tensor="a.layers.3.scale", layer=3)
DRAFT = Finding(Code.DRAFT_TREE, "draft")
TRUNCATED = Finding(Code.FILE_TRUNCATED, "short", shard="m.safetensors")
ALL = (SPLIT, DRAFT, TRUNCATED, UNKNOWN, UNKNOWN_4)


def judged(policy: Policy, *, complete: bool = True) -> Report:
    """Return a report of all the findings above under a policy."""
    return Report(command="census", source=None, answer=None, findings=ALL, complete=complete).judged(policy)


def test_order() -> None:
    """Findings sort by code, layer, tensor, shard; what is absent comes first, and numbers sort as numbers."""
    ordered = [
        Finding(Code.CENSUS_DTYPE, "m", layer=9, tensor="z", shard="z"),
        Finding(Code.UNKNOWN_TENSOR, "m"),
        Finding(Code.UNKNOWN_TENSOR, "m", shard="a"),
        Finding(Code.UNKNOWN_TENSOR, "m", tensor="a", shard="z"),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=0),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=2, tensor="b"),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=2, tensor="b", shard="a"),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=2, tensor="b", shard="b"),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=2, tensor="c"),
        Finding(Code.UNKNOWN_TENSOR, "m", layer=10, tensor="a"),
        Finding(Code.UNKNOWN_TENSOR, "n", layer=10, tensor="a"),
    ]
    for seed in range(20):
        shuffled = random.Random(seed).sample(ordered, len(ordered))  # noqa: S311 - no secret
        assert list(in_order(shuffled)) == ordered


def test_severity_is_the_code_s_unless_weighed() -> None:
    """A finding weighs what its code does, or what was said of it."""
    assert (DRAFT.severity, SPLIT.severity, UNKNOWN.severity) == (Severity.NOTE, Severity.WARNING, Severity.ERROR)
    assert Finding(Code.DUPLICATE_TENSOR, "m", Severity.WARNING).severity is Severity.WARNING
    assert all(less < more for less, more in pairwise([Severity.NOTE, Severity.WARNING, Severity.ERROR]))


@pytest.mark.parametrize(
    ("policy", "kept", "waived", "failed"),
    [
        (Policy(), ALL, 0, True),
        (Policy(fail_on=None), ALL, 0, False),
        (Policy(select=frozenset({Code.DRAFT_TREE})), (DRAFT,), 0, False),
        (Policy(select=frozenset({Code.COMPANION_SPLIT})), (SPLIT,), 0, False),
        (Policy(select=frozenset({Code.COMPANION_SPLIT}), fail_on=Severity.WARNING), (SPLIT,), 0, True),
        (Policy(select=frozenset({Code.DRAFT_TREE}), fail_on=Severity.NOTE), (DRAFT,), 0, True),
        (Policy(select=frozenset({Code.LAYER_GAP})), (), 0, False),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR),)), (SPLIT, DRAFT, TRUNCATED), 2, True),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR), Waiver(Code.FILE_TRUNCATED))), (SPLIT, DRAFT), 3, False),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR, "*.layers.3.*"),)), (SPLIT, DRAFT, TRUNCATED, UNKNOWN_4), 1, True),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR, "a.layers.[34].x"),)), (SPLIT, DRAFT, TRUNCATED), 2, True),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR, "A.LAYERS.*"),)), ALL, 0, True),
        (Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR, "layers.3"),)), ALL, 0, True),
        (Policy(waivers=(Waiver(Code.FILE_TRUNCATED, "x"),)), ALL, 0, True),
        (Policy(waivers=(Waiver(Code.FILE_TRUNCATED, "*"),)), (SPLIT, DRAFT, UNKNOWN, UNKNOWN_4), 1, True),
        (Policy(frozenset({Code.DRAFT_TREE}), (Waiver(Code.UNKNOWN_TENSOR),)), (DRAFT,), 0, False),
        (Policy(frozenset({Code.UNKNOWN_TENSOR}), (Waiver(Code.UNKNOWN_TENSOR, "*.3.*"),)), (UNKNOWN_4,), 1, True),
    ],
)
def test_policy(policy: Policy, kept: tuple[Finding, ...], waived: int, failed: bool) -> None:  # noqa: FBT001
    """Selecting hides, waiving counts, and only what is left can fail."""
    report = judged(policy)
    assert (report.findings, report.waived, report.failed, report.ok) == (kept, waived, failed, not failed)


def test_incomplete_is_never_ok() -> None:
    """No policy makes an answer good that could not be given."""
    waivers = tuple(Waiver(code) for code in Code)
    report = judged(Policy(waivers=waivers, fail_on=None), complete=False)
    assert (report.findings, report.waived, report.failed, report.ok) == ((), 5, False, False)


def test_counts() -> None:
    """Each severity is counted apart."""
    report = judged(Policy(waivers=(Waiver(Code.UNKNOWN_TENSOR, "*.3.*"),)))
    assert [report.count(severity) for severity in Severity] == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.layers.3", "model.layers.3"),
        ("[red]not markup[/]", "[red]not markup[/]"),
        ("\u6f22\u5b57 \u00e9 \U0001f600", "\u6f22\u5b57 \u00e9 \U0001f600"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\u2028\u200b\ufeff", r"\u2028\u200b\ufeff"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("\U000e0001", r"\U000e0001"),
        ("a\u00a0b", r"a\xa0b"),
        ("", ""),
    ],
)
def test_printable(text: str, expected: str) -> None:
    """What could steer a terminal, or hide, is written out; the rest stays as it is."""
    assert expected == printable(text)


@given(st.text(st.characters()))
def test_printable_is_printable(text: str) -> None:
    """Whatever a file holds, one line of visible characters comes out that every encoder takes."""
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0-1"),
        ([3, 1, 2, 2, 1], "1-3"),
        ([10, 9, 2, 0, 4, 3], "0,2-4,9-10"),
        (range(288), "0-287"),
        ([1 << 64, (1 << 64) + 1], "18446744073709551616-18446744073709551617"),
    ],
)
def test_ranges(numbers: list[int], expected: str) -> None:
    """Indices are written ascending, each once, runs as ranges."""
    assert expected == ranges(iter(numbers))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, ""), (1, "n0"), (3, "n0, n1, n2"), (4, "n0, n1, n2 and 1 more"), (2003, "n0, n1, n2 and 2,000 more")],
)
def test_some(number: int, expected: str) -> None:
    """A few names are told, the rest counted."""
    assert expected == some([f"n{i}" for i in range(number)])


@pytest.mark.parametrize("old", [None, "old and much longer than the new one"])
def test_writes_a_file(tmp_path: Path, old: str | None) -> None:
    """A file is made or replaced, in UTF-8, and nothing else is left in the folder."""
    path = tmp_path / "report.txt"
    if old is not None:
        path.write_text(old)
    write_file(str(path), "new \u6f22\n")
    assert path.read_bytes() == b"new \xe6\xbc\xa2\n"
    assert os.listdir(tmp_path) == ["report.txt"]  # noqa: PTH208 - names only


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_keeps_the_mode(tmp_path: Path, mode: int) -> None:
    """A replaced file keeps who may read it."""
    path = tmp_path / "report"
    path.touch()
    path.chmod(mode)
    write_file(str(path), "x")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_is_as_open_as_any(tmp_path: Path) -> None:
    """A new file gets the mode that any new file gets."""
    (tmp_path / "usual").touch()
    write_file(str(tmp_path / "report"), "x")
    assert (tmp_path / "report").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_replaces_in_one_step(tmp_path: Path) -> None:
    """Who has the old file open goes on reading the old one."""
    path = tmp_path / "report"
    path.write_text("old")
    with path.open() as reader:
        write_file(str(path), "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("exists", [True, False])
def test_follows_links(tmp_path: Path, exists: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """A link keeps pointing where it points, and the file there is written."""
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to("folder/target")
    write_file(str(link), "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """What is no regular file is written to, not replaced."""
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_file(str(pipe), "through")
    reader.join()
    assert got == ["through"]
    assert pipe.is_fifo()


def test_devices_stay_devices() -> None:
    """A full device is an error, and the null device none; both are still there."""
    write_file("/dev/null", "x")
    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left on device"):
        write_file("/dev/full", "x")
    assert Path("/dev/null").is_char_device()
    assert Path("/dev/full").is_char_device()


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    """What cannot be written whole is not written at all."""
    path = tmp_path / "report"
    path.write_text("old")
    with pytest.raises(OutputError, match="report: cannot be written"):
        write_file(str(path), "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report"]  # noqa: PTH208 - names only


@pytest.mark.parametrize("name", ["a" * 255, "\u6f22" * 85, "\U0001f600" * 63, ".hidden"], ids=len)
def test_names_as_long_as_they_may_be(tmp_path: Path, name: str) -> None:
    """A name that the file system takes is taken."""
    write_file(str(tmp_path / name), "x")
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - names only


@pytest.mark.parametrize("name", ["", "gone/report", "file/report", "folder", "folder/", "nul\0", "n" * 256, "loop"])
def test_unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A place where nothing can be written is an error in words, and leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(OutputError, match="cannot be written: "):
        write_file(name, "x")
    assert sorted(str(path) for path in Path().rglob("*")) == ["file", "folder", "loop"]


def test_catalogue() -> None:
    """A slug names one code, and every code is explained."""
    assert {code.value: code for code in Code} == BY_SLUG
    assert list(EXPLANATIONS) == list(Code)
    assert all(code.title and code.value == code.name.lower().replace("_", "-") for code in Code)
    assert all(text.strip().endswith(".") for explained in EXPLANATIONS.values() for text in explained)


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_every_code_is_tested(code: Code) -> None:
    """Some other test asks for each finding."""
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    texts = [path.read_text() for path in others]
    assert any(f"Code.{code.name}" in text or f'"{code.value}"' in text for text in texts)
