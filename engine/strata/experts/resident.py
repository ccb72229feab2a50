"""All routed experts in the device's own memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from strata.experts.layout import blob_layout
from strata.experts.registry import ExpertRegistry
from strata.experts.tier import BlobTier, step_of
from strata.kernels.layer import Kernels, Router
from strata.kernels.matrix import Activation
from strata.memory.device import aligned
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout


class Resident(BlobTier):
    """One slab with every blob at a place of its own for good. A model that fits pays nothing for one that does not:
    its kernels read the same table of addresses, which never changes."""

    def __init__(self, layout: ExpertLayout, kernels: Kernels, device: torch.device) -> None:
        self._kernels = kernels
        self._layout = blob_layout(layout)
        self._slab = aligned(layout.num_bytes, BLOB_ALIGNMENT, device).view(layout.num_blobs, layout.blob_bytes)
        self._index = {expert: index for index, expert in enumerate(layout.experts)}
        self.registry = ExpertRegistry(layout.layers, layout.num_experts, device)
        first = self._slab.data_ptr()
        self.registry.put({expert: first + index * layout.blob_bytes for expert, index in self._index.items()})

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """As ``BlobTier.put``."""
        self._slab[self._index[expert]].copy_(blob)

    def layer(self, layer: int, activation: Activation, router: Router) -> Callable[[Tensor], Tensor]:
        """As ``Tier.layer``."""
        addresses = self.registry.of_layer(layer)
        return step_of(router, self._kernels.blob_experts(self._layout, addresses, activation))
