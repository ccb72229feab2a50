"""The measurement of a GPU's experts: what it takes, and on a GPU what it finds."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
from torch import Tensor

from strata.bench import gpu_experts
from strata.bench.experts import QWEN3_30B, Experts, random_blobs
from strata.bench.gpu_experts import address_tables, run, ways
from strata.bench.gpu_time import HEADER, line
from strata.errors import HardwareError, OptionError
from strata.experts.layout import blob_layout
from strata.kernels.experts import blobs
from strata.kernels.experts.blobs import MAX_FEW
from tests.kernels.interpret import Interpreter


def test_experts_are_read_as_they_are_written() -> None:
    assert Experts.parse(str(QWEN3_30B)) == QWEN3_30B


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("int4:64x32", "DTYPE:HIDDENxINTERMEDIATE:TOP_K/EXPERTS"),
        ("int3:64x32:2/4", "dtypes are int4, int8, mxfp4, bf16"),
        ("int4:64x40:2/4", "groups of 32"),
        ("int4:0x32:2/4", "groups of 32"),
        ("int4:64x32:5/4", "at most all of them"),
        ("int4:64x32:0/4", "one expert at least"),
    ],
)
def test_what_is_no_expert_is_refused(text: str, about: str) -> None:
    with pytest.raises(OptionError, match=about):
        Experts.parse(text)


def test_what_is_read_and_multiplied() -> None:
    case = Experts.parse("int8:64x32:2/4")
    matrix = 64 * 32 + 64 * 32 // 32 * 2  # codes, and scales of 16 bits
    assert case.read_bytes(3) == {
        "router": 4 * 64 * 2, "gate_up": 6 * matrix, "down": 3 * matrix, "all": 512 + 9 * matrix
    }  # fmt: skip
    each = 2 * 5 * 2 * 64 * 32  # two operations for each of five tokens' two experts
    assert case.operations(5) == {
        "router": 2 * 5 * 64 * 4, "gate_up": 2 * each, "down": each, "all": 2560 + 3 * each
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["int4", "int8", "mxfp4", "bf16"])
def test_blobs_are_such_as_kernels_read(dtype: str) -> None:
    layout = Experts.parse(f"{dtype}:64x32:2/4").layout()
    assert blobs.reads(blob_layout(layout))
    found = random_blobs(layout)
    assert {len(blob) for blob in found} == {layout.blob_bytes}
    assert not torch.equal(found[0], found[1])


def test_both_ways_around_the_switch() -> None:
    assert [ways(tokens) for tokens in (1, MAX_FEW // 2 - 1)] == [("gemv",)] * 2
    assert [ways(tokens) for tokens in (MAX_FEW // 2, MAX_FEW, 2 * MAX_FEW)] == [("gemv", "gemm")] * 3
    assert ways(2 * MAX_FEW + 1) == ("gemm",)
    assert set(blobs.WAYS) == {"gemv", "gemm"}


@pytest.mark.parametrize("taken", [1, 3, 4])
def test_no_expert_is_read_twice_in_a_row(taken: int) -> None:
    memory = torch.zeros(7, 16, dtype=torch.uint8)
    ids = torch.tensor([[3], [0], [5], [2]], dtype=torch.int32)[:taken]
    tables = address_tables(ids, 6, memory)
    assert len(tables) == -(-max(7, 2 * taken) // taken)
    places = [((table[ids.flatten().long()] - memory.data_ptr()) // 16).tolist() for table in tables]
    assert all(len(set(numbers)) == taken for numbers in places), "each has its own"
    in_turn = [number for numbers in places for number in sorted(numbers)]
    assert set(in_turn) == set(range(7)), "all are read"
    for before, after in itertools.pairwise(places):
        assert len(memory) < 2 * taken or not set(before).intersection(after)


def stepped(case: Experts, tokens: int) -> tuple[int, list[int], Tensor, Tensor]:
    """Experts that are taken, how many calls each step has, and what the last step and all of them add."""
    with mock.patch.object(gpu_experts, "copies", return_value=3):
        memory = gpu_experts._blobs(case, torch.device("cpu"))
        taken, steps, (x, out) = gpu_experts._prepare(case, tokens, "gemv", memory)
    down, whole = steps["down"][0](x, out.clone()), steps["all"][0](x, out.clone())
    return taken, [len(calls) for calls in steps.values()], down, whole


def test_all_is_the_sum_of_its_steps(interpreter: Interpreter) -> None:
    taken, calls, down, whole = interpreter.call(stepped, Experts.parse("int4:32x32:1/2"), 1)
    assert (taken, calls) == (1, [3, 3, 3, 3]), "copies of the router; blobs, one at a time"
    assert torch.equal(down, whole)
    assert whole.abs().max() > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        next(run([QWEN3_30B], [1]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_measured() -> None:
    case = Experts.parse("int4:2048x768:8/64")
    found = list(run([case], [1, MAX_FEW]))
    steps = ("router", "gate_up", "down", "all")
    expected = [(1, f"{case} {step} gemv") for step in steps]
    expected += [(MAX_FEW, f"{case} {step} {way}") for way in ("gemv", "gemm") for step in steps]
    assert [(one.tokens, one.what) for one in found] == expected
    for one in found:
        # It cannot have read the weights faster than twice what memory allows: they would come from the cache.
        assert 0 < one.share < 2
        assert len(line(one)) == len(HEADER)
