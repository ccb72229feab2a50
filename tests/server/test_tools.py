"""Chats with tools: what the model is shown, what holds its answer, and what the client gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from strata.errors import RequestError
from strata.server.parse import parse
from strata.server.schemas import ChatRequest
from tests.server.conftest import Serve, Served, write_store

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"days": {"type": "integer", "minimum": 1}},
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now", "strict": True}}
NAMED = {"type": "function", "function": {"name": "weather"}}
HELLO = [{"role": "user", "content": "hello"}]

# An answer with a call of each tool, as each family writes it; the first may stand behind text.
ANSWERS = {
    "qwen": 'So:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen_coder": "So:\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "llama": '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
    "mistral": 'So:[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>So:<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
    "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
}


@pytest.fixture
def serve_family(serve: Serve, family_store: Callable[[str], Path]) -> Callable[..., Served]:
    """Serve a model of a family that answers with a text."""

    def start(family: str, text: str = "", **options: Any) -> Served:
        return serve(text or ANSWERS[family], directory=family_store(family), **{"max_model_len": 2000, **options})

    return start


def chat(served: Served, **fields: Any) -> Any:
    response = served.chat(**fields)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(served: Served, **fields: Any) -> dict[str, Any]:
    response = served.chat(**fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def deltas_of(served: Served, **fields: Any) -> tuple[list[dict[str, Any]], str]:
    """The deltas of a stream, and its finish reason."""
    lines = [line.removeprefix("data: ") for line in served.chat(stream=True, **fields).text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    return [choice["delta"] for choice in choices], choices[-1]["finish_reason"]


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


# --- free choice


@pytest.mark.parametrize("family", ANSWERS)
def test_calls_of_every_family_come_out_alike(serve_family: Callable[..., Served], family: str) -> None:
    choice = chat(serve_family(family), tools=[WEATHER, NOW])["choices"][0]
    assert calls_of(choice["message"]) == [("weather", {"city": "Oslo"}), ("now", {})]
    assert choice["message"]["content"] == (None if family == "llama" else "So:")
    assert choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 for call_id in ids) == (family == "mistral")


@pytest.mark.parametrize("family", ANSWERS)
def test_a_stream_tells_the_same_in_pieces(serve_family: Callable[..., Served], family: str) -> None:
    deltas, reason = deltas_of(serve_family(family), tools=[WEATHER, NOW])
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


def prompt_of(served: Served, index: int = -1) -> str:
    model = served.service.model()
    detokenizer = model.detokenizer(model._tokenizer.added_tokens)
    return detokenizer.feed(served.engine.requests[index].prompt_token_ids)


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
    served = serve_family("qwen")
    choice = chat(served, tools=[WEATHER, NOW], parallel_tool_calls=False)["choices"][0]
    assert calls_of(choice["message"]) == [("weather", {"city": "Oslo"})]
    assert choice["finish_reason"] == "tool_calls"
    assert served.engine.aborted == [served.engine.requests[0].request_id], "the rest is not generated"


def test_a_call_that_is_cut_off_says_so(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen")
    choice = chat(served, tools=[WEATHER], max_tokens=45)["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Oslo"}'.startswith(call["function"]["arguments"])


def test_choices_have_calls_of_their_own(serve_family: Callable[..., Served]) -> None:
    choices = chat(serve_family("qwen"), tools=[WEATHER, NOW], n=2)["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_logprobs_come_with_the_deltas(serve_family: Callable[..., Served]) -> None:
    choice = chat(serve_family("qwen"), tools=[WEATHER, NOW], logprobs=True)["choices"][0]
    text = "".join(token["token"] for token in choice["logprobs"]["content"])
    assert text == ANSWERS["qwen"]


# --- forced calls


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
        validator = jsonschema.Draft202012Validator(schema)
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


# --- reasoning


def test_reasoning_is_a_field_of_its_own(serve_family: Callable[..., Served]) -> None:
    served = serve_family("qwen", "<think>\nLet me see.\n</think>\n\nIt is cold.")
    body = chat(served)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is cold.")
    details = body["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < body["usage"]["completion_tokens"]
    deltas, _ = deltas_of(served)
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Let me see."
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is cold."


def test_reasoning_that_the_prompt_begins_is_seen_too(serve_family: Callable[..., Served]) -> None:
    message = chat(serve_family("deepseek", "Hm.\n</think>\n\nCold."))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Cold.")


def test_harmony_shows_the_answer_alone(serve_family: Callable[..., Served]) -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Cold."
    message = chat(serve_family("harmony", text))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Cold.")


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("qwen", {"reasoning_effort": "none"}, "<think>\n\n</think>"),
        ("qwen", {"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>"),
        ("harmony", {"reasoning_effort": "high"}, "Reasoning: high"),
    ],
)
def test_reasoning_can_be_steered(
    serve_family: Callable[..., Served], family: str, fields: dict[str, Any], words: str
) -> None:
    served = serve_family(family, "hello")
    chat(served)
    chat(served, **fields)
    assert words not in prompt_of(served, 0)
    assert words in prompt_of(served, 1)


# --- refusals


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
    error = refusal(serve_family("qwen"), **fields)
    assert error["param"] == param
    assert words in error["message"]


def test_a_form_of_the_answer_leaves_no_room_for_calls(serve_family: Callable[..., Served]) -> None:
    served, form = serve_family("qwen", "{}"), {"type": "json_object"}
    assert "tool_choice" in refusal(served, tools=[NOW], response_format=form)["message"]
    assert (
        chat(served, tools=[NOW], tool_choice="none", response_format=form)["choices"][0]["message"]["content"] == "{}"
    )


@pytest.mark.parametrize(
    ("family", "text", "end"),
    [
        ("qwen", "{}", "<think>\n\n</think>\n\n"),
        ("deepseek", "{}", "<think>\n</think>\n\n"),
        ("harmony", "{}", "<|channel|>final<|message|>"),
    ],
)
def test_an_answer_in_a_given_form_has_no_reasoning_before_it(
    serve_family: Callable[..., Served], family: str, text: str, end: str
) -> None:
    served = serve_family(family, text)
    assert chat(served, response_format={"type": "json_object"})["choices"][0]["message"]["content"] == "{}"
    assert prompt_of(served).endswith(end)


def test_schemas_beyond_measure_are_refused(serve_family: Callable[..., Served]) -> None:
    properties = {f"{number:0>1000}": {"type": "string"} for number in range(70)}
    tool = {"type": "function", "function": {"name": "big", "parameters": {"properties": properties}}}
    error = refusal(serve_family("qwen", "{}", max_model_len=200_000), tools=[tool], tool_choice="required")
    assert (error["param"], "65536" in error["message"]) == ("tools", True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("depth", [70, 900, 100_000])
def test_a_schema_that_nests_without_end_is_refused(serve_family: Callable[..., Served], path: str, depth: int) -> None:
    schema = '{"a":' * depth + "{}" + "}" * depth
    function = f'"name": "f", "parameters": {schema}'
    body = {
        "/v1/chat/completions": f'{{"messages": [], "tools": [{{"type": "function", "function": {{{function}}}}}]}}',
        "/v1/responses": f'{{"input": "a", "tools": [{{"type": "function", {function}}}]}}',
    }[path].replace("[]", json.dumps(HELLO))
    response = serve_family("qwen").client.post(path, content=body.encode())
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "levels" in message or "recursion" in message


def test_a_model_without_tools_says_so(serve: Serve) -> None:
    error = refusal(serve(), tools=[NOW])
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert chat(serve(), tools=[NOW], tool_choice="none")["choices"][0]["message"]["content"] == "hello world"


def test_a_model_without_reasoning_refuses_an_effort(serve: Serve) -> None:
    assert refusal(serve(), reasoning_effort="low")["param"] == "reasoning_effort"
    assert "none" in refusal(serve(), chat_template_kwargs={"enable_thinking": False})["message"]


def test_an_effort_that_the_model_does_not_know_is_refused(serve_family: Callable[..., Served]) -> None:
    assert "low, medium, high" in refusal(serve_family("harmony"), reasoning_effort="minimal")["message"]


def test_an_unknown_format_is_refused_unless_the_call_is_forced(serve: Serve, tmp_path: Path) -> None:
    template = "{{ tools | tojson }}{{ messages[0].content }}"
    served = serve("{}", directory=write_store(tmp_path, template, ["<|endoftext|>"]), max_model_len=2000)
    assert "--tool-call-parser" in refusal(served, tools=[NOW])["message"]
    message = chat(served, tools=[NOW], tool_choice="required")["choices"][0]["message"]
    assert calls_of(message) == [("now", {})]


def test_arguments_of_an_earlier_call_may_have_any_form() -> None:
    def turn(arguments: str) -> Any:
        call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
        body = parse(ChatRequest, json.dumps({"messages": messages}).encode())
        return body.messages[1].turn["tool_calls"][0]["function"]["arguments"]

    assert turn('{"a": [1]}') == {"a": [1]}
    assert turn("") == {}
    assert turn('{"a": ') == '{"a": '
    assert turn("[1]") == "[1]"
    with pytest.raises(RequestError):
        turn(None)  # type: ignore[arg-type]
