# SPDX-License-Identifier: AGPL-3.0-only
"""A Hub on this machine: real HTTP over a real socket, for the real client, with faults to order.

It serves folders as repositories under the addresses that ``huggingface_hub`` uses: model info, branches, and content
with ranges. Large files may be redirected to another host name, as the Hub does it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "hf_thisIsTheSecretOfTheTests"  # noqa: S105 - of nobody
"""The one token that a gated or private repository accepts."""


@dataclass
class Repo:
    """A folder shown as a repository with one commit.

    Attributes:
        folder: What is in it.
        commit: 40 digits.
        branches: Names at which the commit stands.
        closed: ``None`` for everybody, ``gated`` for content with `TOKEN` only, ``private`` for everything so.
        listed: Changes to what the listing says of a file: size, or ``None`` to leave it out.
    """

    folder: Path
    commit: str = "c0ffee" + "0" * 34
    branches: tuple[str, ...] = ("main",)
    closed: str | None = None
    listed: dict[str, int | None] = field(default_factory=dict)

    def siblings(self) -> list[dict[str, Any]]:
        """Return the listing: shards as LFS objects known by name and size, the rest by its Git blob id."""
        found = []
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            size = self.listed.get(name, path.stat().st_size if path.is_file() else None)
            if size is None:
                continue
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": blob_id(path)}
            if is_lfs(name):
                entry["lfs"] = {"sha256": blob_id(path), "size": size, "pointerSize": 135}
            found.append(entry)
        return found


def is_lfs(name: str) -> bool:
    """Tell whether a file is kept as an LFS object."""
    return name.endswith(".safetensors")


def blob_id(path: Path) -> str:
    """Return the Git blob id of a small file; of a shard, some id that changes with its start and size."""
    if is_lfs(path.name):
        with path.open("rb") as file:
            return hashlib.sha256(b"%d" % path.stat().st_size + file.read(1 << 16)).hexdigest()
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Asked(NamedTuple):
    """One request as the server saw it: which host it was sent to, and whether a token came with it."""

    method: str
    path: str
    host: str
    span: str | None
    token: str | None


@dataclass
class Fault:
    """What to do wrong.

    Attributes:
        mode: A status, or one of ``reset``, ``stall``, ``truncate``, ``garbage``, ``drip``, ``whole`` (200, no range),
            ``shifted`` and ``grown`` (wrong start and total of Content-Range), ``starred`` (no total in it),
            ``unnamed`` (206 without one), ``squeezed`` (gzip), ``circle`` (redirects to itself), ``endless``,
            ``page`` (a web page of the length of the file, unannounced), ``excess`` (more bytes than the range has).
        match: Part of the path of the requests it is about.
        times: How many of them; ``None`` for all.
        headers: Sent along with a status.
        body: Sent along with a status.
        method: ``GET`` or ``HEAD``; empty for both.
    """

    mode: int | str
    match: str = ""
    times: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "ordered"}'
    method: str = "GET"


class LoopbackHub:
    """The server; what it serves and how may be changed at any time."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.redirect = False
        self.squeeze = False
        self.latency = 0.0
        self.asked: list[Asked] = []
        self.sent = 0
        self.connections = 0
        self.busy = 0
        self.peak = 0
        self.lock = Lock()
        self.released = Event()
        self.struck = Event()
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def reset(self) -> None:
        """Forget repositories, faults and requests."""
        self.released.set()
        self.released, self.struck = Event(), Event()
        self.repos, self.faults, self.asked = {}, [], []
        self.redirect = self.squeeze = False
        self.latency, self.sent, self.connections, self.peak = 0.0, 0, 0, 0

    def requests(self, part: str = "") -> list[Asked]:
        """Return the requests so far that count: for model info and content, to the Hub's own host."""
        return [
            asked
            for asked in self.asked
            if part in asked.path and ("/api/models/" in asked.path or "/resolve/" in asked.path)
        ]

    def shards_asked(self) -> list[str]:
        """Return the names of the shards that were asked for, in order of their names, each as often as it was."""
        return sorted(asked.path.rpartition("/")[2] for asked in self.requests(".safetensors") if asked.span)

    def fault_for(self, asked: Asked) -> Fault | None:
        """Return the fault to commit with a request, and count it."""
        with self.lock:
            for fault in self.faults:
                if fault.match in asked.path and fault.method in ("", asked.method) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    self.struck.set()
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def setup(self) -> None:
        super().setup()
        self.hub.connections += 1
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.hub.lock:
            self.hub.busy += 1
            self.hub.peak = max(self.hub.peak, self.hub.busy)
        try:
            self._answer()
        finally:
            with self.hub.lock:
                self.hub.busy -= 1

    def _answer(self) -> None:
        hub = self.hub
        bearer = self.headers.get("Authorization")
        token = bearer.removeprefix("Bearer ") if bearer else None
        asked = Asked(
            self.command, unquote(urlsplit(self.path).path), self.headers["Host"], self.headers.get("Range"), token
        )
        if asked.path != "/api/agent-harnesses":  # which the library asks once a process
            hub.asked.append(asked)
        time.sleep(hub.latency)
        fault = hub.fault_for(asked)
        if fault and isinstance(fault.mode, int):
            self._say(fault.mode, fault.headers, fault.body)
        elif fault and fault.mode == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault and fault.mode == "stall":
            hub.released.wait(60)
            self.close_connection = True
        elif fault and fault.mode == "endless":
            self._say(200, {"X-Repo-Commit": "0" * 40, "ETag": '"0"'}, b"", mode="endless", announced=1 << 40)
        elif fault and fault.mode == "circle":
            self._say(302, {"Location": self.path})
        else:
            self._route(asked, str(fault.mode) if fault else "")

    def _route(self, asked: Asked, mode: str) -> None:
        for name, repo in self.hub.repos.items():
            api, content, stored = f"/api/models/{name}", f"/{name}/resolve/", f"/cdn/{name}/"
            if asked.path.startswith(f"{api}/revision/"):
                return self._tell_files(asked, name, repo, asked.path.removeprefix(f"{api}/revision/"), mode)
            if asked.path == f"{api}/refs":
                branches = [{"name": b, "ref": f"refs/heads/{b}", "targetCommit": repo.commit} for b in repo.branches]
                return self._json({"branches": branches, "tags": [], "converts": []}, mode)
            if asked.path.startswith(content):
                return self._content(asked, name, repo, asked.path.removeprefix(content), mode)
            if asked.path.startswith(stored):
                return self._file(repo, asked.path.removeprefix(stored), {}, mode)
        return self._no_repo(asked)

    def _no_repo(self, asked: Asked) -> None:
        self._error(404 if asked.token else 401, "RepoNotFound", "Repository not found")

    def _tell_files(self, asked: Asked, name: str, repo: Repo, revision: str, mode: str) -> None:
        if asked.token not in (None, TOKEN):
            return self._error(401, "", "Invalid credentials in Authorization header")
        if repo.closed == "private" and asked.token != TOKEN:
            return self._no_repo(asked)
        if revision not in repo.branches and not (len(revision) >= 7 and repo.commit.startswith(revision)):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return self._json({"id": name, "sha": repo.commit, "siblings": repo.siblings()}, mode)

    def _content(self, asked: Asked, name: str, repo: Repo, rest: str, mode: str) -> None:
        known = [name for name in (repo.commit, *repo.branches) if rest.startswith(f"{name}/")]
        commit = known[0] if known else rest.partition("/")[0]
        path = rest.removeprefix(f"{commit}/")
        if asked.token not in (None, TOKEN):
            return self._error(401, "", "Invalid credentials in Authorization header")
        if repo.closed and asked.token != TOKEN:
            return self._error(401, "GatedRepo", "Access to this model is restricted.")
        if not known:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {commit}")
        file = repo.folder / path
        if not file.is_file():
            return self._error(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{blob_id(file)}"'}
        if is_lfs(path):
            headers |= {"X-Linked-Size": str(file.stat().st_size), "X-Linked-ETag": f'"{blob_id(file)}"'}
            if self.hub.redirect:
                return self._say(302, headers | {"Location": f"http://localhost:{self.hub.port}/cdn/{name}/{path}"})
        return self._file(repo, path, headers, mode)

    def _file(self, repo: Repo, path: str, headers: dict[str, str], mode: str) -> None:
        file = repo.folder / path
        size = file.stat().st_size
        span = self.headers.get("Range")
        start, stop = 0, size
        if span and mode != "whole":
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, size)
            if start >= stop:
                return self._say(416, {"Content-Range": f"bytes */{size}"})
            told, total = start + (mode == "shifted"), "*" if mode == "starred" else size + (mode == "grown")
            if mode != "unnamed":
                headers = headers | {"Content-Range": f"bytes {told}-{told + stop - start - 1}/{total}"}
        with file.open("rb") as opened:
            body = os.pread(opened.fileno(), min(stop - start, 64 << 20), start)
        if mode == "page":
            page = (b"<p>please log in</p>" * (size // 20 + 1))[:size]
            return self._say_unbounded(200, {"Content-Type": "text/html"}, page)
        if mode == "excess":
            return self._say_unbounded(206, headers, body + b"x" * 4096)
        if mode == "squeezed":
            body, headers = gzip.compress(body), headers | {"Content-Encoding": "gzip"}
            return self._say(206 if span else 200, headers, body)
        return self._say(206 if span and mode != "whole" else 200, headers, body, mode, announced=stop - start)

    def _say_unbounded(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer that ends with the connection, and says nowhere how long it is."""
        self.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)
        self.close_connection = True

    def _json(self, value: object, mode: str) -> None:
        body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
        if self.hub.squeeze and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers = gzip.compress(body), headers | {"Content-Encoding": "gzip"}
        self._say(200, headers, body, mode)

    def _error(self, status: int, code: str, message: str) -> None:
        told = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._say(status, told, json.dumps({"error": message}).encode())

    def _say(
        self, status: int, headers: dict[str, str], body: bytes = b"", mode: str = "", announced: int | None = None
    ) -> None:
        """Send an answer; a file longer than what is sent of it, as a whole one is here, ends with the connection."""
        length = len(body) if announced is None else announced
        if mode == "garbage":
            body = os.urandom(length)
        elif mode == "truncate":
            body = body[: length // 2]
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(ConnectionError):
            while mode == "endless" and not self.hub.released.is_set():
                self.wfile.write(b"0" * (1 << 20))
            for chunk in [body[i : i + 16] for i in range(0, len(body), 16)] if mode == "drip" else [body]:
                self.wfile.write(chunk)
                if mode == "drip" and self.hub.released.wait(0.05):
                    break
            self.hub.sent += len(body)
        self.close_connection = self.close_connection or len(body) != length
