"""Traces, as a receiver of OTLP over HTTP gets them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from strata.engine.fake import FakeEngine
from strata.errors import EngineError, RequestError
from strata.server.app import create_app
from strata.server.service import Service
from strata.server.tracing import Tracing, traces_url
from tests.server.conftest import Served, run_live, wait_ready
from tests.server.otlp import Receiver, attributes_of, receiver
from tests.server.test_live import raw_request, read_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "marker-of-a-prompt"
HELLO = [{"role": "user", "content": SECRET}]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds
    with receiver() as started:
        yield started


@pytest.fixture
def tracing(found: Receiver) -> Iterator[Tracing]:
    made = Tracing(found.url)
    yield made
    made.close()


@pytest.fixture
def served(make_engine: Callable[..., FakeEngine], tracing: Tracing) -> Iterator[Served]:
    engine = make_engine("hello world")
    service = Service(engine, model_names=("tiny", "alias"))
    with TestClient(create_app(service, observers=(tracing,)), raise_server_exceptions=False) as client:
        assert client.portal is not None
        client.portal.call(wait_ready, service)
        yield Served(engine, service, client)


def error_type(span: Span) -> Any:
    return attributes_of(span.attributes).get("error.type")


def test_a_request_is_a_span_with_its_parts_in_the_caller_s_trace(served: Served, found: Receiver) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "r1"}
    fields = {"messages": HELLO, "model": "alias", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3}
    answer = served.client.post("/v1/chat/completions", json={**fields, "max_tokens": 20}, headers=headers).json()
    spans = found.spans(4)
    whole = spans["chat alias"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex(), whole.kind) == (TRACE, PARENT, Span.SPAN_KIND_SERVER)
    attributes = attributes_of(whole.attributes)
    first = attributes.pop("gen_ai.response.time_to_first_chunk")
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ["r1"],
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "strata",
        "gen_ai.request.model": "alias",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "alias",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    queue, prefill, decode = (spans[name] for name in ("queue", "prefill", "decode"))
    for part in (queue, prefill, decode):
        assert part.parent_span_id == whole.span_id
        assert part.kind == Span.SPAN_KIND_INTERNAL
        assert part.status.code == Status.STATUS_CODE_UNSET
    times = [span.start_time_unix_nano for span in (whole, queue, prefill, decode)]
    assert times == sorted(times)
    assert (queue.end_time_unix_nano, prefill.end_time_unix_nano) == (times[2], times[3])
    assert times[3] <= decode.end_time_unix_nano <= whole.end_time_unix_nano
    assert abs(times[3] - times[0] - first * 1e9) < 1e4
    (resource,) = found.resources[:1]
    assert resource["service.name"] == "strata"
    assert resource["service.version"]


def test_no_text_leaves_in_a_trace(served: Served, found: Receiver) -> None:
    served.client.post("/v1/chat/completions", json={"messages": HELLO, "stop": [SECRET], "user": SECRET})
    found.spans(4)
    served.client.post("/v1/completions", json={"prompt": SECRET, "model": SECRET})
    served_nothing = found.spans(1)["text_completion"]
    assert error_type(served_nothing) == "model_not_found"
    served.client.post(f"/v1/completions?{SECRET}", json={SECRET: SECRET}, headers={"Authorization": SECRET})
    assert error_type(found.spans(1)["text_completion"]) == "unknown_parameter"
    for raw in found.raw:
        assert SECRET.encode() not in raw
        assert b"hello world" not in raw


def test_a_stream_of_several_choices_is_one_request(served: Served, found: Receiver) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "stream": True, "max_tokens": 2, "temperature": 1, "presence_penalty": 0.5}
    assert served.client.post("/v1/completions", json=body).status_code == 200
    attributes = attributes_of(found.spans(4)["text_completion tiny"].attributes)
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["gen_ai.request.stream"] is True
    assert attributes["gen_ai.request.presence_penalty"] == 0.5
    assert attributes["gen_ai.usage.output_tokens"] == 8
    assert attributes["gen_ai.response.finish_reasons"] == ["length"] * 4


@pytest.mark.parametrize(
    ("error", "status", "code", "is_error"),
    [
        pytest.param(RequestError("no", code="invalid_grammar"), 400, "invalid_grammar", False, id="the client's"),
        pytest.param(EngineError("gone"), 500, "engine_error", True, id="the server's"),
    ],
)
def test_an_error_is_marked(
    served: Served, found: Receiver, error: RequestError | EngineError, status: int, code: str, is_error: bool
) -> None:
    served.engine.reject_next(error)
    assert served.chat().status_code == status
    spans = found.spans(2)  # it never ran
    for span in spans.values():
        assert error_type(span) == code
        assert (span.status.code == Status.STATUS_CODE_ERROR) is is_error
        assert span.status.message == ""


def test_a_fault_of_the_server_is_marked(served: Served, found: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "check_name", lambda _: 1 / 0)
    assert served.chat().status_code == 500
    span = found.spans(1)["chat"]
    assert error_type(span) == "internal_error"
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_a_request_whose_client_leaves_is_marked(
    make_engine: Callable[..., FakeEngine], tracing: Tracing, found: Receiver
) -> None:
    with run_live(make_engine("hello world"), observers=(tracing,)) as live:
        live.engine.pause()
        with raw_request(live, stream=True) as connection:
            live.wait_until(lambda engine: engine.num_open == 1)
            live.engine.release()
            read_until(connection, b"data: ")
        live.wait_until(lambda engine: bool(engine.aborted))
        spans = found.spans(4)
    for name in ("chat tiny", "decode"):
        assert error_type(spans[name]) == "cancelled"
        assert spans[name].status.code == Status.STATUS_CODE_UNSET
    assert error_type(spans["prefill"]) is None


def test_an_engine_that_fails_in_mid_stream_is_marked(
    make_engine: Callable[..., FakeEngine], tracing: Tracing, found: Receiver
) -> None:
    with run_live(make_engine("hello world"), observers=(tracing,)) as live:
        live.engine.pause()
        with raw_request(live, stream=True) as connection:
            live.wait_until(lambda engine: engine.num_open == 1)
            live.engine.release()
            read_until(connection, b"data: ")
            live.engine.fail("signal 9")
            read_until(connection, b"error")
        spans = found.spans(4)
    assert attributes_of(spans["chat tiny"].attributes)["http.response.status_code"] == 200
    for name in ("chat tiny", "decode"):
        assert error_type(spans[name]) == "engine_error"
        assert spans[name].status.code == Status.STATUS_CODE_ERROR


def test_what_the_caller_does_not_sample_is_not_sent(served: Served, found: Receiver) -> None:
    served.client.post(
        "/v1/chat/completions", json={"messages": HELLO}, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}
    )
    served.client.post("/v1/chat/completions", json={"messages": HELLO}, headers={"traceparent": "nonsense"})
    whole = found.spans(4)["chat tiny"]  # of the second alone, which begins a trace
    assert whole.parent_span_id == b""


def test_routes_that_give_no_answer_have_no_trace(served: Served, found: Receiver) -> None:
    for path in ("/health", "/v1/models", "/metrics", "/nowhere"):
        served.client.get(path)
    served.client.post("/tokenize", json={"prompt": "a"})
    served.chat()
    assert set(found.spans(4)) == {"chat tiny", "queue", "prefill", "decode"}


def test_the_environment_says_who_it_is_and_which_headers_it_sends(
    found: Receiver, monkeypatch: pytest.MonkeyPatch, make_engine: Callable[..., FakeEngine]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=chat,service.name=ours")
    tracing = Tracing()
    service = Service(make_engine(), model_names=("tiny",))
    with TestClient(create_app(service, observers=(tracing,))) as client:
        assert client.portal is not None
        client.portal.call(wait_ready, service)
        client.post("/generate", json={"prompt": "a"})
    tracing.close()
    found.spans(4)
    assert found.headers[0]["x-token"] == "abc"
    assert found.resources[0]["service.name"] == "ours"
    assert found.resources[0]["k8s.namespace.name"] == "chat"


def test_a_receiver_that_is_not_there_keeps_no_request_waiting(make_engine: Callable[..., FakeEngine]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    tracing = Tracing(address)
    service = Service(make_engine(), model_names=("tiny",))
    with TestClient(create_app(service, observers=(tracing,))) as client:
        assert client.portal is not None
        client.portal.call(wait_ready, service)
        assert [client.post("/generate", json={"prompt": "a"}).status_code for _ in range(3)] == [200] * 3
    tracing.close()


@pytest.mark.parametrize("given", ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces"])
def test_the_address_may_have_the_path_or_not(given: str) -> None:
    assert traces_url(given) == "http://a:4318/v1/traces"
