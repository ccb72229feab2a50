"""Request bodies: what is accepted, and what the refusal of everything else says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from strata.errors import RequestError
from strata.server.body import Body
from strata.server.parse import parse
from strata.server.response_api.request import ResponseRequest
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from strata.server.tokens import DetokenizeRequest, TokenizeRequest
from tests.server.conftest import Serve

HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[type[Body], dict[str, Any]] = {
    ChatRequest: {"messages": HELLO},
    CompletionRequest: {"prompt": "a"},
    ResponseRequest: {"input": "a"},
    GenerateRequest: {"prompt": "a"},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": HELLO, **fields}).encode())


def refusal(schema: Any, body: Any) -> RequestError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError) as caught:
        parse(schema, raw)
    return caught.value


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        pytest.param(b"", "invalid_json", "line 1, column 1", id="empty"),
        pytest.param(b'{"a": ', "invalid_json", "line 1, column 7", id="cut off"),
        pytest.param(b"[1]", "invalid_value", "must be a JSON object", id="not an object"),
        pytest.param(b'{"prompt": "\xff"}', "invalid_encoding", "0xff at offset 12", id="not UTF-8"),
        pytest.param(b'{"prompt": "a", "temperature": NaN}', "invalid_json", "NaN", id="a constant of JavaScript"),
        pytest.param(b'{"prompt": "\\ud800"}', "invalid_json", "surrogate", id="half a character"),
        pytest.param(b'{"seed": 1, "seed": 2}', "invalid_json", 'the key "seed" stands twice', id="a key twice"),
        pytest.param(b"[" * 100_000, "invalid_json", "recursion", id="nested beyond reading"),
        pytest.param(b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json", "digits", id="a number beyond reading"),
    ],
)
def test_a_body_that_cannot_be_read_says_where(body: bytes, code: str, words: str) -> None:
    error = refusal(GenerateRequest, body)
    assert error.code == code
    assert words in str(error)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        pytest.param("max_tokens", 0, "1 or more", id="no tokens"),
        pytest.param("max_tokens", -5, "1 or more", id="fewer than none"),
        pytest.param("max_tokens", "7", '"7"', id="a string for a number"),
        pytest.param("max_tokens", True, "true", id="true is no number"),
        pytest.param("max_tokens", 1.5, "1.5", id="half a token"),
        pytest.param("max_completion_tokens", 0, "1 or more", id="the newer name"),
        pytest.param("temperature", 2.5, "from 0 (greedy) to 2", id="too hot"),
        pytest.param("temperature", -0.1, "from 0 (greedy) to 2", id="below zero"),
        pytest.param("top_p", 0, "above 0, up to 1", id="no probability left"),
        pytest.param("top_p", 1.01, "above 0, up to 1", id="more than all"),
        pytest.param("top_k", -2, "0 or -1 is off", id="fewer than off"),
        pytest.param("repetition_penalty", 0, "from 0.01 to 100", id="a divisor of zero"),
        pytest.param("repetition_penalty", 1e-38, "from 0.01 to 100", id="a divisor that overflows"),
        pytest.param("repetition_penalty", 101, "from 0.01 to 100", id="a factor that overflows"),
        pytest.param("seed", 2**63, "64-bit", id="a seed of 65 bits"),
        pytest.param("min_p", 1.1, "from 0 (off) to 1", id="more than the likeliest"),
        pytest.param("min_p", -0.1, "from 0 (off) to 1", id="less than nothing"),
        pytest.param("presence_penalty", 2.1, "from -2 to 2", id="presence too high"),
        pytest.param("frequency_penalty", -2.1, "from -2 to 2", id="frequency too low"),
        pytest.param("frequency_penalty", "1", "from -2 to 2", id="a string for a penalty"),
        pytest.param("logit_bias", {"5": 101}, "from -100 to 100", id="a bias too high"),
        pytest.param("logit_bias", {"five": 1}, "token ids", id="a word for a token id"),
        pytest.param("logit_bias", {"-1": 1}, "token ids", id="a token id below zero"),
        pytest.param("logit_bias", {"05": 1}, "token ids", id="a token id written oddly"),
        pytest.param("logit_bias", {str(i): 1 for i in range(1025)}, "up to 1024", id="too many biases"),
        pytest.param("logit_bias", [1], "an object", id="a list for an object"),
        pytest.param("logprobs", 1, "true or false", id="a number of a completion's"),
        pytest.param("top_logprobs", 21, "from 0 to 20", id="too many likely tokens"),
        pytest.param("priority", 2**31, "a whole number from -2147483647 to 2147483647", id="a priority of 33 bits"),
        pytest.param("timeout", 0, "above 0", id="no time"),
        pytest.param("timeout", 86_401, "up to 86400", id="more than a day"),
        pytest.param("n", 0, "from 1 to 16", id="no choices"),
        pytest.param("n", 17, "from 1 to 16", id="too many choices"),
        pytest.param("n", True, "from 1 to 16", id="true is not 1"),
        pytest.param("stop", ["a"] * 5, "up to 4", id="five stop strings"),
        pytest.param("stop", "", "none of them empty", id="a stop string that is everywhere"),
        pytest.param("stop", [1], "a string", id="a number as stop string"),
        pytest.param("messages", [], "at least one message", id="no messages"),
        pytest.param("messages", "hello", "list", id="a string for messages"),
        pytest.param("stream", "yes", "boolean", id="a string for a switch"),
        pytest.param("stop_token_ids", ["a"], '"a"', id="a string for a token"),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(field: str, value: Any, words: str) -> None:
    error = refusal(ChatRequest, {"messages": HELLO, field: value})
    assert error.code == "invalid_value"
    assert error.param is not None
    assert error.param.startswith(field)
    assert words in str(error)


@pytest.mark.parametrize(
    ("message", "place", "words"),
    [
        pytest.param({"role": "robot", "content": "a"}, ".role", "'user'", id="unknown role"),
        pytest.param({"role": "user"}, ".content", "no content", id="no content"),
        pytest.param({"role": "user", "content": None}, ".content", "null", id="null content"),
        pytest.param({"role": "user", "content": [{"type": "image_url"}]}, ".content", "image_url", id="a picture"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": 5}]}, ".content[0].text", "string", id="no text"
        ),
        pytest.param({"role": "user", "content": [{"type": "text"}]}, ".content[0].text", "missing", id="half a part"),
        pytest.param({"role": "user", "content": "a", "mood": "x"}, ".mood", "tool_calls", id="unknown field"),
        pytest.param({"role": "assistant", "content": "a", "audio": {}}, ".audio", "not served", id="not served"),
        pytest.param({"role": "tool", "content": "a"}, ".tool_call_id", "tool_call_id", id="a result of no call"),
        pytest.param({"role": "function", "content": "a"}, ".role", "use 'tool'", id="the older name of tools"),
        pytest.param(
            {"role": "user", "content": "a", "tool_calls": [CALL]},
            ".tool_calls",
            "only 'assistant'",
            id="a user's call",
        ),
        pytest.param(
            {"role": "assistant", "content": "a", "tool_calls": [{}]}, ".tool_calls[0].function", "function", id="half"
        ),
        pytest.param("hello", "", "hello", id="no object"),
    ],
)
def test_a_bad_message_is_named(message: Any, place: str, words: str) -> None:
    error = refusal(ChatRequest, {"messages": [*HELLO, message]})
    assert error.param == f"messages[1]{place}"
    assert words in str(error)


@pytest.mark.parametrize(
    ("fields", "place", "code"),
    [
        pytest.param({"response_format": {"type": "text", "x": 1}}, ".x", "unknown_parameter", id="of a member"),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}, "x": 1}},
            ".x",
            "unknown_parameter",
            id="of the member that is called like a field",
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "x": 1}}},
            ".json_schema.x",
            "unknown_parameter",
            id="of that field",
        ),
        pytest.param(
            {"response_format": {"type": "json_schema"}}, ".json_schema", "missing_required_parameter", id="missing"
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            ".json_schema.name",
            "missing_required_parameter",
            id="missing within",
        ),
        pytest.param({"structured_outputs": {}}, "", "invalid_value", id="an object that says nothing"),
        pytest.param({"structured_outputs": {"json": 1}}, ".json", "invalid_value", id="a value"),
        pytest.param({"stream_options": {"x": 1}}, ".x", "unknown_parameter", id="a name"),
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "f", "{field}": 1}}]},
            "[0].function.{field}",
            "unknown_parameter",
            id="a name in braces",
        ),
    ],
)
def test_what_is_wrong_within_a_field_is_named_by_its_place(fields: dict[str, Any], place: str, code: str) -> None:
    error = refusal(ChatRequest, {"messages": HELLO, **fields})
    assert (error.param, error.code) == (next(iter(fields)) + place, code)


def test_a_response_is_checked_as_a_chat_while_it_is_read() -> None:
    """Long bodies are read in a thread; what is left for later would hold up every stream."""
    body = {"input": "a", "max_tokens": 5, "max_output_tokens": 6}
    error = refusal(ResponseRequest, body)
    assert str(error).startswith("'max_tokens' is 5 and 'max_output_tokens' is 6")
    assert error.param == "max_output_tokens"
    form = {"type": "json_schema", "name": "n", "schema": {"description": "x" * (64 << 10)}}
    error = refusal(ResponseRequest, {"input": "a", "text": {"format": form}})
    assert str(error).startswith("'text.format' has")
    assert error.param == "text.format"


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest, ResponseRequest])
def test_stream_options_need_a_stream(schema: type[Body]) -> None:
    parse(schema, json.dumps({**BODIES[schema], "stream": True, "stream_options": {}}).encode())
    assert refusal(schema, {**BODIES[schema], "stream_options": {}}).param == "stream_options"


@pytest.mark.parametrize("schema", BODIES)
def test_every_generation_takes_an_older_name_that_says_nothing(schema: type[Body]) -> None:
    parse(schema, json.dumps({**BODIES[schema], "guided_json": None}).encode())
    assert "'structured_outputs'" in str(refusal(schema, {**BODIES[schema], "guided_json": {}}))


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    error = refusal(ChatRequest, {"messages": HELLO, "max_token": 5})
    assert error.param == "max_token"
    assert "max_tokens" in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("store", True),
        ("store", 0),  # 0 is not JSON's false
    ],
)
def test_what_is_not_served_is_refused_by_name(field: str, value: Any) -> None:
    error = refusal(ChatRequest, {"messages": HELLO, field: value})
    assert error.param == field
    assert error.code == "unsupported_parameter"
    assert f"'{field}' is not served; " in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"n": 1, "stop": [], "stream": None}, id="of the answer"),
        pytest.param({"tools": [], "tool_choice": "none", "parallel_tool_calls": True}, id="of tools"),
        pytest.param({"response_format": {"type": "text"}, "modalities": ["text"]}, id="of its form"),
        pytest.param({"presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": None}, id="of sampling"),
        pytest.param({"logprobs": False, "top_logprobs": 0, "store": False}, id="of what comes beside it"),
        pytest.param({"user": "u", "metadata": {"a": "b"}, "service_tier": "auto"}, id="without effect"),
        pytest.param({"safety_identifier": "s", "prompt_cache_key": "k", "prediction": {}}, id="without effect, too"),
    ],
)
def test_what_asks_for_nothing_changes_nothing(serve: Serve, fields: dict[str, Any]) -> None:
    model = serve().service.backend.model()
    bare, body = chat(), chat(**fields)
    assert model.open_chat(body) == model.open_chat(bare)
    assert model.sampling(body, 5, param="messages") == model.sampling(bare, 5, param="messages")
    assert (body.num_choices, body.stop_strings, body.include_usage) == (1, (), False)


def test_an_answer_may_be_sent_back_as_a_message() -> None:
    """OpenAI's client dumps its message objects with every field."""
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
        "audio": None,
    }
    assert chat(messages=[*HELLO, answer]).messages[1].text == "hi"


def test_text_parts_become_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].text == "a\nb"


def test_both_names_of_the_token_limit_work_unless_they_differ() -> None:
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_completion_tokens=6).token_limit == 6
    assert chat(max_tokens=7, max_completion_tokens=7).token_limit == 7
    error = refusal(ChatRequest, {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6})
    assert "5" in str(error)
    assert "6" in str(error)


def test_usage_comes_at_the_end_of_a_stream_that_asks_for_it() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage


def test_top_logprobs_need_logprobs() -> None:
    assert chat(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(top_logprobs=0).num_logprobs is None
    assert refusal(ChatRequest, {"messages": HELLO, "top_logprobs": 3}).param == "top_logprobs"


def test_completions_have_up_to_five_logprobs_and_none_of_an_echo() -> None:
    assert parse(CompletionRequest, b'{"prompt": "a", "logprobs": 5}').num_logprobs == 5
    assert "0 (the token alone) to 5" in str(refusal(CompletionRequest, {"prompt": "a", "logprobs": 6}))
    assert refusal(CompletionRequest, {"prompt": "a", "logprobs": 0, "echo": True}).param == "echo"


def test_stop_is_a_string_or_a_list() -> None:
    assert chat(stop="a").stop_strings == ("a",)
    assert chat(stop=["a", "b"]).stop_strings == ("a", "b")
    assert chat().stop_strings == ()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("text", ["text"], id="a string"),
        pytest.param([1, 2], [[1, 2]], id="token ids"),
        pytest.param(["text"], ["text"], id="a list of one string"),
        pytest.param([[1, 2]], [[1, 2]], id="a list of one list of ids"),
        pytest.param(["a", "b"], ["a", "b"], id="two strings"),
        pytest.param([[1], [2, 3]], [[1], [2, 3]], id="two lists of ids"),
    ],
)
def test_a_prompt_is_a_text_or_its_tokens_or_several(prompt: Any, expected: Any) -> None:
    assert parse(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompts == expected


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        pytest.param(["a"] * 129, "129 answers; one request may ask for 128", id="too many"),
        pytest.param("", "none of them empty", id="empty"),
        pytest.param([], "none of them empty", id="no tokens"),
        pytest.param(["a", ""], "none of them empty", id="an empty one of two"),
        pytest.param([1.5], "list of token ids", id="no whole numbers"),
        pytest.param({"a": 1}, "list of token ids", id="an object"),
        pytest.param(None, "null", id="null"),
    ],
)
def test_any_other_prompt_is_refused(prompt: Any, words: str) -> None:
    assert words in str(refusal(CompletionRequest, {"prompt": prompt}))


def test_generate_takes_one_prompt() -> None:
    assert "/v1/completions several" in str(refusal(GenerateRequest, {"prompt": ["a", "b"]}))


@pytest.mark.parametrize("n", [None, 1, 3])
def test_best_of_is_n(n: int | None) -> None:
    body = {"prompt": "a", "n": n}
    assert parse(CompletionRequest, json.dumps(body | {"best_of": n}).encode()).num_choices == (n or 1)
    assert refusal(CompletionRequest, body | {"best_of": 4}).param == "best_of"


def test_long_values_are_cut_in_messages() -> None:
    assert len(str(refusal(ChatRequest, {"messages": "x" * 10_000}))) < 300


@pytest.mark.parametrize(
    ("schema", "body", "place"),
    [
        pytest.param(ChatRequest, {"prompt": "hello"}, "/v1/completions", id="a text for a chat"),
        pytest.param(CompletionRequest, {"messages": HELLO}, "/v1/chat/completions", id="a chat for a text"),
    ],
)
def test_what_belongs_to_the_other_route_is_sent_there(schema: type[Body], body: dict[str, Any], place: str) -> None:
    error = refusal(schema, body)
    assert (error.code, error.param) == ("unsupported_parameter", next(iter(body)))
    assert place in str(error)


@pytest.mark.parametrize(
    ("schema", "field", "item", "around"),
    [
        (ChatRequest, "messages", 1, {}),
        (ChatRequest, "messages", {"role": "user", "content": [{"type": "text"}] * 100}, {}),
        (ChatRequest, "messages", {"role": "assistant", "content": "", "tool_calls": [1] * 100}, {}),
        (ChatRequest, "tools", 1, {}),
        (ChatRequest, "stop_token_ids", "x", {}),
        (TokenizeRequest, "messages", 1, {}),
        (DetokenizeRequest, "tokens", "x", {}),
        (ResponseRequest, "tools", 1, {"input": "a"}),
    ],
)
def test_many_wrong_items_are_one_complaint(schema: type[Body], field: str, item: Any, around: dict[str, Any]) -> None:
    """Each complaint holds up the other requests while it is written."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate({field: [item] * 100, **around})
    about = [error for error in caught.value.errors() if error["loc"][0] == field]
    assert 1 <= len(about) < 5


def test_many_biases_are_counted_before_they_are_read() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"logit_bias": {str(token): "x" for token in range(2000)}})
    assert sum(error["loc"][0] == "logit_bias" for error in caught.value.errors()) == 1
