"""What models know of the places in which their routed experts lie: nothing but this."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from strata.experts.layout import blob_layout
from strata.experts.resident import Resident
from strata.kernels.layer import ExpertsFn, Kernels
from strata.kernels.matrix import Activation
from strata.store.layout import ExpertLayout


class Tier(Protocol):
    """The routed experts of one model on one device."""

    @property
    def can_capture(self) -> bool:
        """Whether a CUDA graph can hold what ``layer`` gives: the host is asked for nothing on the way."""

    def layer(self, layer: int, activation: Activation) -> ExpertsFn:
        """What adds up the experts of layer number ``layer`` that a router chose."""


class BlobTier(Tier, Protocol):
    """A tier that keeps the store's blobs as they are."""

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """Take the blob, uint8 on the CPU, of (layer, expert)."""


def blob_tier(layout: ExpertLayout | None, kernels: Kernels, device: torch.device) -> BlobTier | None:
    """Where the experts of a store go: all into the memory of ``device``. None where there are none, or where
    the kernels want each one's matrices in an order of their own (``prepared``)."""
    if layout is None or not kernels.reads_blobs(blob_layout(layout)):
        return None
    return Resident(layout, kernels, device)
