"""What is known of a request at its end, for the access log and for traces: times and counts, never a text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request

from strata.request import FinishReason, SamplingParams, TokenOutput

Operation = Literal["chat", "text_completion"]


@dataclass(slots=True)
class RequestRecord:
    """Filled by its methods, in their order, while the request is served; what stays None did not come. Times are
    seconds of ``time.monotonic()``.

    headers: the request's own, lower-case, keys and all: to be read, not to be shown. path: without its query. status:
    None where the client left before it. key: the beginning of the hash of its API key. error: the code of the error
    that it was answered with. outcome: how an answer ended, in the words of ``strata_requests_total``.
    """

    request_id: str
    client: str
    method: str
    path: str
    headers: Mapping[str, str]
    arrived: float = field(default_factory=time.monotonic)
    arrived_unix_ns: int = field(default_factory=time.time_ns)
    ended: float | None = None
    status: int | None = None
    key: str | None = None
    error: str | None = None

    # Of a request for an answer:
    operation: Operation | None = None
    is_streamed: bool = False
    outcome: str | None = None
    model: str | None = None  # one of the served names
    response_id: str | None = None
    num_choices: int = 1
    sampling: SamplingParams | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reasons: dict[int, str] = field(default_factory=dict)  # by choice
    submitted: float | None = None  # to the engine
    began: float | None = None  # to run, the first of its choices
    first_token: float | None = None
    last_token: float | None = None

    def identify(self, key: str) -> None:
        """It came with a key that the server takes."""
        self.key = key

    def ask(self, operation: Operation) -> None:
        """It asks for an answer."""
        self.operation = operation

    def read(self, *, is_streamed: bool) -> None:
        """Its body is sound in itself."""
        self.is_streamed = is_streamed

    def address(self, model: str) -> None:
        """It goes to that model."""
        self.model = model

    def admit(self, response_id: str, sampling: SamplingParams, *, num_choices: int, num_prompt_tokens: int) -> None:
        """The model can answer it."""
        self.response_id, self.sampling = response_id, sampling
        self.num_choices, self.num_prompt_tokens = num_choices, num_prompt_tokens

    def submit(self) -> None:
        """The engine gets it now."""
        self.submitted = time.monotonic()

    def take(self, output: TokenOutput, now: float, *, counts_prompt: bool) -> None:
        """New tokens of one choice have come. ``counts_prompt``: they are the first after a prompt."""
        if self.began is None:
            self.began = output.began
        if self.first_token is None:
            self.first_token = now
        if counts_prompt:
            self.num_cached_tokens += output.num_cached_tokens
        self.last_token = now
        self.num_output_tokens += len(output.token_ids)

    def finish(self, choice: int, reason: FinishReason) -> None:
        """One choice is complete."""
        self.finish_reasons[choice] = reason.value

    def end(self, outcome: str) -> None:
        """The answer is over, or there will be none."""
        self.outcome = outcome

    def fail(self, code: str) -> None:
        """It is answered with an error."""
        self.error = code

    def answer(self, status: int) -> None:
        """The head of its answer is sent."""
        self.status = status

    def close(self) -> None:
        """Nothing more comes."""
        self.ended = time.monotonic()


def record_of(request: Request) -> RequestRecord:
    """That of a request which ``KeepRecord`` let through."""
    record: RequestRecord = request.state.record
    return record
