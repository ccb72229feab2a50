"""The states of linear attention; which slot belongs to whom is the scheduler's business."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from strata.config import LinearAttentionConfig
from strata.kernels.delta_rule.state import DeltaState


class StatePool:
    """Two zeroed tensors; ``layers`` are their views, one a layer, with ``num_slots`` slots each.

    A sequence has the same slot in all layers. On a CPU the pages are the kernel's own zero page until they are
    written.
    """

    def __init__(
        self,
        linear: LinearAttentionConfig,
        num_layers: int,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """``dtype``: of what the convolution was given; what is recurrent is in float32."""
        conv = (num_layers, num_slots, linear.conv_kernel_size, linear.channels)
        recurrent = (num_layers, num_slots, linear.num_value_heads, linear.key_head_dim, linear.value_head_dim)
        self._conv = torch.zeros(conv, dtype=dtype, device=device)
        self._recurrent = torch.zeros(recurrent, dtype=torch.float32, device=device)
        self.layers = tuple(map(DeltaState, self._conv.unbind(0), self._recurrent.unbind(0)))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self._conv, self._recurrent))

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What lies in one slot into another, in all layers; pair by pair, so that no memory is needed in between."""
        for source, target in pairs:
            for tensor in (self._conv, self._recurrent):
                tensor[:, target].copy_(tensor[:, source])
