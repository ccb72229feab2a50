"""Experts for many tokens: products on tensor cores, of the pairs grouped by expert.

Grid (rows / BN, blocks): a block is up to BM pairs of one expert. How many blocks each expert has follows from
``starts``, and each program finds its own; there are at most pairs / BM + experts, and programs of blocks that are not
there end at once. One side of the product are the weights (BN x BK), the other the activations (BK x BM).

Weights are unpacked to bf16 in registers, once for each block. (Unpacked to memory before, for all blocks, they cost
more: 8,192 tokens of Qwen3-30B-A3B, gate and up on an H200 1.24 against 1.35 ms, 2026-11-30.)

gate and up are multiplied by the same program, which activates their products; down is multiplied alone, and
``grouping.combine`` adds up the experts of a token. An address of 0 stands for an expert that is computed elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.experts.grouping import Grouped
from strata.kernels.experts.place import Experts, Place
from strata.kernels.experts.unpack import load_steps, load_tile
from strata.kernels.experts.weights import load_bias
from strata.kernels.triton_functions import INTERPRETED, activate, overlap_launches


@dataclass(frozen=True, slots=True)
class Tile:
    """pairs x rows of the result, cols of a step of the sum."""

    pairs: int
    rows: int
    cols: int
    warps: int
    stages: int


def gate_up(experts: Experts, grouped: Grouped, x: Tensor) -> Tensor:
    """x bf16 [tokens, hidden] -> the activations of each pair, bf16 [tokens * top_k, intermediate]."""
    pairs = grouped.order.shape[0]
    out = torch.empty(pairs, experts.gate.rows, dtype=torch.bfloat16, device=x.device)
    _multiply(experts, (experts.gate, experts.up), grouped, x, out)
    return out


def down(experts: Experts, grouped: Grouped, inner: Tensor) -> Tensor:
    """inner bf16 [pairs, intermediate] -> down(inner), bf16 [pairs, hidden]; rows of pairs whose expert has no address
    are left as they are."""
    out = torch.empty(inner.shape[0], experts.down.rows, dtype=torch.bfloat16, device=inner.device)
    _multiply(experts, (experts.down,), grouped, inner, out)
    return out


def _multiply(experts: Experts, places: tuple[Place, ...], grouped: Grouped, x: Tensor, out: Tensor) -> None:
    pairs, count = grouped.order.shape[0], experts.count
    tile = tile_for(places[0].kind, pairs / count, len(places))
    gemm_kernel[(triton.cdiv(places[0].rows, tile.rows), pairs // tile.pairs + min(pairs, count))](
        x, grouped.order, grouped.starts, experts.addresses, out,
        A=places[0], B=places[1] if len(places) > 1 else None, LIMIT=experts.limit, PER_ROW=pairs // x.shape[0],
        E=count, BE=triton.next_power_of_2(count), BM=tile.pairs, BN=tile.rows, BK=tile.cols,
        num_warps=tile.warps, num_stages=tile.stages, **launch.early(),
    )  # fmt: skip


def tile_for(kind: str, pairs_of_expert: float, matrices: int) -> Tile:
    cols = 64 if kind == "bf16" else 128  # as many bytes
    if pairs_of_expert <= 16:
        return Tile(16, 64, cols, 4, 3)
    if pairs_of_expert <= 32:
        return Tile(32, 64, 64, 4, 3)
    if pairs_of_expert <= 64:
        return Tile(64, 64, 64, 4, 3)
    if launch.capability() < (9, 0):  # which have less shared memory
        return Tile(128, 64, 64, 4, 3)
    return Tile(128, 128, cols, 8, 3) if matrices == 2 else Tile(128, 128, 64, 4, 3)


@triton.jit
def block_of_program(starts, block, E: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr):
    """Expert of a block, or one above the last, and the place in ``order`` of its first pair and behind its last."""
    experts = tl.arange(0, BE)
    inside = experts < E
    begin = tl.load(starts + experts, mask=inside, other=0)
    count = tl.load(starts + experts + 1, mask=inside, other=0) - begin
    blocks = (count + BM - 1) // BM
    ends = tl.cumsum(blocks, 0)
    expert = tl.sum((ends <= block).to(tl.int32), 0)
    mine = experts == expert
    first = tl.sum(tl.where(mine, begin + (block - (ends - blocks)) * BM, 0), 0)
    return expert, first, tl.sum(tl.where(mine, begin + count, 0), 0)


@triton.jit
def gemm_kernel(
    x,
    order,
    starts,
    addresses,
    out,
    A: tl.constexpr,
    B: tl.constexpr,
    LIMIT: tl.constexpr,
    PER_ROW: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x bf16 [pairs / PER_ROW, cols] -> out bf16 [pairs, rows]: A x, or with a B activated (A x, B x)."""
    overlap_launches(EARLY)
    block = tl.program_id(1)
    if block >= (tl.load(starts + E) - tl.load(starts)) // BM + E:  # a sure sign, and quickly found
        return
    expert, first, end = block_of_program(starts, block, E, BE, BM)
    if expert >= E:
        return
    address = tl.load(addresses + expert)
    if address == 0:
        return
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    at = first + tl.arange(0, BM)
    there = at < end
    pairs = tl.load(order + at, mask=there, other=0)
    cols = tl.arange(0, BK)
    pointers = x + (pairs // PER_ROW).to(tl.int64)[None, :] * A.cols + cols[:, None]
    a = tl.zeros((BN, BM), tl.float32)
    b = tl.zeros((BN, BM), tl.float32)
    inside = (rows < A.rows)[:, None]
    a_steps = load_steps(address, A, rows, 0, BK, inside)
    if B is not None:
        b_steps = load_steps(address, B, rows, 0, BK, inside)
    for start in range(0, A.cols, BK):
        if A.cols % BK == 0:
            activations = tl.load(pointers + start, mask=there[None, :], other=0.0)
        else:
            activations = tl.load(pointers + start, mask=there[None, :] & (cols + start < A.cols)[:, None], other=0.0)
        a = multiply(load_tile(address, A, rows, start, BK, inside, a_steps), activations, a)
        # Those of the next columns are on their way during the product.
        a_steps = load_steps(address, A, rows, start + BK, BK, inside)
        if B is not None:
            b = multiply(load_tile(address, B, rows, start, BK, inside, b_steps), activations, b)
            b_steps = load_steps(address, B, rows, start + BK, BK, inside)
    a += load_bias(address, A, tl.minimum(rows, A.rows - 1))[:, None]
    if B is not None:
        a = activate(a, b + load_bias(address, B, tl.minimum(rows, A.rows - 1))[:, None], LIMIT)
    tl.store(
        out + pairs.to(tl.int64)[None, :] * A.rows + rows[:, None],
        a.to(out.dtype.element_ty),
        mask=there[None, :] & inside,
    )


@triton.jit
def multiply(weights, activations, acc):
    if INTERPRETED:  # where the product of bf16 is wrong
        acc = tl.dot(weights.to(tl.float32), activations.to(tl.float32), acc)
    else:
        acc = tl.dot(weights, activations, acc)
    return acc
