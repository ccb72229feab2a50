"""Calls that the request forces: what holds the answer, and how it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs

from tests.server.chats import NAMED, NOW, WEATHER, calls_of, chat, prompt_of, refusal
from tests.server.conftest import Serve, Served, write_store


def test_a_named_tool_holds_the_answer_to_its_arguments(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", ' {"city": "Oslo"}')
    choice = chat(served, tools=[WEATHER, NOW], tool_choice=NAMED)["choices"][0]
    assert calls_of(choice["message"]) == [("weather", {"city": "Oslo"})]
    assert choice["finish_reason"] == "tool_calls"
    grammar = served.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", WEATHER["function"]["parameters"])
    assert prompt_of(served).endswith('</think>\n\n<tool_call>\n{"name": "weather", "arguments":')


def test_a_required_call_names_one_of_the_tools(serve_family: Callable[..., Served]) -> None:
    served = serve_family("llama", '{"name": "now", "parameters": {}}')
    choice = chat(served, tools=[WEATHER, NOW], tool_choice="required")["choices"][0]
    assert calls_of(choice["message"]) == [("now", {})]
    grammar = served.engine.requests[0].sampling.grammar
    assert grammar is not None
    schema = json.loads(grammar.text)
    for name, arguments, is_valid in [
        ("weather", {"city": "Oslo", "days": 2}, True),
        ("weather", {"city": "Oslo", "days": 0}, False),
        ("weather", {}, False),
        ("now", {}, True),
        ("now", {"zone": 1}, False),
        ("other", {}, False),
    ]:
        validator = jsonschema_rs.Draft202012Validator(schema)
        assert validator.is_valid({"name": name, "parameters": arguments}) == is_valid, (name, arguments)


def test_of_a_single_tool_only_the_arguments_are_asked(serve_family: Callable[..., Served]) -> None:
    served = serve_family("mistral", "{}")
    choice = chat(served, tools=[NOW], tool_choice="required")["choices"][0]
    assert calls_of(choice["message"]) == [("now", {})]
    assert prompt_of(served).endswith('[TOOL_CALLS][{"name": "now", "arguments":')


def test_a_forced_call_ends_reasoning_that_the_prompt_has_begun(serve: Serve, tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}{{ '<think>\\n' }}"
    directory = write_store(tmp_path, template, ["<|endoftext|>", "<think>", "</think>"])
    served = serve("{}", directory=directory, max_model_len=2000)
    chat(served, tools=[NOW], tool_choice="required")
    assert prompt_of(served).endswith('<think>\n</think>\n\n<tool_call>\n{"name": "now", "arguments":')


def test_schemas_beyond_measure_are_refused(serve_family: Callable[..., Served]) -> None:
    properties = {f"{number:0>1000}": {"type": "string"} for number in range(70)}
    tool = {"type": "function", "function": {"name": "big", "parameters": {"properties": properties}}}
    error = refusal(serve_family("qwen", "{}", max_model_len=200_000), tools=[tool], tool_choice="required")
    assert (error["param"], "65536" in error["message"]) == ("tools", True)


def test_an_unknown_format_is_refused_unless_the_call_is_forced(serve: Serve, tmp_path: Path) -> None:
    template = "{{ tools | tojson }}{{ messages[0].content }}"
    served = serve("{}", directory=write_store(tmp_path, template, ["<|endoftext|>"]), max_model_len=2000)
    assert "--tool-call-parser" in refusal(served, tools=[NOW])["message"]
    message = chat(served, tools=[NOW], tool_choice="required")["choices"][0]["message"]
    assert calls_of(message) == [("now", {})]
