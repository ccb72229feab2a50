"""The delta rule for sequences with few new tokens each, drafts among them: one Triton launch a layer.

Grid (value heads, sequences): a program takes the tokens that its head's state lacks into it, from inputs that were
kept (``DeltaState``), then one new token after another, which it reads, normalises, gates and rounds. The state is left
as it is behind the last token that is no draft; it is read and written once, as by ``decode``.
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

WARPS = 4  # as of ``decode``, which holds a state in registers, too


def verify(
    prepared: PreparedNet,
    projected: Tensor,
    gates: Tensor,
    state: DeltaState,
    batch: PagedBatch,
    out: Tensor | QuantizedRows,
) -> None:
    """As ``delta_rule.triton`` says; writes the rows of ``out`` whose sequences have ``DeltaState.most_at_once`` new
    tokens or less."""
    assert batch.drafted is not None, "a step that verifies says which of its tokens are drafts"
    net, quantized = prepared.net, isinstance(out, QuantizedRows)
    verify_kernel[(net.num_value_heads, len(batch.lengths))](
        projected,
        gates,
        prepared.taps,
        net.decay,
        net.dt_bias,
        net.norm.weight,
        state.conv,
        state.gates,
        state.recurrent,
        batch.positions,
        batch.states,
        batch.starts,
        batch.drafted.replayed,
        batch.drafted.drafts,
        None if quantized else out,
        *((out.codes, out.scales, out.sums) if quantized else (None, None, None)),
        net.norm.eps,
        KEY_HEADS=net.num_key_heads,
        VALUE_HEADS=net.num_value_heads,
        KEY_DIM=net.key_dim,
        VALUE_DIM=net.value_dim,
        KERNEL=len(prepared.taps),
        RING=state.conv.shape[1],
        MOST=state.most_at_once(len(prepared.taps)),
        SIGMOID=net.sigmoid_gate,
        num_warps=WARPS,
        **early(),
    )


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "states_ptr", "starts_ptr", "replayed_ptr", "drafts_ptr"])
def verify_kernel(
    projected_ptr,  # bf16 [tokens, channels + VALUE_HEADS * VALUE_DIM]
    gates_ptr,  # float32 [tokens, 2 * VALUE_HEADS]
    weight_ptr,  # float32 [KERNEL, channels], of the newest token first
    decay_ptr,  # float32 [VALUE_HEADS], as dt_bias
    dt_bias_ptr,
    norm_ptr,  # float32 [VALUE_DIM]
    ring_ptr,  # bf16 [slots, RING, channels]
    kept_ptr,  # float32 [slots, RING, 2 * VALUE_HEADS], gates
    recurrent_ptr,  # float32 [slots, VALUE_HEADS, KEY_DIM, VALUE_DIM]
    positions_ptr,  # int64 [tokens]
    states_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1]
    replayed_ptr,  # int32 [seqs], as drafts
    drafts_ptr,
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
    MOST: tl.constexpr,
    SIGMOID: tl.constexpr,
    EARLY: tl.constexpr,
):
    SHARING: tl.constexpr = VALUE_HEADS // KEY_HEADS
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    WIDTH: tl.constexpr = CHANNELS + VALUE_HEADS * VALUE_DIM
    head, seq = tl.program_id(0), tl.program_id(1)
    row = tl.load(starts_ptr + seq)
    num_new = tl.load(starts_ptr + seq + 1) - row
    if (num_new == 0) | (num_new > MOST):
        return
    row = row.to(tl.int64)
    position, slot = tl.load(positions_ptr + row), tl.load(states_ptr + seq).to(tl.int64)
    num_replayed = tl.load(replayed_ptr + seq)
    last_sure = num_new - tl.load(drafts_ptr + seq) - 1
    begin = position - num_replayed
    keys, values = tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM)
    state_ptr = recurrent_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptr += keys[:, None] * VALUE_DIM + values[None, :]
    state = tl.load(state_ptr, mask=(begin > 0) & (keys >= 0)[:, None] & (values >= 0)[None, :], other=0.0)
    decay, dt_bias = tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head)
    norm = tl.load(norm_ptr + values)
    ring_ptr += slot * (RING * CHANNELS)
    kept_ptr += slot * (RING * 2 * VALUE_HEADS)
    query_at = head // SHARING * KEY_DIM + keys
    key_at = KEY_HEADS * KEY_DIM + query_at
    value_at = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + values
    for token in range(num_replayed):
        at = begin + token
        key = unit(silu(_known(weight_ptr, ring_ptr, at, at, key_at, CHANNELS, KERNEL, RING)))
        value = silu(_known(weight_ptr, ring_ptr, at, at, value_at, CHANNELS, KERNEL, RING))
        log_decay, beta = log_decay_and_beta(kept_ptr, at % RING, at >= 0, decay, dt_bias, head, VALUE_HEADS)
        state, new = decayed(state, key, value, log_decay, beta)
        state += key[:, None] * new[None, :]
    overlap_launches(EARLY)

    first = (head % SHARING == 0) & (keys >= 0)
    for token in range(num_new):
        at = position + token
        row_ptr = projected_ptr + row * WIDTH
        query = _known(weight_ptr, ring_ptr, at, position - 1, query_at, CHANNELS, KERNEL, RING)
        query += _new(weight_ptr, row_ptr, token, query_at, CHANNELS, WIDTH, KERNEL)
        query = unit(silu(query)) * KEY_DIM**-0.5
        key = _known(weight_ptr, ring_ptr, at, position - 1, key_at, CHANNELS, KERNEL, RING)
        key = unit(silu(key + _new(weight_ptr, row_ptr, token, key_at, CHANNELS, WIDTH, KERNEL)))
        value = _known(weight_ptr, ring_ptr, at, position - 1, value_at, CHANNELS, KERNEL, RING)
        value = silu(value + _new(weight_ptr, row_ptr, token, value_at, CHANNELS, WIDTH, KERNEL))
        log_decay, beta = log_decay_and_beta(gates_ptr, row, row >= 0, decay, dt_bias, head, VALUE_HEADS)
        gate = tl.load(row_ptr + CHANNELS + head * VALUE_DIM + values).to(tl.float32)

        state, new = decayed(state, key, value, log_decay, beta)
        read = tl.sum(state * query[:, None], 0) + tl.sum(key * query, 0) * new
        state += key[:, None] * new[None, :]
        if token == last_sure:
            tl.store(state_ptr, state)
        at = at % RING
        tl.store(ring_ptr + at * CHANNELS + query_at, tl.load(row_ptr + query_at), mask=first)
        tl.store(ring_ptr + at * CHANNELS + key_at, tl.load(row_ptr + key_at), mask=first)
        tl.store(ring_ptr + at * CHANNELS + value_at, tl.load(row_ptr + value_at))
        both = tl.arange(0, 2) * VALUE_HEADS + head
        tl.store(kept_ptr + at * (2 * VALUE_HEADS) + both, tl.load(gates_ptr + row * (2 * VALUE_HEADS) + both))
        out = gated_norm(read, gate, norm, eps, VALUE_DIM, SIGMOID)
        at = row * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM
        store_head(out, at, out_ptr, codes_ptr, scales_ptr, sums_ptr, VALUE_DIM)
        row += 1


@triton.jit
def _known(
    weight_ptr, ring_ptr, position, last, channel, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr
):
    """What tokens up to ``last``, whose inputs lie in the ring, add to the channels' convolution at ``position``."""
    out = tl.zeros_like(channel).to(tl.float32)
    for back in tl.static_range(KERNEL):
        before = position - back
        at = ring_ptr + tl.maximum(before, 0) % RING * CHANNELS + channel
        mask = (before >= 0) & (before <= last) & (channel >= 0)
        out += tl.load(at, mask=mask, other=0.0).to(tl.float32) * tl.load(weight_ptr + back * CHANNELS + channel)
    return out


@triton.jit
def _new(weight_ptr, row_ptr, token, channel, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr):
    """What new token number ``token``, in the row at ``row_ptr``, and those before it in the step add."""
    out = tl.zeros_like(channel).to(tl.float32)
    for back in tl.static_range(KERNEL):
        at = row_ptr - back * WIDTH + channel
        seen = tl.load(at, mask=(back <= token) & (channel >= 0), other=0.0).to(tl.float32)
        out += seen * tl.load(weight_ptr + back * CHANNELS + channel)
    return out
