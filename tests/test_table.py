# SPDX-License-Identifier: AGPL-3.0-only
"""Tables and lines for people: exact text, nothing cut, nothing hostile, colours on a terminal only."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import termios
import threading
from contextlib import contextmanager
from fcntl import ioctl
from typing import TYPE_CHECKING, TextIO

import pytest
from checkpoints import TEXT, Kind, edit_json, tiny, write_checkpoint

from glm5inspect import open_source, take_census, verify_dsa
from glm5inspect.catalogue import Code, Severity
from glm5inspect.census import Census, IndexFacts
from glm5inspect.classification import Classification, classify_names
from glm5inspect.layers import LayerRow
from glm5inspect.listing import show
from glm5inspect.mtp import find_mtp
from glm5inspect.recording import record
from glm5inspect.render import Format, View, progress, render
from glm5inspect.render.wording import size
from glm5inspect.report import Finding, Policy, Report, SourceInfo, Waiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ROLES = """
DenseFfn Embedding FinalNorm HyperConnection Indexer IndexerNorm KdaConv KdaDecay KdaNorm KdaProjection LayerNorm LmHead
MlaNorm MlaProjection MoeExpert MoeRouter MoeShared MtpNorm MtpProjection Vision
"""
NUMBERS = "111,456 347 1,327 194,644,803,576 184,974,634,110 113,074 2,617"
UNCHECKED = "not checked: complete shapes and modules (verify does)"
CONTROL = re.compile(r"[^\n\x20-\x7e\u00a1-\U0010ffff]|[\u200b-\u200f\u202a-\u202e\ud800-\udfff]")


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the environment of the tests asks of output."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def text_of(report: Report, *, quiet: bool = False, policy: Policy | None = None) -> str:
    """Return a report as a table off a terminal."""
    return render(report.judged(policy or Policy()), Format.TABLE, View(io.StringIO(), quiet))


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, list[str]]]:
    """Open a terminal; what is written to it stands in the list afterwards."""
    controller, terminal_end = pty.openpty()
    ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    received: list[bytes] = []

    def listen() -> None:
        try:
            while chunk := os.read(controller, 65536):
                received.append(chunk)
        except OSError:  # how Linux says that the other end is closed
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    shown: list[str] = []
    with open(terminal_end, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor
        yield stream, shown
    listener.join()
    os.close(controller)
    shown.append(b"".join(received).decode())


def on_terminal(report: Report, columns: int) -> str:
    """Return a report as a terminal of this many columns gets it."""
    with terminal(columns) as (stream, _):
        return render(report.judged(Policy()), Format.TABLE, View(stream))


def small(folder: Path) -> Path:
    """Write three tensors, one with a role and two without, and a config that says whose they are."""
    names = {"lm_head.weight": (96, 64), "[/x]": (2,), "a[red]b": (2,)}
    tensors = {name: Kind("BF16", shape) for name, shape in names.items()}
    return write_checkpoint(folder, tensors, config={"model_type": "glm5_next"}, shards=1, index=False)


def test_census_word_for_word(tmp_path: Path) -> None:
    """The whole report of a small census; markup in names is text."""
    folder = small(tmp_path / "small")
    report = take_census(open_source(str(folder)), patterns=True)
    assert (
        text_of(report)
        == f"""\
census of directory {folder}
Roles

 role      tensors        size    share   dtypes
 ───────────────────────────────────────────────
 LmHead          1   12.00 KiB   99.93%   BF16
 unknown         2

3 tensors, 3 patterns, 0 layers, 1 shard, no index
12,296 bytes (12.01 KiB), 6,148 stored elements
dtypes: BF16 3 (12.01 KiB)
MTP layers: none
digest: 3bfb4010dcc984c846e92b7b60ee4a7a1f9ba73d8ec8cbfc0c44dc413259cd26

Patterns
pattern         role     dtype  shape     tensors  size       experts  layers
[/x]            unknown  BF16   [2]       1        4 B        -        -
a[red]b         unknown  BF16   [2]       1        4 B        -        -
lm_head.weight  LmHead   BF16   [96, 64]  1        12.00 KiB  -        -

error layer-gap: there is no text layer at all
error unknown-tensor: [/x]: no rule says what this tensor is for
error unknown-tensor: a[red]b: no rule says what this tensor is for
FAILED: 3 tensors, 2 of them unknown; 3 errors, 0 warnings, 0 notes; {UNCHECKED}
"""
    )


def test_layers_word_for_word(checkpoint: Path) -> None:
    """A strip with one column a layer, and one row for all layers that are alike."""
    text = text_of(take_census(open_source(str(checkpoint)), layers=True))
    assert (
        text[text.index("Layers\n") :]
        == f"""\
Layers
layer  0
mixer  KKKDKD   K KDA, D DSA
ffn    dddmmm   d dense, m MoE
MTP         M

 layers   mixer   ffn     MTP   tensors each   size each   dtypes
 ────────────────────────────────────────────────────────────────────────────────────────────
 0-2      KDA     dense                   26   92.87 KiB   BF16 20, F32 6
 3        DSA     moe                     63   68.70 KiB   BF16 22, F32 17, F8_E4M3 12, U8 12
 4        KDA     moe                     64   70.93 KiB   BF16 21, F32 19, F8_E4M3 12, U8 12
 5        DSA     moe     yes             61   60.86 KiB   BF16 24, F32 13, F8_E4M3 12, U8 12

OK: 271 tensors, none of them unknown; 0 errors, 0 warnings, 0 notes; {UNCHECKED}
"""
    )


def test_verify_dsa_word_for_word(checkpoint: Path) -> None:
    """Geometry, one row a block, verdict."""
    assert (
        text_of(verify_dsa(open_source(str(checkpoint))))
        == f"""\
verify-dsa of directory {checkpoint}
geometry: hidden_size 64, num_attention_heads 4, q_lora_rank 24, kv_lora_rank 16, qk_nope_head_dim 8, \
qk_rope_head_dim 0, v_head_dim 12, index_n_heads 2, index_head_dim 8, index_kpool 4, index_topk 16
DSA blocks

 layer      found    bytes        size   unclaimed   ok
 ───────────────────────────────────────────────────────
     3   14 of 14   18,608   18.17 KiB           0   yes
     5   14 of 14   18,608   18.17 KiB           0   yes

OK: 2 DSA blocks (layers 3,5), 28 of 28 tensors found; 0 errors, 0 warnings, 0 notes
"""
    )


def test_verify_dsa_without_geometry_has_no_table(checkpoint: Path) -> None:
    """A config that cannot be leaves nothing to show but its fault."""
    edit_json(checkpoint / "config.json", lambda config: config["text_config"].update(qk_rope_head_dim=64))
    assert (
        text_of(verify_dsa(open_source(str(checkpoint))))
        == f"""\
verify-dsa of directory {checkpoint}
error config-geometry: config.json: qk_rope_head_dim is 64, not 0
    This model has no rope section (NoPE) anywhere.
FAILED: no DSA block was checked; 1 error, 0 warnings, 0 notes
"""
    )


def test_find_mtp(checkpoint: Path, tmp_path: Path) -> None:
    """What the config says, where the layer is, which of the four names are there; and what nothing says."""
    text = text_of(find_mtp(open_source(str(checkpoint))))
    assert "num_hidden_layers 5, num_nextn_predict_layers 1, so MTP at layer 5\n" in text
    assert "layer 5: 61 tensors, 62,320 bytes (60.86 KiB), in 1 shard" in text
    assert "model-00003-of-00003.safetensors\n" in text
    assert " MoeExpert            36   F32 12, F8_E4M3 12, U8 12\n" in text
    assert text.endswith("\nOK: MTP layer 5 found; 0 errors, 0 warnings, 0 notes\n")
    names = {f"{TEXT}layers.5.enorm.weight": (64,), f"{TEXT}layers.0.hc_attn_scale": (3,)}
    tensors = {name: Kind("BF16", shape) for name, shape in names.items()}
    bare = write_checkpoint(tmp_path / "bare", tensors, config=None)
    text = text_of(find_mtp(open_source(str(bare))))
    assert "config.json says: nothing of MTP layers\n" in text
    assert "eh_proj.weight MISSING, enorm.weight present, hnorm.weight MISSING" in text


def test_record(checkpoint: Path) -> None:
    """How much can be recorded, and its provenance; or that nothing can."""
    report, _ = record(open_source(str(checkpoint)), today="2026-01-31", provenance="by \x1b[31mhand")
    assert "271 tensors, 516,856 bytes: 63 rows\nprovenance: by \\x1b[31mhand\nOK: 271 tensors; " in text_of(report)
    next(checkpoint.glob("*.safetensors")).unlink()
    report, _ = record(open_source(str(checkpoint)), today="2026-01-31")
    assert " bytes: nothing was recorded\n" in text_of(report)


def test_a_snapshot_says_what_it_is_a_snapshot_of() -> None:
    """The source stands first, with repository and commit."""
    lines = text_of(find_mtp(open_source("snapshot:reference"))).splitlines()
    assert lines[:2] == [
        "find-mtp of snapshot reference, bundled",
        "LibertAIDAI/GLM-5.3-Flash-NVFP4 at 9e0d74e3cef17f634e84fb8e2223707e02616290",
    ]


def test_classify_and_show_word_for_word(tmp_path: Path) -> None:
    """Lists are plain lines, aligned."""
    text = text_of(classify_names(["lm_head.weight", "layers.3.x", f"{TEXT}layers.5.enorm.weight"]))
    assert text.splitlines() == [
        "name                                        role     layer  kind",
        "lm_head.weight                              LmHead   -      -",
        "layers.3.x                                  unknown  3      -",
        "model.language_model.layers.5.enorm.weight  MtpNorm  5      norm, MTP only",
        "error unknown-tensor: layers.3.x: no rule says what this tensor is for",
        "FAILED: 3 names; 1 error, 0 warnings, 0 notes",
    ]
    shown = text_of(show(open_source(str(small(tmp_path / "small"))), ["a*"]))
    assert re.sub(r"\[\d+, \d+\)", "[SPAN)", shown).splitlines()[-3:] == [
        "name     dtype  shape  bytes  role     shard                             bytes of the file",
        "a[red]b  BF16   [2]    4      unknown  model-00001-of-00001.safetensors  [SPAN)",
        "OK: 1 tensor; 0 errors, 0 warnings, 0 notes",
    ]
    assert "[4096]  8192   MtpNorm  -      -\n" in text_of(show(open_source("snapshot:reference"), ["*.enorm.weight"]))
    assert text_of(classify_names([])) == "OK: 0 names; 0 errors, 0 warnings, 0 notes\n"


HOSTILE = {
    "[/x]": "[/x]",
    "a[red]b": "a[red]b",
    ":smile:": ":smile:",
    "\x1b[31mred": "\\x1b[31mred",
    "left\u202eright": "left\\u202eright",
    "two\nlines\r": "two\\nlines\\r",
    "nul\0del\x7f": "nul\\x00del\\x7f",
    "c1\x9bm": "c1\\x9bm",
    "wide\u200bspace\u2028": "wide\\u200bspace\\u2028",
    "t\u00eate": "t\u00eate",
}


@pytest.mark.parametrize("columns", [None, 80], ids=["file", "terminal"])
def test_hostile_names_are_shown_and_harmless(columns: int | None, tmp_path: Path) -> None:
    """Markup is text, control characters are escaped, in tables and findings, on a terminal and off it."""
    tensors = tiny() | dict.fromkeys(HOSTILE, Kind("F32", (2,)))
    source = open_source(str(write_checkpoint(tmp_path / "hostile", tensors)))
    for report in (take_census(source, patterns=True), show(source), classify_names(HOSTILE)):
        text = text_of(report) if columns is None else on_terminal(report, columns)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text) if columns else text
        assert not CONTROL.search(plain)
        assert [shown for shown in HOSTILE.values() if shown not in plain] == []


def test_a_hostile_folder_is_shown_and_harmless(tmp_path: Path) -> None:
    """The name of a folder is as little to be trusted, and as little markup, as that of a tensor."""
    folder = write_checkpoint(tmp_path / "[red]a:smile:[bold]\x1b[31m", tiny())
    first, *_ = text_of(find_mtp(open_source(str(folder)))).splitlines()
    assert first == f"find-mtp of directory {tmp_path}/[red]a:smile:[bold]\\x1b[31m"


def test_a_surrogate_is_escaped() -> None:
    """An argument that is no Unicode reaches Python as a lone surrogate, which no terminal can be sent."""
    assert text_of(classify_names(["bad\udcff"])).splitlines()[1].startswith("bad\\udcff  unknown")


def test_long_names_are_never_cut(tmp_path: Path) -> None:
    """A name of 300 characters stays in one piece off a terminal, wherever it stands."""
    name = f"x.{'long' * 80}.weight"
    folder = write_checkpoint(tmp_path / "long", {**tiny(), name: Kind("F32", (2,))})
    report = take_census(open_source(str(folder)), patterns=True)
    assert text_of(report).count(name) == 2
    assert render(report, Format.TABLE).count(name) == 2
    assert name in text_of(show(open_source(str(folder)), ["x.*"]))


def finding(layer: int, **facts: object) -> Finding:
    """Make a finding about one layer."""
    tensor = f"{TEXT}layers.{layer}.self_attn.q_a_proj.weight"
    usual = {"expected": [24, 64], "actual": [64, 24], "hint": "It is transposed.", "layer": layer, "tensor": tensor}
    return Finding(Code.DSA_SHAPE, f"{tensor}: shape", **{**usual, **facts})  # type: ignore[arg-type] # by name


def answered(findings: Sequence[Finding], *, complete: bool = True) -> Report:
    """Make a report with these findings about no name at all."""
    return Report(
        command="classify", source=None, answer=Classification(()), findings=tuple(findings), complete=complete
    )


def test_findings_of_one_kind_are_folded() -> None:
    """Pattern, count, layers, first names, expected and found, and the hint once; what differs stays apart."""
    alike = [finding(layer) for layer in (3, 7, 8, 9)]
    other = finding(11, actual=None, hint=None)
    note = Finding(Code.DRAFT_TREE, "only the MTP layer 5 is here, no trunk layer")
    name = TEXT + "layers.{}.self_attn.q_a_proj.weight"
    first = ", ".join(name.format(layer) for layer in (3, 7, 8))
    assert (
        text_of(answered([note, *alike, other]))
        == f"""\
error dsa-shape: {name.format("N")}: 4 tensors in layers 3,7-9: shape
    first: {first} and 1 more
    expected [24, 64], found [64, 24]
    It is transposed.
error dsa-shape: {name.format(11)}: shape
note draft-tree: only the MTP layer 5 is here, no trunk layer
FAILED: 0 names; 5 errors, 0 warnings, 1 note
"""
    )


def test_folding_says_nothing_for_none() -> None:
    """An absent fact is called nothing; one layer is one layer; places are not compared."""
    text = text_of(answered([finding(3, actual=None), finding(3, actual=None)]))
    assert "2 tensors in layer 3:" in text
    assert "    expected [24, 64], found nothing\n" in text
    moved = [Finding(Code.INDEX_WRONG_SHARD, t, tensor=t, expected=t, actual="z") for t in ("a.0", "a.0")]
    text = text_of(answered(moved))
    assert "a.0: 2 tensors: " in text
    assert "expected" not in text


@pytest.mark.parametrize(
    ("complete", "policy", "word", "counts"),
    [
        (True, Policy(), "FAILED", "1 error, 1 warning, 0 notes"),
        (False, Policy(), "INCOMPLETE", "1 error, 1 warning, 0 notes"),
        (True, Policy(fail_on=None), "OK", "1 error, 1 warning, 0 notes"),
        (True, Policy(waivers=(Waiver(Code.DSA_SHAPE),)), "OK", "0 errors, 0 warnings, 0 notes, 2 waived"),
    ],
    ids=["failed", "incomplete", "exit zero", "waived"],
)
def test_the_verdict_is_the_last_line(complete: bool, policy: Policy, word: str, counts: str) -> None:  # noqa: FBT001
    """One word, what was looked at, and the counts; the same when quiet, below the findings only."""
    report = answered([finding(3), finding(3, weight=Severity.WARNING)], complete=complete)
    assert text_of(report, policy=policy).splitlines()[-1] == f"{word}: 0 names; {counts}"
    assert text_of(report, policy=policy, quiet=True) == text_of(report, policy=policy)


def test_quiet_leaves_findings_and_verdict(checkpoint: Path, tmp_path: Path) -> None:
    """Neither source nor tables."""
    verified = verify_dsa(open_source(str(checkpoint)))
    assert (
        text_of(verified, quiet=True)
        == "OK: 2 DSA blocks (layers 3,5), 28 of 28 tensors found; 0 errors, 0 warnings, 0 notes\n"
    )
    text = text_of(take_census(open_source(str(small(tmp_path / "small")))), quiet=True)
    assert [line.split()[0] for line in text.splitlines()] == ["error", "error", "error", "FAILED:"]


@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_shows_every_role_and_number(columns: int) -> None:
    """The census of the reference fits: no line is too long, no role and no number is cut or missing."""
    report = take_census(open_source("snapshot:reference"), layers=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(report, columns))
    assert max(len(line) for line in plain.splitlines() if line.startswith(" ")) <= columns
    digest = "e833a4dd6b1be69ae8392d5b55f57d0e8e788d440dc2434d3e697efc2ff55007"
    assert {*ROLES.split(), *NUMBERS.split(), digest} - {*plain.split()} == set()


def test_colours_on_a_terminal_only(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets colours, unless it or the environment will not have them; a file never does."""
    report = verify_dsa(open_source(str(checkpoint)))
    assert "\x1b[1;32mOK\x1b[0m: " in on_terminal(report, 80)
    assert "\x1b" not in text_of(report)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1mOK\x1b[0m: " in on_terminal(report, 80)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in on_terminal(report, 80)


def test_a_terminal_of_no_size(checkpoint: Path) -> None:
    """A terminal that does not know its width is taken for an ordinary one."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(verify_dsa(open_source(str(checkpoint))), 0))
    assert 40 < max(len(line) for line in plain.splitlines() if line.startswith(" ")) <= 80


def row(layer: int, mixer: str, ffn: str, *, mtp: bool = False) -> LayerRow:
    """Make a layer of one tensor."""
    return LayerRow(layer, mixer, ffn, mtp=mtp, tensors=1, bytes=2, dtypes={"BF16": 1})


def census_of(*layers: LayerRow) -> Report:
    """Make the report of a census of nothing but layers."""
    index = IndexFacts(present=False, total_size=None, entries=None)
    answer = Census(0, 0, 0, None, 0, len(layers), {}, {}, (), (), index, None, None, layers)
    return Report(command="census", source=SourceInfo("hub", "o/n", "o/n", "o/n", "main"), answer=answer)


def test_a_strip_with_gaps() -> None:
    """A layer that is not there is a blank, a mixed one is marked, and the ruler counts in tens."""
    text = text_of(census_of(row(0, "KDA", "dense"), row(2, "mixed", "none"), row(11, "none", "mixed", mtp=True)))
    assert text.splitlines()[1] == "o/n at main"
    assert ", unknown number of shards, " in text
    assert "digest: none, not everything was read" in text
    assert (
        """\
layer  0         10
mixer  K !        -   K KDA, D DSA
ffn    d -        !   d dense, m MoE
MTP               M
"""
        in text
    )


def test_huge_layer_indices_make_no_huge_strip() -> None:
    """An index from a hostile name costs a row, not a screen or the memory."""
    text = text_of(census_of(row(2**64 - 1, "KDA", "dense")))
    assert "\nmixer  " not in text
    assert " 18446744073709551615   KDA " in text


def test_sizes() -> None:
    """Sizes are in binary units; the last one has no end."""
    sizes = (0, 1023, 1024, 1536, 1 << 20, 5 << 30, 3 << 40, 2048 << 40)
    shown = ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "5.00 GiB", "3.00 TiB", "2,048.00 TiB"]
    assert [size(number) for number in sizes] == shown


def read_shards(stream: TextIO | None) -> None:
    """Report the reading of three shards."""
    with progress.ShardProgress(stream) as report:
        for done in (1, 2, 3):
            report(done, 3, 1000 * done)


def test_progress_is_for_terminals_and_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing for a quick run, a file, or no stream at all; else a bar that goes away."""
    with terminal(80) as (stream, quick):
        read_shards(stream)
    monkeypatch.setattr(progress, "PATIENCE", 0)
    with terminal(80) as (stream, slow):
        read_shards(stream)
    file = io.StringIO()
    read_shards(file)
    read_shards(None)
    assert (quick, file.getvalue()) == ([""], "")
    assert "reading" in slow[0]
    assert "3/3" in slow[0]
    assert "\x1b[2K" in slow[0]
