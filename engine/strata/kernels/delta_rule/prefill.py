"""The delta rule for sequences with several new tokens each, CHUNK at a time: four Triton launches a layer.

mix     grid (chunks, heads of q, k and v): convolve, and bring queries and keys to length 1.
inner   grid (chunks, value heads): what a chunk's tokens make of each other whatever the state before them is. With
        G the sums of the log decays up to a token, row i of A is beta_i exp(G_i - G_j) k_i . k_j for j < i, and T the
        inverse of 1 + A: U = T beta v, W = T beta exp(G) k, and P = exp(G_i - G_j) q_i . k_j for j <= i.
scan    grid (pieces of the value dimensions, value heads, sequences): chunk after chunk through the state S. What is
        new is N = U - W S, what is read exp(G) q S + P N, and the next state exp(G_last) S + (exp(G_last - G) k)^T N.
finish  grid (tokens, value heads): normalise and gate; leave the last inputs of the convolution.

The form is that of https://arxiv.org/abs/2412.06464, section 3.3. A program finds the sequence of its chunk by
counting; those left over end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.attention.functions import product
from strata.kernels.delta_rule.functions import gated_norm, log_decay_and_beta, silu, unit
from strata.kernels.delta_rule.net import PreparedNet
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.launch import capability
from strata.kernels.triton_functions import count_tiles, find_tile

# One H200, 2026-12-01, Qwen3-Next's heads (16 for keys, 32 for values, 128 wide), 8,192 tokens of a sequence: 1.02 ms.
# mix takes 0.20, inner 0.43 (1.43 where all 64 rows of the inverse come one after another), scan 0.22, finish 0.16.
CHUNK = 64
VALUES_EACH = 32  # value dimensions of a program of ``scan``


def prefill(
    prepared: PreparedNet,
    projected: Tensor,
    gates: Tensor,
    state: DeltaState,
    batch: PagedBatch,
    out: Tensor,
    *,
    leave: int,
) -> None:
    """As ``delta_rule.triton`` says; writes ``out``, but not the rows of sequences with ``leave`` new tokens or
    less."""
    net, tokens, seqs = prepared.net, len(projected), len(batch.lengths)
    heads = net.num_value_heads
    chunks = tokens // CHUNK + seqs  # as many as there can be
    each = max(64, triton.next_power_of_2(seqs))
    shape = {
        "KEY_HEADS": net.num_key_heads,
        "VALUE_HEADS": heads,
        "KEY_DIM": net.key_dim,
        "VALUE_DIM": net.value_dim,
        "LEAVE": leave,
        "SEQS": each,
        "CHUNK": CHUNK,
    }

    def empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(size, dtype=dtype, device=projected.device)

    mixed = empty(tokens, net.channels)
    new, fade = empty(chunks, heads, CHUNK, net.value_dim), empty(chunks, heads, CHUNK, net.key_dim)
    inner, sums = empty(chunks, heads, CHUNK, CHUNK), empty(chunks, heads, CHUNK, dtype=torch.float32)
    convolution = {"KERNEL": len(prepared.taps), "RING": state.conv.shape[1]}
    mix_kernel[(chunks, 2 * net.num_key_heads + heads)](
        projected, prepared.taps, state.conv, batch.positions, batch.states, batch.starts, mixed, seqs,
        **shape, **convolution, DIMS=max(net.key_dim, net.value_dim), num_warps=4,
    )  # fmt: skip
    inner_kernel[(chunks, heads)](
        mixed, gates, net.decay, net.dt_bias, batch.starts, new, fade, inner, sums, seqs, **shape, num_warps=4,
    )  # fmt: skip
    values_each = min(VALUES_EACH, net.value_dim)
    stages = 3 if capability()[0] in (9, 10) else 2  # a program may have 227 KiB of shared memory there, else 99
    scan_kernel[(net.value_dim // values_each, heads, seqs)](
        mixed, new, fade, inner, sums, state.recurrent, batch.positions, batch.states, batch.starts, out,
        **shape, VALUES=values_each, STAGES=stages, num_warps=4,
    )  # fmt: skip
    finish_kernel[(tokens, heads)](
        projected, net.norm.weight, state.conv, batch.positions, batch.states, batch.starts, out, seqs, net.norm.eps,
        **{key: value for key, value in shape.items() if key != "CHUNK"},
        RING=state.conv.shape[1],
        SIGMOID=net.sigmoid_gate,
        SHARE=triton.next_power_of_2(triton.cdiv(net.channels, heads)),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _rows_of(starts_ptr, seq):
    """The first row of a sequence, int64, and how many it has."""
    first = tl.load(starts_ptr + seq).to(tl.int64)
    return first, tl.load(starts_ptr + seq + 1) - first


@triton.jit(
    do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["positions_ptr", "states_ptr", "starts_ptr"]
)
def mix_kernel(
    projected_ptr,  # bf16 [tokens, channels + VALUE_HEADS * VALUE_DIM]
    weight_ptr,  # float32 [KERNEL, channels], of the newest token first
    ring_ptr,  # bf16 [slots, RING, channels]
    positions_ptr,  # int64 [tokens]
    states_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1]
    mixed_ptr,  # bf16 [tokens, channels]
    num_seqs,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LEAVE: tl.constexpr,  # sequences with so many new tokens or less alone
    SEQS: tl.constexpr,  # num_seqs or more, a power of two
    CHUNK: tl.constexpr,
    KERNEL: tl.constexpr,
    RING: tl.constexpr,
    DIMS: tl.constexpr,  # of the wider head
):
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    seq, chunk = find_tile(starts_ptr, tl.program_id(0), num_seqs, 1, CHUNK, LEAVE, SEQS)
    if seq >= num_seqs:
        return
    first, num_new = _rows_of(starts_ptr, seq)
    begin = tl.load(positions_ptr + first)
    ring_ptr += tl.load(states_ptr + seq).to(tl.int64) * (RING * CHANNELS)
    head = tl.program_id(1)
    is_value = head >= 2 * KEY_HEADS
    channel = tl.where(is_value, 2 * KEY_HEADS * KEY_DIM + (head - 2 * KEY_HEADS) * VALUE_DIM, head * KEY_DIM)
    dims = tl.arange(0, DIMS)
    inside = dims < tl.where(is_value, VALUE_DIM, KEY_DIM)
    channel += dims
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = (token < num_new)[:, None] & inside[None, :]
    out = tl.zeros((CHUNK, DIMS), tl.float32)
    for back in tl.static_range(KERNEL):
        weight = tl.load(weight_ptr + back * CHANNELS + channel, mask=inside, other=0.0)
        source = token - back
        at = projected_ptr + (first + source)[:, None] * (CHANNELS + VALUE_HEADS * VALUE_DIM) + channel[None, :]
        seen = tl.load(at, mask=mask & (source >= 0)[:, None], other=0.0).to(tl.float32)
        if back > 0:
            before = begin + source
            at = ring_ptr + (tl.maximum(before, 0) % RING)[:, None] * CHANNELS + channel[None, :]
            known = mask & ((source < 0) & (before >= 0))[:, None]
            seen += tl.load(at, mask=known, other=0.0).to(tl.float32)
        out += seen * weight[None, :]
    out = silu(out)
    if not is_value:
        out = unit(out) * tl.where(head < KEY_HEADS, KEY_DIM**-0.5, 1.0)
    tl.store(mixed_ptr + (first + token)[:, None] * CHANNELS + channel[None, :], out.to(tl.bfloat16), mask=mask)


@triton.jit(do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["starts_ptr"])
def inner_kernel(
    mixed_ptr,  # bf16 [tokens, channels]
    gates_ptr,  # float32 [tokens, 2 * VALUE_HEADS]
    decay_ptr,  # float32 [VALUE_HEADS], as dt_bias
    dt_bias_ptr,
    starts_ptr,  # int32 [seqs + 1]
    new_ptr,  # U, bf16 [chunks, VALUE_HEADS, CHUNK, VALUE_DIM]
    fade_ptr,  # W, bf16 [chunks, VALUE_HEADS, CHUNK, KEY_DIM]
    inner_ptr,  # P, bf16 [chunks, VALUE_HEADS, CHUNK, CHUNK]
    sums_ptr,  # G, float32 [chunks, VALUE_HEADS, CHUNK]
    num_seqs,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LEAVE: tl.constexpr,
    SEQS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    seq, chunk = find_tile(starts_ptr, tl.program_id(0), num_seqs, 1, CHUNK, LEAVE, SEQS)
    if seq >= num_seqs:
        return
    first, num_new = _rows_of(starts_ptr, seq)
    head = tl.program_id(1)
    keys, values, tokens = tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM), tl.arange(0, CHUNK)
    there = chunk * CHUNK + tokens < num_new
    row = first + chunk * CHUNK + tokens
    at = mixed_ptr + row[:, None] * CHANNELS + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + keys[None, :]
    query = tl.load(at, mask=there[:, None], other=0.0)
    key = tl.load(at + KEY_HEADS * KEY_DIM, mask=there[:, None], other=0.0)
    at = mixed_ptr + row[:, None] * CHANNELS + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + values[None, :]
    value = tl.load(at, mask=there[:, None], other=0.0)
    log_decay, beta = log_decay_and_beta(
        gates_ptr, row, there, tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head), head, VALUE_HEADS
    )
    sums = tl.cumsum(log_decay, 0)
    earlier = tokens[:, None] > tokens[None, :]
    upto = tokens[:, None] >= tokens[None, :]
    faded = tl.where(upto, tl.exp(tl.where(upto, sums[:, None] - sums[None, :], 0.0)), 0.0)
    zeros = tl.zeros((CHUNK, CHUNK), tl.float32)
    alike = product(key, tl.trans(key), zeros)
    inverse = _inverse(tl.where(earlier, beta[:, None] * faded * alike, 0.0), CHUNK, CHUNK // 4)

    number = tl.program_id(0).to(tl.int64) * VALUE_HEADS + head
    scaled = value.to(tl.float32) * beta[:, None]
    at = new_ptr + number * (CHUNK * VALUE_DIM) + tokens[:, None] * VALUE_DIM + values[None, :]
    tl.store(at, tl.dot(inverse, scaled).to(tl.bfloat16))
    scaled = key.to(tl.float32) * (beta * tl.exp(sums))[:, None]
    at = fade_ptr + number * (CHUNK * KEY_DIM) + tokens[:, None] * KEY_DIM + keys[None, :]
    tl.store(at, tl.dot(inverse, scaled).to(tl.bfloat16))
    at = inner_ptr + number * (CHUNK * CHUNK) + tokens[:, None] * CHUNK + tokens[None, :]
    tl.store(at, (product(query, tl.trans(key), zeros) * faded).to(tl.bfloat16))
    tl.store(sums_ptr + number * CHUNK + tokens, sums)


@triton.jit
def _inverse(below, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Of 1 + ``below``, float32 [SIZE, SIZE] and zero but below its diagonal: of the BLOCKs on the diagonal row after
    row. With D these and L what lies below them, N = D L is zero in its fourth power, four blocks being SIZE, and the
    inverse (1 - N) (1 + N^2) D."""
    BLOCKS: tl.constexpr = SIZE // BLOCK
    tl.static_assert(BLOCKS <= 4)
    number, index = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
    on_diagonal = number[:, None, None, None] == number[None, None, :, None]
    blocks = tl.reshape(below, (BLOCKS, BLOCK, BLOCKS, BLOCK))
    inverse = -tl.sum(tl.where(on_diagonal, blocks, 0.0), 2)
    for i in range(1, BLOCK):
        mine = (index == i)[None, :, None]
        row = tl.sum(tl.where(mine, inverse, 0.0), 1)
        row += tl.sum(tl.expand_dims(row, 2) * inverse, 1)
        inverse = tl.where(mine, row[:, None, :], inverse)
    inverse += tl.where(index[:, None] == index[None, :], 1.0, 0.0)[None, :, :]
    inverse = tl.where(on_diagonal, inverse[:, :, None, :], 0.0)
    inverse = tl.reshape(tl.broadcast_to(inverse, (BLOCKS, BLOCK, BLOCKS, BLOCK)), (SIZE, SIZE))
    rest = tl.reshape(tl.where(on_diagonal, 0.0, blocks), (SIZE, SIZE))
    nilpotent = tl.dot(inverse, rest, input_precision="tf32x3")
    out = tl.where(tl.arange(0, SIZE)[:, None] == tl.arange(0, SIZE)[None, :], 1.0, 0.0) - nilpotent
    out += tl.dot(out, tl.dot(nilpotent, nilpotent, input_precision="tf32x3"), input_precision="tf32x3")
    return tl.dot(out, inverse, input_precision="tf32x3")


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "states_ptr", "starts_ptr"])
def scan_kernel(
    mixed_ptr,  # as of inner_kernel
    new_ptr,
    fade_ptr,
    inner_ptr,
    sums_ptr,
    recurrent_ptr,  # float32 [slots, VALUE_HEADS, KEY_DIM, VALUE_DIM]
    positions_ptr,  # int64 [tokens]
    states_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1]
    out_ptr,  # bf16 [tokens, VALUE_HEADS, VALUE_DIM]
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LEAVE: tl.constexpr,
    SEQS: tl.constexpr,
    CHUNK: tl.constexpr,
    VALUES: tl.constexpr,
    STAGES: tl.constexpr,
):
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    head, seq = tl.program_id(1), tl.program_id(2)
    first, num_new = _rows_of(starts_ptr, seq)
    if num_new <= LEAVE:
        return
    chunks_before = tl.sum(count_tiles(starts_ptr, seq, 1, CHUNK, LEAVE, SEQS), 0)
    number = chunks_before.to(tl.int64) * VALUE_HEADS + head

    keys, tokens = tl.arange(0, KEY_DIM), tl.arange(0, CHUNK)
    values = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    slot = tl.load(states_ptr + seq).to(tl.int64)
    state_ptr = recurrent_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptr += keys[:, None] * VALUE_DIM + values[None, :]
    known = tl.load(positions_ptr + first) > 0
    state = tl.load(state_ptr, mask=known & (keys >= 0)[:, None] & (values >= 0)[None, :], other=0.0)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    for begin in tl.range(0, num_new, CHUNK, num_stages=STAGES):
        row = first + begin + tokens
        there = (begin + tokens < num_new)[:, None]
        at = mixed_ptr + row[:, None] * CHANNELS + key_head * KEY_DIM + keys[None, :]
        query = tl.load(at, mask=there, other=0.0)
        key = tl.load(at + KEY_HEADS * KEY_DIM, mask=there, other=0.0)
        sums = tl.load(sums_ptr + number * CHUNK + tokens)
        last = tl.load(sums_ptr + number * CHUNK + CHUNK - 1)
        fade = tl.load(fade_ptr + number * (CHUNK * KEY_DIM) + tokens[:, None] * KEY_DIM + keys[None, :])
        new = tl.load(new_ptr + number * (CHUNK * VALUE_DIM) + tokens[:, None] * VALUE_DIM + values[None, :])
        inner = tl.load(inner_ptr + number * (CHUNK * CHUNK) + tokens[:, None] * CHUNK + tokens[None, :])
        rounded = state.to(tl.bfloat16)
        zeros = tl.zeros((CHUNK, VALUES), tl.float32)
        new = (new.to(tl.float32) - product(fade, rounded, zeros)).to(tl.bfloat16)
        read = product(query, rounded, zeros) * tl.exp(sums)[:, None]
        read = product(inner, new, read)
        at = out_ptr + (row[:, None] * VALUE_HEADS + head) * VALUE_DIM + values[None, :]
        tl.store(at, read.to(tl.bfloat16), mask=there)
        key = (key.to(tl.float32) * tl.exp(last - sums)[:, None]).to(tl.bfloat16)
        state = product(tl.trans(key), new, state * tl.exp(last))
        number += VALUE_HEADS
    tl.store(state_ptr, state)


@triton.jit(
    do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["positions_ptr", "states_ptr", "starts_ptr"]
)
def finish_kernel(
    projected_ptr,  # bf16 [tokens, channels + VALUE_HEADS * VALUE_DIM]
    norm_ptr,  # float32 [VALUE_DIM]
    ring_ptr,  # bf16 [slots, RING, channels]
    positions_ptr,  # int64 [tokens]
    states_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1]
    out_ptr,  # bf16 [tokens, VALUE_HEADS, VALUE_DIM], in place
    num_seqs,
    eps,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LEAVE: tl.constexpr,
    SEQS: tl.constexpr,
    RING: tl.constexpr,
    SIGMOID: tl.constexpr,
    SHARE: tl.constexpr,  # channels that a program leaves in the ring, a power of two
):
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    each = tl.arange(0, SEQS)
    ends = tl.load(starts_ptr + each + 1, mask=each < num_seqs, other=0)
    seq = tl.sum(((ends <= row) & (each < num_seqs)).to(tl.int32), 0)
    if seq >= num_seqs:
        return
    end = tl.load(starts_ptr + seq + 1)
    if end - tl.load(starts_ptr + seq) <= LEAVE:
        return
    values = tl.arange(0, VALUE_DIM)
    row_ptr = projected_ptr + row * (CHANNELS + VALUE_HEADS * VALUE_DIM)
    at = out_ptr + (row * VALUE_HEADS + head) * VALUE_DIM + values
    gate = tl.load(row_ptr + CHANNELS + head * VALUE_DIM + values).to(tl.float32)
    read = tl.load(at).to(tl.float32)
    out = gated_norm(read, gate, tl.load(norm_ptr + values), eps, VALUE_DIM, SIGMOID)
    tl.store(at, out.to(tl.bfloat16))
    if row >= end - RING:
        channel = head * SHARE + tl.arange(0, SHARE)
        ring_ptr += tl.load(states_ptr + seq).to(tl.int64) * (RING * CHANNELS)
        ring_ptr += tl.load(positions_ptr + row) % RING * CHANNELS
        mask = channel < CHANNELS
        tl.store(ring_ptr + channel, tl.load(row_ptr + channel, mask=mask, other=0.0), mask=mask)
