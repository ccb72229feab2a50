"""What the device counts, and how the host sees it without a wait."""

from __future__ import annotations

import time

import torch

from strata.experts.counts import ExpertCounts
from strata.kernels.misses.table import Counter

# Between two looks. One costs the device a copy of some KiB between two steps, the host 0.1 ms (48 layers).
SECONDS = 1.0


class Counters:
    """``tensor``: int64 [layers, len(Counter)] on the device, where steps add to it."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.tensor = torch.zeros(num_layers, len(Counter), dtype=torch.int64, device=device)
        self._copy = torch.zeros(self.tensor.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._arrival = (torch.cuda if device.type == "cuda" else torch.cpu).Event()
        self._on_its_way = False  # a copy
        self._due = 0.0  # the next one

    def read(self) -> list[ExpertCounts]:
        """Of each layer, now. Waits for the device."""
        return [ExpertCounts(*row) for row in self.tensor.tolist()]

    def poll(self) -> list[ExpertCounts] | None:
        """Of each layer, behind the steps that had been given to the device at the look before; None where that copy
        has not arrived, or none is due. Waits for nothing."""
        if self._on_its_way:
            if not self._arrival.query():
                return None
            self._on_its_way = False
            return [ExpertCounts(*row) for row in self._copy.tolist()]
        now = time.monotonic()
        if now >= self._due:
            self._due = now + SECONDS
            self._on_its_way = True
            with torch.inference_mode():
                self._copy.copy_(self.tensor, non_blocking=True)
            self._arrival.record()
        return None
