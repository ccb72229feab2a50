"""Every kernel compiles for the GPUs that are supported, and fits their shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.kernels.argmax_cases import CASES as ARGMAX
from tests.kernels.attention_cases import CASES as ATTENTION
from tests.kernels.compilation import Case, compile_case
from tests.kernels.delta_rule_cases import CASES as DELTA_RULE
from tests.kernels.expert_compile_cases import CASES as EXPERTS
from tests.kernels.linear_cases import CASES as LINEAR
from tests.kernels.linear_cases import ROUNDED
from tests.kernels.misses_cases import CASES as MISSES
from tests.kernels.misses_cases import (
    add_answer_of_qwen3,
    ask_route_of_qwen3,
    share_out_of_half,
    share_out_of_qwen3,
)
from tests.kernels.prefetch_cases import CASES as PREFETCH
from tests.kernels.prefetch_cases import look_ahead_of_half

FAMILIES = (ARGMAX, ATTENTION, DELTA_RULE, EXPERTS, LINEAR, MISSES, PREFETCH)
WIDE = ("ld.global.v4.b32", "ld.global.v2.b64")  # 16 bytes
MAX_SHARED = {(8, 6): 101376, (8, 9): 101376, (9, 0): 232448}  # bytes that one program may ask for


# Launchers treat sm_89 as sm_86, whose limit it has: one case of each family shows that it compiles there too.
TARGETS = [
    *((case, (8, 6)) for cases in FAMILIES for case in cases),
    *((case, (9, 0)) for cases in FAMILIES for case in cases if case.everywhere),
    *((cases[-1], (8, 9)) for cases in FAMILIES),
]


@pytest.mark.parametrize(
    ("case", "capability"), TARGETS, ids=[f"{case.name}-sm_{high}{low}" for case, (high, low) in TARGETS]
)
def test_compiles(case: Case, capability: tuple[int, int]) -> None:
    compiled = compile_case(case, capability)
    assert compiled
    for kernel in compiled:
        # The compiler does not look at this limit.
        assert kernel.shared <= MAX_SHARED[capability], f"{kernel.kernel} needs {kernel.shared} bytes of shared memory"
    wide = {kernel.kernel for kernel in compiled if any(load in kernel.ptx for load in WIDE)}
    assert case.wide <= wide


@pytest.mark.parametrize("case", ROUNDED, ids=lambda case: case.name)
def test_threads_pass_only_their_sums(case: Case) -> None:
    """Else the compiler chose other orders for scales than for words, and takes all of them through shared memory."""
    (kernel,) = compile_case(case, (9, 0))
    warp_sums = kernel.ptx.count("shfl.sync.bfly") // 5  # of 32 threads
    assert 0 < kernel.ptx.count("st.shared") <= warp_sums


def test_an_answer_is_read_sixteen_bytes_at_a_time_behind_one_fence() -> None:
    """Reads of host memory cross PCIe one by one, and every fence of a thread waits for all before it."""
    (kernel,) = compile_case(Case("", partial(add_answer_of_qwen3, 1, 0)), (9, 0))
    assert "ld.volatile.global.v4.b32" in kernel.ptx
    assert kernel.ptx.count("fence.acq_rel.sys") == 2, "one where the answer was there, one where it was waited for"


@pytest.mark.parametrize("launch", [share_out_of_qwen3, add_answer_of_qwen3, ask_route_of_qwen3])
def test_one_build_serves_all_layers(launch: Callable[[int, int], None]) -> None:
    """A build takes a second, and a model has a hundred layers."""
    calls = [(3, 0), (3, 1), (3, 16), (4, 47)]  # 1 and multiples of 16 are what Triton builds anew for
    builds = {compile_case(Case("", partial(launch, *call)), (9, 0))[0].ptx for call in calls}
    assert len(builds) == 1


@pytest.mark.parametrize("launch", [share_out_of_half, look_ahead_of_half])
def test_more_experts_make_no_longer_kernels(launch: Callable[[int, int], None]) -> None:
    """Where each is compared with each, 512 take more than minutes to compile."""
    some, many = (compile_case(Case("", partial(launch, 16, number)), (9, 0)) for number in (64, 256))
    for few, more in zip(some, many, strict=True):
        assert len(more.ptx) < 2 * len(few.ptx), few.kernel
