"""Which tier a store's experts get."""

from __future__ import annotations

import torch

from strata.config import DeviceConfig
from strata.experts.hybrid import Hybrid
from strata.experts.layout import blob_layout
from strata.experts.resident import Resident
from strata.experts.tier import BlobTier
from strata.kernels.layer import Kernels
from strata.plan.placement import ExpertPlacement
from strata.plan.rank import ALONE, Rank
from strata.store.layout import ExpertLayout


def reads_blobs(layout: ExpertLayout | None, kernels: Kernels) -> bool:
    """Whether there are experts, and the kernels read their blobs; else they want each one's matrices in an order of
    their own (``prepared``)."""
    return layout is not None and kernels.reads_blobs(blob_layout(layout))


def blob_tier(
    layout: ExpertLayout,
    placement: ExpertPlacement,
    kernels: Kernels,
    device: torch.device,
    top_k: int,
    config: DeviceConfig,
    rank: Rank = ALONE,
) -> BlobTier:
    """As ``placement`` of the rank's own experts says. ``layout``: of all experts. ``top_k``: those of a token. Raises
    HardwareError when host memory is too small, or the native library is not there."""
    if placement.is_resident:
        return Resident(layout, kernels, device, rank)
    return Hybrid(layout, placement, kernels, device, top_k, config, rank)
