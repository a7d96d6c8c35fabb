# SPDX-License-Identifier: AGPL-3.0-only
"""When the Hub does not answer the first questions, or says no: one line that says which, and what to do."""

from __future__ import annotations

import errno
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from checkpoints import Kind, edit_json, shard_name, write_shard
from huggingface_hub import constants
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from loopback_hub import TOKEN, Fault, LoopbackHub, Repo
from typer.testing import CliRunner

from glm5inspect.cli import app
from glm5inspect.sources.hub_faults import Asked, explain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

API = "/api/models/"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pauses between attempts."""
    monkeypatch.setattr("glm5inspect.sources.hub_client._FIRST_PAUSE", 0.0)


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
        return result.exit_code, result.stderr.removeprefix("glm5inspect: ").rstrip("\n")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    report.pop("source")
    return result.exit_code, report


@pytest.mark.parametrize(
    "mode", ["reset", "stall", "truncate", "garbage", "circle", 408, 429, 500, 502, 503, 504, "drip"]
)
def test_what_passes_when_files_are_listed(hub: LoopbackHub, tmp_path: Path, mode: int | str) -> None:
    """The request that resolves the revision is repeated as those for shards are."""
    folder = tmp_path / "x"
    write_shard(folder / "model.safetensors", {"lm_head.weight": Kind("U8", (9,))})
    hub.repos["owner/name"] = Repo(folder)
    hub.faults = [Fault(mode, API, times=2)]
    assert run("show", "owner/name", mode=mode) == run("show", folder)
    assert len(hub.requests(API)) == (1 if mode == "drip" else 3)


LASTING: dict[int | str, tuple[int, str]] = {
    "reset": (5, "the connection to http://127.0.0.1:PORT broke off; try again (tried 5 times)"),
    "stall": (5, "the answer did not come in time; try again, or with a longer --timeout (tried 5 times)"),
    "truncate": (5, "the connection to http://127.0.0.1:PORT broke off; try again (tried 5 times)"),
    "garbage": (5, "answered something that the Hub would not; is HF_ENDPOINT right (http://127.0.0.1:PORT)?"),
    "circle": (21, "http://127.0.0.1:PORT redirects in a circle; check HF_ENDPOINT"),
    302: (5, "is HF_ENDPOINT right"),
    408: (5, "the server has a fault (408); try again later (tried 5 times)"),
    429: (5, "the Hub limits requests (429); try again later, or log in (hf auth login) or set HF_TOKEN"),
    500: (5, "the server has a fault (500); try again later (tried 5 times)"),
    504: (5, "the server has a fault (504); try again later (tried 5 times)"),
    400: (1, "answered 400, not as the Hub does; is HF_ENDPOINT right (http://127.0.0.1:PORT)?"),
    403: (1, "access is forbidden (403)"),
    404: (1, "answered 404, not as the Hub does; is HF_ENDPOINT right (http://127.0.0.1:PORT)?"),
    410: (1, "answered 410, not as the Hub does"),
}
"""Faults of the listing, how often it is asked for, and what is said of it."""


@pytest.mark.parametrize(("mode", "asked", "words"), [(mode, *rest) for mode, rest in LASTING.items()], ids=LASTING)
@pytest.mark.usefixtures("repo")
def test_what_lasts_when_files_are_listed(hub: LoopbackHub, mode: int | str, asked: int, words: str) -> None:
    """Without a listing there is no report: one line says why, and nothing else is asked for."""
    hub.faults = [Fault(mode, API)]
    code, said = run("census", "owner/name", mode=mode)
    assert code == 3
    assert said.startswith("owner/name: ")
    assert words.replace("PORT", str(hub.port)) in said
    assert len(hub.requests(API)) == asked
    assert hub.shards_asked() == []


def test_compressed_answers(hub: LoopbackHub, repo: Repo) -> None:
    """The Hub may compress what it says about a repository."""
    hub.squeeze = True
    assert run("census", "owner/name") == run("census", repo.folder)


def small_faults() -> Iterable[tuple[Fault, int, str | None]]:
    """Yield faults of small files, the exit code, and what is said; those that the library itself waits for are few."""
    yield Fault("reset", "config.json", 2, method="HEAD"), 0, None
    yield Fault(500, "config.json", 1), 0, None
    yield Fault("garbage", "config.json", 1), 0, None
    yield Fault("garbage", "index.json", 1), 0, None
    yield Fault("reset", "index.json"), 3, "index.json: the connection to http://127.0.0.1:PORT broke off; try again"
    yield Fault(503, "config.json"), 3, "config.json: the server has a fault (503); try again later (tried 3 times)"
    yield Fault("garbage", "config.json"), 3, "config.json: is not what the listing says, by size or checksum"
    yield Fault(403, "index.json"), 3, "index.json: access is forbidden (403)"
    yield Fault(200, "config.json", method="HEAD"), 3, "config.json: http://127.0.0.1:PORT answers without the headers"
    yield (
        Fault(404, "config.json", headers={"X-Error-Code": "EntryNotFound"}, method=""),
        3,
        "config.json: listed, and then not found (404); try again, or another revision",
    )


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [pytest.param(*case, id=f"{case[0].mode}-{case[0].match}-{case[0].method}-{case[1]}") for case in small_faults()],
)
def test_small_files(hub: LoopbackHub, repo: Repo, fault: Fault, code: int, words: str | None) -> None:
    """Index and configuration are tried again too, are known by their checksum, and are named when they fail."""
    hub.faults = [Fault(fault.mode, fault.match, fault.times, fault.headers, method=fault.method)]
    exit_code, said = run("census", "owner/name")
    assert exit_code == code
    if words is None:
        assert (code, said) == run("census", repo.folder)
    else:
        assert words.replace("PORT", str(hub.port)) in said


def listing(*siblings: object, **fields: object) -> bytes:
    """Return what the Hub says about a repository, with some of it changed."""
    told = {"id": "owner/name", "sha": "c0ffee" + "0" * 34, "siblings": siblings, **fields}
    return json.dumps({key: value for key, value in told.items() if value is not None}).encode()


NO_LISTINGS = {
    "web page": b"<!doctype html><title>Welcome to the network of our hotel</title>",
    "nothing": b"",
    "null": b"null",
    "list": b"[]",
    "text": b'"owner/name"',
    "other object": b'{"status": "ok"}',
    "no commit": listing(sha=None),
    "no files": listing(siblings=None),
    "commit is a number": listing(sha=5),
    "short commit": listing(sha="c0ffee"),
    "commit in capitals": listing(sha="C0FFEE" + "0" * 34),
    "files are an object": listing(siblings={"a": 1}),
    "files are a text": listing(siblings="abc"),
    "file is a text": listing("model.safetensors"),
    "file without a name": listing({"size": 3}),
    "LFS is a text": listing({"rfilename": "x.safetensors", "size": 3, "lfs": "abc"}),
    "LFS without a checksum": listing({"rfilename": "x.safetensors", "size": 3, "lfs": {"size": 3}}),
    "number of thousands of digits": b'{"id": ' + b"9" * 5000 + b"}",
    "nested too deeply": b"[" * 200_000,
    "no UTF-8": b'{"id": "\xff"}',
}
"""Answers of status 200 that are no listing."""


@pytest.mark.parametrize("body", NO_LISTINGS.values(), ids=NO_LISTINGS)
def test_an_answer_that_is_no_listing(hub: LoopbackHub, repo: Repo, body: bytes) -> None:
    """What the Hub would never say is asked for again, and then the endpoint is doubted; it is no bug of ours."""
    hub.faults = [Fault(200, API, body=body)]
    code, said = run("census", "owner/name")
    assert code == 3
    assert said.startswith("owner/name: ")
    assert "is HF_ENDPOINT right" in said
    assert len(hub.requests(API)) == 5
    hub.faults[0].times = 2
    assert run("census", "owner/name") == run("census", repo.folder)


def test_an_answer_that_is_not_compressed_as_it_says(hub: LoopbackHub) -> None:
    """An answer that cannot be unpacked is no bug of ours either."""
    hub.faults = [Fault(200, API, headers={"Content-Encoding": "gzip"}, body=listing())]
    code, said = run("census", "owner/name")
    assert (code, said.count("is not what its headers say; try again (tried 5 times)")) == (3, 1)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "a/../../x.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "x\0.safetensors", "", 5],
    ids=repr,
)
def test_a_listed_name_that_leads_out(hub: LoopbackHub, name: object) -> None:
    """A listing that names a file elsewhere is refused whole, at once, and nothing it lists is asked for."""
    hub.faults = [Fault(200, API, body=listing({"rfilename": "model.safetensors", "size": 9}, {"rfilename": name}))]
    code, said = run("census", "owner/name")
    assert code == 3
    assert said.startswith("owner/name: lists a file ")
    assert said.endswith(", which is not below the repository; nothing was read")
    assert len(hub.requests(API)) == 1


@pytest.mark.parametrize("size", [None, "9", -9, 9.5, True, []], ids=repr)
def test_a_size_that_is_none(hub: LoopbackHub, size: object) -> None:
    """A shard whose size the Hub does not tell, or not as a number, is named, and not asked for."""
    file = {"rfilename": "model.safetensors", "size": size, "lfs": {"sha256": "ab" * 32, "size": 9, "pointerSize": 9}}
    hub.faults = [Fault(200, API, body=listing(file))]
    code, report = run("census", "owner/name")
    (finding,) = report["findings"]
    assert (code, finding["code"]) == (3, "header-unreadable")
    assert finding["message"] == "model.safetensors: the Hub does not tell its size"
    assert hub.shards_asked() == []


@pytest.mark.parametrize(
    "where", ["../x.safetensors", "/etc/x.safetensors", "https://h/x.safetensors", "", 7], ids=repr
)
def test_an_index_that_leads_out(hub: LoopbackHub, repo: Repo, where: object) -> None:
    """An index that names a file elsewhere is refused before any shard is asked for, here or there."""
    edit_json(repo.folder / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": where}))
    code, said = run("census", "owner/name")
    assert (code, said) == run("census", repo.folder)
    assert code == 3
    assert INDEX in said
    assert not [asked for asked in hub.asked if "safetensors" in asked.path and not asked.path.endswith(INDEX)]


LOGIN = "log in (hf auth login) or set HF_TOKEN"
WRONG = "hf_thisIsNoSuchToken"

REFUSALS: dict[str, tuple[str | None, str | None, str]] = {
    "missing, no token": ("gone", None, f"not found at HUB, or private and not logged in; check the name, or {LOGIN}"),
    "missing": ("gone", TOKEN, "not found at HUB, or this token may not see it; check the name, or use another token"),
    "private, no token": (
        "private",
        None,
        f"not found at HUB, or private and not logged in; check the name, or {LOGIN}",
    ),
    "gated, no token": (
        "gated",
        None,
        f"gated, and you are not logged in; accept its licence at HUB/owner/name, then {LOGIN}",
    ),
    "gated, wrong token": (
        "gated",
        WRONG,
        "the token was refused (401): wrong, or expired; hf auth login, or set HF_TOKEN",
    ),
    "public, wrong token": (
        None,
        WRONG,
        "the token was refused (401): wrong, or expired; hf auth login, or set HF_TOKEN",
    ),
}


@pytest.mark.parametrize(("closed", "token", "words"), REFUSALS.values(), ids=REFUSALS)
def test_who_may_not(hub: LoopbackHub, repo: Repo, closed: str | None, token: str | None, words: str) -> None:
    """One line says why, as far as the Hub tells, and what to do; it is not tried again."""
    repo.closed = closed
    if closed == "gone":
        hub.repos.clear()
    code, said = run("census", "owner/name", *(["--token", token] if token else []))
    assert (code, said) == (3, f"owner/name: {words.replace('HUB', hub.endpoint)}")
    assert len(hub.requests(API)) == 1
    assert hub.shards_asked() == []


@pytest.mark.parametrize("closed", ["gated", "private"])
def test_who_may(repo: Repo, closed: str) -> None:
    """With the right token a closed repository is read as any other."""
    repo.closed = closed
    assert run("census", "owner/name", "--token", TOKEN) == run("census", repo.folder)


SAID_NO: dict[str, tuple[Fault, str]] = {
    "not on the list": (
        Fault(403, "config.json", headers={"X-Error-Code": "GatedRepo"}, method=""),
        "owner/name: gated, and this token has no access (403); accept its licence at HUB/owner/name",
    ),
    "disabled": (
        Fault(403, API, headers={"X-Error-Message": "Access to this resource is disabled."}),
        "owner/name: the Hub has disabled it; ask its owner",
    ),
    "login wanted": (Fault(401, API), "owner/name: the token was refused (401): wrong, or expired"),
    "forbidden": (Fault(403, API), "owner/name: access is forbidden (403); check the rights of the token, or log in"),
}


@pytest.mark.parametrize(("fault", "words"), SAID_NO.values(), ids=SAID_NO)
@pytest.mark.usefixtures("repo")
def test_a_token_that_does_not_help(hub: LoopbackHub, fault: Fault, words: str) -> None:
    """The Hub says no although the token is a good one."""
    hub.faults = [fault]
    code, said = run("census", "owner/name", "--token", TOKEN)
    assert code == 3
    assert said.startswith(words.replace("HUB", hub.endpoint))


@pytest.mark.usefixtures("repo")
def test_a_listed_shard_that_is_not_there(hub: LoopbackHub) -> None:
    """A shard that the Hub lists and then does not have is named."""
    hub.faults = [Fault(404, shard_name(2, 3), headers={"X-Error-Code": "EntryNotFound"})]
    code, report = run("census", "owner/name")
    (finding,) = report["findings"]
    assert code == 3
    assert finding["message"] == f"{shard_name(2, 3)}: listed, and then not found (404); try again, or another revision"
    assert len(hub.shards_asked()) == len({*hub.shards_asked()}) == 3


@pytest.mark.parametrize(
    ("refs", "words"),
    [(None, "there are main, v1"), (500, "see its page"), ("garbage", "see its page"), ("reset", "see its page")],
    ids=["told", "fault", "garbage", "reset"],
)
def test_a_revision_that_is_not_there(hub: LoopbackHub, repo: Repo, refs: int | str | None, words: str) -> None:
    """The branches that exist are named, when the Hub tells."""
    repo.branches = ("main", "v1")
    hub.faults = [Fault(refs, "/refs")] if refs else []
    assert run("census", "owner/name@v2") == (3, f"owner/name: has no revision v2; {words}")


ENDPOINTS = {
    "nobody there": ("http://127.0.0.1:CLOSED", "no connection to {}; check the network, the proxy and HF_ENDPOINT"),
    "no TLS there": ("https://127.0.0.1:PORT", "no connection to {}; check the network, the proxy and HF_ENDPOINT"),
    "password": ("http://me:secret@127.0.0.1:CLOSED", "no connection to http://127.0.0.1:CLOSED; check the network"),
    "other protocol": ("ftp://127.0.0.1", "HF_ENDPOINT is '{}', which is no address of a server"),
    "no protocol": ("127.0.0.1:PORT", "HF_ENDPOINT is '{}', which is no address of a server"),
    "no host": ("http://", "HF_ENDPOINT is '{}', which is no address of a server"),
    "bracket": ("http://[::1", "{} is no address of a server, or leads to none; check HF_ENDPOINT"),
}


@pytest.mark.parametrize(("endpoint", "words"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_no_hub_there(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, endpoint: str, words: str) -> None:
    """An endpoint that is none, or that nobody can reach, is named, but for a password in it."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        ports = {"CLOSED": str(closed.getsockname()[1]), "PORT": str(hub.port)}
        for word, port in ports.items():
            endpoint, words = endpoint.replace(word, port), words.replace(word, port)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        code, said = run("census", "owner/name")
    assert code == 3
    assert said.removeprefix("owner/name: ").startswith(words.format(endpoint))
    assert "secret" not in said


def test_a_name_that_the_library_refuses() -> None:
    """A name that no repository can have is refused without a request."""
    assert run("census", "owner/na--me") == (3, "owner/na--me: this cannot be the name of a repository")


ASKED = Asked("owner/name", "main", "https://hub", with_token=False, branches=list)


def answer(status: int, **headers: str) -> HfHubHTTPError:
    """Return an error for an answer."""
    response = httpx2.Response(status, headers=headers, request=httpx2.Request("GET", "https://hub"))
    return HfHubHTTPError("hf_secret", response=response)


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error with its cause."""
    error.__cause__ = cause
    return error


def named(*names: str) -> Exception:
    """Return an error of a class of some HTTP client, the bases first."""
    kind: type[Exception] = Exception
    for name in names:
        kind = type(name, (kind,), {})
    return kind("hf_secret")


EXPLAINED: dict[str, tuple[Exception, str, bool, bool]] = {
    "proxy": (named("TransportError", "ProxyError"), "the proxy refuses", False, True),
    "slow connection": (named("TransportError", "TimeoutException", "ConnectTimeout"), "no connection to", True, False),
    "slow answer": (named("TransportError", "TimeoutException", "ReadTimeout"), "did not come in time", True, False),
    "protocol": (named("TransportError", "RemoteProtocolError"), "broke off", True, False),
    "disk full": (OSError(errno.ENOSPC, "No space left on device"), "cache: No space left on device", False, False),
    "wrong size": (OSError("hf_secret: Consistency check failed"), "another size than announced", True, False),
    "not cached": (LocalEntryNotFoundError("hf_secret"), "not in the cache, and offline", False, False),
    "not cached, as there is no connection": (
        caused(LocalEntryNotFoundError("hf_secret"), named("TransportError", "ConnectError")),
        "no connection to https://hub",
        True,
        False,
    ),
    "no file of a Hub": (FileMetadataError("hf_secret"), "without the headers of the Hub", True, False),
    "invalid, and why": (caused(ValueError("hf_secret"), answer(502)), "a fault (502)", True, False),
    "invalid": (ValueError("hf_secret"), "is HF_ENDPOINT right (https://hub)?", True, False),
    "name": (HFValidationError("hf_secret"), "this cannot be the name", False, True),
    "teapot": (answer(418), "answered 418, not as the Hub does", False, False),
}


@pytest.mark.parametrize(("error", "words", "again", "final"), EXPLAINED.values(), ids=EXPLAINED)
def test_explanations(error: Exception, words: str, again: bool, final: bool) -> None:  # noqa: FBT001
    """Errors that no server here brings about are explained by their kind, and never quoted."""
    fault = explain(error, ASKED)
    assert words in fault.text
    assert "hf_secret" not in fault.text
    assert (fault.again, fault.final) == (again, final)


def test_no_explanation() -> None:
    """What is nobody's fault but ours is not explained away."""
    with pytest.raises(ZeroDivisionError):
        explain(ZeroDivisionError(), ASKED)
