"""Which address each expert's blob has: one table on the device, so that moving an expert is one write to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class ExpertRegistry:
    """``table``: int64 [layers that have experts, experts] on the device, bytes' addresses that its kernels can read.

    A kernel is given the row of its layer and reads it at every call. ``rows``: the table where a rank is alone; else
    each row goes on with an entry for nobody (``Part``), which is always 0.
    """

    def __init__(self, layers: Iterable[int], num_experts: int, device: torch.device, *, is_alone: bool = True) -> None:
        """``layers``: numbers of those that have experts."""
        self._rows = {layer: row for row, layer in enumerate(layers)}
        # An even number, so that all rows begin at multiples of 16 bytes: one build of a kernel serves them.
        width = num_experts if is_alone else num_experts // 2 * 2 + 2
        self.rows = torch.zeros(len(self._rows), width, dtype=torch.int64, device=device)
        self.table = self.rows[:, :num_experts]

    def of_layer(self, layer: int) -> Tensor:
        """The layer's row of ``rows``, as kernels take it."""
        return self.rows[self._rows[layer]]

    def put(self, addresses: Mapping[tuple[int, int], int]) -> None:
        """Write the addresses of some (layer, expert)."""
        places = [self._rows[layer] * self.rows.shape[1] + expert for layer, expert in addresses]
        values = torch.tensor(list(addresses.values()), dtype=torch.int64, device=self.rows.device)
        self.rows.view(-1).index_copy_(0, torch.tensor(places, device=self.rows.device), values)
