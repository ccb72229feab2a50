"""A layer's experts for steps of many tokens, in a buffer of VRAM.

Many tokens take nearly all: what VRAM has not is brought while the layer before computes, whatever is chosen. Where
that would be much that nobody takes (``max_chosen_tokens``), only what the tokens have chosen comes, and the layer
waits for it. How much that is is known to the card alone, and the host does not ask.

Of whole layers, where VRAM has a part of them, a kernel reads the others from host memory. Where it has next to none,
the copy engine brings all (``copies``): it moves more over PCIe than a kernel reads. So it does for steps of any length
where some are on disk, which a kernel cannot read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from strata.experts.copies import Copies
from strata.experts.cpu import CpuExperts
from strata.experts.slots import Slots
from strata.experts.streamer import Streamer
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.misses.table import Counter, MissSteps
from strata.memory.device import aligned, wait_for
from strata.plan.placement import PIECE, copies_whole_layers, max_chosen_tokens
from strata.store.layout import BLOB_ALIGNMENT


class LayerBuffers:
    """Two buffers, each of a layer's experts. ``places``: int64 [2, experts], addresses in them. ``addresses`` of a
    layer: int64 [experts], with nobody's entry as ``ExpertRegistry.rows``, where each expert lies within ``staged``; 0
    for one that is not chosen and nowhere."""

    def __init__(
        self,
        slots: Slots,
        cpu: CpuExperts,
        misses: MissSteps,
        layout: BlobLayout,
        top_k: float,
    ) -> None:
        """``top_k``: of a token's experts those that are chosen here, on average."""
        tables, device = slots.tables, slots.device
        self._tables, self._cpu, self._misses, self._layout = tables, cpu, misses, layout
        num_experts, num_slots = len(tables[0].addresses), len(tables[0].slots)
        size = layout.num_bytes
        self._buffers = aligned(2 * num_experts * size, BLOB_ALIGNMENT, device)
        begin = self._buffers.data_ptr()
        places = begin + size * torch.arange(2 * num_experts, dtype=torch.int64)
        self.places = places.view(2, num_experts).to(device)
        self.addresses = list(torch.zeros_like(slots.registry.rows))
        self._copies: Copies | None = None
        num_slots += cpu.num_fixed
        self._max_chosen = 0 if cpu.num_disk else max_chosen_tokens(num_experts, top_k, num_slots)
        if cpu.num_disk or copies_whole_layers(num_slots, num_experts):
            self._copies = Copies(PIECE, cpu.stride, device)
            self._counts = torch.arange(PIECE + 1, dtype=torch.int32, device=device)
        self._streamer = Streamer(len(tables), self._bring, device)

    @contextmanager
    def staged(self, row: int, ids: Tensor) -> Iterator[None]:
        """Within it, what is put on the current stream finds the experts of a layer that ``ids`` [tokens, top_k] name
        at its ``addresses``."""
        if len(ids) <= self._max_chosen:
            missing = self._tables[row].addresses == 0
            chosen = torch.zeros_like(self.addresses[row], dtype=torch.bool).index_fill_(0, ids.flatten().long(), True)
            self._read(row, self.places[0], missing & chosen[: len(missing)])
            yield
            return
        with self._streamer.staged(row):
            yield

    def fetching(self, num_experts: int) -> list[Callable[[], None]]:
        """Calls, to be timed, that bring so many experts of a layer over PCIe each, into a buffer; one after another
        they go through all layers' in pinned memory."""
        count = torch.tensor([num_experts], dtype=torch.int32, device=self.places.device)
        targets = self.places[0, :num_experts]

        def fetch(sources: Tensor) -> Callable[[], None]:
            return lambda: self._misses.untile(sources, targets, count, self._layout)

        begins = range(0, self._cpu.num_host - num_experts + 1, num_experts)
        # Copies, which begin where the kernel's loads are aligned, as in a step.
        sources = [table.sources[begin : begin + num_experts].clone() for table in self._tables for begin in begins]
        return [fetch(some) for some in sources]

    @torch.inference_mode()
    def fetch_seconds(self) -> float:
        """That one expert takes over PCIe, a whole layer at a time, while nothing else goes on."""
        num_experts, device, took = self._cpu.num_host, self.places.device, []
        fetch = self.fetching(num_experts)[0]
        for _ in range(3):
            wait_for(device)
            began = time.perf_counter()
            fetch()
            wait_for(device)
            took.append(time.perf_counter() - began)
        return min(took) / num_experts

    def _bring(self, row: int, buffer: int) -> None:
        if self._copies is None:
            self._read(row, self.places[buffer], self._tables[row].addresses == 0)
        else:
            self._copy_all(row, self.places[buffer], self._copies)

    def _read(self, row: int, places: Tensor, missing: Tensor) -> None:
        """``missing``: bool [experts], those that are to come."""
        table = self._tables[row]
        order = missing.to(torch.int8).argsort(descending=True, stable=True)
        count = missing.sum(dtype=torch.int32).view(1)
        table.counters[Counter.STREAMED].add_(count[0])
        self._misses.untile(table.sources[order], places[order], count, self._layout)
        torch.where(missing, places, table.addresses, out=self.addresses[row][: len(places)])

    def _copy_all(self, row: int, places: Tensor, copies: Copies) -> None:
        table, stay = self._tables[row], slice(self._cpu.num_host, self._cpu.num_host + self._cpu.num_fixed)
        table.counters[Counter.STREAMED].add_(len(places) - self._cpu.num_fixed)
        for experts, tiles in self._cpu.tiles(row):
            targets = places[experts].contiguous()
            for some, mine in zip(tiles.split(PIECE), targets.split(PIECE), strict=True):
                number = len(some)
                with copies.brought(some) as sources:
                    self._misses.untile(sources, mine, self._counts[number : number + 1], self._layout)
        self.addresses[row][: len(places)].copy_(places)
        self.addresses[row][stay] = table.addresses[stay]
