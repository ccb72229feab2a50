"""Reasoning: a field of its own, and how a request steers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.chats import chat, deltas_of, prompt_of, refusal
from tests.server.conftest import Serve, Served


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


def test_a_model_without_reasoning_refuses_an_effort(serve: Serve) -> None:
    assert refusal(serve(), reasoning_effort="low")["param"] == "reasoning_effort"
    assert "none" in refusal(serve(), chat_template_kwargs={"enable_thinking": False})["message"]


def test_an_effort_that_the_model_does_not_know_is_refused(serve_family: Callable[..., Served]) -> None:
    assert "low, medium, high" in refusal(serve_family("harmony", "hello"), reasoning_effort="minimal")["message"]
