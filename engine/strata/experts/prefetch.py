"""Experts of the next layer, fetched while this one runs: on streams of their own, which a CUDA graph holds as well.

    choice ─ admit ─┬─ what the layer fetches itself ─┬─ its experts ─ attention ─ next choice ─ admit ─ ... its experts
       └─ scores ───┴─ guess ─────────────────────────┴─ copy of what was guessed ──────────────────────────┘

The copy waits for what the layer itself fetches over PCIe: that is needed sooner, and for certain. The next layer
decides before it has come, and waits for it where it reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor

from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import Routed, Router
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
        # Of two layers in turn: while one's experts are on their way, the next one's are guessed.
        spare = spare.to(device)
        self._aheads = Ahead.none(spare), Ahead.none(spare)
        self._layers: list[tuple[MissTable, Router]] = []
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        self._guesses, self._copies = self._stream(device), self._stream(device)
        self._guessed, self._fetched = self._on.Event(), self._on.Event()

    def add(self, table: MissTable, route: Router) -> None:
        """The next layer, in the order in which they run."""
        self._layers.append((table, route))

    @contextmanager
    def around(self, row: int, ids: Tensor, x: Tensor) -> Iterator[None]:
        """Within it goes what layer number ``row`` of those that were added decides and fetches itself, with what is on
        its way already in its slots; behind it that is there, and what is fetched for the next layer is under way. ids
        [tokens, top_k]: what the layer needs; x [tokens, hidden]: its tokens, which may be written to only
        afterwards.

        What was fetched ahead is waited for where it is read, not where the layer decides: so the CPU knows at once
        what is left to it, and PCIe has no pause."""
        if self.predictor == "off":
            yield
            return
        current, is_last = self._on.current_stream(), row + 1 == len(self._layers)
        here, ahead = self._aheads[row % 2], self._aheads[(row + 1) % 2]
        routed = None if is_last else self._route(row + 1, x)
        if row:
            self._misses.admit(ids, self._layers[row][0], here)
        if not is_last:
            self._guess(row + 1, routed, ahead)
        yield
        if row:
            current.wait_event(self._fetched)
        if is_last:
            return
        current.wait_event(self._guessed)
        self._copies.wait_stream(current)
        with self._on.stream(self._copies):
            self._misses.untile(ahead.sources, ahead.targets, ahead.count, self._layout)
            self._fetched.record(self._copies)

    def _route(self, row: int, x: Tensor) -> Routed | None:
        """What a layer's router takes of tokens, if that is a guess, beside what comes."""
        self._guesses.wait_stream(self._on.current_stream())
        with self._on.stream(self._guesses):
            return self._layers[row][1](x) if self.predictor == "gate" else None

    def _guess(self, row: int, routed: Routed | None, ahead: Ahead) -> None:
        """Write down which experts of a layer to fetch, once the slots for them are known."""
        table = self._layers[row][0]
        self._guesses.wait_stream(self._on.current_stream())
        with self._on.stream(self._guesses):
            if routed is None:
                self._misses.guess_recent(self._least, table, ahead)
            else:
                self._misses.guess_routed(routed.ids, routed.shares, table, ahead)
            self._guessed.record(self._guesses)

    def _stream(self, device: torch.device) -> torch.Stream:
        return self._on.Stream(device) if device.type == "cuda" else self._on.Stream()
