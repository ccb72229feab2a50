"""VRAM as a cache of experts: slots of one expert each, as many for each layer, and who is in them."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.experts.counters import Counters
from strata.experts.cpu import CpuExperts
from strata.experts.layout import blob_layout
from strata.experts.prefetch import MAX_AHEAD
from strata.experts.registry import ExpertRegistry
from strata.experts.ways import Split
from strata.kernels.misses.table import MissSteps, MissTable
from strata.memory.device import aligned
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout


class Slots:
    """At first a layer's slots have its first experts, ``num_changing`` of them, which may lose theirs, and in the last
    ones those that stay there.

    ``tables``: what the card knows of each layer. ``split``: int32 [experts + 1], which all of them read. ``spare``:
    addresses of slots that no layer has."""

    def __init__(
        self,
        layout: ExpertLayout,
        of_layer: int,
        cpu: CpuExperts,
        misses: MissSteps,
        device: torch.device,
        *,
        is_alone: bool = True,
    ) -> None:
        """``of_layer``: slots of each layer. ``cpu``: has the other experts. ``is_alone``: see ``ExpertRegistry``."""
        self.device, self.num_changing = device, of_layer - cpu.num_fixed
        self._cpu, self._misses, self._layout = cpu, misses, blob_layout(layout)
        self.registry = ExpertRegistry(layout.layers, layout.num_experts, device, is_alone=is_alone)
        self.counters = Counters(layout.layers, device)
        self.split = torch.zeros(layout.num_experts + 1, dtype=torch.int32, device=device)
        num_layers, size = len(layout.layers), layout.blob_bytes
        of_layers = num_layers * of_layer * size
        slab = aligned(of_layers + MAX_AHEAD * size, BLOB_ALIGNMENT, device)
        slots = slab[:of_layers].view(num_layers, of_layer, size)
        self._changing, self._fixed = slots.split([self.num_changing, cpu.num_fixed], 1)
        self.spare = _addresses(slab.data_ptr() + of_layers, MAX_AHEAD, size)
        self.tables = [self._table(row) for row in range(num_layers)]

    def put(self, row: int, expert: int, blob: Tensor) -> None:
        """Take the blob of an expert that has a slot at first, or for good."""
        first_fixed = self._cpu.num_host
        if expert < self.num_changing:
            self._changing[row, expert].copy_(blob)
        elif first_fixed <= expert < first_fixed + self._cpu.num_fixed:
            self._fixed[row, expert - first_fixed].copy_(blob)

    def begin(self, split: Split) -> None:
        """Let misses be split so, with the first experts in the slots and as if no step had been."""
        self.split.copy_(torch.tensor(split, dtype=torch.int32))
        for table in self.tables:
            self._reset(table)

    def _table(self, row: int) -> MissTable:
        num_experts, num_slots, size = self.registry.table.shape[1], self.num_changing, self._layout.num_bytes
        device, num_host, num_fixed = self.device, self._cpu.num_host, self._cpu.num_fixed
        table = MissTable(
            addresses=self.registry.table[row],
            sources=self._cpu.sources[row].to(device),
            heat=torch.zeros(num_experts, device=device),
            slots=_addresses(self._changing[row].data_ptr(), num_slots, size).to(device),
            owners=torch.arange(num_slots, dtype=torch.int32, device=device),
            split=self.split,
            counters=self.counters.tensor[row],
            recent=torch.zeros(num_experts, dtype=torch.int32, device=device),
            copy_sources=torch.zeros(num_slots, dtype=torch.int64, device=device),
            copy_targets=torch.zeros(num_slots, dtype=torch.int64, device=device),
            count=torch.zeros(1, dtype=torch.int32, device=device),
            scratch=torch.zeros(2 * num_experts, dtype=torch.int32, device=device),
        )
        table.addresses[:num_slots] = table.slots
        stay = _addresses(self._fixed[row].data_ptr(), num_fixed, size)
        table.addresses[num_host : num_host + num_fixed] = stay.to(device)
        return table

    def _reset(self, table: MissTable) -> None:
        first = torch.arange(len(table.slots), device=self.device)
        lost = (table.owners != first).nonzero().flatten()
        count = torch.tensor([len(lost)], dtype=torch.int32, device=self.device)
        self._misses.untile(table.sources[lost], table.slots[lost], count, self._layout)
        table.owners.copy_(first)
        table.addresses[: self._cpu.num_host].zero_()
        table.addresses[: len(first)] = table.slots
        table.heat.zero_()
        table.recent.zero_()
        table.counters.zero_()


def _addresses(begin: int, count: int, size: int) -> Tensor:
    return begin + size * torch.arange(count, dtype=torch.int64)
