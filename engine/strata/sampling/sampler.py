"""Logits to tokens, for all requests of a step at once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.request import SamplingParams
from strata.sampling.filters import draw, penalize, scale

# A temperature below this is greedy: the likeliest token leads the next by more than any draw can bridge, and float32
# has no number for the smallest ones.
MIN_TEMPERATURE = 1e-5


@dataclass(slots=True)
class _Request:
    params: SamplingParams
    seed: int
    num_tokens: int  # of the prompt and drawn so far: the position of the next token
    seen: Tensor | None  # bool [vocab], the tokens that repetition_penalty weakens; None where it is off


class Sampler:
    """Draws the next token of each request by its own parameters.

    A draw depends on the request's logits, parameters, seed and position alone, never on what else is in the batch.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._requests: dict[str, _Request] = {}

    def add(self, request_id: str, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        """Make a request known; ``prompt_token_ids`` count as seen for its repetition penalty."""
        assert request_id not in self._requests, f"request {request_id} is sampled already"
        seen = None
        if params.repetition_penalty != 1:
            seen = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
            seen[torch.tensor(prompt_token_ids, device=self.device)] = True
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self._requests[request_id] = _Request(params, seed, len(prompt_token_ids), seen)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._requests.pop(request_id, None)

    @torch.inference_mode()
    def sample(self, logits: Tensor, request_ids: Sequence[str]) -> list[int | None]:
        """Draw one token for each row of logits float32 [rows, vocab], and record it as the request's.

        None for a row that has no finite largest number: nothing can be drawn from it. Other rows do not suffer.
        """
        requests = [self._requests[request_id] for request_id in request_ids]
        assert logits.shape == (len(requests), self.vocab_size), f"{list(logits.shape)} for {len(requests)} requests"
        logits = self._penalize(logits, requests)
        largest, likeliest = logits.max(-1)
        token_ids: list[int | None] = likeliest.tolist()
        for i, is_sound in enumerate(largest.isfinite().tolist()):
            if not is_sound:
                token_ids[i] = None
        self._draw(logits, requests, token_ids)
        for request, token_id in zip(requests, token_ids, strict=True):
            request.num_tokens += 1
            if request.seen is not None and token_id is not None:
                request.seen[token_id] = True
        return token_ids

    def _penalize(self, logits: Tensor, requests: Sequence[_Request]) -> Tensor:
        seen = {i: request.seen for i, request in enumerate(requests) if request.seen is not None}
        if not seen:
            return logits
        rows = list(seen)
        penalty = torch.tensor([requests[i].params.repetition_penalty for i in rows], device=self.device)[:, None]
        logits = logits.clone()
        logits[rows] = penalize(logits[rows], torch.stack(list(seen.values())), penalty)
        return logits

    def _draw(self, logits: Tensor, requests: Sequence[_Request], token_ids: list[int | None]) -> None:
        """Put drawn tokens in the place of the likeliest, where a request is not greedy."""
        random = [
            i
            for i, request in enumerate(requests)
            if request.params.temperature >= MIN_TEMPERATURE and token_ids[i] is not None
        ]
        if not random:
            return
        params = [requests[i].params for i in random]
        rows = logits if len(random) == len(requests) else logits[random]
        drawn = draw(
            scale(rows, [p.temperature for p in params]),
            [p.top_k for p in params],
            [p.top_p for p in params],
            [uniform(requests[i].seed, requests[i].num_tokens) for i in random],
        )
        for i, token_id in zip(random, drawn, strict=True):
            token_ids[i] = token_id


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for each pair, evenly spread: 53 bits of a hash."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
