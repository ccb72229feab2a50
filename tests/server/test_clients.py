"""The real client packages, unmodified, over a real socket: OpenAI's for Python, LangChain, LiteLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel, SecretStr

from tests.server.conftest import Answering, Live

QUESTION = "How is the weather in Oslo?"
THOUGHT = "<think>\nI must look.\n</think>\n\n"
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
ARGUMENTS = {"city": "Oslo", "days": 2}
ANSWER = "It is cold in Oslo, 7 °C."


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    days: int


WEATHER = Weather(city="Oslo", days=2)
SCHEMA = Weather.model_json_schema()
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
RESPONSE_TOOL: Any = {"type": "function", "strict": True, **TOOL["function"]}


@pytest.fixture
def client() -> Iterator[Callable[[Live], openai.OpenAI]]:
    """OpenAI's client of a server."""
    opened: list[openai.OpenAI] = []

    def start(running: Live) -> openai.OpenAI:
        opened.append(openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


Client = Callable[[Live], openai.OpenAI]


# --- OpenAI: chats


def test_openai_goes_through_a_call_and_its_result(answering: Answering, client: Client) -> None:
    running = answering(THOUGHT + CALL, ANSWER)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    opened = client(running)
    first = opened.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert (first.message.content, first.message.to_dict()["reasoning_content"]) == ("Let me see.", "I must look.")
    (call,) = first.message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == ARGUMENTS
    # The client's own object goes back as it is.
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "7 °C"}]
    second = opened.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0]
    assert (second.message.content, second.finish_reason) == (ANSWER, "stop")
    prompt = running.service.backend.model().decode(running.engine.requests[1].prompt_token_ids)
    assert '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}' in prompt
    assert "7 °C" in prompt


def test_openais_stream_helper_puts_a_call_together(answering: Answering, client: Client) -> None:
    with client(answering(CALL)).chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": QUESTION}], tools=[openai.pydantic_function_tool(Weather)]
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    pieces = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert json.loads("".join(pieces)) == ARGUMENTS
    assert len(pieces) > 3
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls or []
    assert json.loads(call.function.arguments) == ARGUMENTS


def test_openai_parses_answers_and_forced_calls_into_its_types(answering: Answering, client: Client) -> None:
    running = answering(json.dumps(ARGUMENTS), json.dumps(ARGUMENTS))
    opened = client(running)
    question: list[Any] = [{"role": "user", "content": QUESTION}]
    answer = opened.chat.completions.parse(model="tiny", messages=question, response_format=Weather)
    assert answer.choices[0].message.parsed == WEATHER
    forced = opened.chat.completions.parse(
        model="tiny", messages=question, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required"
    )
    (call,) = forced.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == WEATHER
    for request in running.engine.requests:
        assert request.sampling.grammar is not None
        assert set(json.loads(request.sampling.grammar.text)["properties"]) == {"city", "days"}


def test_the_example_in_the_guide_works(answering: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    running = answering(THOUGHT + CALL, ANSWER)
    here = example.replace("http://127.0.0.1:8000", running.url).replace('"qwen3"', '"tiny"')
    scope: dict[str, Any] = {}
    exec(here, scope)
    scope["client"].close()
    assert capsys.readouterr().out == f"{ANSWER}\n"
    assert len(running.engine.requests) == 2


# --- OpenAI: responses


def test_openai_goes_through_a_response_and_the_result_of_its_call(answering: Answering, client: Client) -> None:
    opened = client(answering(THOUGHT + CALL, ANSWER))
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    first = opened.responses.create(model="tiny", instructions="Be brief.", input=items, tools=[RESPONSE_TOOL])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == ARGUMENTS
    items += first.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "7 °C"})
    second = opened.responses.create(model="tiny", input=items, tools=[RESPONSE_TOOL])
    assert (second.output_text, second.status) == (ANSWER, "completed")
    assert second.usage is not None
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens


def test_openais_stream_helper_follows_a_response(answering: Answering, client: Client) -> None:
    with client(answering(THOUGHT + CALL)).responses.stream(
        model="tiny", input=QUESTION, tools=[RESPONSE_TOOL]
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()

    def joined(kind: str) -> str:
        return "".join(str(getattr(event, "delta", "")) for event in events if event.type == kind)

    assert joined("response.reasoning_text.delta") == "I must look."
    assert joined("response.output_text.delta") == "Let me see." == final.output_text
    assert json.loads(joined("response.function_call_arguments.delta")) == ARGUMENTS
    assert final.output[-1].type == "function_call"


def test_openai_parses_a_response_into_its_types(answering: Answering, client: Client) -> None:
    response = client(answering(json.dumps(ARGUMENTS))).responses.parse(
        model="tiny", input=QUESTION, text_format=Weather
    )
    assert response.output_parsed == WEATHER


def test_openai_raises_its_own_error_for_what_is_not_kept(answering: Answering, client: Client) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing is kept between requests") as caught:
        client(answering()).responses.create(model="tiny", input=QUESTION, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


# --- LangChain


def langchain(running: Live, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    url = f"{running.url}/v1"
    return ChatOpenAI(model="tiny", base_url=url, api_key=SecretStr("none"), max_retries=0, **options)


@pytest.mark.parametrize("use_responses_api", [False, True], ids=["chats", "responses"])
def test_langchain_goes_through_a_call_and_its_result(answering: Answering, use_responses_api: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain(answering(CALL, ANSWER), use_responses_api=use_responses_api).bind_tools([TOOL])
    messages: list[Any] = [HumanMessage(QUESTION)]
    messages.append(model.invoke(messages))
    (call,) = messages[-1].tool_calls
    assert (call["name"], call["args"]) == ("weather", ARGUMENTS)
    messages.append(ToolMessage("7 °C", tool_call_id=call["id"]))
    assert model.invoke(messages).text == ANSWER


@pytest.mark.parametrize("use_responses_api", [False, True], ids=["chats", "responses"])
def test_langchain_streams_a_call(answering: Answering, use_responses_api: bool) -> None:
    options = {} if use_responses_api else {"stream_usage": True}
    model = langchain(answering(CALL), use_responses_api=use_responses_api, **options).bind_tools([TOOL])
    whole: Any = None
    for chunk in model.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", ARGUMENTS)]
    assert whole.text == "Let me see."
    assert whole.usage_metadata["total_tokens"] > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_gets_its_structures(answering: Answering, method: str) -> None:
    model = langchain(answering(json.dumps(ARGUMENTS))).with_structured_output(Weather, method=method)
    assert model.invoke(QUESTION) == WEATHER


# --- LiteLLM


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import asks the network for prices
    import litellm

    return litellm


def test_litellm_goes_through_a_call_and_its_result(answering: Answering, litellm: Any) -> None:
    running = answering(THOUGHT + CALL, ANSWER)
    target = {"model": "openai/tiny", "api_base": f"{running.url}/v1", "api_key": "none", "num_retries": 0}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    message = litellm.completion(messages=messages, tools=[TOOL], **target).choices[0].message
    assert message.reasoning_content == "I must look."
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "7 °C"}]
    assert litellm.completion(messages=messages, tools=[TOOL], **target).choices[0].message.content == ANSWER


def test_litellm_streams_a_call(answering: Answering, litellm: Any) -> None:
    running = answering(CALL)
    chunks = list(
        litellm.completion(
            model="openai/tiny",
            api_base=f"{running.url}/v1",
            api_key="none",
            messages=[{"role": "user", "content": QUESTION}],
            tools=[TOOL],
            stream=True,
        )
    )
    whole = litellm.stream_chunk_builder(chunks).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Let me see."
    assert json.loads(whole.message.tool_calls[0].function.arguments) == ARGUMENTS


def test_litellm_raises_its_own_errors(answering: Answering, litellm: Any) -> None:
    with pytest.raises(litellm.BadRequestError, match="no 'tools'"):
        litellm.completion(
            model="openai/tiny",
            api_base=f"{answering().url}/v1",
            api_key="none",
            messages=[{"role": "user", "content": QUESTION}],
            tool_choice="required",
        )
