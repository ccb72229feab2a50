"""Routed experts straight from their blobs, on an NVIDIA GPU: which kernels run for how many tokens.

- up to MAX_FEW tokens: each pair of token and expert by itself (``gemv``), two launches;
- beyond: on tensor cores, an expert's weights once for all its tokens (``gemm``), four launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from strata.kernels import launch
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.experts.gemm import expert_gemm_kernel
from strata.kernels.experts.gemv import down_kernel, gate_up_kernel
from strata.kernels.experts.grouping import combine_kernel, group_kernel
from strata.kernels.experts.weights import Place
from strata.kernels.layer import Routed
from strata.kernels.matrix import Activation
from strata.kernels.rows import GROUP, QuantizedRows, empty_rows

MAX_FEW = 48  # tokens whose activations are given as QuantizedRows, and as bf16 beyond


def reads(layout: BlobLayout) -> bool:
    """Whether there are kernels for such blobs: for all three matrices in one format (``misses.untile``)."""
    places = layout.gate, layout.up, layout.down
    kinds = {place.kind for place in places}
    whole = all(place.rows % GROUP == 0 and place.cols % GROUP == 0 for place in places)
    return whole and len(kinds) == 1 and kinds <= {"bf16", "int8", "int4", "mxfp4"}


def prepare(
    layout: BlobLayout, addresses: Tensor, activation: Activation, max_few: int = MAX_FEW
) -> Callable[[Routed, Tensor], Tensor]:
    """x float32 [tokens, hidden] += the sum of shares * experts, of the experts at ``addresses`` int64 [experts], which
    are read at every call; routed: of ``router.triton``, with the same ``max_few``.

    An expert whose address is 0 is computed elsewhere and adds nothing here.
    """
    experts = Experts.of(layout, addresses, activation)

    def run(routed: Routed, x: Tensor) -> Tensor:
        gate_up, down = WAYS["gemv" if routed.ids.shape[0] <= max_few else "gemm"]
        return down(experts, routed, gate_up(experts, routed), x)

    return run


@dataclass(frozen=True, slots=True)
class Experts:
    """Of one layer, as ``prepare`` says."""

    gate: Place
    up: Place
    down: Place
    addresses: Tensor
    limit: float | None

    @classmethod
    def of(cls, layout: BlobLayout, addresses: Tensor, activation: Activation) -> Experts:
        gate, up, down = (Place.of(place) for place in (layout.gate, layout.up, layout.down))
        return cls(gate, up, down, addresses, activation.limit)


def gate_up_gemv(experts: Experts, routed: Routed) -> QuantizedRows:
    """activation(gate, up) of each pair, [tokens * top_k, intermediate]; ``routed.inner``: QuantizedRows."""
    ids, rows, gate = routed.ids, routed.inner, experts.gate
    pairs, tile = ids.numel(), GATE_UP[gate.kind]
    out = empty_rows(pairs, gate.rows, ids.device)
    gate_up_kernel[(pairs, gate.rows // GROUP)](
        rows.codes,
        rows.scales,
        rows.sums,
        ids,
        experts.addresses,
        out.codes,
        out.scales,
        out.sums,
        GATE=gate,
        UP=experts.up,
        LIMIT=experts.limit,
        TOP_K=ids.shape[1],
        BG=tile.groups,
        EXPERTS=experts.addresses.shape[0],
        num_warps=tile.warps,
        **launch.early(),
    )
    return out


def down_gemv(experts: Experts, routed: Routed, inner: QuantizedRows, x: Tensor) -> Tensor:
    """x += the sum of shares * down(inner)."""
    tokens, top_k = routed.ids.shape
    down, tile = experts.down, DOWN[experts.down.kind]
    down_kernel[(tokens, down.rows // tile.rows)](
        inner.codes,
        inner.scales,
        inner.sums,
        routed.ids,
        routed.shares,
        experts.addresses,
        x,
        DOWN=down,
        TOP_K=top_k,
        BN=tile.rows,
        BG=tile.groups,
        AHEAD=tile.ahead,
        num_warps=tile.warps,
        **launch.early(),
    )
    return x


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows bf16 [tokens * top_k, cols] of pairs, and which pairs are each expert's: ``group``."""

    rows: Tensor
    order: Tensor
    starts: Tensor


def gate_up_gemm(experts: Experts, routed: Routed) -> Grouped:
    """As ``gate_up_gemv``; ``routed.inner``: bf16."""
    ids = routed.ids
    order, starts = group(ids, experts.addresses.shape[0])
    inner = torch.empty(ids.numel(), experts.gate.rows, dtype=torch.bfloat16, device=ids.device)
    _gemm(experts, (experts.gate, experts.up), (order, starts), routed.inner, ids.shape[1], inner)
    return Grouped(inner, order, starts)


def down_gemm(experts: Experts, routed: Routed, inner: Grouped, x: Tensor) -> Tensor:
    """As ``down_gemv``."""
    results = torch.empty(routed.ids.numel(), experts.down.rows, dtype=torch.bfloat16, device=x.device)
    _gemm(experts, (experts.down, None), (inner.order, inner.starts), inner.rows, 1, results)
    return combine(results, routed.ids, routed.shares, experts.addresses, x)


# Gate and up, and down, on either way.
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    "gemv": (gate_up_gemv, down_gemv),
    "gemm": (gate_up_gemm, down_gemm),
}


def _gemm(
    experts: Experts,
    places: tuple[Place, Place | None],
    grouped: tuple[Tensor, Tensor],
    x: Tensor,
    per_row: int,
    out: Tensor,
) -> None:
    order, starts = grouped
    pairs, num_experts = order.shape[0], experts.addresses.shape[0]
    tile = gemm_tile(places[0].kind, pairs / num_experts, places[1] is not None)
    expert_gemm_kernel[(triton.cdiv(places[0].rows, tile.rows), pairs // tile.pairs + min(pairs, num_experts))](
        x,
        order,
        starts,
        experts.addresses,
        out,
        A=places[0],
        B=places[1],
        LIMIT=experts.limit,
        PER_ROW=per_row,
        E=num_experts,
        BE=triton.next_power_of_2(num_experts),
        BM=tile.pairs,
        BN=tile.rows,
        BK=tile.cols,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch.early(),
    )


def group(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """ids int32 [tokens, top_k] -> order int32 [pairs], starts int32 [experts + 1]: see ``grouping``."""
    pairs = ids.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=ids.device)
    block = min(max(triton.next_power_of_2(pairs), 128), 4096)
    group_kernel[(num_experts,)](ids, order, starts, pairs, BP=block, num_warps=4, **launch.early())
    return order, starts


def combine(results: Tensor, ids: Tensor, shares: Tensor, addresses: Tensor, x: Tensor) -> Tensor:
    """results [tokens * top_k, hidden]; x += the sum of shares * results."""
    tokens, hidden = x.shape
    combine_kernel[(triton.cdiv(hidden, COMBINE_COLS), tokens)](
        results,
        ids,
        shares,
        addresses,
        x,
        H=hidden,
        TOP_K=ids.shape[1],
        BN=COMBINE_COLS,
        num_warps=4,
        **launch.early(),
    )
    return x


@dataclass(frozen=True, slots=True)
class GemvTile:
    """groups of a row that a program takes at a time. rows, and pieces of these that are loaded before they are used:
    down's; gate and up take 32 rows as they come."""

    groups: int
    warps: int
    rows: int = GROUP
    ahead: int = 0


# One H200, one token of Qwen3-30B-A3B, 2026-11-30, microseconds in CUDA graphs over more weights than its cache holds.
# int4: gate and up 7.5 (32 groups at once 9.7, 4 warps 8.8), down 4.9 (16 rows and 24 pieces 5.3, 4 rows of 32 groups
# 8.4). bf16: 16.1 (8 warps 16.7, 16 groups 28.9, 8 groups and 8 warps 26.4) and 10.6 (4 warps and 4 pieces 14.1).
GATE_UP = {kind: GemvTile(16, 8) for kind in ("int4", "mxfp4", "int8")} | {"bf16": GemvTile(4, 16)}
DOWN = {
    "int4": GemvTile(16, 4, 8, 16),
    "mxfp4": GemvTile(16, 4, 8, 16),
    "int8": GemvTile(16, 4, 8, 8),
    "bf16": GemvTile(8, 8, 8, 8),
}
COMBINE_COLS = 1024


@dataclass(frozen=True, slots=True)
class GemmTile:
    """pairs x rows of the result, cols of a step of the sum."""

    pairs: int
    rows: int
    cols: int
    warps: int
    stages: int


def gemm_tile(kind: str, pairs_of_expert: float, two: bool) -> GemmTile:
    """For products with one matrix or with two. One H200, Qwen3-30B-A3B in int4, 2026-11-30, TFLOP/s of gate and up and
    of down: 2,048 tokens 238 and 236, 8,192 tokens 332 and 330 (with 64 rows a program 221 and 209, 311 and 286)."""
    if pairs_of_expert <= 16:
        return GemmTile(16, 64, 64, 4, 3)
    if pairs_of_expert <= 64:
        return GemmTile(64, 64, 64, 4, 3)
    if launch.capability() < (9, 0):  # less shared memory
        return GemmTile(128, 64, 64, 4, 3)
    return GemmTile(128, 128, 64 if kind == "bf16" else 128, 8, 3) if two else GemmTile(128, 128, 64, 4, 3)
