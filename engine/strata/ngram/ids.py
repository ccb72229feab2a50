"""From tokens to the rows of their n-grams."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.config.ngram import NGramHash


def ngram_ids(history: Tensor, hashed: NGramHash) -> Tensor:
    """history int64 [sequences, context + tokens] -> rows int64 [sequences * tokens, heads].

    The first ``hashed.num_context`` columns are the tokens before those that are asked for; ``hashed.eos_token_id``
    stands where a sequence has none. A step of several sequences gives each token a line of its own with the tokens
    before it.
    """
    context, eos = hashed.num_context, hashed.eos_token_id
    tokens = history[:, context:]
    mixed = tokens * hashed.multipliers[0]
    sizes = torch.tensor(hashed.sizes, device=history.device).view(-1, hashed.heads_per_ngram)
    offsets = torch.tensor(hashed.offsets, device=history.device).view(-1, hashed.heads_per_ngram)
    ended = torch.zeros_like(tokens, dtype=torch.bool)  # whether an eos lies between
    found = []
    for shift in range(1, hashed.ngram_size):
        before = history[:, context - shift : history.shape[1] - shift].masked_fill(ended, eos)
        ended = before == eos
        mixed = mixed ^ (before * hashed.multipliers[shift])
        found.append(mixed[..., None] % sizes[shift - 1] + offsets[shift - 1])
    return torch.cat(found, dim=-1).flatten(0, 1)
