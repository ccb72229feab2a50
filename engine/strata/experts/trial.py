"""Some layers' experts for a few tokens, over and over: what a step of the model takes for them."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from strata.experts.times import Bounds


class Trial:
    """Draws which experts the tokens take anew for each run, so that as many are missing as was asked for."""

    def __init__(self, run: Callable[[], None], bounds: Bounds, ids: Tensor, addresses: Tensor, split: Tensor) -> None:
        """``run``: the layers, with all of ``ids`` int32 [layers, tokens, top_k], however many of the missing ones
        ``split`` int32 [experts + 1] says; returns when the device is done. ``addresses``: int64 [layers, experts],
        0 for those that are missing; runs change it."""
        self._run = run
        self._choices = bounds
        self._ids = ids
        self._addresses = addresses
        self._split = split
        self._generator = torch.Generator().manual_seed(0)

    def seconds(self, missing: int, fetched: int) -> float:
        """Of a layer, as ``times.Timed``."""
        self._split[missing] = fetched
        self._draw(missing)
        if self._ids.is_cuda:
            torch.cuda.synchronize(self._ids.device)
        began = time.perf_counter()
        self._run()
        return (time.perf_counter() - began) / len(self._ids)

    def _draw(self, missing: int) -> None:
        there = self._addresses != 0
        lot = torch.rand(there.shape, generator=self._generator).to(there.device)
        new = (lot + there).argsort(-1)[:, :missing]
        old = (lot - there.float()).argsort(-1)[:, : self._choices.resident(missing)]
        drawn = torch.cat([new, old], -1)
        layers, tokens, top_k = self._ids.shape
        # Round and round, so that a token has none twice.
        places = torch.arange(tokens * top_k, device=drawn.device) % drawn.shape[-1]
        self._ids.copy_(drawn[:, places].view(layers, tokens, top_k))
