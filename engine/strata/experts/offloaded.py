"""Some routed experts in VRAM, the others in pinned host memory.

Decode reads an expert where it lies: the table of addresses points into VRAM or over PCIe into the host, and the
kernels do not care. Prefill takes nearly all experts of a layer, and reads each more than once: there the copy engine
brings a layer's host experts into one of two buffers in VRAM while the layer before it computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strata.experts.base import SelfContained
from strata.experts.counters import Counters
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.experts.layout import blob_layout
from strata.experts.registry import ExpertRegistry
from strata.experts.streamer import Streamer
from strata.kernels.layer import ExpertsFn, Kernels, Routed, Router
from strata.kernels.matrix import Activation
from strata.kernels.misses.table import Counter
from strata.memory.device import aligned
from strata.memory.host import PinnedMemory
from strata.plan.placement import ExpertPlacement
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout
from strata.store.shard import bytes_of, copy_bytes

# Tokens of a step from which on a layer's experts are streamed: with 128 experts of which a token takes 8, 64 tokens
# take 98 % of them. More than the largest step that a CUDA graph replays: what is ahead is decided on the host.
STREAMED_TOKENS = 96


@dataclass(frozen=True, slots=True)
class _Layer:
    """host: its experts outside VRAM, uint8 [experts, blob_bytes] in host memory, the last of the layer. addresses:
    int64 [experts], where each one lies; staged: where each one lies while the layer is in its buffer. counters: int64,
    see ``MissTable``."""

    row: int
    host: Tensor
    addresses: Tensor
    staged: Tensor
    counters: Tensor


class Offloaded(SelfContained):
    """The first experts of each layer in VRAM, as many as ``placement`` says. Those that decode reads in place count as
    fetched."""

    max_captured = STREAMED_TOKENS - 1  # what is streamed ahead is decided on the host

    def __init__(
        self,
        layout: ExpertLayout,
        placement: ExpertPlacement,
        kernels: Kernels,
        device: torch.device,
        hugepages: str = "off",
    ) -> None:
        self._kernels = kernels
        self._layout = blob_layout(layout)
        self._rows = {layer: row for row, layer in enumerate(layout.layers)}
        self._num_experts = layout.num_experts
        self._resident = [placement.resident_of(row) for row in range(len(layout.layers))]
        size, num_resident = layout.blob_bytes, placement.num_resident
        self._vram = aligned(num_resident * size, BLOB_ALIGNMENT, device).view(num_resident, size)
        self._pinned = PinnedMemory(placement.host_bytes, device, hugepages)
        self._host = self._pinned.tensor.view(layout.num_blobs - num_resident, size)
        staging = aligned(placement.staging_bytes, BLOB_ALIGNMENT, device)
        self._buffers = staging.view(2, placement.staging_bytes // (2 * size), size)
        self.registry = ExpertRegistry(layout.layers, layout.num_experts, device)
        self.registry.put({expert: self._place(*expert).data_ptr() for expert in layout.experts})
        self._counters = Counters(layout.layers, device)
        self._layers = [self._make(row, device) for row in range(len(layout.layers))]
        self._streamer = Streamer(len(self._layers), self._bring, device)

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """As ``BlobTier.put``."""
        place = self._place(*expert)
        if place.device.type == "cpu":
            copy_bytes(bytes_of(place), bytes_of(blob))
        else:
            place.copy_(blob)

    def layer(self, layer: int, activation: Activation, router: Router) -> ExpertsFn:
        """As ``Tier.layer``."""
        mine = self._layers[self._rows[layer]]
        in_place = self._kernels.blob_experts(self._layout, mine.addresses, activation)
        staged = self._kernels.blob_experts(self._layout, mine.staged, activation)
        num_resident = self._num_experts - len(mine.host)

        def run(routed: Routed, x: Tensor) -> Tensor:
            if x.shape[0] < STREAMED_TOKENS:
                self._kernels.count_uses(routed.ids, self._num_experts, num_resident, mine.counters)
                return in_place(routed, x)
            if not len(mine.host):
                return in_place(routed, x)
            with self._streamer.staged(mine.row):
                return staged(routed, x)

        return run

    def counts(self) -> ExpertCounts:
        """As ``Tier.counts``."""
        return self._counters.total()

    def start_counting(self) -> None:
        """As ``Tier.start_counting``."""
        self._counters.clear()

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """As ``Tier.stats``."""
        layers = self._counters.look(wait=wait)
        if layers is None:
            return None
        return ExpertStats(
            layers,
            num_vram=len(self._vram),
            num_host=len(self._host),
            expert_bytes=self._layout.num_bytes,
        )

    # --- inside

    def _place(self, layer: int, expert: int) -> Tensor:
        """Where the blob lies."""
        row = self._rows[layer]
        resident = self._resident[row]
        before = sum(self._resident[:row])
        if expert < resident:
            return self._vram[before + expert]
        return self._host[row * self._num_experts - before + expert - resident]

    def _bring(self, row: int, buffer: int) -> None:
        mine = self._layers[row]
        mine.counters[Counter.STREAMED].add_(len(mine.host))
        self._buffers[buffer, : len(mine.host)].copy_(mine.host, non_blocking=True)

    def _make(self, row: int, device: torch.device) -> _Layer:
        layer = next(layer for layer, mine in self._rows.items() if mine == row)
        resident, before = self._resident[row], sum(self._resident[:row])
        first = row * self._num_experts - before
        host = self._host[first : first + self._num_experts - resident]
        addresses = self.registry.of_layer(layer)
        begin = self._buffers[row % 2].data_ptr()
        staged = torch.arange(len(host), dtype=torch.int64, device=device) * self._layout.num_bytes + begin
        return _Layer(row, host, addresses, torch.cat([addresses[:resident], staged]), self._counters.tensor[row])
