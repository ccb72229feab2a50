"""Which of the chosen experts are a rank's own."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.own import reference
from strata.kernels.own.triton import own
from strata.plan.rank import Rank
from tests.kernels.conftest import Machine


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (300, 8)], ids=["one", "a few", "several programs"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_kernel_says_so(machine: Machine, count: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    ids = torch.randint(0, 17, shape, dtype=dtype)
    for index in range(count):
        found = machine.call(own, ids.to(machine.device), index, count, 17 // count + 1)
        assert found.dtype == dtype
        assert torch.equal(found.cpu(), reference.own(ids, index, count, 17 // count + 1))


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_every_expert_is_one_ranks(count: int) -> None:
    ids, taken = torch.arange(17), torch.zeros(17, dtype=torch.int64)
    for rank in (Rank(index, count) for index in range(count)):
        number = rank.num_own(17)
        found = reference.own(ids, rank.index, rank.count, number)
        assert found.tolist() == [
            number if rank.number(expert) is None else rank.number(expert) for expert in range(17)
        ]
        assert sorted(found[found < number].tolist()) == list(range(number))
        taken += found < number
    assert (taken == 1).all()
