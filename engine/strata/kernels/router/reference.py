"""Which experts a token takes, and how much of each, in plain torch."""

from __future__ import annotations

from torch import Tensor


def route(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [tokens, experts] -> weights [tokens, top_k] like logits, ids int64 [tokens, top_k], likeliest first.

    The weights are the softmax over all experts; ``normalize`` divides them by their sum, which is the softmax over the
    chosen ones alone. Taken in float32.
    """
    wide = logits.float()
    top, ids = wide.topk(top_k)
    weights = top.softmax(-1) if normalize else (top - wide.logsumexp(-1, keepdim=True)).exp()
    return weights.to(logits.dtype), ids
