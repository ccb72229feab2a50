"""What was answered goes back to the model, in every family."""

from __future__ import annotations

from typing import Any

import pytest

from strata.server.messages import ChatMessage
from strata.server.output.formats import Formats
from strata.server.turns import turns_of
from tests.server.chats import ANSWERS, HELLO, NOW, WEATHER, calls_of, chat, prompt_of
from tests.server.conftest import ServeFamily
from tests.server.families import TEMPLATES


@pytest.mark.parametrize("family", ANSWERS)
def test_an_answer_of_a_family_goes_back_to_it_with_its_results(serve_family: ServeFamily, family: str) -> None:
    served = serve_family(family, ANSWERS[family])
    message = chat(served, tools=[WEATHER, NOW])["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"{call['function']['name']} it is"}
        for call in message["tool_calls"]
    ]
    again = chat(served, messages=[*HELLO, message, *results], tools=[WEATHER, NOW])["choices"][0]["message"]
    assert calls_of(again) == calls_of(message)
    prompt = prompt_of(served)
    order = [prompt.rindex(text) for text in ("Oslo", "weather it is", "now it is")]
    assert order == sorted(order)
    if family == "harmony":
        assert "Hm.\nSo:" in prompt
        assert "functions.weather to=assistant" in prompt
        assert "functions.now to=assistant" in prompt


def turn(role: str, **fields: Any) -> Any:
    return ChatMessage.model_validate({"role": role, "content": None, **fields})


def call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": call_id, "arguments": "{}"}}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param("ab", ["a", "=a", "b", "=b"], id="in order"),
        pytest.param("ba", ["a", "=a", "b", "=b"], id="in another order"),
        pytest.param("b", ["a", "b", "=b"], id="one is missing"),
        pytest.param("abc", ["a", "=a", "b", "=b", "=c"], id="one belongs to none"),
        pytest.param("", ["a", "b"], id="none"),
    ],
)
def test_results_stand_behind_their_calls_where_a_message_has_one(results: str, expected: list[str]) -> None:
    formats = Formats.choose("auto", "auto", template=TEMPLATES["llama"], vocabulary=())
    messages = [
        turn("assistant", content="So:", tool_calls=[call("a"), call("b")]),
        *[turn("tool", content="7", tool_call_id=name) for name in results],
        turn("user", content="thanks"),
    ]
    turns = turns_of(messages, formats)
    told = [f"={t['tool_call_id']}" if t["role"] == "tool" else t["tool_calls"][0]["id"] for t in turns[:-1]]
    assert told == expected
    assert [t["content"] for t in turns if "tool_calls" in t] == ["So:", None]
    assert turns[-1]["content"] == "thanks"
