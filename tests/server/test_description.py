"""``/openapi.json``, and schemathesis's requests by it: no 5xx, and every answer is as it is described."""

from __future__ import annotations

from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.conftest import Serve

OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/completions"),
    ("POST", "/generate"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_every_operation_is_described_with_its_errors(serve: Serve) -> None:
    description = serve().client.get("/openapi.json").json()
    found = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert found == set(OPERATIONS)
    for path in ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/generate"):
        codes = set(description["paths"][path]["post"]["responses"])
        assert codes == {"200", "400", "401", "403", "404", "413", "429", "500", "503"}
    body = description["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "max_tokens", "stop", "seed", "tools", "response_format", "n"} <= set(body)
    assert "logprobs" in description["components"]["schemas"]["CompletionRequest"]["properties"]
