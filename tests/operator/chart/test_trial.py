from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from strata_operator.chart import trial
from strata_operator.cluster.client import Client
from tests.operator.cluster.fake import FakeClient
from tests.operator.samples import model_object

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = {"url": "http://m.ns.svc:8000/v1", "conditions": [{"type": "Ready", "status": "True"}]}


def lease(seconds_ago: int = 3, holder: str | None = "operator-0", namespace: str = "default") -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"kind": "Lease", "metadata": {"name": "strata-operator", "namespace": namespace}, "spec": spec}


def run(*objects: dict[str, Any], namespaces: tuple[str, ...] = (), answer: str | Exception = "Paris") -> bool:
    client = FakeClient(*objects)
    client.now = lambda: NOW

    def ask(url: str) -> str:
        assert url == READY["url"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    times = iter([True, False])
    return trial.trial(cast("Client", client), namespaces, ask, has_time=lambda: next(times), pause=lambda: None)


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_an_operator_without_models_is_enough(told: pytest.LogCaptureFixture) -> None:
    assert run(lease())
    assert "operator-0 works" in told.text
    assert "there is no model yet" in told.text


@pytest.mark.parametrize(
    "leases",
    [
        pytest.param([], id="none ever worked"),
        pytest.param([lease(seconds_ago=16)], id="it died"),
        pytest.param([lease(holder=None)], id="it ended in order"),
    ],
)
def test_without_an_operator_that_works_it_fails(leases: list[dict[str, Any]], told: pytest.LogCaptureFixture) -> None:
    assert not run(*leases)
    assert "nobody holds the Lease default/strata-operator" in told.text


def test_there_is_an_operator_for_each_namespace() -> None:
    assert run(lease(namespace="a"), lease(namespace="b"), namespaces=("a", "b"))
    assert not run(lease(namespace="a"), namespaces=("a", "b"))


def test_a_model_that_is_ready_is_asked(told: pytest.LogCaptureFixture) -> None:
    assert run(lease(), {**model_object(), "status": READY})
    assert "answers 'Paris'" in told.text


@pytest.mark.parametrize("error", [OSError("refused"), ValueError("empty")], ids=str)
def test_one_that_is_ready_and_does_not_answer_fails(error: Exception, told: pytest.LogCaptureFixture) -> None:
    assert not run(lease(), {**model_object(), "status": READY}, answer=error)
    assert f"does not answer at {READY['url']}: {error}" in told.text


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(model_object(), "is not ready", id="not reconciled yet"),
        pytest.param(
            {**model_object(service={"apiKeysSecretRef": {"name": "keys"}}), "status": READY}, "API key", id="keys"
        ),
    ],
)
def test_others_are_told_and_not_asked(model: dict[str, Any], words: str, told: pytest.LogCaptureFixture) -> None:
    assert run(lease(), model, answer=OSError("asked"))
    assert words in told.text


class Server(ThreadingHTTPServer):
    message: dict[str, Any] = {"content": "Paris."}  # noqa: RUF012 - replaced, never changed


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send({"data": [{"id": "served"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, body["model"]) == ("/v1/chat/completions", "served")
        message = cast("Server", self.server).message
        self._send({"choices": [{"message": message}]} if message else {"error": {}})

    def _send(self, answer: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - as the base class has it


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        pytest.param({"content": "Paris."}, "Paris.", id="an answer"),
        pytest.param({"content": None, "reasoning_content": "Easy:"}, "Easy:", id="reasoning that goes on"),
    ],
)
def test_a_question_reaches_a_server(server: Server, message: dict[str, Any], answer: str) -> None:
    server.message = message
    assert trial.ask(f"http://127.0.0.1:{server.server_port}/v1", 10) == answer


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param({"content": " "}, "empty", id="nothing but a space"),
        pytest.param({}, "no answer of OpenAI's API", id="an error"),
    ],
)
def test_what_is_no_answer_is_told(server: Server, message: dict[str, Any], words: str) -> None:
    server.message = message
    with pytest.raises(ValueError, match=words):
        trial.ask(f"http://127.0.0.1:{server.server_port}/v1", 10)
