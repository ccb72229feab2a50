"""How many of the experts that a step needs are in VRAM, where each one stays where it is.

One program: it marks the experts that ids name, 32 ids at a time against all experts, and adds up the marks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.misses.table import Counter
from strata.kernels.triton_functions import overlap_launches


def count_uses(ids: Tensor, num_experts: int, num_resident: int, counters: Tensor) -> None:
    """As ``reference.count_uses``; ids int32."""
    count_uses_kernel[(1,)](
        ids,
        counters,
        ids.numel(),
        num_resident,
        NEEDED=Counter.NEEDED.value,
        IN_VRAM=Counter.IN_VRAM.value,
        FETCHED=Counter.FETCHED.value,
        E=triton.next_power_of_2(num_experts),
        num_warps=4,
        **launch.early(),
    )


@triton.jit(do_not_specialize=["pairs", "num_resident"])
def count_uses_kernel(
    ids_ptr,
    counters_ptr,
    pairs,
    num_resident,
    NEEDED: tl.constexpr,
    IN_VRAM: tl.constexpr,
    FETCHED: tl.constexpr,
    E: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    BLOCK: tl.constexpr = 32
    expert = tl.arange(0, E)
    needed = tl.zeros([E], tl.int32)
    for begin in range(0, pairs, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        needed = tl.maximum(needed, tl.max((ids[:, None] == expert[None, :]).to(tl.int32), 0))
    num_needed = tl.sum(needed, 0)
    num_found = tl.sum(tl.where(expert < num_resident, needed, 0), 0)
    tl.store(counters_ptr + NEEDED, tl.load(counters_ptr + NEEDED) + num_needed)
    tl.store(counters_ptr + IN_VRAM, tl.load(counters_ptr + IN_VRAM) + num_found)
    tl.store(counters_ptr + FETCHED, tl.load(counters_ptr + FETCHED) + num_needed - num_found)
