from __future__ import annotations

import hashlib
import io
import threading
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from strata.config.model_name import UrlName, parse_name
from strata.errors import CheckpointError, UnfetchedError
from strata.store.progress import silent
from strata.store.sources import obtain, source_path, web

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Site:
    """A web server with one file. ``cut``: bytes after which it breaks off; ``status``: it answers with that alone."""

    def __init__(self) -> None:
        self.content, self.etag = CONTENT, '"one"'
        self.cut: int | None = None
        self.moved_to = ""
        self.status = 0
        self.asked: list[dict[str, str]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/models/tiny.gguf"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(request.headers))
        headers = request.headers
        if self.moved_to and request.path != self.moved_to:
            request.send_response(302)
            request.send_header("Location", self.moved_to)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if self.status or headers.get("If-None-Match") == self.etag:
            request.send_response(self.status or 304)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        begin = 0
        if headers.get("If-Range") == self.etag:
            begin = int(headers["Range"].removeprefix("bytes=").rstrip("-"))
        body = self.content[begin:]
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", self.etag)
        request.end_headers()
        request.wfile.write(body if self.cut is None else body[: self.cut])

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "stores"))
    monkeypatch.setenv("no_proxy", "*")
    made = Site()
    yield made
    made.close()


def name(site: Site, sha256: str | None = None) -> UrlName:
    found = parse_name(f"{site.url}#sha256={sha256}" if sha256 else site.url)
    assert isinstance(found, UrlName)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://host/a/b.gguf", UrlName("https://host/a/b.gguf", "b.gguf")),
        ("http://host:8080/b.gguf?download=true", UrlName("http://host:8080/b.gguf?download=true", "b.gguf")),
        (f"https://host/b.gguf#sha256={'0' * 64}", UrlName("https://host/b.gguf", "b.gguf", "0" * 64)),
    ],
)
def test_addresses(text: str, expected: UrlName) -> None:
    assert parse_name(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["https://host/b.bin", "https://host/", "ftp://host/b.gguf", "https://host/b.gguf#x"])
def test_what_is_no_address_of_a_gguf(text: str) -> None:
    assert not isinstance(parse_name(text), UrlName)


def test_a_file_is_fetched_once_and_asked_for_again(site: Site) -> None:
    seen: list[tuple[str, int, int]] = []
    first = web.fetch(name(site), lambda *progress: seen.append(progress))
    assert first.path.read_bytes() == CONTENT
    assert first.path.name == "tiny.gguf"
    assert seen[-1] == ("download", len(CONTENT), len(CONTENT))
    assert web.fetch(name(site), silent) == first
    assert site.asked[1]["If-None-Match"] == '"one"'


def test_a_changed_file_is_another_one(site: Site) -> None:
    first = web.fetch(name(site), silent)
    site.content, site.etag = b"GGUF, but newer", '"two"'
    second = web.fetch(name(site), silent)
    assert second.path.read_bytes() == site.content
    assert second.identity != first.identity


def test_a_download_that_was_cut_short_goes_on(site: Site) -> None:
    site.cut = 300_000
    with pytest.raises(CheckpointError, match="broke off after 300000 of 1048576 bytes; the same command goes on"):
        web.fetch(name(site), silent)
    site.cut = None
    assert web.fetch(name(site), silent).path.read_bytes() == CONTENT
    assert site.asked[1]["Range"] == "bytes=300000-"


def test_a_file_that_changed_meanwhile_is_begun_anew(site: Site) -> None:
    site.cut = 300_000
    with pytest.raises(CheckpointError):
        web.fetch(name(site), silent)
    site.cut, site.content, site.etag = None, CONTENT[::-1], '"two"'
    assert web.fetch(name(site), silent).path.read_bytes() == CONTENT[::-1]


def test_a_newer_file_that_was_cut_short_leaves_the_older_one_as_it_is(site: Site) -> None:
    first = web.fetch(name(site), silent)
    site.content, site.etag, site.cut = CONTENT[::-1], '"two"', 1000
    assert web.fetch(name(site), silent) == first  # told in the log
    assert first.path.read_bytes() == CONTENT
    site.cut = None
    assert web.fetch(name(site), silent).path.read_bytes() == CONTENT[::-1]


def test_without_the_server_what_is_here_is_taken(site: Site) -> None:
    first = web.fetch(name(site), silent)
    site.status = 503
    assert web.fetch(name(site), silent) == first
    site.close()
    assert web.fetch(name(site), silent) == first


def test_a_server_that_is_out_of_reach(site: Site) -> None:
    site.close()
    with pytest.raises(CheckpointError, match=r"cannot be reached .*; check address and network"):
        web.fetch(name(site), silent)


def test_an_error_is_told_with_its_status(site: Site) -> None:
    site.status = 404
    with pytest.raises(CheckpointError, match="answers with status 404; check the address"):
        web.fetch(name(site), silent)


def test_a_checksum_is_compared_before_the_file_is_used(site: Site) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert web.fetch(name(site, digest), silent).path.read_bytes() == CONTENT
    site.content, site.etag = b"something else", '"two"'
    with pytest.raises(CheckpointError, match="is not what its checksum says"):
        web.fetch(name(site, digest), silent)
    assert source_path(name(site)).read_bytes() == CONTENT


def test_a_crash_before_the_last_step_loses_nothing(site: Site) -> None:
    first = web.fetch(name(site), silent)
    facts = first.path.with_name("facts.json")
    first.path.rename(first.path.with_name("tiny.gguf.incomplete"))
    facts.rename(facts.with_name("facts.json.incomplete"))
    asked = len(site.asked)
    assert web.fetch(name(site), silent) == first
    assert len(site.asked) == asked


def test_a_file_that_is_not_here_says_how_to_fetch_it(site: Site) -> None:
    with pytest.raises(UnfetchedError, match="strata fetch http://127"):
        source_path(name(site))


def test_obtained_by_its_address(site: Site) -> None:
    found = obtain(site.url)
    assert (found.name, found.source) == ("tiny", (site.url,))
    assert found.path == web.place(name(site))


@pytest.mark.parametrize(
    ("source", "target", "is_followed"),
    [
        pytest.param("https://a/m.gguf", "https://b/m.gguf", True, id="to another host"),
        pytest.param("http://a/m.gguf", "https://b/m.gguf", True, id="to TLS"),
        pytest.param("http://a/m.gguf", "http://b/m.gguf", True, id="without TLS as before"),
        pytest.param("https://a/m.gguf", "http://b/m.gguf", False, id="away from TLS"),
        pytest.param("https://a/m.gguf", "ftp://b/m.gguf", False, id="to another protocol"),
        pytest.param("http://a/m.gguf", "ftp://b/m.gguf", False, id="without TLS to another protocol"),
    ],
)
def test_a_file_is_not_fetched_with_less_protection_than_was_asked_for(
    source: str, target: str, is_followed: bool
) -> None:
    given = (urllib.request.Request(source), io.BytesIO(), 302, "Found", Message(), target)
    if is_followed:
        request = web._KeepTls().redirect_request(*given)
        assert request is not None
        assert request.full_url == target
        return
    with pytest.raises(CheckpointError, match="is not https; give that address"):
        web._KeepTls().redirect_request(*given)


def test_a_server_may_send_on(site: Site) -> None:
    """A real one, through the same handler."""
    site.moved_to = "/elsewhere.gguf"
    assert obtain(site.url, silent).path.read_bytes() == CONTENT
