"""API keys: the file, what a request must have, and what is open to all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from fastapi.testclient import TestClient

from strata.engine.fake import FakeEngine
from strata.errors import OptionError
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from strata.server.service import Service
from tests.server.conftest import run_live, wait_ready
from tests.server.test_app import error_of

KEYS = "# for tests\n\nsk-one\n  sk-two  \n"


def write(path: Path, text: str) -> Path:
    """Write the file as an editor does: a new one in the place of the old."""
    new = path.with_suffix(".new")
    new.write_text(text)
    return new.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "keys", KEYS)


@pytest.fixture
def client(make_engine: Callable[..., FakeEngine], path: Path) -> Iterator[TestClient]:
    service = Service(make_engine("hello"), model_names=("tiny",))
    with TestClient(create_app(service, Access(ApiKeys(path)))) as opened:
        assert opened.portal is not None
        opened.portal.call(wait_ready, service)
        yield opened


def test_a_pipe_in_the_place_of_the_keys_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("secret")
    keys = ApiKeys(path)
    path.unlink()
    os.mkfifo(path)
    assert keys.allow("secret")
    with pytest.raises(OptionError, match="it is no regular file"):
        ApiKeys(path)


def test_lines_are_keys_but_comments_and_blank_ones(path: Path) -> None:
    keys = ApiKeys(path)
    assert [keys.allow(key) for key in ("sk-one", "sk-two")] == [True, True]
    assert not any(keys.allow(key) for key in ("", "sk-on", "sk-one ", "SK-ONE", "# for tests", "schlüssel"))


@pytest.mark.parametrize("header", ["Bearer sk-one", "bearer sk-two", "Bearer  sk-one"])
def test_a_request_with_a_key_is_served(client: TestClient, header: str) -> None:
    response = client.post("/generate", json={"prompt": "a"}, headers={"Authorization": header})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("header", "words"),
    [
        pytest.param(None, "Authorization: Bearer KEY", id="none"),
        pytest.param("", "Authorization: Bearer KEY", id="empty"),
        pytest.param("Bearer", "Authorization: Bearer KEY", id="no key"),
        pytest.param("Basic c2stb25l", "Authorization: Bearer KEY", id="another scheme"),
        pytest.param("sk-one", "Authorization: Bearer KEY", id="no scheme"),
        pytest.param("Bearer sk-three", "none of those", id="an unknown key"),
        pytest.param("Bearer sk-one,sk-two", "none of those", id="two keys"),
    ],
)
@pytest.mark.parametrize("route", ["/generate", "/v1/chat/completions", "/v1/models", "/openapi.json", "/nowhere"])
def test_without_a_key_nothing_is_said(client: TestClient, route: str, header: str | None, words: str) -> None:
    response = client.post(route, content=b"{", headers={} if header is None else {"Authorization": header})
    error = error_of(response, 401)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert words in error["message"]
    assert "sk-" not in error["message"]
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("route", ["/health", "/ready", "/metrics"])
def test_probes_need_no_key(client: TestClient, route: str) -> None:
    assert client.get(route).status_code == 200


def test_the_description_says_where_a_key_is_needed(client: TestClient) -> None:
    description = client.get("/openapi.json", headers={"Authorization": "Bearer sk-one"}).json()
    assert description["security"] == [{"key": []}]
    assert description["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    free = {path for path, methods in description["paths"].items() if methods.get("get", {}).get("security") == []}
    assert free == {"/health", "/ready", "/metrics"}


def test_a_changed_file_counts_from_the_next_request_on(client: TestClient, path: Path) -> None:
    def status(key: str) -> int:
        return client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    assert (status("sk-one"), status("sk-three")) == (200, 401)
    write(path, "sk-three\n")
    assert (status("sk-one"), status("sk-three")) == (401, 200)
    write(path, "# nobody\n")
    assert status("sk-three") == 401


def test_a_file_that_vanishes_leaves_the_keys_as_they_were(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys(path)
    path.unlink()
    assert keys.allow("sk-one")
    assert keys.allow("sk-two")
    assert caplog.text.count("cannot be read") == 1
    assert "sk-" not in caplog.text
    write(path, "sk-three")
    assert keys.allow("sk-three")
    assert not keys.allow("sk-one")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "No such file", id="no file"),
        pytest.param(b"", "holds no API key", id="empty"),
        pytest.param(b"# later\n", "holds no API key", id="comments alone"),
        pytest.param(b"\xff\xfe", "can't decode", id="no text"),
    ],
)
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=words):
        ApiKeys(path)


def test_openai_client_raises_its_own_error(make_engine: Callable[..., FakeEngine], path: Path) -> None:
    with run_live(make_engine(), Access(ApiKeys(path))) as live:
        url = f"{live.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="none of those"),
        ):
            client.models.list()
        with openai.OpenAI(base_url=url, api_key="sk-one", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
