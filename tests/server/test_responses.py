"""The Responses API: items in, items out, and the events in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.server.parse import parse
from strata.server.response_api.request import ResponseRequest
from tests.server.chats import ANSWERS, WEATHER, prompt_of
from tests.server.conftest import Serve, Served

TOOL = {"type": "function", **WEATHER["function"]}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
THOUGHT_AND_CALL = "<think>\nHm.\n</think>\n\n" + ANSWERS["qwen"]


@pytest.fixture
def qwen(serve: Serve, family_store: Callable[[str], Path]) -> Callable[..., Served]:
    """Serve a model that thinks and calls tools, and answers with a text."""
    return lambda text, **options: serve(text, directory=family_store("qwen"), **{"max_model_len": 2000, **options})


def respond(served: Served, **fields: Any) -> Any:
    response = served.client.post("/v1/responses", json={"input": "hello", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(served: Served, **fields: Any) -> list[dict[str, Any]]:
    text = served.client.post("/v1/responses", json={"input": "hello", "stream": True, **fields}).text
    events = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def refusal(served: Served, **fields: Any) -> dict[str, Any]:
    response = served.client.post("/v1/responses", json={"input": "hello", **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def without_ids(value: Any) -> Any:
    """An answer without what is new every time."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("id", "call_id", "created_at")}
    return value


def test_a_text_is_an_item(serve: Serve) -> None:
    response = respond(serve(), instructions="Be brief.", temperature=0.5, metadata={"a": "b"})
    (item,) = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}]
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "tiny")
    assert response["id"].startswith("resp-")
    assert (response["instructions"], response["temperature"], response["metadata"]) == ("Be brief.", 0.5, {"a": "b"})
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_the_prompt_is_that_of_the_same_chat(serve: Serve) -> None:
    served = serve()
    respond(served, instructions="Be brief.", input=[{"role": "user", "content": "hello"}])
    served.chat(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}])
    first, second = served.engine.requests
    assert first.prompt_token_ids == second.prompt_token_ids


def test_reasoning_text_and_calls_are_items(qwen: Callable[..., Served]) -> None:
    response = respond(qwen(THOUGHT_AND_CALL), tools=[TOOL])
    reasoning, message, *calls = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
    assert message["content"][0]["text"] == "So:"
    assert [(call["type"], call["name"], call["arguments"], call["status"]) for call in calls] == [
        ("function_call", "weather", '{"city": "Oslo"}', "completed"),
        ("function_call", "now", "{}", "completed"),
    ]
    assert len({item["id"] for item in response["output"]} | {call["call_id"] for call in calls}) == 6
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert response["tools"] == [{**TOOL, "strict": None}]


def test_a_stream_tells_the_same_event_by_event(qwen: Callable[..., Served]) -> None:
    served = qwen(THOUGHT_AND_CALL)
    events = events_of(served, tools=[TOOL])
    assert without_ids(events[-1]["response"]) == without_ids(respond(served, tools=[TOOL]))
    kinds = [event["type"].removeprefix("response.") for event in events]
    steps = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert steps == [
        *["created", "in_progress"],
        *[kind.replace("output_text", "reasoning_text") for kind in text],
        *["output_item.done", *text, "output_item.done", *call, *call, "completed"],
    ]
    for index, item in enumerate(events[-1]["response"]["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in mine} == {item["id"]}
        written = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(event.get("delta", "") for event in mine) == written
        assert mine[-1]["item"] == item


def test_an_answer_that_is_cut_off_is_incomplete(serve: Serve) -> None:
    served = serve()
    response = respond(served, max_output_tokens=1)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert events_of(served, max_output_tokens=1)[-1]["type"] == "response.incomplete"


def test_an_engine_that_fails_in_mid_stream_is_an_event(serve: Serve) -> None:
    def script(_: Any) -> Any:
        yield 70
        served.engine.fail("the engine process ended with signal 9")
        yield 70

    served = serve(script=script)
    event = events_of(served)[-1]
    assert (event["type"], event["code"]) == ("error", "engine_error")
    assert "signal 9" in event["message"]


def test_a_named_tool_and_a_form_hold_the_answer(qwen: Callable[..., Served]) -> None:
    served = qwen('{"city": "Oslo"}')
    response = respond(served, tools=[TOOL], tool_choice={"type": "function", "name": "weather"})
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["tool_choice"] == {"type": "function", "name": "weather"}
    schema = TOOL["parameters"]
    form = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
    response = respond(served, text={"format": form})
    assert response["output"][0]["content"][0]["text"] == '{"city": "Oslo"}'
    assert response["text"] == {"format": form}
    grammars = [request.sampling.grammar for request in served.engine.requests]
    assert [json.loads(grammar.text) for grammar in grammars if grammar is not None] == [schema, schema]


def test_an_answer_and_its_result_go_back_as_items(qwen: Callable[..., Served]) -> None:
    """The output of one response, with the results of its calls, is the input of the next."""
    served = qwen(THOUGHT_AND_CALL)
    output = respond(served, tools=[TOOL])["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "7"} for call in calls]
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}, *output, *results]
    respond(served, tools=[TOOL], input=items)
    assert prompt_of(served).endswith(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nSo:\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        pytest.param([{"role": "user", "content": "a"}], ["user"], id="a question"),
        pytest.param([{"role": "user", "content": "a"}, CALL, CALL], ["user", "assistant"], id="two calls, one answer"),
        pytest.param(
            [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            ["assistant", "assistant"],
            id="two messages stay two",
        ),
        pytest.param([{"type": "reasoning", "summary": []}], ["assistant"], id="a thought alone"),
        pytest.param(
            [CALL, {"type": "function_call_output", "call_id": "c1", "output": "7"}, CALL],
            ["assistant", "tool", "assistant"],
            id="a call behind a result",
        ),
    ],
)
def test_items_become_messages(items: list[Any], roles: list[str]) -> None:
    body = parse(ResponseRequest, json.dumps({"input": items}).encode())
    assert [message.role for message in body.chat.messages] == roles


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        pytest.param({"store": True}, "store", "nothing is kept", id="to be kept"),
        pytest.param({"previous_response_id": "r"}, "previous_response_id", "as 'input'", id="to go on"),
        pytest.param({"conversation": "c"}, "conversation", "as 'input'", id="a conversation that is kept"),
        pytest.param({"background": True}, "background", "not served", id="in the background"),
        pytest.param({"input": []}, "input", "at least one item", id="no input"),
        pytest.param({"input": 5}, "input", "5", id="a number"),
        pytest.param({"input": ["a"]}, "input[0]", "objects", id="no object"),
        pytest.param(
            {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "function_call_output", id="by name"
        ),
        pytest.param({"input": [{"role": "user"}]}, "input[0].content", "missing", id="no content"),
        pytest.param(
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "'input_image'",
            id="a picture",
        ),
        pytest.param(
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input[0].content[0].text",
            "valid string",
            id="a number for a text",
        ),
        pytest.param({"text": {"format": {"type": "text", "x": 1}}}, "text.format.x", "'x'", id="a nested name"),
        pytest.param({"guided_json": {}}, "guided_json", "'structured_outputs'", id="vLLM's older name"),
        pytest.param({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'", id="OpenAI's own tools"),
        pytest.param({"tool_choice": "required"}, "tool_choice", "no 'tools'", id="a choice of nothing"),
        pytest.param({"tool_choice": {"type": "function"}}, "tool_choice", '"required"', id="half a choice"),
        pytest.param({"max_output_tokens": 5000}, "max_output_tokens", "max-model-len", id="beyond the context"),
        pytest.param({"max_tokens": 5000}, "max_tokens", "'max_tokens' is 5000", id="beyond it by a chat's name"),
        pytest.param({"reasoning": {"effort": "vast"}}, "reasoning.effort", "'high'", id="an unknown effort"),
        pytest.param({"max_completion_tokens": 5}, "max_completion_tokens", "max_output_tokens", id="a chat's field"),
    ],
)
def test_what_is_not_served_is_named(
    qwen: Callable[..., Served], fields: dict[str, Any], param: str, words: str
) -> None:
    error = refusal(qwen("hello"), **fields)
    assert error["param"] == param
    assert words in error["message"]
