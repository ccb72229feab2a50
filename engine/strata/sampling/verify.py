"""Drafts against what is drawn: several rows of a request in one step.

A draw depends on a row's logits, its position and the request alone. So each row is drawn as it would be without a
draft, and a draft's token counts where it is the one drawn: the output is the same, greedy or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from torch import Tensor

from strata.request import TokenLogprobs
from strata.sampling.filters import rows_of
from strata.sampling.sampler import Drawn, RequestState, Sampler


@dataclass(frozen=True, slots=True)
class Accepted:
    """By request id: the tokens drawn, none where none could be; their logarithms of probabilities where they were
    asked for; and why there is no token, where a grammar is at fault."""

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def accepted(drawn: Drawn, requests: Sequence[RequestState]) -> Accepted:
    """One token for each request at most."""
    return Accepted(
        {
            request.request_id: () if token_id is None else (token_id,)
            for request, token_id in zip(requests, drawn.token_ids, strict=True)
        },
        {request_id: (logprobs,) for request_id, logprobs in drawn.logprobs.items()},
        drawn.errors,
    )


def verify(
    sampler: Sampler, logits: Tensor, requests: Sequence[RequestState], drafts: Sequence[Sequence[int]], best: Tensor
) -> Accepted:
    """Draw tokens for each request: one more than begin its draft, and are what is drawn.

    logits: float32 [rows, vocab], of each request in turn the row before its draft and one for each token of it.
    ``best``: what ``kernels.argmax`` makes of them. The rows of a request that is plain are drawn at once, and it is
    set back by those that do not count; others see the tokens before a row when it is drawn.
    """
    starts = [0, *accumulate(len(draft) + 1 for draft in drafts)]
    assert logits.shape[0] == starts[-1], f"{logits.shape[0]} rows for {starts[-1]} tokens"
    tokens: list[list[int]] = [[] for _ in requests]
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
    errors: dict[str, str] = {}
    pending = list(range(len(requests)))
    while pending:
        turns = [
            (i, place)
            for i in pending
            for place in (range(len(drafts[i]) + 1) if requests[i].is_plain else (len(tokens[i]),))
        ]
        rows = [starts[i] + place for i, place in turns]
        drawn = sampler.finish(
            sampler.begin(rows_of(logits, rows), [requests[i] for i, _ in turns], rows_of(best, rows))
        )
        for request_id, scores in drawn.logprobs.items():
            logprobs[request_id] = (*logprobs.get(request_id, ()), scores)
        going = set(pending)
        for (i, place), token_id in zip(turns, drawn.token_ids, strict=True):
            if i in going and token_id is not None:
                tokens[i].append(token_id)
            else:
                requests[i].num_tokens -= 1
            if token_id is None or tuple(drafts[i][place : place + 1]) != (token_id,):
                going.discard(i)
        errors |= drawn.errors
        pending = [i for i in pending if i in going and not requests[i].is_plain]
    token_ids = {request.request_id: tuple(found) for request, found in zip(requests, tokens, strict=True)}
    # A grammar that fails behind accepted tokens fails again in the next step.
    return Accepted(token_ids, logprobs, {name: reason for name, reason in errors.items() if not token_ids[name]})
