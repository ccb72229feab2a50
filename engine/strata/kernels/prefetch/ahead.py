"""What is on its way to the layer that comes next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ahead:
    """Experts that are fetched before their layer asks for them, to spare slots that belong to no layer; all tensors
    are on the device, and change in its steps.

    slots: int64 [ahead], addresses of the spare slots, the same tensor for all layers. experts: int32 [ahead], the
    expert that goes to each, -1 for none. sources, targets: int64 [ahead] and count int32 [1], what has to be copied
    where, of which the first so many; they stay while it is copied.
    """

    slots: Tensor
    experts: Tensor
    sources: Tensor
    targets: Tensor
    count: Tensor

    @classmethod
    def none(cls, slots: Tensor) -> Ahead:
        """Nothing is."""
        return cls(
            slots,
            experts=torch.full_like(slots, -1, dtype=torch.int32),
            sources=torch.zeros_like(slots),
            targets=torch.zeros_like(slots),
            count=torch.zeros(1, dtype=torch.int32, device=slots.device),
        )
