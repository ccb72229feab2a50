"""An admitted request, and what its answer is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strata.request import FinishReason, GenerationRequest
from strata.server.logprobs import ScoredToken
from strata.server.output.deltas import Arguments, Call, Content, Delta, Reasoning
from strata.server.reading import Reading


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted request: one generation for each choice of its answer.

    requests: by the index of their choice; those of one prompt follow each other. num_choices: for each prompt.
    model_name: as the request called it. echo: what stands before each choice's text; empty without it.
    warnings: what the client should know of its request. reading: how texts become reasoning, content and calls; None
    where all of them are content. arrived: seconds of ``time.perf_counter()``.
    """

    job_id: str
    requests: tuple[GenerationRequest, ...]
    model_name: str
    arrived: float
    num_choices: int = 1
    stop_strings: tuple[str, ...] = ()
    echo: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reading: Reading | None = None

    def is_first_of_prompt(self, index: int) -> bool:
        """Whether the choice is the one with which its prompt is counted."""
        return index % self.num_choices == 0

    @property
    def wants_logprobs(self) -> bool:
        """Whether pieces have the tokens of their text."""
        return self.requests[0].sampling.logprobs is not None

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, each counted once however many choices it has."""
        return sum(len(request.prompt_token_ids) for request in self.requests[:: self.num_choices])


class Piece(NamedTuple):
    """New text of one choice, named by its index. The last one of a choice has a finish reason."""

    choice: int
    text: str
    finish_reason: FinishReason | None
    num_tokens: int  # of the choice, generated so far
    num_cached_tokens: int = 0  # of its prompt
    tokens: tuple[ScoredToken, ...] = ()  # of the text, where logprobs are wanted
    deltas: tuple[Delta, ...] = ()  # what the text says, where it is read; ``text`` is empty then


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
