"""When a sequence ends."""

from __future__ import annotations

from collections.abc import Collection

from strata.request import FinishReason, SamplingParams


def finish_reason(
    token_id: int,
    *,
    num_generated: int,
    num_tokens: int,
    sampling: SamplingParams,
    eos_token_ids: Collection[int],
    max_model_len: int,
) -> FinishReason | None:
    """Why the sequence ends with ``token_id``, its newest token; None when it goes on.

    num_generated: new tokens including this one. num_tokens: prompt and new tokens together. A stop token wins over a
    limit that is reached by the same token.
    """
    if token_id in sampling.stop_token_ids or (token_id in eos_token_ids and not sampling.ignore_eos):
        return FinishReason.STOP
    if num_generated >= sampling.max_tokens or num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None
