"""Attention of sequences with one new token each: two Triton launches a layer.

    split    grid (kv heads, sequences, splits): normalise and turn the heads of q and k, put the new key and value into
             the cache, attend to one share of the positions. One program takes all query heads of its KV head.
    join     grid (sequences, columns / COLUMNS): sum the shares in their order, divide, round to bf16 or quantise.

The number of splits follows from the shapes, so that one CUDA graph serves every length: a sequence is cut into shares
of whole TILEs, and programs without one end at once. float32 between the two: maxima and sums [seqs, heads, splits],
values [seqs, heads, splits, head_dim].
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.attention.functions import LOG2E, attend, block_numbers, opened, rotated
from strata.kernels.attention.tuning import DecodeTuning
from strata.kernels.launch import early
from strata.kernels.layer import Heads, Rotation
from strata.kernels.rows import GROUP, QuantizedRows
from strata.kernels.triton_functions import overlap_launches, store_groups

MAX_SPLITS = 64


def decode(
    heads: Heads,
    tuning: DecodeTuning,
    qkv: Tensor,
    rotation: Rotation,
    cache: Tensor,
    batch: PagedBatch,
    out: Tensor | QuantizedRows,
) -> None:
    """As ``attention.triton`` says; writes the rows of ``out`` whose sequences have one new token, and padding rows."""
    seqs, num_heads, dims = len(batch.lengths), heads.num_heads, heads.head_dim
    splits = _num_splits(heads, tuning, batch, cache.shape[1])
    shares = seqs * num_heads * splits
    maxima, sums, values = torch.empty(shares * (2 + dims), device=qkv.device).split([shares, shares, shares * dims])
    queries = triton.next_power_of_2(num_heads // heads.num_kv_heads)
    starts = batch.starts if batch.max_query > 1 else None
    split_kernel[(heads.num_kv_heads, seqs, splits)](
        qkv,
        rotation.cos,
        rotation.sin,
        None if heads.query_norm is None else heads.query_norm.weight,
        None if heads.key_norm is None else heads.key_norm.weight,
        cache,
        batch.slots,
        batch.tables,
        batch.lengths,
        starts,
        maxima,
        sums,
        values,
        splits,
        batch.tables.shape[1],
        0.0 if heads.query_norm is None else heads.query_norm.eps,
        HEADS=num_heads,
        KV_HEADS=heads.num_kv_heads,
        HEAD_DIM=dims,
        ROTARY_DIM=rotation.cos.shape[-1],
        PROJECTED=heads.num_projected,
        BLOCK_SIZE=cache.shape[1],
        WINDOW=heads.window,
        TILE=tuning.tile,
        STAGES=tuning.stages,
        QUERIES=queries,
        ROWS=max(16, queries),
        DIMS=max(16, triton.next_power_of_2(dims)),
        num_warps=tuning.warps,
        **early(),
    )
    quantized = isinstance(out, QuantizedRows)
    run = math.gcd(dims, GROUP)
    join_kernel[(seqs, triton.cdiv(num_heads * dims, tuning.columns))](
        maxima,
        sums,
        values,
        heads.sinks,
        qkv if heads.gated else None,
        batch.lengths,
        starts,
        None if quantized else out,
        *((out.codes, out.scales, out.sums) if quantized else (None, None, None)),
        splits,
        HEADS=num_heads,
        HEAD_DIM=dims,
        PROJECTED=heads.num_projected,
        WINDOW=heads.window,
        TILE=tuning.tile,
        CHUNK=tuning.chunk,
        RUN=run,
        RUNS=tuning.columns // run,
        num_warps=tuning.join_warps,
        **early(),
    )


def _num_splits(heads: Heads, tuning: DecodeTuning, batch: PagedBatch, block_size: int) -> int:
    """Enough programs to fill the GPU, where sequences may be so long."""
    seqs, width = batch.tables.shape
    longest = width * block_size if heads.window is None else min(width * block_size, heads.window)
    wanted = triton.cdiv(tuning.programs, seqs * heads.num_kv_heads)
    return min(wanted, triton.cdiv(longest, tuning.tile), MAX_SPLITS)


@triton.jit
def _first_and_share(length, splits, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """The first position that is seen, and how many each split takes."""
    first = 0
    if WINDOW is not None:
        first = tl.maximum(length - WINDOW, 0)
    return first, tl.cdiv(tl.cdiv(length - first, splits), TILE) * TILE


# What differs from step to step must not have a kernel compiled anew.
@triton.jit(
    do_not_specialize=["splits", "max_blocks"],
    do_not_specialize_on_alignment=["slots_ptr", "tables_ptr", "lengths_ptr", "starts_ptr"],
)
def split_kernel(
    qkv_ptr,  # bf16 [tokens, PROJECTED, HEAD_DIM]
    cos_ptr,  # bf16 [tokens, ROTARY_DIM], as sin with its sign
    sin_ptr,
    query_weight_ptr,  # float32 [HEAD_DIM] or None, as the next
    key_weight_ptr,
    cache_ptr,  # bf16 [blocks, BLOCK_SIZE, 2, KV_HEADS, HEAD_DIM]
    slots_ptr,  # int64 [tokens]
    tables_ptr,  # int32 [seqs, max_blocks]
    lengths_ptr,  # int32 [seqs]
    starts_ptr,  # int32 [seqs + 1] where some sequences have several new tokens: they are left alone; else None
    maxima_ptr,  # float32 [seqs, HEADS, splits], as sums
    sums_ptr,
    values_ptr,  # float32 [seqs, HEADS, splits, HEAD_DIM]
    splits,
    max_blocks,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PROJECTED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
    QUERIES: tl.constexpr,  # HEADS // KV_HEADS, padded to a power of two; ROWS: to what a product takes
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,  # HEAD_DIM, likewise
):
    kv_head, seq, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + seq)
    row = seq
    if starts_ptr is not None:
        row = tl.load(starts_ptr + seq)
        length = tl.where(tl.load(starts_ptr + seq + 1) - row == 1, length, 0)
    first, share = _first_and_share(length, splits, WINDOW, TILE)
    begin = first + part * share
    if begin >= length:
        return
    end = tl.minimum(begin + share, length)

    GROUP: tl.constexpr = HEADS // KV_HEADS
    WIDTH: tl.constexpr = KV_HEADS * HEAD_DIM
    dims = tl.arange(0, DIMS)
    inside = dims < HEAD_DIM
    table_ptr = tables_ptr + seq.to(tl.int64) * max_blocks
    keys_ptr = cache_ptr + kv_head * HEAD_DIM
    stop = tl.minimum(end, length - 1)  # the new token's are not in the cache yet
    # Nothing of this was written in the step that runs. With short sequences the first tile is the only one.
    block = block_numbers(table_ptr, begin, stop, BLOCK_SIZE, TILE)
    key, value, seen = _tile(keys_ptr, block, begin, stop, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, DIMS)
    overlap_launches(EARLY)

    heads_ptr = qkv_ptr + row.to(tl.int64) * (PROJECTED * HEAD_DIM)
    cos_ptr += row.to(tl.int64) * ROTARY_DIM
    sin_ptr += row.to(tl.int64) * ROTARY_DIM
    r = tl.arange(0, QUERIES)
    query = rotated(
        heads_ptr, kv_head * GROUP + r, r < GROUP, dims, query_weight_ptr, cos_ptr, sin_ptr, eps, HEAD_DIM, ROTARY_DIM
    )
    query = (query * (LOG2E / HEAD_DIM**0.5)).to(tl.bfloat16)

    # The softmax begins with the new token in the last split, with nothing in the others.
    last = end == length
    own = HEADS + kv_head + tl.arange(0, 1)
    present = last & (own < HEADS + KV_HEADS)
    new_key = rotated(heads_ptr, own, present, dims, key_weight_ptr, cos_ptr, sin_ptr, eps, HEAD_DIM, ROTARY_DIM)
    new_key = tl.sum(new_key, 0).to(tl.bfloat16)
    new_value = tl.load(heads_ptr + (HEADS + KV_HEADS + kv_head) * HEAD_DIM + dims, mask=inside & last, other=0.0)
    at = cache_ptr + tl.load(slots_ptr + row, mask=last, other=0) * (2 * WIDTH) + kv_head * HEAD_DIM + dims
    tl.store(at, new_key, mask=inside & last)
    tl.store(at + WIDTH, new_value, mask=inside & last)
    query = _rows(query, ROWS)
    score = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1)
    top = tl.where(last, score, -1e30)
    total = tl.zeros((ROWS,), tl.float32) + tl.where(last, 1.0, 0.0)
    out = tl.zeros((ROWS, DIMS), tl.float32) + new_value.to(tl.float32)[None, :]

    top, total, out = attend(query, key, value, seen, top, total, out)
    if begin + TILE < stop:
        block = block_numbers(table_ptr, begin + TILE, stop, BLOCK_SIZE, TILE)
        for start in tl.range(begin + TILE, stop, TILE, num_stages=STAGES):
            key, value, seen = _tile(keys_ptr, block, start, stop, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, DIMS)
            block = block_numbers(table_ptr, start + TILE, stop, BLOCK_SIZE, TILE)
            top, total, out = attend(query, key, value, seen, top, total, out)

    r = tl.arange(0, ROWS)
    shares = (seq * HEADS + kv_head * GROUP + r) * splits + part
    tl.store(maxima_ptr + shares, top, mask=r < GROUP)
    tl.store(sums_ptr + shares, total, mask=r < GROUP)
    at = values_ptr + shares[:, None].to(tl.int64) * HEAD_DIM + dims[None, :]
    tl.store(at, out, mask=(r < GROUP)[:, None] & inside[None, :])


@triton.jit
def _rows(few, ROWS: tl.constexpr):
    """The rows of ``few`` over and over: [ROWS, columns]."""
    TIMES: tl.constexpr = ROWS // few.shape[0]
    return tl.reshape(tl.broadcast_to(few[None, :, :], (TIMES, few.shape[0], few.shape[1])), (ROWS, few.shape[1]))


@triton.jit
def _tile(
    keys_ptr,
    block,
    start,
    stop,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Keys and values [TILE, DIMS] of the positions from ``start``, and which of these come before ``stop`` [1, TILE];
    no others are read."""
    t, dims = start + tl.arange(0, TILE), tl.arange(0, DIMS)
    there = t < stop
    at = keys_ptr + (block * BLOCK_SIZE + t % BLOCK_SIZE).to(tl.int64) * (2 * KV_HEADS * HEAD_DIM)
    at = at[:, None] + dims[None, :]
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    key = tl.load(at, mask=mask, other=0.0)
    return key, tl.load(at + KV_HEADS * HEAD_DIM, mask=mask, other=0.0), there[None, :]


@triton.jit(
    do_not_specialize=["splits"],
    do_not_specialize_on_alignment=["lengths_ptr", "starts_ptr"],
)
def join_kernel(
    maxima_ptr,  # as of split_kernel, to starts
    sums_ptr,
    values_ptr,
    sinks_ptr,  # float32 [HEADS] or None
    qkv_ptr,  # bf16 [tokens, PROJECTED, HEAD_DIM], whose last heads are the gates, or None
    lengths_ptr,
    starts_ptr,
    out_ptr,  # bf16 [tokens, HEADS * HEAD_DIM], or None and instead:
    codes_ptr,  # int8 [tokens, HEADS * HEAD_DIM]
    scales_ptr,  # float32 [tokens, HEADS * HEAD_DIM / 32], as sums
    scaled_sums_ptr,
    splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PROJECTED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr,
    CHUNK: tl.constexpr,  # splits that are read at a time
    RUN: tl.constexpr,  # columns of one head that lie in one group
    RUNS: tl.constexpr,  # of these a program
):
    """A padding row becomes zeros."""
    seq = tl.program_id(0)
    length = tl.load(lengths_ptr + seq)
    row = seq
    if starts_ptr is not None:
        row = tl.load(starts_ptr + seq)
        if tl.load(starts_ptr + seq + 1) - row != 1:
            return
    first, share = _first_and_share(length, splits, WINDOW, TILE)
    live = tl.cdiv(length - first, tl.maximum(share, 1))

    COLUMNS: tl.constexpr = HEADS * HEAD_DIM
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    present = run < COLUMNS // RUN
    head = run * RUN // HEAD_DIM
    dims = (run * RUN % HEAD_DIM)[:, None] + tl.arange(0, RUN)[None, :]
    shares = (seq * HEADS + head) * splits
    top = tl.full((RUNS,), -1e30, tl.float32)
    total = tl.zeros((RUNS,), tl.float32)
    if sinks_ptr is not None:
        top = tl.load(sinks_ptr + head, mask=present, other=0.0) * LOG2E
        total += 1.0
    out = tl.zeros((RUNS, RUN), tl.float32)
    overlap_launches(EARLY)
    for start in range(0, live, CHUNK):
        part = start + tl.arange(0, CHUNK)
        mask = present[:, None] & (part < live)[None, :]
        at = shares[:, None] + part[None, :]
        tops = tl.load(maxima_ptr + at, mask=mask, other=-1e30)
        totals = tl.load(sums_ptr + at, mask=mask, other=0.0)
        value_at = values_ptr + at[:, :, None].to(tl.int64) * HEAD_DIM + dims[:, None, :]
        value = tl.load(value_at, mask=mask[:, :, None], other=0.0)
        higher = tl.maximum(top, tl.max(tops, 1))
        weights = tl.exp2(tops - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(totals * weights, 1)
        out = out * fade[:, None] + tl.sum(weights[:, :, None] * value, 1)
        top = higher
    out = tl.where(live > 0, out / total[:, None], 0.0)
    if qkv_ptr is not None:
        gates_ptr = qkv_ptr + (row.to(tl.int64) * PROJECTED + PROJECTED - HEADS) * HEAD_DIM
        out = opened(out, gates_ptr + run[:, None] * RUN + tl.arange(0, RUN)[None, :], present[:, None])

    if out_ptr is not None:
        out_at = out_ptr + row.to(tl.int64) * COLUMNS + run[:, None] * RUN + tl.arange(0, RUN)[None, :]
        tl.store(out_at, out.to(tl.bfloat16), mask=present[:, None])
    else:
        GROUPS: tl.constexpr = RUNS * RUN // 32
        group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
        number = row * (COLUMNS // 32) + group
        out = tl.reshape(out, (GROUPS, 32))
        store_groups(out, codes_ptr, scales_ptr, scaled_sums_ptr, number, group < COLUMNS // 32)
