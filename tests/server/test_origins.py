"""Which pages a browser lets use the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from strata.engine.fake import FakeEngine
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from strata.server.service import Service
from tests.server.conftest import wait_ready
from tests.server.test_app import error_of

PAGE, OTHER = "https://chat.example", "https://evil.example"
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
Open = Callable[..., Any]


@pytest.fixture
def opened(make_engine: Callable[..., FakeEngine]) -> Open:
    @contextmanager
    def open_with(*origins: str, keys: ApiKeys | None = None, is_local: bool = False) -> Iterator[TestClient]:
        service = Service(make_engine("hello"), model_names=("tiny",))
        with TestClient(create_app(service, Access(keys, origins, is_local))) as client:
            assert client.portal is not None
            client.portal.call(wait_ready, service)
            yield client

    return open_with


@pytest.mark.parametrize("origins", [(PAGE, "http://localhost:3000"), ("*",)])
def test_an_allowed_page_may_ask_and_read(opened: Open, origins: tuple[str, ...]) -> None:
    with opened(*origins) as client:
        asked = client.options("/v1/chat/completions", headers={"Origin": PAGE, **ASK})
        assert (asked.status_code, asked.content) == (204, b"")
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == ASK["Access-Control-Request-Headers"]
        for body in ({"prompt": "a"}, {"prompt": ""}):  # an error is read as well
            answer = client.post("/generate", json=body, headers={"Origin": PAGE})
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        stream = client.post("/v1/completions", json={"prompt": "a", "stream": True}, headers={"Origin": PAGE})
        assert stream.headers["access-control-allow-origin"] == PAGE
        assert "[DONE]" in stream.text


@pytest.mark.parametrize("origin", [OTHER, "null", f"{PAGE}.evil.example", PAGE.replace("https", "http")])
def test_any_other_page_is_refused(opened: Open, origin: str) -> None:
    with opened(PAGE) as client:
        for response in (
            client.options("/generate", headers={"Origin": origin, **ASK}),
            client.post("/generate", json={"prompt": "a"}, headers={"Origin": origin}),
        ):
            error = error_of(response, 403)
            assert error["code"] == "origin_not_allowed"
            assert "--allowed-origins" in error["message"]
            assert "access-control-allow-origin" not in response.headers


def test_what_is_no_page_passes(opened: Open) -> None:
    with opened(PAGE) as client:
        answer = client.post("/generate", json={"prompt": "a"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_without_the_option_no_page_may_ask(opened: Open) -> None:
    """Not even by a POST that needs no leave: nobody reads the answer, but it is generated."""
    with opened() as client:
        simple = {"Origin": OTHER, "Content-Type": "text/plain"}
        assert error_of(client.post("/generate", content='{"prompt": "a"}', headers=simple), 403)
        assert error_of(client.options("/generate", headers={"Origin": OTHER, **ASK}), 403)


@pytest.mark.parametrize("origins", [(), (PAGE,)])
def test_a_page_of_the_server_itself_passes(opened: Open, origins: tuple[str, ...]) -> None:
    with opened(*origins) as client:
        for origin, host in (
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://[::1]:8000", "[::1]:8000"),
            ("https://strata.example", "Strata.example"),  # a proxy speaks TLS
        ):
            headers = {"Origin": origin, "Host": host}
            assert client.post("/generate", json={"prompt": "a"}, headers=headers).status_code == 200
        for origin, host in (("http://127.0.0.1:3000", "127.0.0.1:8000"), ("null", "null"), ("null", "")):
            headers = {"Origin": origin, "Host": host}
            assert error_of(client.post("/generate", json={"prompt": "a"}, headers=headers), 403)


@pytest.mark.parametrize(
    ("host", "status", "why"),
    [
        ("localhost:8000", 200, "a name that no name server is asked for"),
        ("strata.localhost:8000", 200, "likewise"),
        ("127.0.0.1:8000", 200, "an address"),
        ("[::1]:8000", 200, "an address"),
        ("[::1]", 200, "an address without a port"),
        ("evil.example:8000", 403, "its name server pointed it at this machine after the page had come"),
        ("localhost.evil.example:8000", 403, "likewise"),
        ("127.0.0.1.evil.example", 403, "likewise"),
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(opened: Open, host: str, status: int, why: str) -> None:
    headers = {"Origin": f"http://{host}", "Host": host}
    with opened(is_local=True) as client:
        assert client.post("/generate", json={"prompt": "a"}, headers=headers).status_code == status, why
    with opened(f"http://{host}", is_local=True) as client:  # a proxy on this machine: its name has been given
        assert client.post("/generate", json={"prompt": "a"}, headers=headers).status_code == 200, why


def test_a_browser_asks_without_a_key(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-one")
    with opened(PAGE, keys=ApiKeys(tmp_path / "keys")) as client:
        assert client.options("/generate", headers={"Origin": PAGE, **ASK}).status_code == 204
        refused = client.post("/generate", json={"prompt": "a"}, headers={"Origin": PAGE})
        assert error_of(refused, 401)
        assert refused.headers["access-control-allow-origin"] == PAGE
        headers = {"Origin": PAGE, "Authorization": "Bearer sk-one"}
        assert client.post("/generate", json={"prompt": "a"}, headers=headers).status_code == 200
