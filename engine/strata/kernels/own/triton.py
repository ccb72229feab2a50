"""Which of the chosen experts are a rank's own, on an NVIDIA GPU: one launch behind the choice.

Grid (pairs / BLOCK,)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.triton_functions import overlap_launches

BLOCK = 1024  # pairs that a program takes


def own(ids: Tensor, index: int, count: int, nobody: int) -> Tensor:
    """As ``reference.own``."""
    out = torch.empty_like(ids)
    own_kernel[(triton.cdiv(ids.numel(), BLOCK),)](
        ids, out, ids.numel(), INDEX=index, COUNT=count, NOBODY=nobody, BLOCK=BLOCK, num_warps=4, **launch.early()
    )
    return out


@triton.jit(do_not_specialize=["pairs"])
def own_kernel(
    ids,
    out,
    pairs,
    INDEX: tl.constexpr,
    COUNT: tl.constexpr,
    NOBODY: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + at, mask=at < pairs, other=0)
    tl.store(out + at, tl.where(expert % COUNT == INDEX, expert // COUNT, NOBODY), mask=at < pairs)
