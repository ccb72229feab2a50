"""How to share missing experts between the two ways to them: by trial, while both are busy."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_TRIALS = 3  # of each share; the best counts, since what else runs only ever costs time


class Timed(Protocol):
    """A tier that can be tried."""

    @property
    def missing(self) -> tuple[range, int]:
        """Experts that no layer has in VRAM, and how many layers there are."""

    def time_layers(self, ids: Tensor, fetched: float) -> float:
        """Seconds a layer."""


def calibrate(tier: Timed, top_k: int) -> float:
    """The share of a token's missing experts that is best fetched, of 0, 1/top_k, ... 1."""
    missing, layers = tier.missing
    num_missing = min(top_k, len(missing))
    if num_missing == 0:
        return 1.0
    generator = torch.Generator().manual_seed(0)
    seconds: dict[int, float] = {}
    for trial in range(_TRIALS + 1):
        for count in range(num_missing + 1):
            rows = [torch.randperm(len(missing), generator=generator)[:num_missing] for _ in range(layers)]
            ids = (missing.start + torch.stack(rows)).int().view(layers, 1, num_missing)
            took = tier.time_layers(ids, count / num_missing)
            if trial:  # the first builds kernels
                seconds[count] = min(took, seconds.get(count, took))
    best = min(seconds, key=lambda count: seconds[count])
    logger.info(
        "a layer's %d missing experts take %s us when so many are fetched and the CPU computes the others; best: %d",
        num_missing,
        ", ".join(f"{count}: {1e6 * took:.0f}" for count, took in seconds.items()),
        best,
    )
    return best / num_missing
