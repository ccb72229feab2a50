"""A conversation as one family's chat template takes it.

Templates are written for what their model answers, and refuse or lose the rest. Clients send back what they were given,
or bring conversations of other models; both must go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strata.server.messages import ChatMessage
from strata.server.output.formats import Formats

Turn = dict[str, Any]


def turns_of(messages: Sequence[ChatMessage], formats: Formats) -> list[Turn]:
    """The messages in the words of Hugging Face's templates."""
    turns: Iterable[Turn] = [message.turn(formats.fitting_id) for message in messages]
    if formats.has_single_calls:
        turns = _with_single_calls(list(turns))
    if formats.has_harmony:
        turns = map(_with_one_text, turns)
    return list(turns)


def _with_single_calls(turns: Sequence[Turn]) -> Iterator[Turn]:
    """A message for each call, its result behind it."""
    position = 0
    while position < len(turns):
        turn = turns[position]
        position += 1
        calls = turn.get("tool_calls", ())
        if len(calls) < 2:
            yield turn
            continue
        results = []
        while position < len(turns) and turns[position]["role"] == "tool":
            results.append(turns[position])
            position += 1
        for call in calls:
            yield {**turn, "tool_calls": [call]}
            turn = {"role": "assistant", "content": None}  # what was said and thought stands before the first
            yield from (result for result in results if result["tool_call_id"] == call.get("id"))
        ids = {call.get("id") for call in calls}
        yield from (result for result in results if result["tool_call_id"] not in ids)


def _with_one_text(turn: Turn) -> Turn:
    """Before a call, harmony's template takes content or reasoning, and both as reasoning."""
    if "tool_calls" not in turn or not turn.get("thinking") or not turn["content"]:
        return turn
    return {**turn, "content": None, "thinking": f"{turn['thinking']}\n{turn['content']}"}
