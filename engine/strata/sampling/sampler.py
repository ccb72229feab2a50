"""Logits to tokens, for all requests of a step at once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata.kernels.argmax.reference import argmax
from strata.request import SamplingParams, TokenLogprobs
from strata.sampling.adjust import Adjustment, adjust, needs_adjusting
from strata.sampling.at_once import draw_at_once
from strata.sampling.filters import draw, drop_unlikely, likeliest, rows_of, scale
from strata.sampling.grammar import Masks
from strata.sampling.receive import Received

if TYPE_CHECKING:
    from llguidance import LLMatcher

# A temperature below this is greedy: the likeliest token leads the next by more than any draw can bridge, and float32
# has no number for the smallest ones.
MIN_TEMPERATURE = 1e-5

MIN_LOGPROB = -9999.0  # what OpenAI gives for a token that cannot come; JSON has no infinity


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row, None where none could be drawn. By request id: logarithms of probabilities where they
    were asked for, and why there is no token, where a grammar is at fault."""

    token_ids: list[int | None] = field(default_factory=list)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RequestState:
    """What the sampler keeps of a request."""

    request_id: str
    params: SamplingParams
    seed: int
    num_tokens: int  # of the prompt and drawn so far: the position of the next token
    adjustment: Adjustment | None
    matcher: LLMatcher | None
    is_flat: bool = False  # its filters left more than ``draw_at_once`` looks at

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < MIN_TEMPERATURE

    @property
    def is_plain(self) -> bool:
        """Whether its logits, its temperature and its filters are all that its next token takes."""
        return self.params.logprobs is None and self.adjustment is None and self.matcher is None

    def next_uniform(self) -> float | None:
        """For the next draw; None for a greedy request. The draw after that gets another one."""
        self.num_tokens += 1
        return None if self.is_greedy else uniform(self.seed, self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Unsure:
    """Draws of ``draw_at_once``, and what a second look takes: each request's logits and number."""

    drawn: Received  # int64 [2, rows]
    requests: Sequence[RequestState]
    scaled: Tensor
    uniform: Sequence[float | None]


@dataclass(slots=True)
class Drawing:
    """A draw on which the device may still work. token_ids: int64 [rows] there, -1 for a row without a token; whoever
    computes the next step may read them, and has to do it again where ``finish`` makes ``was_wrong`` true. drawn: the
    same for the host, once it is there."""

    token_ids: Tensor
    drawn: Drawn | Received | Unsure
    was_wrong: bool = False

    @property
    def is_sure(self) -> bool:
        """Whether ``finish`` finds the same tokens."""
        return not isinstance(self.drawn, Unsure)


class Sampler:
    """Draws the next token of each request by its own parameters.

    A draw depends on the request's logits, parameters, seed, output and position alone, never on what else is in the
    batch. In order: penalties and bias, grammar, temperature, min_p, top_k, top_p.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._requests: dict[str, RequestState] = {}
        self._draws_at_once = device.type == "cuda"
        self._masks = Masks(vocab_size)

    def add(
        self,
        request_id: str,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        matcher: LLMatcher | None = None,
    ) -> None:
        """Make a request known; ``prompt_token_ids`` count as seen for its repetition penalty.

        ``matcher``: of its grammar, which this sampler moves on.
        """
        assert request_id not in self._requests, f"request {request_id} is sampled already"
        seed = secrets.randbits(63) if params.seed is None else params.seed
        adjustment = Adjustment(params, prompt_token_ids) if needs_adjusting(params) else None
        self._requests[request_id] = RequestState(request_id, params, seed, len(prompt_token_ids), adjustment, matcher)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._requests.pop(request_id, None)

    def states(self, request_ids: Sequence[str]) -> tuple[RequestState, ...]:
        """What ``begin`` takes: requests that may be removed meanwhile."""
        return tuple(self._requests[request_id] for request_id in request_ids)

    def sample(self, logits: Tensor, request_ids: Sequence[str], best: Tensor | None = None) -> Drawn:
        """Draw one token for each row of logits float32 [rows, vocab], and record it as the request's: ``begin`` and
        ``finish`` in one."""
        return self.finish(self.begin(logits, self.states(request_ids), best))

    @torch.inference_mode()
    def begin(self, logits: Tensor, requests: Sequence[RequestState], best: Tensor | None = None) -> Drawing:
        """Draw one token for each row of logits float32 [rows, vocab], and record it as the request's.

        ``best``: what ``kernels.argmax`` makes of the logits, if that is there already. With it the host waits for a
        card only where a request has penalties, a bias, a grammar or logprobs. Neither is kept.

        No token for a row that has no finite largest number: nothing can be drawn from it. Other rows do not suffer.
        """
        assert logits.shape == (len(requests), self.vocab_size), f"{list(logits.shape)} for {len(requests)} requests"
        if best is not None and all(request.is_plain for request in requests):
            if all(request.is_greedy for request in requests):
                for request in requests:
                    request.next_uniform()
                return Drawing(best, Received(best))
            if self._draws_at_once and not any(request.is_flat for request in requests):
                return self._begin_at_once(logits, requests, best)
        drawn = self._sample(logits, requests, best)
        return Drawing(self._on_device(drawn.token_ids), drawn)

    @torch.inference_mode()
    def finish(self, drawing: Drawing) -> Drawn:
        """What was drawn; waits for the device."""
        if isinstance(drawing.drawn, Drawn):
            return drawing.drawn
        if isinstance(drawing.drawn, Received):
            return Drawn([None if token_id < 0 else token_id for token_id in drawing.drawn.tolist()])
        return self._second_look(drawing, drawing.drawn)

    def _begin_at_once(self, logits: Tensor, requests: Sequence[RequestState], best: Tensor) -> Drawing:
        numbers = [request.next_uniform() for request in requests]
        drawn, scaled = draw_at_once(logits, best, [request.params for request in requests], numbers)
        return Drawing(drawn[0], Unsure(Received(drawn), requests, scaled, numbers))

    def _second_look(self, drawing: Drawing, unsure: Unsure) -> Drawn:
        tokens, sure = unsure.drawn.tolist()
        token_ids = [None if token_id < 0 else token_id for token_id in tokens]
        for row, (request, number) in enumerate(zip(unsure.requests, unsure.uniform, strict=True)):
            if not sure[row]:
                assert number is not None, "a greedy token is sure"
                request.is_flat, params = True, request.params
                (token_ids[row],) = draw(unsure.scaled[row : row + 1], [params.top_k], [params.top_p], [number])
        if not all(sure):
            drawing.was_wrong = True
            drawing.token_ids = self._on_device(token_ids)
        return Drawn(token_ids)

    def _on_device(self, token_ids: Sequence[int | None]) -> Tensor:
        known = [-1 if token_id is None else token_id for token_id in token_ids]
        return torch.tensor(known, dtype=torch.int64).to(self.device, non_blocking=True)

    def _sample(self, logits: Tensor, requests: Sequence[RequestState], best: Tensor | None) -> Drawn:
        numbers = [request.next_uniform() for request in requests]
        adjusted = self._adjust(logits, requests)
        allowed, failed = self._constrain(adjusted, requests)
        if best is None or allowed is not logits:
            best = argmax(allowed)
        token_ids: list[int | None] = [
            None if token_id < 0 or i in failed else token_id for i, token_id in enumerate(best.tolist())
        ]
        self._draw(allowed, requests, numbers, token_ids)
        self._record(requests, token_ids)
        errors = {requests[i].request_id: reason for i, reason in failed.items()}
        return Drawn(token_ids, self._logprobs(adjusted, requests, token_ids), errors)

    # --- before the draw

    def _adjust(self, logits: Tensor, requests: Sequence[RequestState]) -> Tensor:
        adjustments = {i: request.adjustment for i, request in enumerate(requests) if request.adjustment is not None}
        if not adjustments:
            return logits
        logits = logits.clone()
        adjust(logits, adjustments)
        return logits

    def _constrain(self, logits: Tensor, requests: Sequence[RequestState]) -> tuple[Tensor, dict[int, str]]:
        matchers = {i: request.matcher for i, request in enumerate(requests) if request.matcher is not None}
        if not matchers:
            return logits, {}
        logits = logits.clone()
        return logits, self._masks.apply(logits, list(matchers), list(matchers.values()))

    # --- the draw

    def _draw(
        self,
        logits: Tensor,
        requests: Sequence[RequestState],
        numbers: Sequence[float | None],
        token_ids: list[int | None],
    ) -> None:
        """Put drawn tokens in the place of the likeliest, where a request is not greedy."""
        random = {i: number for i, number in enumerate(numbers) if number is not None and token_ids[i] is not None}
        if not random:
            return
        params = [requests[i].params for i in random]
        scaled = scale(rows_of(logits, list(random)), [p.temperature for p in params])
        if any(p.min_p > 0 for p in params):
            scaled = drop_unlikely(scaled, [p.min_p for p in params])
        drawn = draw(
            scaled,
            [p.top_k for p in params],
            [p.top_p for p in params],
            list(random.values()),
        )
        for i, token_id in zip(random, drawn, strict=True):
            token_ids[i] = token_id

    # --- after the draw

    def _record(self, requests: Sequence[RequestState], token_ids: Sequence[int | None]) -> None:
        for request, token_id in zip(requests, token_ids, strict=True):
            if token_id is None:
                continue
            if request.adjustment is not None:
                request.adjustment.record(token_id)
            if request.matcher is not None:
                request.matcher.consume_token(token_id)

    def _logprobs(
        self, logits: Tensor, requests: Sequence[RequestState], token_ids: Sequence[int | None]
    ) -> dict[str, TokenLogprobs]:
        wanted = {
            i: (token_id, request.params.logprobs)
            for i, (request, token_id) in enumerate(zip(requests, token_ids, strict=True))
            if request.params.logprobs is not None and token_id is not None
        }
        if not wanted:
            return {}
        rows = rows_of(logits, list(wanted))
        total = rows.logsumexp(-1, keepdim=True)
        drawn = torch.tensor([token_id for token_id, _ in wanted.values()], device=self.device)
        own = (rows.gather(-1, drawn[:, None]) - total).clamp_(min=MIN_LOGPROB)[:, 0].tolist()
        width = min(max(num_top for _, num_top in wanted.values()), self.vocab_size)
        values, ids = likeliest(rows, width)
        values = (values - total).clamp_(min=MIN_LOGPROB)
        table = zip(wanted.items(), own, ids.tolist(), values.tolist(), strict=True)
        return {
            requests[i].request_id: TokenLogprobs(logprob, tuple(zip(top_ids[:num_top], top[:num_top], strict=True)))
            for (i, (_, num_top)), logprob, top_ids, top in table
        }


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for each pair, evenly spread: 53 bits of a hash."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
