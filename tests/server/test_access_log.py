"""One line for each request."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from strata.engine.fake import FakeEngine
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from strata.server.service import Service
from tests.server.conftest import Live, Serve, wait_ready
from tests.server.test_live import read_until

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """The pairs of each line; nothing but pairs is in it."""
    found = []
    for record in caplog.records:
        if record.name == "strata.access":
            line = record.getMessage()
            assert PAIR.sub("", line).strip() == "", line
            found.append({name: json.loads(value) if value[0] == '"' else value for name, value in PAIR.findall(line)})
    return found


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata.access")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_its_times_and_tokens(serve: Serve, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    served = serve("hello world")
    served.chat(stream=stream, n=2, max_tokens=3)
    (line,) = lines(caplog)
    prompt = len(served.engine.requests[0].prompt_token_ids)
    assert {name: line[name] for name in ("method", "path", "status", "outcome", "model")} == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": "200",
        "outcome": "length",
        "model": "tiny",
    }
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (str(prompt), "6", "0")
    assert 0 <= float(line["queue_seconds"]) <= float(line["ttft_seconds"]) <= float(line["seconds"])
    assert "key" not in line
    assert "error" not in line


def test_a_refusal_has_its_code_and_no_tokens(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    served.chat(model="other")
    served.chat(temperature=9)
    unknown, wrong = lines(caplog)
    assert (unknown["status"], unknown["error"], unknown["outcome"]) == ("404", "model_not_found", "rejected")
    assert (wrong["status"], wrong["error"], wrong["outcome"]) == ("400", "invalid_value", "rejected")
    assert "prompt_tokens" not in unknown


def test_other_routes_have_no_tokens_and_probes_no_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    for path in ("/health", "/ready", "/metrics", "/v1/status", "/v1/models"):
        served.client.get(path)
    (line,) = lines(caplog)
    assert set(line) == {"client", "method", "path", "status", "seconds", "id"}


def test_a_path_cannot_end_a_line_or_a_value(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    served.client.get('/a%0Astatus=200%20"b' + "c" * 1000)
    (line,) = lines(caplog)
    assert line["path"].startswith('/a\nstatus=200 "b')
    assert len(line["path"]) == 200
    assert "\n" not in caplog.messages[-1]
    assert line["status"] == "404"


def test_a_key_is_shown_by_the_beginning_of_its_hash(
    make_engine: Callable[..., FakeEngine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text("sk-one\n")
    service = Service(make_engine(), model_names=("tiny",))
    with TestClient(create_app(service, Access(ApiKeys(tmp_path / "keys")))) as client:
        assert client.portal is not None
        client.portal.call(wait_ready, service)
        client.get("/v1/models", headers={"Authorization": "Bearer sk-one"})
        client.get("/v1/models", headers={"Authorization": "Bearer sk-two"})
    known, unknown = lines(caplog)
    assert known["key"] == hashlib.sha256(b"sk-one").hexdigest()[:8]
    assert (unknown["status"], "key" in unknown) == ("401", False)
    assert "sk-" not in caplog.text


def test_what_is_no_request_has_a_line(live: Callable[..., Live], caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", live().port)) as connection:
        connection.sendall(b"secret\r\n\r\n")
        read_until(connection, b"invalid_http")
    assert lines(caplog) == [{"client": "127.0.0.1", "status": "400", "error": "invalid_http"}]
    assert "secret" not in caplog.text


def test_a_fault_is_logged_by_its_place_alone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message may quote what a client sent."""
    served, text = serve(), "sec" + "ret"  # for the log has the line of the code

    def fail(_: object) -> None:
        raise KeyError(text)

    monkeypatch.setattr(served.service, "check_name", fail)
    assert served.chat().status_code == 500
    (line,) = lines(caplog)
    assert line["error"] == "internal_error"
    (fault,) = (record.getMessage() for record in caplog.records if record.name == "strata.server.middleware")
    assert f"request {line['id']} failed with KeyError" in fault
    assert "in admit" in fault
    assert text not in caplog.text
