"""A Hugging Face Hub on this machine, with what the real client asks of one: model info, files with checksums and
ranges, large files behind a redirect to another host, gated and private repositories, connections that break."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Repo:
    """A repository: its commits, and which of them each branch or tag names."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # that is needed for the files; None: anyone may have them
    is_private: bool = False  # without the token it does not seem to exist

    def commit(self, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Make a commit, to which ``revision`` points from now on; gives its name."""
        text = repr(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items()))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.commits[name] = dict(files)
        self.revisions[revision] = name
        return name


def speak_with(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point this process's client at ``hub``, with a cache of its own. Nothing reaches the real one."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(cache.parent / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


class Hub:
    """The server's state; tests change it."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.cuts: dict[str, list[int]] = {}  # file: bytes after which the next answers break off
        self.status: int | None = None  # of every answer, where the Hub is down
        self.holds: dict[str, int] = {}  # file: bytes after which an answer stands still until ``release``
        self.held, self.release = threading.Event(), threading.Event()
        self.url = ""

    def repo(self, name: str) -> Repo:
        """A repository, made on first use."""
        return self.repos.setdefault(name, Repo())

    def fetched(self) -> list[str]:
        """The files whose content was asked for since the last call, in order."""
        found = [r.path.rsplit("/", 1)[1] for r in self.requests if r.method == "GET" and "/resolve/" in r.path]
        self.requests.clear()
        return found


@contextmanager
def serving() -> Iterator[Hub]:
    """A running hub."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.state.requests.append(Request(self.command, path, self.headers.get("Range"), token))
        if self.state.status is not None:
            self._send(self.state.status, b"down")
        elif info := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(info[1], info[2] or "main", token)
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(file[1], file[2], file[3], token)
        elif large := re.fullmatch(r"/cdn/([0-9a-f]{64})/(.+)", path):
            self._content(self._by_checksum(large[1]), large[2], {})
        else:
            self._fail(404, "EntryNotFound")

    def _info(self, name: str, revision: str, token: str | None) -> None:
        repo = self.state.repos.get(name)
        if repo is None or (repo.is_private and token != repo.token):
            return self._fail(401 if token is None else 404, "RepoNotFound")
        commit = repo.revisions.get(revision, revision)
        if commit not in repo.commits:
            return self._fail(404, "RevisionNotFound")
        files = [{"rfilename": file, "size": len(data)} for file, data in repo.commits[commit].items()]
        return self._send(200, json.dumps({"id": name, "sha": commit, "siblings": files}).encode())

    def _file(self, name: str, revision: str, file: str, token: str | None) -> None:
        repo = self.state.repos.get(name)
        if repo is None or (repo.is_private and token != repo.token):
            return self._fail(401, "RepoNotFound")
        if repo.token is not None and token != repo.token:
            return self._fail(401 if token is None else 403, "GatedRepo")
        commit = repo.revisions.get(revision, revision)
        if commit not in repo.commits:
            return self._fail(404, "RevisionNotFound")
        data = repo.commits[commit].get(file)
        if data is None:
            return self._fail(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit}
        if file.endswith((".safetensors", ".gguf")):  # a large file lies elsewhere, under its checksum
            checksum = hashlib.sha256(data).hexdigest()
            headers |= {"X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(data))}
            other = self.state.url.replace("127.0.0.1", "localhost")
            return self._send(302, b"", headers | {"Location": f"{other}/cdn/{checksum}/{file}"})
        return self._content(data, file, headers | {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    def _by_checksum(self, checksum: str) -> bytes:
        commits = (commit for repo in self.state.repos.values() for commit in repo.commits.values())
        return next(data for c in commits for data in c.values() if hashlib.sha256(data).hexdigest() == checksum)

    def _content(self, data: bytes, file: str, headers: Mapping[str, str]) -> None:
        status, start = 200, 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            status, start = 206, int(asked[1])
            headers = dict(headers) | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        body = data[start:]
        cuts = self.state.cuts.get(file)
        stop = cuts.pop(0) if cuts and self.command == "GET" else None
        hold = self.state.holds.get(file) if self.command == "GET" else None
        self._send(status, body, headers, stop=stop, hold=hold)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": "no"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] = {},
        *,
        stop: int | None = None,
        hold: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if hold is not None:
            self.wfile.write(body[:hold])
            self.state.held.set()
            self.state.release.wait()
            self.close_connection = True
        elif stop is not None:
            self.wfile.write(body[:stop])
            self.close_connection = True  # fewer bytes than were announced
        else:
            self.wfile.write(body)
