"""What is on its way to the layer that comes next."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ahead:
    """Experts that are fetched before their layer asks for them, to spare slots that belong to no layer; all tensors
    are on the device, and change in its steps.

    slots: int64 [ahead], addresses of the spare slots. experts: int32 [ahead], the expert in each, -1 in none. sources:
    int64 [ahead] and count int32 [1], what has to be copied to the first so many slots.
    """

    slots: Tensor
    experts: Tensor
    sources: Tensor
    count: Tensor
