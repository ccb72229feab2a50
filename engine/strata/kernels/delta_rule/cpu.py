"""The gated delta rule in chunks of tokens: a few large products where one token after another takes many small ones.

Within a chunk let G be the sum of log decays up to a token, its own included. Token i adds k_i u_i^T to the state, and

    u_i = beta_i (v_i - exp(G_i) S^T k_i - sum over j < i of exp(G_i - G_j) (k_i . k_j) u_j),    S before the chunk,

which is a triangular system (I + A) U = beta V - (beta exp(G) K) S. It is solved for both right-hand sides of all
chunks at once (the WY representation, https://arxiv.org/abs/2412.06464); then only products with S follow one another.
Every exponent is 0 at most, so that nothing overflows however strong the decay is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.delta_rule import reference

CHUNK = 64  # tokens


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As ``reference.delta_rule``."""
    tokens = value.shape[1]
    if tokens == 1:
        return reference.delta_rule(query, key, value, log_decay, beta, state)
    length = min(CHUNK, tokens)

    def chunks(numbers: Tensor) -> Tensor:
        """[seqs, tokens, heads, ...] -> [seqs, heads, chunks, length, ...]; tokens of zeros fill the last one up."""
        padded = functional.pad(numbers, (0, 0) * (numbers.dim() - 2) + (0, -tokens % length))
        return padded.unflatten(1, (-1, length)).movedim(3, 1)

    query, key, value, log_decay, beta = map(chunks, (query, key, value, log_decay, beta))
    since = log_decay.double().cumsum(-1)  # a difference of two long sums needs the digits
    later = torch.ones(length, length, dtype=torch.bool, device=value.device).triu(1)
    between = (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp().float()
    known, decayed, gain = key @ key.mT, since.exp().float()[..., None], beta[..., None]
    sides = torch.cat([gain * value, gain * decayed * key], -1)
    system = (gain * between * known).tril(-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    new, seen = solved.split([value.shape[-1], key.shape[-1]], -1)
    reads, asks = between * (query @ key.mT), decayed * query
    kept, adds = since[..., -1, None, None].exp().float(), (between[..., -1, :, None] * key).mT
    out = torch.empty_like(value)
    for chunk in range(value.shape[2]):
        added = new[:, :, chunk] - seen[:, :, chunk] @ state
        out[:, :, chunk] = asks[:, :, chunk] @ state + reads[:, :, chunk] @ added
        state = kept[:, :, chunk] * state + adds[:, :, chunk] @ added
    return out.movedim(1, 3).flatten(1, 2)[:, :tokens], state
