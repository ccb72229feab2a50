"""A real model that must call tools, with the chat template of a family that can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest

from strata.store.locate import resolve
from tests.cli.conftest import running_server
from tests.server.families import TEMPLATES

pytestmark = pytest.mark.real

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA}}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time."}}
QUESTION: Any = {"role": "user", "content": "How warm is it in Paris?"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """SmolLM2's weights, which know nothing of tools, behind a template that shows them."""
    store, directory = resolve("builtin://smollm2-135m", "int4"), tmp_path_factory.mktemp("tools")
    for path in store.iterdir():
        (directory / path.name).symlink_to(path)
    config = json.loads((store / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATES["qwen"]}))
    log = tmp_path_factory.mktemp("serve") / "log"
    with (
        running_server(log, str(directory), "--max-model-len", "1024", "--served-model-name", "smol") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=300) as opened,
    ):
        yield opened


@pytest.mark.timeout(600)
def test_a_model_that_must_call_a_tool_fills_its_schema(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    choice = client.chat.completions.create(
        model="smol", messages=[QUESTION], tools=[WEATHER, NOW], tool_choice=named, temperature=0
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    jsonschema_rs.validate(SCHEMA, arguments)
    assert arguments["city"] == "Paris"


@pytest.mark.timeout(600)
def test_a_model_that_must_choose_calls_one_of_the_tools(client: openai.OpenAI) -> None:
    called = set()
    for seed in range(2):
        stream = client.chat.completions.create(
            model="smol",
            messages=[QUESTION],
            tools=[WEATHER, NOW],
            tool_choice="required",
            temperature=2,
            seed=seed,
            stream=True,
        )
        name = arguments = ""
        for chunk in stream:
            for piece in chunk.choices[0].delta.tool_calls or ():
                assert piece.index == 0
                assert piece.function is not None
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
        jsonschema_rs.validate(
            SCHEMA if name == "weather" else {"type": "object", "maxProperties": 0}, json.loads(arguments)
        )
        called.add(name)
    assert called <= {"weather", "now"}


@pytest.mark.timeout(600)
def test_a_response_calls_the_only_tool(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "strict": True, **WEATHER["function"]}
    response = client.responses.create(
        model="smol", input="How warm is it in Paris?", tools=[tool], tool_choice="required", temperature=0
    )
    (call,) = response.output
    assert call.type == "function_call"
    jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))
