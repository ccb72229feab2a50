"""What tests of chats have in common: tools, answers as each family writes them, and what comes back."""

from __future__ import annotations

import json
from typing import Any

from tests.server.conftest import Served

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


def prompt_of(served: Served, index: int = -1) -> str:
    """The prompt of one of the engine's requests, special tokens by their names."""
    model = served.service.backend.model()
    detokenizer = model.detokenizer(model._tokenizer.added_tokens)
    return detokenizer.feed(served.engine.requests[index].prompt_token_ids)
