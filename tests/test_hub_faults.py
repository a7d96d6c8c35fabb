# SPDX-License-Identifier: AGPL-3.0-only
"""What goes wrong between here and the Hub: what passes is waited out, what lasts is named, and nothing is made up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import Kind, shard_name, tiny, write_checkpoint, write_raw
from loopback_hub import Fault, LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.errors import SourceError
from glm5inspect.sources.address import RepoAddress
from glm5inspect.sources.hub import HubSource
from glm5inspect.sources.hub_options import HubOptions

if TYPE_CHECKING:
    from pathlib import Path

ALL = [shard_name(number, 3) for number in (1, 2, 3)]
SECOND = ALL[1]
API = "/api/models/"
PAUSE = "glm5inspect.sources.hub_client._FIRST_PAUSE"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pauses between attempts."""
    monkeypatch.setattr(PAUSE, 0.0)


@pytest.fixture
def repo(hub: LoopbackHub, checkpoint: Path) -> Repo:
    """The tiny checkpoint of three shards, as `owner/name`."""
    return hub.repos.setdefault("owner/name", Repo(checkpoint))


def run(*arguments: str | Path, mode: int | str = "") -> tuple[int, Any]:
    """Run a command for JSON; return its exit code and its report without the source, or the line that it said.

    Silence is waited for, but not for long when the fault that comes is silence.
    """
    timeout = "0.3" if mode in ("stall", "drip") else "60"
    result = CliRunner().invoke(app, [*map(str, arguments), "-f", "json", "--timeout", timeout])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if not result.stdout:
        assert result.stderr.count("\n") == 1
        return result.exit_code, result.stderr
    assert result.stderr == ""
    report = json.loads(result.stdout)
    report.pop("source")
    return result.exit_code, report


def unreadable(report: dict[str, Any]) -> dict[str, str]:
    """Return what is said of each shard that could not be read; there must be no other finding."""
    findings = report["findings"]
    assert {finding["code"] for finding in findings} <= {"header-unreadable"}
    assert not report["complete"]
    return dict(finding["message"].split(": ", 1) for finding in findings)


PASSING: list[int | str] = ["reset", "stall", "truncate", "garbage", "unnamed", "circle", 408, 429, 500, 502, 503, 504]
"""What may be gone the next time."""


@pytest.mark.parametrize("mode", PASSING)
def test_what_passes(hub: LoopbackHub, repo: Repo, mode: int | str) -> None:
    """A shard that fails twice is asked for a third time, and the answer is the one of the folder."""
    hub.faults = [Fault(mode, SECOND, times=2)]
    assert run("census", "owner/name", mode=mode) == run("census", repo.folder)
    assert hub.shards_asked() == [ALL[0], SECOND, SECOND, SECOND, ALL[2]]


LASTING: dict[int | str, tuple[int, str]] = {
    "reset": (5, "the connection to http://127.0.0.1:PORT broke off; try again (tried 5 times)"),
    "stall": (5, "the answer did not come in time; try again, or with a longer --timeout (tried 5 times)"),
    "truncate": (5, "the connection to http://127.0.0.1:PORT broke off; try again (tried 5 times)"),
    "garbage": (5, "every answer has other bytes; use another mirror"),
    "unnamed": (5, "answered 206 without saying which bytes these are; is HF_ENDPOINT right? (tried 5 times)"),
    408: (5, "the server has a fault (408); try again later (tried 5 times)"),
    429: (5, "the Hub limits requests (429); try again later, or log in (hf auth login) or set HF_TOKEN"),
    500: (5, "the server has a fault (500); try again later (tried 5 times)"),
    504: (5, "the server has a fault (504); try again later (tried 5 times)"),
    "shifted": (1, "and got [1, "),
    "grown": (1, "the server has 177,085 bytes of it, the listing 177,084; was it replaced?"),
    "squeezed": (1, "the server compresses ranges, so their bytes are not the file's; use another mirror"),
    400: (1, "answered 400, not as the Hub does; is HF_ENDPOINT right (http://127.0.0.1:PORT)?"),
    403: (1, "access is forbidden (403)"),
    404: (1, "answered 404, not as the Hub does; is HF_ENDPOINT right (http://127.0.0.1:PORT)?"),
    410: (1, "answered 410, not as the Hub does"),
    416: (1, "the server has no such bytes (416): the file is smaller than listed"),
}
"""Faults of a shard, how often it is asked for, and what is said of it."""


@pytest.mark.parametrize(("mode", "asked", "words"), [(mode, *rest) for mode, rest in LASTING.items()], ids=LASTING)
def test_what_lasts(hub: LoopbackHub, repo: Repo, mode: int | str, asked: int, words: str) -> None:
    """A shard that cannot be had is named, nothing else is missing, and the next run asks for it alone."""
    hub.faults = [Fault(mode, SECOND)]
    code, report = run("census", "owner/name", mode=mode)
    assert code == 3
    assert [*unreadable(report)] == [SECOND]
    assert words.replace("PORT", str(hub.port)) in unreadable(report)[SECOND]
    assert hub.shards_asked() == [ALL[0], *[SECOND] * asked, ALL[2]]
    hub.faults, hub.asked = [], []
    assert run("census", "owner/name") == run("census", repo.folder)
    assert hub.shards_asked() == [SECOND]


def test_wrong_bytes_are_not_kept(hub: LoopbackHub, repo: Repo) -> None:
    """What is no header is believed when it comes twice the same, but the next run asks again."""
    size = (repo.folder / SECOND).stat().st_size
    wrong = Fault(206, SECOND, headers={"Content-Range": f"bytes 0-{size - 1}/{size}"}, body=b"wrong" * size)
    hub.faults = [wrong]
    code, report = run("census", "owner/name")
    assert (code, [finding["code"] for finding in report["findings"]]) == (3, ["header-length"])
    assert hub.shards_asked() == [ALL[0], SECOND, SECOND, ALL[2]]
    hub.faults, hub.asked = [], []
    assert run("census", "owner/name") == run("census", repo.folder)
    assert hub.shards_asked() == [SECOND]


FINAL: dict[str, tuple[Fault, str]] = {
    "login": (Fault(401), "or private and not logged in"),
    "gated": (Fault(403, headers={"X-Error-Code": "GatedRepo"}), "gated, and you are not logged in"),
    "disabled": (
        Fault(403, headers={"X-Error-Message": "Access to this resource is disabled."}),
        "the Hub has disabled it; ask its owner",
    ),
    "revision": (Fault(404, headers={"X-Error-Code": "RevisionNotFound"}), "has no revision main; there are main"),
}


@pytest.mark.parametrize(("fault", "words"), FINAL.values(), ids=FINAL)
def test_what_concerns_every_shard(hub: LoopbackHub, repo: Repo, fault: Fault, words: str) -> None:
    """What would befall every shard is not tried again, nor on others; those that are here already stay."""
    hub.faults = [Fault(fault.mode, SECOND, headers=fault.headers)]
    code, report = run("census", "owner/name", "--jobs", "1")
    assert code == 3
    said = unreadable(report)
    assert [*said] == ALL[1:]
    assert all(words in text for text in said.values())
    assert set(hub.shards_asked()) == set(ALL[:2])
    hub.faults, hub.asked = [], []
    assert run("census", "owner/name") == run("census", repo.folder)
    assert hub.shards_asked() == ALL[1:]


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
def test_an_answer_that_trickles_in(hub: LoopbackHub, tmp_path: Path, times: int | None) -> None:
    """An answer that never stops for long, and never ends, counts as stalled."""
    name = shard_name(1, 1)
    folder = write_checkpoint(tmp_path / "x", {"lm_head.weight": Kind("U8", (100,))}, shards=1, config=None)
    hub.repos["owner/name"] = Repo(folder)
    hub.faults = [Fault("drip", name, times)]
    remote = run("show", "owner/name", mode="drip")
    if times:
        assert remote == run("show", folder)
        assert hub.shards_asked() == [name] * 2
    else:
        assert unreadable(remote[1])[name].startswith("the answer trickles in; try again, or with a longer --timeout")
        assert hub.shards_asked() == [name] * 5


def test_shards_in_a_row_that_cannot_be_had(hub: LoopbackHub, tmp_path: Path) -> None:
    """After four hopeless shards in a row the rest is not tried; the next run has everything to do."""
    shards = [shard_name(number, 8) for number in range(1, 9)]
    folder = write_checkpoint(tmp_path / "x", tiny(), shards=8)
    hub.repos["owner/name"] = Repo(folder)
    hub.faults = [Fault(503, shard) for shard in shards]
    code, report = run("census", "owner/name", "--jobs", "1")
    said = unreadable(report)
    assert (code, [*said]) == (3, shards)
    assert all("(tried 5 times)" in said[shard] for shard in shards[:4])
    assert {said[shard] for shard in shards[4:]} == {"not tried, since 4 in a row could not be had; try again"}
    assert hub.shards_asked() == sorted(shards[:4] * 5)
    hub.faults, hub.asked = [], []
    assert run("census", "owner/name") == run("census", folder)
    assert hub.shards_asked() == shards


def test_hopeless_shards_here_and_there(hub: LoopbackHub, tmp_path: Path) -> None:
    """As long as one shard in four can be had, all are tried."""
    shards = [shard_name(number, 8) for number in range(1, 9)]
    hub.repos["owner/name"] = Repo(write_checkpoint(tmp_path / "x", tiny(), shards=8))
    hub.faults = [Fault(503, shard) for shard in shards if shard not in (shards[3], shards[7])]
    code, report = run("census", "owner/name", "--jobs", "1")
    assert (code, [*unreadable(report)]) == (3, [*shards[:3], *shards[4:7]])
    assert set(hub.shards_asked()) == set(shards)


class Clock:
    """A clock that stands still, but for when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        """Tell the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the client of the Hub looks at."""
    clock = Clock()
    monkeypatch.setattr("glm5inspect.sources.hub_client.time", clock)
    return clock


def in_seconds(seconds: int) -> str:
    """Return a moment, as HTTP writes it."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


REQUESTED_WAITS: dict[str, tuple[int, dict[str, str], int]] = {
    "seconds": (429, {"Retry-After": "30"}, 30),
    "at once": (429, {"Retry-After": "0"}, 0),
    "the longest": (429, {"Retry-After": "120"}, 120),
    "with a fault of the server": (503, {"Retry-After": "7"}, 7),
    "moment": (429, {"Retry-After": "in 45"}, 45),
    "moment that has gone by": (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    "moment of no zone": (429, {"Retry-After": "Wed, 21 Oct 2055 07:28:00 -0000"}, 0),
    "limit": (429, {"RateLimit": '"api";r=0;t=42', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, 42),
    "limit that is not reached": (429, {"RateLimit": '"api";r=3;t=42'}, 0),
    "no number": (429, {"Retry-After": "soon"}, 0),
    "negative": (429, {"Retry-After": "-5"}, 0),
}


@pytest.mark.parametrize(("status", "headers", "seconds"), REQUESTED_WAITS.values(), ids=REQUESTED_WAITS)
@pytest.mark.parametrize("match", [SECOND, API], ids=["shard", "listing"])
def test_a_wait_that_the_server_asks_for(
    hub: LoopbackHub, repo: Repo, clock: Clock, match: str, status: int, headers: dict[str, str], seconds: int
) -> None:
    """The next request comes as late as the server wants it, and not later."""
    sent = {key: in_seconds(45) if value == "in 45" else value for key, value in headers.items()}
    hub.faults = [Fault(status, match, 1, sent)]
    assert run("census", "owner/name", "--jobs", "1") == run("census", repo.folder)
    assert clock.now == pytest.approx(seconds, abs=2)
    assert len(hub.requests(match)) == 2


@pytest.mark.parametrize("value", ["121", "86400", "99999999999999999999", "in 5000"])
@pytest.mark.usefixtures("repo")
def test_a_wait_beyond_patience(hub: LoopbackHub, clock: Clock, value: str) -> None:
    """Nobody waits for more than two minutes: the run says so at once, and that a login may help."""
    hub.faults = [Fault(429, API, None, {"Retry-After": in_seconds(5000) if value == "in 5000" else value})]
    code, said = run("census", "owner/name")
    assert code == 3
    assert said.startswith("glm5inspect: owner/name: the Hub limits requests (429) and asks to wait ")
    assert said.endswith(" s; try again later, or log in (hf auth login) or set HF_TOKEN\n")
    assert len(hub.requests(API)) == 1
    assert clock.waits == []


@pytest.mark.usefixtures("repo")
def test_pauses_grow(hub: LoopbackHub, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pauses lie between five attempts, each about twice as long as the one before."""
    monkeypatch.setattr(PAUSE, 0.5)
    hub.faults = [Fault(500, SECOND)]
    assert run("census", "owner/name", "--jobs", "1")[0] == 3
    assert len(clock.waits) == 4
    for wait, longest in zip(clock.waits, (0.5, 1, 2, 4), strict=True):
        assert longest / 2 <= wait <= longest
    assert len(hub.requests(SECOND)) == 5


@pytest.fixture
def huge(hub: LoopbackHub, tmp_path: Path) -> Path:
    """A shard of 12 GB, a hole for the most part, as `owner/name`."""
    folder = tmp_path / "huge"
    tensors = {"lm_head.weight": Kind("BF16", (1 << 20, 6000))}
    hub.repos["owner/name"] = Repo(write_checkpoint(folder, tensors, shards=1, config=None))
    return folder


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_a_server_that_knows_no_ranges(hub: LoopbackHub, huge: Path, index: bool) -> None:  # noqa: FBT001
    """Of a whole file only its start is read: the server here sends no more of it, and one request is enough."""
    if not index:
        (huge / "model.safetensors.index.json").unlink()
    hub.faults = [Fault("whole", ".safetensors")]
    code, report = run("show", "owner/name")
    assert (code, report) == run("show", huge)
    assert code == 0
    assert hub.shards_asked() == [shard_name(1, 1)]


def test_the_rest_of_a_header_without_ranges(hub: LoopbackHub, huge: Path) -> None:
    """A header that is longer than the first answer is had from a whole file as well."""
    (huge / "model.safetensors.index.json").unlink()
    raw = b'{"lm_head.weight":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}'
    write_raw(huge / shard_name(1, 1), raw.ljust(600_000), 5)
    hub.faults = [Fault("whole", ".safetensors")]
    assert run("show", "owner/name") == run("show", huge)
    assert hub.shards_asked() == [shard_name(1, 1)] * 2


def test_far_into_a_file_without_ranges(hub: LoopbackHub, huge: Path) -> None:
    """A little of a whole file is skipped to come to the bytes wanted, but not much."""
    name = shard_name(1, 1)
    source = HubSource(
        RepoAddress("owner/name"), typed="owner/name", subfolder=None, options=HubOptions(), note=pytest.fail
    )
    hub.faults = [Fault("whole", ".safetensors")]
    with (huge / name).open("rb") as file:
        assert source.read(name, 3, 11) == file.read(11)[3:]
    with pytest.raises(SourceError, match=r"whole files only \(no Range\); use another mirror"):
        source.read(name, 9 << 20, (9 << 20) + 8)


def test_a_range_without_a_total(hub: LoopbackHub, repo: Repo) -> None:
    """A server may leave out how large the whole file is."""
    hub.faults = [Fault("starred", ".safetensors")]
    assert run("census", "owner/name") == run("census", repo.folder)
    assert hub.shards_asked() == ALL


@pytest.mark.parametrize("mode", ["whole", ""], ids=["whole", "ranges"])
@pytest.mark.parametrize("more", [1, -1, 1000, -1000])
def test_another_size_than_listed(hub: LoopbackHub, repo: Repo, mode: str, more: int) -> None:
    """A file that is shorter or longer than the listing says is not taken for the one that is listed."""
    size = (repo.folder / SECOND).stat().st_size
    repo.listed = {SECOND: size + more}
    hub.faults = [Fault(mode, SECOND)] if mode else []
    code, report = run("census", "owner/name")
    words = f"the server has {size:,} bytes of it, the listing {size + more:,}; was it replaced?"
    assert (code, unreadable(report)) == (3, {SECOND: words})


@pytest.mark.parametrize("by", [1, 80_000, None], ids=["a byte", "half", "all data"])
def test_a_shard_that_is_cut_off(repo: Repo, by: int | None) -> None:
    """A shard that the Hub itself has only in part is judged by its size, as one in a folder is."""
    path = repo.folder / SECOND
    with path.open("r+b") as file:
        header = int.from_bytes(file.read(8), "little")
        file.truncate(8 + header if by is None else path.stat().st_size - by)
    code, report = run("census", "owner/name")
    assert (code, report) == run("census", repo.folder)
    assert code == 1
    assert [finding["code"] for finding in report["findings"]] == ["file-truncated"]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_an_empty_shard(hub: LoopbackHub, tmp_path: Path, index: bool) -> None:  # noqa: FBT001
    """Nothing is asked of a file of 0 bytes; what is said of it is the same as in a folder."""
    folder = write_checkpoint(tmp_path / "x", tiny(), shards=1, index=index)
    (folder / "model-extra.safetensors").write_bytes(b"")
    hub.repos["owner/name"] = Repo(folder)
    code, report = run("census", "owner/name")
    assert (code, report) == run("census", folder)
    assert "header-empty" in [finding["code"] for finding in report["findings"]]
    assert hub.shards_asked() == [shard_name(1, 1)]


def test_headers_as_long_as_the_guess(hub: LoopbackHub, tmp_path: Path) -> None:
    """A header that just fits into the first answer needs no second one; one byte more does."""
    folder = write_checkpoint(tmp_path / "x", {"lm_head.weight": Kind("U8", (9000,))}, shards=1, config=None)
    hub.repos["owner/name"] = Repo(folder)
    path = folder / shard_name(1, 1)
    run("show", "owner/name", "--no-cache")
    guess = int(str(hub.requests(path.name)[0].span).partition("-")[2]) + 1
    raw = b'{"lm_head.weight":{"dtype":"U8","shape":[9000],"data_offsets":[0,9000]}}'
    for length, asked in ((guess - 9, 1), (guess - 8, 1), (guess - 7, 2), (guess - 1, 2), (guess + 1, 2)):
        write_raw(path, raw.ljust(length), 9000)
        hub.asked = []
        assert run("show", "owner/name", "--no-cache") == run("show", folder)
        assert len(hub.shards_asked()) == asked
