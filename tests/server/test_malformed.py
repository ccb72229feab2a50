"""Hundreds of malformed requests, made from valid ones by one change each: all are a 4xx that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.server.conftest import Serve
from tests.server.test_app import error_of

SAMPLING: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1},
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [7],
    "ignore_eos": False,
    "max_tokens": 2,
    "structured_outputs": None,
    "priority": 0,
    "timeout": 9.5,
}
SHARED: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "u",
    "metadata": {"a": "b"},
    "service_tier": "auto",
}
HELLO = {"role": "user", "content": "hello"}
PARTS = [{"type": "text", "text": "b"}]
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLING,
        **SHARED,
        "messages": [HELLO, {"role": "assistant", "content": "a"}, {"role": "user", "content": PARTS}],
        "n": 2,
        "max_completion_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": SCHEMA_FORMAT,
        "tools": TOOLS,
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "reasoning_effort": None,
    },
    "/v1/completions": {
        **SAMPLING,
        **SHARED,
        "prompt": "a",
        "n": 2,
        "best_of": 2,
        "logprobs": 2,
        "echo": False,
        "response_format": {"type": "json_object"},
    },
    "/v1/responses": {
        **SAMPLING,
        "input": [{"type": "message", **HELLO}],
        "instructions": "be brief",
        "max_output_tokens": 2,
        "max_tokens": None,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": None},
        "stream": False,
    },
    "/generate": {**SAMPLING, "prompt": [5, 6]},
    "/tokenize": {"model": "tiny", "prompt": "a", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"model": "tiny", "tokens": [5, 6]},
}
# Of each JSON type, at and beyond what numbers and texts can be.
VALUES: list[Any] = [
    None, True, 0, -1, 3, 17, 10**40, -(10**40), 0.5, -0.5, 1e308, "", "x", "1", "\u0000", [], [None], [""], ["x"] * 6,
    [-1], [[]], [{}], {}, {"x": 1}, {"type": "x"}, [[1], "a"],
]  # fmt: skip


BODIES = {
    "/v1/chat/completions": "ChatRequest",
    "/v1/completions": "CompletionRequest",
    "/v1/responses": "ResponseRequest",
    "/generate": "GenerateRequest",
    "/tokenize": "TokenizeRequest",
    "/detokenize": "DetokenizeRequest",
}
# Of the bodies that the description does not allow, so many at least.
LEAST = dict(zip(VALID, [400, 200, 200, 150, 25, 25], strict=True))


def mutations(body: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every place of a body with other values, a third of them each: neighbours get others."""
    if isinstance(body, dict | list):
        for number, (key, value) in enumerate(body.items() if isinstance(body, dict) else enumerate(body)):
            yield from ((((*at, key), other)) for other in VALUES[number % 3 :: 3])
            yield from mutations(value, (*at, key))


def replaced(body: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy with one place changed."""
    copy = json.loads(json.dumps(body))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


@pytest.mark.parametrize("path", VALID)
def test_a_valid_request_is_served(serve: Serve, path: str) -> None:
    response = serve().client.post(path, json=VALID[path])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", VALID)
def test_what_the_description_does_not_allow_is_refused_by_name(serve: Serve, path: str) -> None:
    served = serve()
    description = served.client.get("/openapi.json").json()
    schema = {"$ref": f"#/components/schemas/{BODIES[path]}", "components": description["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert validator.is_valid(VALID[path])
    num_refused = 0
    for place, value in mutations(VALID[path]):
        body = replaced(VALID[path], place, value)
        if not validator.is_valid(body):
            response = served.client.post(path, json=body)
            assert 400 <= response.status_code < 500, (place, value, response.text)
            error = error_of(response, response.status_code)
            assert error["type"] == "invalid_request_error"
            assert len(error["message"]) > 10
            assert error["param"] is not None, (place, value, error)
            num_refused += 1
    assert served.engine.requests == []
    assert num_refused >= LEAST[path]


def cut(raw: bytes) -> Iterator[bytes]:
    """A body that ends too early, at every tenth byte."""
    yield from (raw[:length] for length in range(0, len(raw), 10))


def spoilt(raw: bytes) -> Iterator[bytes]:
    """Bytes that no JSON text, or no text at all, has in these places."""
    for at in range(1, len(raw), 40):
        for wrong in (b"\xff", b"\x00", b"]]", b"\n}", b"NaN,", b'"\\ud800",'):
            body = raw[:at] + wrong + raw[at:]
            if not is_sound(body):  # within a string, some of them are
                yield body


def is_sound(body: bytes) -> bool:
    """Whether it is JSON, of characters that are whole."""
    try:
        json.dumps(json.loads(body.decode()), ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def wrapped(raw: bytes) -> Iterator[bytes]:
    """Something else around the body, or in its place."""
    yield from (b"[" + raw + b"]", raw + raw, raw + b",", b"\xef\xbb\xbf" + raw, raw.decode().encode("utf-16"))
    yield from (b"null", b"true", b"1", b'"a"', b"[]", b"{}", b"model=tiny", b"<a/>", b"[" * 5000, b'{"a":' * 5000)
    yield from (b'{"prompt": ' + b"9" * 5000 + b"}", b'{"seed": 1e999, "prompt": "a"}', b'{"n": Infinity}')


def misnamed(raw: bytes) -> Iterator[bytes]:
    """A field left out, twice, misspelt, or of another route."""
    body = json.loads(raw)
    for name in body:
        for other in (name.upper(), f"{name}s", f" {name}", name[:-1]):
            if other not in body:
                yield json.dumps({**{key: value for key, value in body.items() if key != name}, other: 1}).encode()
        yield raw[:-1] + f', "{name}": null}}'.encode()


@pytest.mark.parametrize("change", [cut, spoilt, wrapped, misnamed])
@pytest.mark.parametrize("path", VALID)
def test_bodies_that_are_broken_are_refused(
    serve: Serve, path: str, change: Callable[[bytes], Iterator[bytes]]
) -> None:
    served = serve()
    for body in change(json.dumps(VALID[path]).encode()):
        error = error_of(served.client.post(path, content=body), 400)
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) > 10
    assert served.engine.requests == []
