"""Structured output: how it is asked for, and what reaches the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.errors import RequestError
from strata.request import Grammar
from strata.server.parse import parse
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from tests.server.conftest import Serve
from tests.server.test_app import error_of

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}
HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": HELLO, **fields}).encode())


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


AS_TEXT = json.dumps(SCHEMA, ensure_ascii=False)


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        pytest.param({}, None, id="nothing asked"),
        pytest.param({"response_format": {"type": "text"}}, None, id="any text"),
        pytest.param(
            {"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type": "object"}'), id="any object"
        ),
        pytest.param({"response_format": schema_format(SCHEMA)}, Grammar("json_schema", AS_TEXT), id="a schema"),
        pytest.param({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", AS_TEXT), id="vLLM's schema"),
        pytest.param({"structured_outputs": {"regex": "a|b"}}, Grammar("regex", "a|b"), id="a regular expression"),
        pytest.param(
            {"structured_outputs": {"choice": ["yes", 'say "ö"']}},
            Grammar("grammar", 'start: "yes" | "say \\"\\u00f6\\""'),
            id="choices",
        ),
        pytest.param(
            {"structured_outputs": {"grammar": 'root ::= "a"'}, "response_format": {"type": "text"}},
            Grammar("grammar", 'root ::= "a"'),
            id="a grammar",
        ),
    ],
)
def test_what_the_answer_must_match(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert chat(**fields).grammar == grammar
    assert parse(CompletionRequest, json.dumps({"prompt": "a", **fields}).encode()).grammar == grammar
    if "response_format" not in fields:
        assert parse(GenerateRequest, json.dumps({"prompt": "a", **fields}).encode()).grammar == grammar


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"response_format": "json"}, "response_format", id="a string for an object"),
        pytest.param({"response_format": {"type": "yaml"}}, "'json_schema'", id="an unknown type"),
        pytest.param({"response_format": {"type": "json_schema"}}, "missing", id="no schema"),
        pytest.param({"response_format": schema_format("a")}, "dictionary", id="a string for a schema"),
        pytest.param({"response_format": {"type": "text", "mood": 1}}, "'mood'", id="an unknown field"),
        pytest.param({"structured_outputs": {}}, "has 0 fields", id="nothing"),
        pytest.param({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "has 2 fields", id="two at once"),
        pytest.param({"structured_outputs": {"choice": []}}, "choice", id="no choices"),
        pytest.param({"structured_outputs": {"regex": "a" * 65_537}}, "65537 bytes; at most 65536", id="too long"),
        pytest.param({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "behind the end", id="without an end"),
        pytest.param(
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "both", id="said twice"
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert words in str(refused.value)


def test_it_reaches_the_engine_with_every_choice(serve: Serve) -> None:
    served = serve()
    assert served.chat(response_format=schema_format(SCHEMA), n=2, logprobs=True, stop="x").status_code == 200
    grammars = [request.sampling.grammar for request in served.engine.requests]
    assert grammars == [Grammar("json_schema", AS_TEXT)] * 2


@pytest.mark.parametrize("name", ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])
def test_the_older_spelling_is_told_the_newer(name: str) -> None:
    with pytest.raises(RequestError, match="'structured_outputs'") as refused:
        chat(**{name: "a"})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
    assert chat(**{name: None}).grammar is None


def test_a_forced_call_does_not_go_on_behind_its_end(serve: Serve, family_store: Callable[[str], Path]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    served = serve(directory=family_store("qwen"), max_model_len=2000)
    error = error_of(served.chat(tools=tools, tool_choice="required", ignore_eos=True), 400)
    assert error["param"] == "ignore_eos"


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_the_engine_refuses_is_a_bad_request(serve: Serve, stream: bool) -> None:
    served = serve()
    served.engine.reject_next(RequestError("the regular expression cannot be used: (", code="invalid_grammar"))
    error = error_of(served.chat(structured_outputs={"regex": "("}, stream=stream), 400)
    assert error["code"] == "invalid_grammar"
    assert served.metric("strata_requests_total", outcome="rejected") == 1
