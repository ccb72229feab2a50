"""Chats with tools: what the model is shown, and what the client gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from strata.errors import RequestError
from strata.server.parse import parse
from strata.server.schemas import ChatRequest
from tests.server.chats import ANSWERS, HELLO, NAMED, NOW, WEATHER, calls_of, chat, deltas_of, prompt_of, refusal
from tests.server.conftest import Serve, Served, write_store


@pytest.mark.parametrize("family", ANSWERS)
def test_calls_of_every_family_come_out_alike(serve_family: Callable[..., Served], family: str) -> None:
    choice = chat(serve_family(family, ANSWERS[family]), tools=[WEATHER, NOW])["choices"][0]
    assert calls_of(choice["message"]) == [("weather", {"city": "Oslo"}), ("now", {})]
    assert choice["message"]["content"] == (None if family == "llama" else "So:")
    assert choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 for call_id in ids) == (family == "mistral")


@pytest.mark.parametrize("family", ANSWERS)
def test_a_stream_tells_the_same_in_pieces(serve_family: Callable[..., Served], family: str) -> None:
    deltas, reason = deltas_of(serve_family(family, ANSWERS[family]), tools=[WEATHER, NOW])
    content = "".join(delta.get("content") or "" for delta in deltas)
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    heads = [piece for piece in pieces if "id" in piece]
    assert [(head["index"], head["type"], head["function"]) for head in heads] == [
        (index, "function", {"name": name, "arguments": ""}) for index, name in enumerate(["weather", "now"])
    ]
    arguments = ["".join(p["function"]["arguments"] for p in pieces if p["index"] == index) for index in (0, 1)]
    assert [json.loads(text) for text in arguments] == [{"city": "Oslo"}, {}]
    assert len([piece for piece in pieces if piece["index"] == 0]) > 3, "arguments come in pieces"
    assert content == ("" if family == "llama" else "So:")
    assert reason == "tool_calls"


def test_the_model_sees_the_tools(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", "hello")
    chat(served, tools=[WEATHER, NOW])
    chat(served, tools=[WEATHER, NOW], tool_choice="none")
    with_tools, without = (prompt_of(served, index) for index in (0, 1))
    assert json.dumps(WEATHER) in with_tools
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    assert json.dumps({"type": "function", "function": {"name": "now", "parameters": empty}}) in with_tools
    assert "weather" not in without


def test_a_template_of_its_own_for_tools_is_used_for_them(serve: Serve, tmp_path: Path) -> None:
    store = write_store(tmp_path, "chat: {{ messages[0].content }}", ["<|endoftext|>"])
    config = json.loads((store / "tokenizer_config.json").read_text())
    config["tool_chat_template"] = "<tool_call> {{ tools | tojson }} {{ messages[0].content }}"
    (store / "tokenizer_config.json").write_text(json.dumps(config))
    served = serve('<tool_call>{"name": "now"}</tool_call>', directory=store, max_model_len=2000)
    assert calls_of(chat(served, tools=[NOW])["choices"][0]["message"]) == [("now", {})]
    assert prompt_of(served).startswith('<tool_call> [{"type": "function"')
    chat(served)
    assert prompt_of(served) == "chat: hello"


def test_without_tools_what_looks_like_a_call_is_text(serve_family: Callable[..., Served]) -> None:
    text = '<tool_call>{"name": "now"}</tool_call>'
    served = serve_family("qwen", text)
    for fields in ({}, {"tools": [NOW], "tool_choice": "none"}):
        choice = chat(served, **fields)["choices"][0]
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


def test_an_answer_without_calls_is_an_answer(serve_family: Callable[..., Served]) -> None:
    choice = chat(serve_family("qwen", "It is cold. "), tools=[WEATHER])["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "It is cold. ", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_an_answer_ends_behind_its_first_call_unless_calls_may_be_parallel(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", ANSWERS["qwen"])
    choice = chat(served, tools=[WEATHER, NOW], parallel_tool_calls=False)["choices"][0]
    assert calls_of(choice["message"]) == [("weather", {"city": "Oslo"})]
    assert choice["finish_reason"] == "tool_calls"
    assert served.engine.aborted == [served.engine.requests[0].request_id], "the rest is not generated"


def test_a_call_that_is_cut_off_says_so(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", ANSWERS["qwen"])
    choice = chat(served, tools=[WEATHER], max_tokens=45)["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Oslo"}'.startswith(call["function"]["arguments"])


def test_choices_have_calls_of_their_own(serve_family: Callable[..., Served]) -> None:
    choices = chat(serve_family("qwen", ANSWERS["qwen"]), tools=[WEATHER, NOW], n=2)["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_logprobs_come_with_the_deltas(serve_family: Callable[..., Served]) -> None:
    choice = chat(serve_family("qwen", ANSWERS["qwen"]), tools=[WEATHER, NOW], logprobs=True)["choices"][0]
    text = "".join(token["token"] for token in choice["logprobs"]["content"])
    assert text == ANSWERS["qwen"]


def test_ids_of_other_models_fit_a_template_that_counts_their_letters(serve_family: Callable[..., Served]) -> None:
    """Mistral's templates refuse ids that have not nine letters and digits; conversations may come from elsewhere."""
    served = serve_family("mistral", "hello")
    for call_id in ("call_0123456789abcdef", "a1b2c3d4e"):
        call = {"id": call_id, "type": "function", "function": {"name": "now", "arguments": "{}"}}
        turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        turns.append({"role": "tool", "tool_call_id": call_id, "content": "7"})
        chat(served, messages=[*HELLO, *turns], tools=[NOW])
    for index, is_kept in enumerate((False, True)):
        prompt = prompt_of(served, index)
        (call_id,) = re.findall('"id": "(.*?)"', prompt)
        assert f'"call_id": "{call_id}"' in prompt
        assert (call_id == "a1b2c3d4e") == is_kept


def test_answers_with_calls_are_as_the_api_describes_them(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", f"<think>Hm.</think>{ANSWERS['qwen']}")
    description = schemathesis.openapi.from_dict(served.client.get("/openapi.json").json())
    function = {"type": "function", **WEATHER["function"]}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"messages": HELLO, "tools": [WEATHER, NOW], "logprobs": True},
        "/v1/responses": {"input": "hello", "tools": [function], "text": {"format": {"type": "text"}}},
    }
    for path, body in bodies.items():
        description[path]["POST"].validate_response(served.client.post(path, json=body))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        pytest.param({"tool_choice": "required"}, "tool_choice", "no 'tools'", id="a choice of nothing"),
        pytest.param({"tools": [NOW], "tool_choice": NAMED}, "tool_choice", "the tools are: now", id="unknown name"),
        pytest.param({"tools": [NOW], "tool_choice": "any"}, "tool_choice", '"required"', id="unknown choice"),
        pytest.param({"tools": [NOW, NOW]}, "tools", "2 tools of the name 'now'", id="a name twice"),
        pytest.param({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'", id="OpenAI's own tools"),
        pytest.param({"tools": [{"type": "function"}]}, "tools[0].function", "missing", id="half a tool"),
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            '"a b"',
            id="a name with a space",
        ),
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            '"type" must be "object"',
            id="a list of arguments",
        ),
        pytest.param({"functions": [{"name": "now"}]}, "functions", "use 'tools'", id="the older field"),
        pytest.param({"function_call": {"name": "now"}}, "function_call", "use 'tool_choice'", id="the older choice"),
        pytest.param({"reasoning_effort": "vast"}, "reasoning_effort", "'high'", id="unknown effort"),
        pytest.param(
            {"chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs", "enable_thinking", id="no variable"
        ),
        pytest.param({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "'tools'", id="not a variable"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    serve_family: Callable[..., Served], fields: dict[str, Any], param: str, words: str
) -> None:
    error = refusal(serve_family("qwen", ANSWERS["qwen"]), **fields)
    assert error["param"] == param
    assert words in error["message"]


def test_a_form_of_the_answer_leaves_no_room_for_calls(serve_family: Callable[..., Served]) -> None:
    served, form = serve_family("qwen", "{}"), {"type": "json_object"}
    assert "tool_choice" in refusal(served, tools=[NOW], response_format=form)["message"]
    assert (
        chat(served, tools=[NOW], tool_choice="none", response_format=form)["choices"][0]["message"]["content"] == "{}"
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("depth", [70, 900, 100_000])
def test_a_schema_that_nests_without_end_is_refused(serve_family: Callable[..., Served], path: str, depth: int) -> None:
    schema = '{"a":' * depth + "{}" + "}" * depth
    function = f'"name": "f", "parameters": {schema}'
    body = {
        "/v1/chat/completions": f'{{"messages": [], "tools": [{{"type": "function", "function": {{{function}}}}}]}}',
        "/v1/responses": f'{{"input": "a", "tools": [{{"type": "function", {function}}}]}}',
    }[path].replace("[]", json.dumps(HELLO))
    response = serve_family("qwen", ANSWERS["qwen"]).client.post(path, content=body.encode())
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "levels" in message or "recursion" in message


def test_a_model_without_tools_says_so(serve: Serve) -> None:
    error = refusal(serve(), tools=[NOW])
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert chat(serve(), tools=[NOW], tool_choice="none")["choices"][0]["message"]["content"] == "hello world"


def test_arguments_of_an_earlier_call_may_have_any_form() -> None:
    def turn(arguments: str) -> Any:
        call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
        body = parse(ChatRequest, json.dumps({"messages": messages}).encode())
        return body.messages[1].turn()["tool_calls"][0]["function"]["arguments"]

    assert turn('{"a": [1]}') == {"a": [1]}
    assert turn("") == {}
    assert turn('{"a": ') == '{"a": '
    assert turn("[1]") == "[1]"
    with pytest.raises(RequestError):
        turn(None)  # type: ignore[arg-type]
