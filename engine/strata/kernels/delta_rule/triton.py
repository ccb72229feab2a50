"""Linear attention on an NVIDIA GPU: from the projections to what the output product takes."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch, StepBatch
from strata.kernels.delta_rule.decode import decode
from strata.kernels.delta_rule.net import DeltaNet, PreparedNet
from strata.kernels.delta_rule.prefill import prefill
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.delta_rule.verify import verify
from strata.kernels.layer import DeltaNetFn, Inner
from strata.kernels.quantize.triton import quantize
from strata.kernels.rows import GROUP, empty_rows, wants_quantized


def prepare(net: DeltaNet) -> DeltaNetFn:
    """The step of one layer: (projected bf16 [tokens, channels + value_heads * value_dim], gates float32 [tokens, 2 *
    value_heads], states, PagedBatch) -> the heads [tokens, value_heads * value_dim], normalised and gated, quantised
    where ``wants_quantized``. Heads have 16 dimensions or more, a power of two."""
    for dims in (net.key_dim, net.value_dim):
        assert dims == max(16, triton.next_power_of_2(dims)), f"heads of {dims} dimensions are not written for"
    prepared = PreparedNet.of(net)

    def step(projected: Tensor, gates: Tensor, state: DeltaState, batch: StepBatch) -> Inner:
        assert isinstance(batch, PagedBatch), "these kernels find sequences by where they start"
        tokens, columns = len(projected), net.value_width
        few, run_few = (1, decode) if batch.drafted is None else (state.most_at_once(len(prepared.taps)), verify)
        if batch.max_query <= few and wants_quantized(tokens) and net.value_dim % GROUP == 0:
            rows = empty_rows(tokens, columns, projected.device)
            run_few(prepared, projected, gates, state, batch, rows)
            return rows
        out = torch.empty(tokens, columns, dtype=projected.dtype, device=projected.device)
        several = len(batch.lengths) > 1
        if batch.max_query > few:
            prefill(prepared, projected, gates, state, batch, out, leave=few if several else 0)
        if batch.max_query <= few or several:
            run_few(prepared, projected, gates, state, batch, out)
        return quantize(out) if wants_quantized(tokens) else out

    return step
