"""Which address each expert's blob has: one table on the device, so that moving an expert is one write to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class ExpertRegistry:
    """``table``: int64 [layers that have experts, experts] on the device, bytes' addresses that its kernels can read.

    A kernel is given the row of its layer and reads it at every call.
    """

    def __init__(self, layers: Iterable[int], num_experts: int, device: torch.device) -> None:
        """``layers``: numbers of those that have experts."""
        self._rows = {layer: row for row, layer in enumerate(layers)}
        self.table = torch.zeros(len(self._rows), num_experts, dtype=torch.int64, device=device)

    def of_layer(self, layer: int) -> Tensor:
        """The layer's row, int64 [experts]."""
        return self.table[self._rows[layer]]

    def put(self, addresses: Mapping[tuple[int, int], int]) -> None:
        """Write the addresses of some (layer, expert)."""
        places = [self._rows[layer] * self.table.shape[1] + expert for layer, expert in addresses]
        values = torch.tensor(list(addresses.values()), dtype=torch.int64, device=self.table.device)
        self.table.view(-1).index_copy_(0, torch.tensor(places, device=self.table.device), values)
