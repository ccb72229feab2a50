"""All routed experts in the device's own memory."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.experts.part import Part
from strata.experts.registry import ExpertRegistry
from strata.experts.tier import BlobTier, TierStep, step_of
from strata.kernels.layer import Kernels, Router
from strata.kernels.matrix import Activation
from strata.memory.device import aligned
from strata.plan.rank import ALONE, Rank
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout


class Resident(BlobTier):
    """One slab with every blob at a place of its own for good. A model that fits pays nothing for one that does not:
    its kernels read the same table of addresses, which never changes."""

    def __init__(self, layout: ExpertLayout, kernels: Kernels, device: torch.device, rank: Rank = ALONE) -> None:
        self.rank, self._part = rank, Part.of(layout, rank, kernels)
        layout = self._part.layout
        self._slab = aligned(layout.num_bytes, BLOB_ALIGNMENT, device).view(layout.num_blobs, layout.blob_bytes)
        self._index = {expert: index for index, expert in enumerate(layout.experts)}
        self.registry = ExpertRegistry(layout.layers, layout.num_experts, device, is_alone=rank.is_alone)
        first = self._slab.data_ptr()
        self.registry.put({expert: first + index * layout.blob_bytes for expert, index in self._index.items()})

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """As ``BlobTier.put``."""
        layer, number = expert
        mine = self.rank.number(number)
        if mine is not None:
            self._slab[self._index[layer, mine]].copy_(blob)

    def layer(self, layer: int, activation: Activation, router: Router) -> TierStep:
        """As ``Tier.layer``."""
        part = self._part
        return step_of(part.router(router), part.experts(self.registry.of_layer(layer), activation))
