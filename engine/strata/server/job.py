"""An admitted request, and the pieces in which its answer comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strata.request import FinishReason, GenerationRequest
from strata.server.logprobs import ScoredToken
from strata.server.output.deltas import Delta
from strata.server.reading import Reading
from strata.server.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted request: one generation for each choice of its answer.

    requests: by the index of their choice; those of one prompt follow each other. num_choices: for each prompt.
    model_name: as the request called it. echo: what stands before each choice's text; empty without it.
    warnings: what the client should know of its request. reading: how texts become reasoning, content and calls; None
    where all of them are content. record: of the request, which is filled on the way.
    """

    job_id: str
    requests: tuple[GenerationRequest, ...]
    model_name: str
    record: RequestRecord
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
