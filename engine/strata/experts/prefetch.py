"""Experts of the next layer, fetched while this one runs: on a stream of its own, which a CUDA graph holds as well.

    this layer's choice ── what it fetches itself ── its experts ── attention ── next layer's choice ── admit ── ...
                     └─ guess ───────────────────└─ copy of what was guessed ──────────────────────────┘

The copy waits for what the layer itself fetches over PCIe: that is needed sooner, and for certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor

from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import Router
from strata.kernels.misses.table import MissSteps, MissTable
from strata.kernels.prefetch.ahead import Ahead

# Who may guess: the next layer's router, of the tokens as they are before this layer's experts; what the next layer
# took in the last steps.
PREDICTORS = ("gate", "history")
MAX_AHEAD = 2  # experts; PCIe 4.0 and 5.0 move one of 2.7 MB in 54 to 110 us, and a layer takes 100 to 170 us


class Prefetch:
    """Looks one layer ahead. ``predictor``: one of PREDICTORS, or "off"; it may change between two steps, and a graph
    keeps the one that it was captured with."""

    def __init__(
        self, misses: MissSteps, layout: BlobLayout, spare: Tensor, probability: float, device: torch.device
    ) -> None:
        """``spare``: int64, addresses of slots that no layer has. ``probability``: how likely an expert must be for
        "history" to fetch it."""
        self.predictor = "off"
        self._misses, self._layout = misses, layout
        self._least = ceil(100 * probability - 1e-9)
        self._ahead = Ahead(
            slots=spare.to(device),
            experts=torch.full((len(spare),), -1, dtype=torch.int32, device=device),
            sources=torch.zeros(len(spare), dtype=torch.int64, device=device),
            count=torch.zeros(1, dtype=torch.int32, device=device),
        )
        self._layers: list[tuple[MissTable, Router]] = []
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        self._stream = self._on.Stream(device) if device.type == "cuda" else self._on.Stream()
        self._guessed, self._fetched = self._on.Event(), self._on.Event()

    def add(self, table: MissTable, route: Router) -> None:
        """The next layer, in the order in which they run."""
        self._layers.append((table, route))

    @contextmanager
    def around(self, row: int, ids: Tensor, x: Tensor) -> Iterator[None]:
        """Within it goes what layer number ``row`` of those that were added fetches itself; what is fetched for it is
        there, and what is fetched for the next layer is under way behind it. ids [tokens, top_k]: what the layer needs;
        x [tokens, hidden]: its tokens, which may be written to only afterwards."""
        if self.predictor == "off":
            yield
            return
        current, is_last = self._on.current_stream(), row + 1 == len(self._layers)
        if row:
            current.wait_event(self._fetched)
            self._misses.admit(ids, self._layers[row][0], self._ahead)
        if not is_last:
            self._stream.wait_stream(current)
            with self._on.stream(self._stream):
                self._guess(*self._layers[row + 1], x)
                self._guessed.record(self._stream)
        yield
        if not is_last:
            self._stream.wait_stream(current)
            with self._on.stream(self._stream):
                self._misses.untile(self._ahead.sources, self._ahead.slots, self._ahead.count, self._layout)
                self._fetched.record(self._stream)
            current.wait_event(self._guessed)

    def _guess(self, table: MissTable, route: Router, x: Tensor) -> None:
        if self.predictor == "gate":
            routed = route(x)
            self._misses.guess_routed(routed.ids, routed.shares, table, self._ahead)
        else:
            self._misses.guess_recent(self._least, table, self._ahead)
