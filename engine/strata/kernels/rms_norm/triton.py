"""Root-mean-square normalisation of the residual stream, for the product that comes next.

One program a token: reads its row once, takes the mean in float32, and writes bf16 or int8 groups.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.matrix import Norm
from strata.kernels.rows import GROUP, QuantizedRows, empty_rows
from strata.kernels.triton_functions import overlap_launches, store_groups


def prepare(norm: Norm) -> Callable[[Tensor, bool], Tensor | QuantizedRows]:
    """The norm with one weight: of the residual stream, in bf16 or, if so asked, rounded."""
    weight, eps = norm.weight.float(), norm.eps
    return lambda x, rounded: (norm_quantize if rounded else norm_rows)(x, weight, eps)


def norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x float32 [tokens, width], weight float32 [width] -> bf16 [tokens, width]."""
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    _launch(x, weight, eps, out, None)
    return out


def norm_quantize(x: Tensor, weight: Tensor, eps: float) -> QuantizedRows:
    """x float32 [tokens, width], weight float32 [width] -> the normalised rows, rounded."""
    tokens, width = x.shape
    out = empty_rows(tokens, width, x.device)
    _launch(x, weight, eps, None, out)
    return out


def _launch(x: Tensor, weight: Tensor, eps: float, plain: Tensor | None, rows: QuantizedRows | None) -> None:
    tokens, width = x.shape
    codes, scales, sums = (None, None, None) if rows is None else (rows.codes, rows.scales, rows.sums)
    groups = width // GROUP
    block = triton.next_power_of_2(groups)
    norm_kernel[(tokens,)](
        x, weight, plain, codes, scales, sums, eps,
        GROUPS=groups, BLOCK=block, num_warps=4 if block <= 32 else 8, **launch.early(),
    )  # fmt: skip


@triton.jit
def norm_kernel(
    x_ptr,  # float32 [tokens, GROUPS * 32]
    weight_ptr,  # float32 [GROUPS * 32]
    plain_ptr,  # bf16 [tokens, GROUPS * 32] or None
    codes_ptr,  # int8 [tokens, GROUPS * 32] or None, as the next two
    scales_ptr,  # float32 [tokens, GROUPS]
    sums_ptr,  # float32 [tokens, GROUPS]
    eps,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK)
    columns = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    mask = columns < GROUPS * 32
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    overlap_launches(EARLY)
    x = tl.load(x_ptr + token * (GROUPS * 32) + columns, mask=mask, other=0.0)
    mean = tl.sum(tl.sum(x * x, 1), 0) / (GROUPS * 32)
    out = x * tl.rsqrt(mean + eps) * weight
    if plain_ptr is not None:
        tl.store(plain_ptr + token * (GROUPS * 32) + columns, out.to(tl.bfloat16), mask=mask)
    if codes_ptr is not None:
        own = token * GROUPS
        store_groups(out, codes_ptr + own * 32, scales_ptr + own, sums_ptr + own, groups, groups < GROUPS)
