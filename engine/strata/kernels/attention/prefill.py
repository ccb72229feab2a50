"""Attention of sequences with several new tokens each: two Triton launches a layer.

prepare  grid (tokens, heads / HEADS_EACH): normalise and turn the heads of q and k; q [tokens, heads, head_dim] goes
         to a tensor of its own, keys and values into the cache.
attend   grid (kv heads, tiles): flash attention of ROWS rows of one sequence to the positions before them. The rows
         are its new tokens times the query heads of the KV head, so a tile spans few tokens and its causal edge is
         short. A program finds the sequence of its tile by counting; those left over end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.attention.functions import LOG2E, attend, block_numbers, opened, rotated
from strata.kernels.attention.tuning import PrefillTuning
from strata.kernels.layer import Heads, Rotation
from strata.kernels.triton_functions import find_tile


def prefill(
    heads: Heads,
    tuning: PrefillTuning,
    qkv: Tensor,
    rotation: Rotation,
    cache: Tensor,
    batch: PagedBatch,
    out: Tensor,
    *,
    leave_decoding: bool,
) -> None:
    """As ``attention.triton`` says; writes ``out``. ``leave_decoding``: but not the rows of sequences with one new
    token."""
    tokens, seqs = len(qkv), len(batch.lengths)
    num_heads, num_kv_heads, dims = heads.num_heads, heads.num_kv_heads, heads.head_dim
    padded = max(16, triton.next_power_of_2(dims))
    query = torch.empty(tokens, num_heads * dims, dtype=qkv.dtype, device=qkv.device)
    prepare_kernel[(tokens, triton.cdiv(num_heads + 2 * num_kv_heads, tuning.heads))](
        qkv,
        rotation.cos,
        rotation.sin,
        None if heads.query_norm is None else heads.query_norm.weight,
        None if heads.key_norm is None else heads.key_norm.weight,
        cache,
        batch.slots,
        query,
        0.0 if heads.query_norm is None else heads.query_norm.eps,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HEAD_DIM=dims,
        ROTARY_DIM=rotation.cos.shape[-1],
        PROJECTED=heads.num_projected,
        HEADS_EACH=tuning.heads,
        DIMS=padded,
        num_warps=tuning.prepare_warps,
    )
    tiles = tokens * (num_heads // num_kv_heads) // tuning.rows + seqs  # as many as there can be
    attend_kernel[(num_kv_heads, tiles)](
        query,
        cache,
        batch.tables,
        batch.lengths,
        batch.starts,
        heads.sinks,
        qkv if heads.gated else None,
        out,
        seqs,
        batch.tables.shape[1],
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HEAD_DIM=dims,
        PROJECTED=heads.num_projected,
        BLOCK_SIZE=cache.shape[1],
        WINDOW=heads.window,
        LEAVE=int(leave_decoding),
        SEQS=max(64, triton.next_power_of_2(seqs)),
        ROWS=tuning.rows,
        TILE=tuning.tile,
        STAGES=tuning.stages,
        DIMS=padded,
        num_warps=tuning.warps,
    )


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def prepare_kernel(
    qkv_ptr,  # bf16 [tokens, PROJECTED, HEAD_DIM]
    cos_ptr,  # bf16 [tokens, ROTARY_DIM], as sin with its sign
    sin_ptr,
    query_weight_ptr,  # float32 [HEAD_DIM] or None, as the next
    key_weight_ptr,
    cache_ptr,  # bf16 [blocks, BLOCK_SIZE, 2, KV_HEADS, HEAD_DIM]
    slots_ptr,  # int64 [tokens]
    query_ptr,  # bf16 [tokens, HEADS, HEAD_DIM]
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PROJECTED: tl.constexpr,
    HEADS_EACH: tl.constexpr,
    DIMS: tl.constexpr,  # HEAD_DIM, padded to a power of two
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS_EACH
    head, dims = first + tl.arange(0, HEADS_EACH), tl.arange(0, DIMS)
    inside = (dims < HEAD_DIM)[None, :]
    heads_ptr = qkv_ptr + row * (PROJECTED * HEAD_DIM)
    cos_ptr += row * ROTARY_DIM
    sin_ptr += row * ROTARY_DIM
    if first < HEADS:
        mine = head < HEADS
        query = rotated(heads_ptr, head, mine, dims, query_weight_ptr, cos_ptr, sin_ptr, eps, HEAD_DIM, ROTARY_DIM)
        at = query_ptr + row * (HEADS * HEAD_DIM) + head[:, None] * HEAD_DIM + dims[None, :]
        tl.store(at, (query * (LOG2E / HEAD_DIM**0.5)).to(tl.bfloat16), mask=mine[:, None] & inside)
    if first + HEADS_EACH > HEADS:
        at = cache_ptr + tl.load(slots_ptr + row) * (2 * KV_HEADS * HEAD_DIM)
        at = at + (head - HEADS)[:, None] * HEAD_DIM + dims[None, :]
        mine = (head >= HEADS) & (head < HEADS + KV_HEADS)
        key = rotated(heads_ptr, head, mine, dims, key_weight_ptr, cos_ptr, sin_ptr, eps, HEAD_DIM, ROTARY_DIM)
        tl.store(at, key.to(tl.bfloat16), mask=mine[:, None] & inside)
        mine = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
        mask = mine[:, None] & inside
        tl.store(at, tl.load(heads_ptr + head[:, None] * HEAD_DIM + dims[None, :], mask=mask), mask=mask)


@triton.jit(
    do_not_specialize=["num_seqs", "max_blocks"],
    do_not_specialize_on_alignment=["tables_ptr", "lengths_ptr", "starts_ptr"],
)
def attend_kernel(
    query_ptr,  # bf16 [tokens, HEADS, HEAD_DIM]
    cache_ptr,  # as of prepare_kernel
    tables_ptr,  # int32 [num_seqs, max_blocks]
    lengths_ptr,  # int32 [num_seqs]
    starts_ptr,  # int32 [num_seqs + 1]
    sinks_ptr,  # float32 [HEADS] or None
    qkv_ptr,  # bf16 [tokens, PROJECTED, HEAD_DIM], whose last heads are the gates, or None
    out_ptr,  # bf16 [tokens, HEADS, HEAD_DIM]
    num_seqs,
    max_blocks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PROJECTED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    LEAVE: tl.constexpr,  # sequences with so many new tokens or less alone
    SEQS: tl.constexpr,  # num_seqs or more, a power of two
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    DIMS: tl.constexpr,  # HEAD_DIM, padded to a power of two
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the last tiles of a sequence see most: they go first

    seq, tile = find_tile(starts_ptr, tile, num_seqs, GROUP, ROWS, LEAVE, SEQS)
    if seq >= num_seqs:
        return
    row = tl.load(starts_ptr + seq)
    num_new = tl.load(starts_ptr + seq + 1) - row
    length = tl.load(lengths_ptr + seq)

    flat = tile * ROWS + tl.arange(0, ROWS)
    token = flat // GROUP
    head = kv_head * GROUP + flat % GROUP
    dims = tl.arange(0, DIMS)
    mask = (token < num_new)[:, None] & (dims < HEAD_DIM)[None, :]
    at = ((row + token).to(tl.int64) * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(query_ptr + at, mask=mask, other=0.0)

    # The tile's tokens are at the positions lowest .. stop - 1.
    position = length - num_new + token
    lowest = length - num_new + tile * ROWS // GROUP
    stop = tl.minimum(length - num_new + (tile * ROWS + ROWS - 1) // GROUP + 1, length)
    top = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, DIMS), tl.float32)
    keys_ptr = cache_ptr + kv_head * HEAD_DIM
    table_ptr = tables_ptr + seq.to(tl.int64) * max_blocks
    if WINDOW is None:
        edge = (lowest + 1) // TILE * TILE
        top, total, out = _attend_tiles(
            query, keys_ptr, table_ptr, position, 0, edge, stop, top, total, out,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, WINDOW, False, TILE, STAGES, DIMS,
        )  # fmt: skip
    else:
        edge = tl.maximum(lowest + 1 - WINDOW, 0) // TILE * TILE
    top, total, out = _attend_tiles(
        query, keys_ptr, table_ptr, position, edge, stop, stop, top, total, out,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, WINDOW, True, TILE, STAGES, DIMS,
    )  # fmt: skip
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head) * LOG2E
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        total = total * fade + tl.exp2(sink - higher)
        out *= fade[:, None]
    out = out / total[:, None]
    if qkv_ptr is not None:
        gate = (row + token).to(tl.int64) * PROJECTED + PROJECTED - HEADS + head
        out = opened(out, qkv_ptr + gate[:, None] * HEAD_DIM + dims[None, :], mask)
    tl.store(out_ptr + at, out.to(tl.bfloat16), mask=mask)


@triton.jit
def _attend_tiles(
    query,
    keys_ptr,
    table_ptr,
    position,
    begin,
    end,
    stop,
    top,
    total,
    out,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Take in the positions begin .. end - 1, whole TILEs of them. MASKED: some rows do not see some of these, and none
    those from ``stop`` on, which may be unwritten."""
    WIDTH: tl.constexpr = KV_HEADS * HEAD_DIM
    dims = tl.arange(0, DIMS)
    block = block_numbers(table_ptr, begin, stop, BLOCK_SIZE, TILE)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        t = start + tl.arange(0, TILE)
        at = keys_ptr + (block * BLOCK_SIZE + t % BLOCK_SIZE).to(tl.int64) * (2 * WIDTH)
        block = block_numbers(table_ptr, start + TILE, stop, BLOCK_SIZE, TILE)
        mask = None
        if MASKED:
            mask = (t < stop)[:, None] & (dims < HEAD_DIM)[None, :]
        elif HEAD_DIM < DIMS:
            mask = (dims < HEAD_DIM)[None, :]
        key = tl.load(at[:, None] + dims[None, :], mask=mask, other=None if mask is None else 0.0)
        value = tl.load(at[:, None] + WIDTH + dims[None, :], mask=mask, other=None if mask is None else 0.0)
        seen = None
        if MASKED:
            distance = position[:, None] - t[None, :]
            seen = distance >= 0
            if WINDOW is not None:
                seen = seen & (distance < WINDOW)
        top, total, out = attend(query, key, value, seen, top, total, out)
    return top, total, out
