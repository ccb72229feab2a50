"""Some layers' experts for a few tokens, over and over: what a step of the model takes for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from strata.experts.few_tokens import FewTokens
from strata.experts.times import Bounds
from strata.experts.ways import Way
from strata.kernels.capture import on_card
from strata.kernels.layer import Routed
from strata.memory.device import wait_for


class Trial:
    """Draws which experts the tokens take anew for each run, so that as many are missing as was asked for."""

    def __init__(self, run: Callable[[], None], bounds: Bounds, ids: Tensor, addresses: Tensor, split: Tensor) -> None:
        """``run``: the layers, with all of ``ids`` int32 [layers, tokens, top_k], however many of the missing ones
        ``split`` int32 [experts + 1] says; returns when the device is done. ``addresses``: int64 [layers, experts],
        0 for those that are missing; runs change it."""
        self._run = run
        self._bounds = bounds
        self._ids = ids
        self._addresses = addresses
        self._split = split
        self._generator = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def seconds(self, missing: int, fetched: int) -> float:
        """Of a layer, as ``times.Timed``."""
        self._split[missing] = fetched
        self._draw(missing)
        wait_for(self._ids.device)
        began = time.perf_counter()
        self._run()
        return (time.perf_counter() - began) / len(self._ids)

    def _draw(self, missing: int) -> None:
        there = self._addresses != 0
        lot = torch.rand(there.shape, generator=self._generator).to(there.device)
        new = (lot + there).argsort(-1)[:, :missing]
        old = (lot - there.float()).argsort(-1)[:, : self._bounds.resident(missing)]
        drawn = torch.cat([new, old], -1)
        layers, tokens, _ = self._ids.shape
        top_k = self._bounds.top_k  # of a token's experts; the others are other ranks'
        # Round and round, so that a token has none twice.
        places = torch.arange(tokens * top_k, device=drawn.device) % drawn.shape[-1]
        self._ids[..., :top_k] = drawn[:, places].view(layers, tokens, top_k)


@contextmanager
@torch.inference_mode()
def open_trial(few: FewTokens, bounds: Bounds, tokens: int, num_layers: int) -> Iterator[Trial]:
    """Steps of so many tokens through the experts of so many layers at most. Afterwards they go the way that they went
    before, with VRAM as if no step had been."""
    before, slots, cpu = few.way, few.slots, few.cpu
    device, hidden, tables = slots.device, few.layout.gate.cols, slots.tables[:num_layers]
    inner = few.misses.inner(torch.randn(tokens, hidden, device=device))
    x = torch.zeros(tokens, hidden, device=device)
    shares = torch.ones(tokens, few.top_k, device=device)
    # Any that differ, and nobody's where a token takes more than there are: their kernels are built with them.
    ids = torch.arange(few.top_k, dtype=torch.int32, device=device).clamp(max=few.part.layout.num_experts)
    ids = ids.repeat(len(tables), tokens, 1)
    on_its_own = device.type == "cuda"

    def step() -> None:
        for row, chosen in enumerate(ids):
            few.run(row, Routed(chosen, shares, inner), x, x, closes=row + 1 == len(ids))

    def run() -> None:
        if on_its_own:
            cpu.expect(len(tables))
        again()
        wait_for(device)
        cpu.check()

    few.begin(Way(before.split))  # nobody looks ahead: behind the last of these layers there is none
    try:
        again = on_card(device)(step)[0] if on_its_own else step
        yield Trial(run, bounds, ids, slots.registry.table[: len(tables), : cpu.num_host], slots.split)
    finally:
        few.begin(before)
