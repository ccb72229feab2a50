"""Conversations with tools, in the chat templates of the families, beside ``transformers`` on the same template."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers

from strata.server.messages import ChatMessage
from strata.server.template import ChatTemplate
from strata.server.tools import Tool
from tests.server.families import TEMPLATES

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a <city>, today & later.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["°C", "°F"]}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"city": "Zürich", "unit": "°C"}


def conversation(arguments: Any) -> list[dict[str, Any]]:
    """A question, the call that it led to, its result, an answer, and the next question."""
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it in Zürich?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": '{"degrees": 7.5}', "tool_call_id": "call00001"},
        {"role": "assistant", "content": "Cool."},
        {"role": "user", "content": "And now?"},
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of ``transformers`` that knows the special tokens, for its ``apply_chat_template``."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="</s>"))
    path = tmp_path_factory.mktemp("library") / "tokenizer.json"
    tokenizer.save(str(path))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **SPECIAL)


def render(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **variables: Any) -> str:
    """What Strata makes of an OpenAI request."""
    turns = [ChatMessage.model_validate(message).turn() for message in messages]
    shown = [Tool.model_validate(tool).turn for tool in tools]
    return ChatTemplate(source, SPECIAL, origin="test").render(turns, tools=shown, variables=variables)


def expected(library: Any, source: str, messages: list[dict[str, Any]], tools: Any = None, **variables: Any) -> Any:
    return library.apply_chat_template(
        messages, tools=tools, chat_template=source, add_generation_prompt=True, tokenize=False, **variables
    )


@pytest.mark.parametrize("family", [name for name in TEMPLATES if name != "deepseek"])  # which has no tools
def test_calls_and_results_reach_the_model_as_transformers_gives_them(library: Any, family: str) -> None:
    source = TEMPLATES[family]
    prompt = render(source, conversation(json.dumps(ARGUMENTS)), TOOLS)
    assert prompt == expected(library, source, conversation(ARGUMENTS), TOOLS)
    assert all(word in prompt for word in ("weather", "Zürich", "7.5", "now", "Cool."))


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_chat_without_tools_is_that_of_transformers(library: Any, family: str) -> None:
    messages = [turn for turn in conversation(ARGUMENTS) if turn["content"] and turn["role"] != "tool"]
    assert render(TEMPLATES[family], messages, []) == expected(library, TEMPLATES[family], messages)


@pytest.mark.parametrize(
    ("family", "variables", "words"),
    [
        ("qwen", {"enable_thinking": False}, "<think>\n\n</think>"),
        ("harmony", {"reasoning_effort": "high"}, "Reasoning: high"),
        ("llama", {"date_string": "1 May 2025"}, "Today: 1 May 2025"),
    ],
)
def test_a_variable_of_the_template_can_be_set(
    library: Any, family: str, variables: dict[str, Any], words: str
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    prompt = render(TEMPLATES[family], messages, [], **variables)
    assert prompt == expected(library, TEMPLATES[family], messages, **variables)
    assert words in prompt
    assert words not in render(TEMPLATES[family], messages, [])


@pytest.mark.parametrize(("family", "field"), [("qwen", "reasoning_content"), ("harmony", "thinking")])
def test_earlier_reasoning_goes_back_under_the_name_that_the_template_reads(
    library: Any, family: str, field: str
) -> None:
    ours, theirs = conversation(json.dumps(ARGUMENTS)), conversation(ARGUMENTS)
    ours[2]["reasoning_content"] = theirs[2][field] = "I must look."
    prompt = render(TEMPLATES[family], ours, TOOLS)
    assert prompt == expected(library, TEMPLATES[family], theirs, TOOLS)
    assert "I must look." in prompt


def test_arguments_that_are_no_object_go_back_as_they_came() -> None:
    """A call that was cut off must not make the rest of the conversation impossible."""
    assert '"arguments": {"city": "Zü}' in render(TEMPLATES["qwen"], conversation('{"city": "Zü'), TOOLS)
    assert '"arguments": {}}' in render(TEMPLATES["qwen"], conversation(""), TOOLS)


@pytest.mark.parametrize(
    ("family", "variables"),
    [
        ("qwen", {"enable_thinking"}),
        ("harmony", {"reasoning_effort"}),
        ("llama", {"date_string"}),
        ("mistral", set()),
        ("deepseek", set()),
    ],
)
def test_a_template_says_which_variables_it_takes(family: str, variables: set[str]) -> None:
    template = ChatTemplate(TEMPLATES[family], SPECIAL, origin="test")
    assert template.variables >= variables
    assert not template.variables & {
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "raise_exception",
        "namespace",
    }
    assert template.takes_tools == (family != "deepseek")
