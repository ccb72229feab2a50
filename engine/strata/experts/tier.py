"""What models know of the places in which their routed experts lie: nothing but this."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from strata.experts.layout import blob_layout
from strata.experts.offloaded import Offloaded
from strata.experts.resident import Resident
from strata.kernels.layer import ExpertsFn, Kernels
from strata.kernels.matrix import Activation
from strata.plan.placement import ExpertPlacement
from strata.store.layout import ExpertLayout


class Tier(Protocol):
    """The routed experts of one model on one device."""

    @property
    def can_capture(self) -> bool:
        """Whether a CUDA graph can hold what ``layer`` gives for decode steps: the host is asked for nothing on the
        way."""

    @property
    def can_capture_prefill(self) -> bool:
        """The same for steps of any size."""

    def layer(self, layer: int, activation: Activation) -> ExpertsFn:
        """What adds up the experts of layer number ``layer`` that a router chose."""


class BlobTier(Tier, Protocol):
    """A tier that keeps the store's blobs as they are."""

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """Take the blob, uint8 on the CPU, of (layer, expert)."""


def reads_blobs(layout: ExpertLayout | None, kernels: Kernels) -> bool:
    """Whether there are experts, and the kernels read their blobs; else they want each one's matrices in an order of
    their own (``prepared``)."""
    return layout is not None and kernels.reads_blobs(blob_layout(layout))


def blob_tier(layout: ExpertLayout, placement: ExpertPlacement, kernels: Kernels, device: torch.device) -> BlobTier:
    """Where the experts of a store go, as ``placement`` says. Raises HardwareError when host memory is too small."""
    if placement.is_resident:
        return Resident(layout, kernels, device)
    return Offloaded(layout, placement, kernels, device)
