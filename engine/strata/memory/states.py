"""The states of linear attention; which slot belongs to whom is the scheduler's business."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.ngram_gate.layer import NGramState


class StatePool:
    """Zeroed tensors; ``layers`` are their views, one for each layer with linear attention, with ``num_slots`` slots
    each.

    A sequence has the same slot in all layers. On a CPU the pages are the kernel's own zero page until they are
    written.
    """

    def __init__(
        self,
        model: ModelConfig,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        max_draft: int = 0,
    ) -> None:
        """``dtype``: of what convolutions were given; the rest is in float32. ``max_draft``: tokens of a draft."""
        linear, ngrams = model.linear_attention, model.ngrams
        assert linear is not None, "a model with states has linear attention"
        numbers = [layer for layer, is_linear in enumerate(model.linear_layers) if is_linear]

        def zeros(num_layers: int, *shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_layers, num_slots, *shape, dtype=dtype, device=device)

        rows = linear.ring_rows(max_draft)
        conv = zeros(len(numbers), rows, linear.channels, dtype=dtype)
        heads = (linear.num_value_heads, linear.key_head_dim, linear.value_head_dim)
        recurrent = zeros(len(numbers), *heads, dtype=torch.float32)
        self._tensors = [conv, recurrent]
        gates: Sequence[Tensor | None] = [None] * len(numbers)
        if max_draft:
            gates = zeros(len(numbers), rows, 2 * linear.num_value_heads, dtype=torch.float32).unbind(0)
        self._gates = gates
        of_ngrams: dict[int, NGramState] = {}
        if ngrams is not None:
            tokens = zeros(len(ngrams.layers), ngrams.ngram_size, dtype=torch.int64)
            inputs = zeros(len(ngrams.layers), model.ngram_conv_reach + 1, model.stream_width, dtype=dtype)
            self._tensors += [tokens, inputs]
            of_ngrams = dict(zip(ngrams.layers, map(NGramState, tokens.unbind(0), inputs.unbind(0)), strict=True))
        states = map(DeltaState, conv.unbind(0), recurrent.unbind(0), gates, map(of_ngrams.get, numbers))
        self.layers = tuple(states)

    @property
    def num_bytes(self) -> int:
        tensors = (*self._tensors, *(gates for gates in self._gates if gates is not None))
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What lies in one slot into another, in all layers; pair by pair, so that no memory is needed in between. A
        state that is copied lacks nothing, so that the gates of drafts stay where they are."""
        for source, target in pairs:
            for tensor in self._tensors:
                tensor[:, target].copy_(tensor[:, source])
