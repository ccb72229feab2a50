"""Hyper-connections in plain torch.

With n streams normalised one by one, a block takes the mean of sigmoid(up(silu(down(all) / n))) * stream over the
streams, and stream s takes 2 * sigmoid(inject(all)_s / n) of what the block gives.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.linear.reference import LinearFn


def mix(normed: Tensor, narrow: LinearFn, up: LinearFn, rank: int) -> tuple[Tensor, Tensor]:
    """normed [tokens, streams, hidden]; narrow: down's ``rank`` rows, behind them inject's, none of these where nothing
    goes back -> what the block takes [tokens, hidden], and the streams' shares [tokens, streams] or [tokens, 0]."""
    streams = normed.shape[1]
    low, shares = (narrow(normed.flatten(1)) / streams).tensor_split([rank], -1)
    gates = torch.sigmoid(up(functional.silu(low))).view_as(normed)
    return (gates * normed).mean(1), 2 * torch.sigmoid(shares)


def inject(streams: Tensor, out: Tensor, shares: Tensor) -> Tensor:
    """streams [tokens, streams * hidden], out [tokens, hidden], shares [tokens, streams] -> streams + shares * out."""
    wide = streams.unflatten(-1, (shares.shape[1], -1))
    return torch.addcmul(wide, shares[..., None], out[:, None]).flatten(1)
