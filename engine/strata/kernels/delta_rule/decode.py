"""The delta rule for sequences with one new token each: one Triton launch a layer.

Grid (value heads, sequences): a program convolves the channels of its head, takes the token into the head's state,
reads it, and normalises, gates and rounds what it read. Value heads that share a key head convolve its channels each by
themselves; the new inputs go where none of them reads (``DeltaState``).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.delta_rule.functions import (
    decayed,
    gated_norm,
    log_decay_and_beta,
    silu,
    store_head,
    unit,
)
from strata.kernels.delta_rule.net import PreparedNet
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.launch import early
from strata.kernels.rows import QuantizedRows
from strata.kernels.triton_functions import overlap_launches

# One H200, 2026-12-01, Qwen3-Next's heads (16 for keys, 32 for values, 128 wide), 2 MiB of states a sequence: one takes
# 4.3 us, with 8 warps 6.8; 32 take 45 us, with 8 warps 82.
WARPS = 4


def decode(
    prepared: PreparedNet,
    projected: Tensor,
    gates: Tensor,
    state: DeltaState,
    batch: PagedBatch,
    out: Tensor | QuantizedRows,
) -> None:
    """As ``delta_rule.triton`` says; writes the rows of ``out`` whose sequences have one new token."""
    net, quantized = prepared.net, isinstance(out, QuantizedRows)
    decode_kernel[(net.num_value_heads, len(batch.lengths))](
        projected,
        gates,
        prepared.taps,
        net.decay,
        net.dt_bias,
        net.norm.weight,
        state.conv,
        state.recurrent,
        batch.positions,
        batch.states,
        batch.starts if batch.max_query > 1 else None,
        None if quantized else out,
        *((out.codes, out.scales, out.sums) if quantized else (None, None, None)),
        net.norm.eps,
        KEY_HEADS=net.num_key_heads,
        VALUE_HEADS=net.num_value_heads,
        KEY_DIM=net.key_dim,
        VALUE_DIM=net.value_dim,
        KERNEL=len(prepared.taps),
        RING=state.conv.shape[1],
        SIGMOID=net.sigmoid_gate,
        num_warps=WARPS,
        **early(),
    )


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "states_ptr", "starts_ptr"])
def decode_kernel(
    projected_ptr,  # bf16 [tokens, channels + VALUE_HEADS * VALUE_DIM]
    gates_ptr,  # float32 [tokens, 2 * VALUE_HEADS]
    weight_ptr,  # float32 [KERNEL, channels], of the newest token first
    decay_ptr,  # float32 [VALUE_HEADS], as dt_bias
    dt_bias_ptr,
    norm_ptr,  # float32 [VALUE_DIM]
    ring_ptr,  # bf16 [slots, RING, channels]
    recurrent_ptr,  # float32 [slots, VALUE_HEADS, KEY_DIM, VALUE_DIM]
    positions_ptr,  # int64 [tokens]
    states_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1] where some sequences have several new tokens: they are left alone; else None
    out_ptr,  # bf16 [tokens, VALUE_HEADS * VALUE_DIM], or None and instead:
    codes_ptr,  # int8 [tokens, VALUE_HEADS * VALUE_DIM]
    scales_ptr,  # float32 [tokens, VALUE_HEADS * VALUE_DIM / 32], as sums
    sums_ptr,
    eps,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr,
    RING: tl.constexpr,
    SIGMOID: tl.constexpr,
    EARLY: tl.constexpr,
):
    SHARING: tl.constexpr = VALUE_HEADS // KEY_HEADS
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    head, seq = tl.program_id(0), tl.program_id(1)
    row = seq
    if starts_ptr is not None:
        row = tl.load(starts_ptr + seq)
        if tl.load(starts_ptr + seq + 1) - row != 1:
            return
    row = row.to(tl.int64)
    position, slot = tl.load(positions_ptr + row), tl.load(states_ptr + seq).to(tl.int64)
    keys, values = tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM)
    state_ptr = recurrent_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptr += keys[:, None] * VALUE_DIM + values[None, :]
    state = tl.load(state_ptr, mask=(position > 0) & (keys >= 0)[:, None] & (values >= 0)[None, :], other=0.0)
    decay, dt_bias = tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head)
    norm = tl.load(norm_ptr + values)
    ring_ptr += slot * (RING * CHANNELS)
    query_at = head // SHARING * KEY_DIM + keys
    key_at = KEY_HEADS * KEY_DIM + query_at
    value_at = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + values
    query = _remembered(weight_ptr, ring_ptr, position, query_at, CHANNELS, KERNEL, RING)
    key = _remembered(weight_ptr, ring_ptr, position, key_at, CHANNELS, KERNEL, RING)
    value = _remembered(weight_ptr, ring_ptr, position, value_at, CHANNELS, KERNEL, RING)
    overlap_launches(EARLY)

    row_ptr = projected_ptr + row * (CHANNELS + VALUE_HEADS * VALUE_DIM)
    new_query, new_key = tl.load(row_ptr + query_at), tl.load(row_ptr + key_at)
    new_value = tl.load(row_ptr + value_at)
    log_decay, beta = log_decay_and_beta(gates_ptr, row, row >= 0, decay, dt_bias, head, VALUE_HEADS)
    gate = tl.load(row_ptr + CHANNELS + head * VALUE_DIM + values).to(tl.float32)
    query = unit(silu(query + new_query.to(tl.float32) * tl.load(weight_ptr + query_at))) * KEY_DIM**-0.5
    key = unit(silu(key + new_key.to(tl.float32) * tl.load(weight_ptr + key_at)))
    value = silu(value + new_value.to(tl.float32) * tl.load(weight_ptr + value_at))

    state, new = decayed(state, key, value, log_decay, beta)
    read = tl.sum(state * query[:, None], 0) + tl.sum(key * query, 0) * new
    tl.store(state_ptr, state + key[:, None] * new[None, :])
    ring_ptr += position % RING * CHANNELS
    first = (head % SHARING == 0) & (keys >= 0)
    tl.store(ring_ptr + query_at, new_query, mask=first)
    tl.store(ring_ptr + key_at, new_key, mask=first)
    tl.store(ring_ptr + value_at, new_value)
    out = gated_norm(read, gate, norm, eps, VALUE_DIM, SIGMOID)
    at = row * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM
    store_head(out, at, out_ptr, codes_ptr, scales_ptr, sums_ptr, VALUE_DIM)


@triton.jit
def _remembered(
    weight_ptr, ring_ptr, position, channel, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr
):
    """What the tokens before ``position`` add to the channels' convolution, float32."""
    out = tl.zeros_like(channel).to(tl.float32)
    for back in tl.static_range(1, KERNEL):
        before = position - back
        at = ring_ptr + tl.maximum(before, 0) % RING * CHANNELS + channel
        known = tl.load(at, mask=(before >= 0) & (channel >= 0), other=0.0).to(tl.float32)
        out += known * tl.load(weight_ptr + back * CHANNELS + channel)
    return out
