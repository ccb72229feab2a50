"""``/openapi.json``, and schemathesis's requests by it: no 5xx, and every answer is as it is described."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from strata.engine.fake import FakeEngine
from strata.errors import EngineError, OverloadedError
from strata.server import routes
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from strata.server.service import Service
from tests.server.conftest import Serve, Served

OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/completions"),
    ("POST", "/generate"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/status"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]
CONFORMANCE = [status_code_conformance, content_type_conformance, response_schema_conformance]


def test_every_operation_is_described_with_its_errors(serve: Serve) -> None:
    description = serve().client.get("/openapi.json").json()
    found = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert found == set(OPERATIONS)
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/generate"):
        codes = set(description["paths"][path]["post"]["responses"])
        assert codes == {"200", "400", "401", "403", "404", "413", "429", "500", "503"}
    body = description["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "max_tokens", "stop", "seed", "tools", "response_format", "n"} <= set(body)
    assert "logprobs" in description["components"]["schemas"]["CompletionRequest"]["properties"]


@cache
def description() -> Any:
    """The same for every server, and longer to build than most answers."""
    return schemathesis.openapi.from_dict(create_app(Service(FakeEngine(), model_names=("tiny",))).openapi())


def operation(method: str, path: str) -> Any:
    return description()[path][method]


def send(served: Served, case: Any, checks: list[Any], **changes: Any) -> Any:
    """Send a case, and hold the answer to the description."""
    sent = case.as_transport_kwargs(base_url="http://testserver") | changes
    sent.pop("cookies")
    if "data" in sent:  # what requests calls so
        sent["content"] = sent.pop("data")
    response = served.client.request(**sent)
    case.validate_response(response, checks=checks)
    return response


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "mutated"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS[:6])
def test_what_schemathesis_sends_is_answered_as_described(
    serve: Serve, method: str, path: str, mode: GenerationMode
) -> None:
    served = serve("hello 😀", max_model_len=512)
    statuses = set()

    @settings(max_examples=10, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation(method, path).as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            case.body = fitting(path, case.body)
        statuses.add(send(served, case, [not_a_server_error, *CONFORMANCE]).status_code)

    run()
    assert statuses <= {200, 400} if mode is GenerationMode.POSITIVE else statuses == {400}
    assert mode is GenerationMode.NEGATIVE or 200 in statuses


def fitting(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A valid body but for what this model's name, vocabulary, length and conversations decide."""
    left_out = ("model", "messages", "logit_bias")
    return {key: value for key, value in body.items() if "token" not in key and key not in left_out} | MINIMAL[path]


HELLO = [{"role": "user", "content": "hello"}]
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/generate": {"prompt": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [70, 71]},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"n": 2, "logprobs": True, "top_logprobs": 3, "temperature": 1.9, "seed": 1}),
        ("/v1/chat/completions", {"max_tokens": 2, "stop": ["x"], "logit_bias": {"5": -3}, "priority": 1}),
        ("/v1/chat/completions", {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False}),
        ("/v1/chat/completions", {"messages": [*HELLO, {"role": "assistant", "content": "a"}, *HELLO]}),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/responses", {}),
        ("/v1/responses", {"max_output_tokens": 2, "instructions": "be brief", "top_p": 0.5, "temperature": 1.5}),
        ("/v1/responses", {"stream": True}),
        ("/v1/completions", {"n": 2, "logprobs": 2, "prompt": ["a", "b"]}),
        ("/v1/completions", {"echo": True, "structured_outputs": {"regex": "a"}}),
        ("/v1/completions", {"stream": True}),
        ("/generate", {"temperature": 1.5, "max_tokens": 1}),
        ("/tokenize", {"return_token_strs": True}),
        ("/detokenize", {}),
    ],
)
def test_every_kind_of_answer_is_as_described(serve: Serve, path: str, fields: dict[str, Any]) -> None:
    served = serve("hello 😀")
    response = served.client.post(path, json=MINIMAL[path] | fields)
    assert response.status_code == 200, response.text
    operation("POST", path).validate_response(response)


@pytest.mark.parametrize("path", MINIMAL)
def test_every_error_is_as_described(serve: Serve, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = serve()
    described = operation("POST", path)

    def check(status: int, response: Any) -> None:
        assert response.status_code == status, response.text
        described.validate_response(response)

    body = MINIMAL[path]
    check(404, served.client.post(path, json=body | {"model": "gpt-4"}))
    check(400, served.client.post(path, content=b"{"))
    if "token" not in path:
        for status, error in ((429, OverloadedError("later")), (500, EngineError("out of luck"))):
            served.engine.reject_next(error)
            check(status, served.client.post(path, json=body))
    monkeypatch.setattr(routes, "MAX_BODY_BYTES", 100)
    check(413, served.client.post(path, content=b" " * 101))
    check(503, serve(wait=False, hold_load=True).client.post(path, json=body))
    (tmp_path / "keys").write_text("sk-one")
    access = Access(ApiKeys(tmp_path / "keys"), ("https://chat.example",))
    closed = TestClient(create_app(served.service, access))
    check(401, closed.post(path, json=body))
    check(403, closed.post(path, json=body, headers={"Origin": "https://evil.example"}))


def test_what_probes_see_is_as_described(serve: Serve) -> None:
    loading, served = serve(wait=False, hold_load=True), serve()
    for path in ("/health", "/ready", "/metrics", "/v1/status", "/v1/models", "/v1/models/tiny", "/v1/models/gpt-4"):
        described = operation("GET", path.replace("tiny", "{name}").replace("gpt-4", "{name}"))
        seen = [server.client.get(path) for server in (served, loading)]
        for response in seen:
            described.validate_response(response)
    served.engine.fail()
    assert [served.client.get(path).status_code for path in ("/health", "/ready", "/v1/models")] == [503, 503, 500]
    for path in ("/health", "/ready", "/v1/models"):
        operation("GET", path).validate_response(served.client.get(path))
