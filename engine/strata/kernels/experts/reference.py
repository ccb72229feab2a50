"""Every token through its own experts, in plain torch: the tokens of one expert go through it together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ExpertFn = Callable[[Tensor], Tensor]  # [tokens, hidden] -> [tokens, hidden]


def run_experts(x: Tensor, weights: Tensor, ids: Tensor, experts: Sequence[ExpertFn]) -> Tensor:
    """x [tokens, hidden], weights and ids [tokens, top_k] -> [tokens, hidden]: the sum over k of weights[t, k] *
    experts[ids[t, k]](x[t]).

    How many tokens each expert got is read back: on a GPU the host waits for it.
    """
    tokens, top_k = ids.shape
    if tokens == 1:
        return weights @ torch.cat([experts[expert](x) for expert in ids[0].tolist()])
    chosen = ids.flatten()
    order = chosen.argsort(stable=True)
    gathered = x.index_select(0, order // top_k)
    results = torch.empty_like(gathered)
    begin = 0
    for expert, count in enumerate(chosen.bincount(minlength=len(experts)).tolist()):
        if count:
            mine = slice(begin, begin + count)
            results.index_copy_(0, order[mine], experts[expert](gathered[mine]))
            begin += count
    # Added up in a fixed order, so that a step gives the same result each time.
    return torch.bmm(weights.unsqueeze(1), results.view(tokens, top_k, -1)).squeeze(1)
