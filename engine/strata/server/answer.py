"""What the pieces of an answer add up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strata.request import FinishReason
from strata.server.job import Job, Piece
from strata.server.logprobs import ScoredToken
from strata.server.output.deltas import Arguments, Call, Content, Delta, Reasoning


@dataclass(slots=True)
class MadeCall:
    """A call of a tool that an answer makes."""

    call_id: str
    name: str
    texts: list[str] = field(default_factory=list)  # of the arguments

    @property
    def arguments(self) -> str:
        """All of them, as far as they have come."""
        return "".join(self.texts)


@dataclass(slots=True)
class Choice:
    """One choice, as far as it has come."""

    index: int
    texts: list[str]  # joined once, at the end
    reasoning: list[str] = field(default_factory=list)
    calls: list[MadeCall] = field(default_factory=list)
    finish_reason: str | None = None
    num_tokens: int = 0
    num_reasoning_tokens: int = 0  # up to the end of the reasoning
    num_cached_tokens: int = 0
    tokens: list[ScoredToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


@dataclass(slots=True)
class Answer:
    """What the pieces of a job add up to."""

    job: Job
    choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        echo = self.job.echo or [""] * len(self.job.requests)
        self.choices = [Choice(index, [text]) for index, text in enumerate(echo)]

    def add(self, piece: Piece) -> None:
        """Take in the next piece of one of the choices."""
        choice = self.choices[piece.choice]
        choice.texts.append(piece.text)
        choice.tokens += piece.tokens
        for delta in piece.deltas:
            self._take(choice, delta, piece.num_tokens)
        choice.finish_reason, choice.num_tokens = piece.finish_reason, piece.num_tokens
        choice.num_cached_tokens = piece.num_cached_tokens
        if choice.calls and piece.finish_reason is FinishReason.STOP:
            choice.finish_reason = "tool_calls"

    def _take(self, choice: Choice, delta: Delta, num_tokens: int) -> None:
        match delta:
            case Content(text):
                choice.texts.append(text)
            case Reasoning(text):
                choice.reasoning.append(text)
                choice.num_reasoning_tokens = num_tokens
            case Call(name):
                assert self.job.reading is not None, "only what is read has calls"
                choice.calls.append(MadeCall(self.job.reading.new_call_id(), name))
            case Arguments(text):
                choice.calls[-1].texts.append(text)

    def usage(self) -> dict[str, Any]:
        """OpenAI's token counts so far: each prompt once, the output of all choices."""
        prompt = self.job.num_prompt_tokens
        completion = sum(choice.num_tokens for choice in self.choices)
        cached = sum(c.num_cached_tokens for c in self.choices if self.job.is_first_of_prompt(c.index))
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if self.job.reading is not None:
            reasoning = sum(choice.num_reasoning_tokens for choice in self.choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage
