"""The likeliest token of each row: the first of those that are alike, -1 where it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from strata.kernels.argmax import reference
from strata.kernels.argmax.triton import argmax
from tests.kernels.conftest import Machine

ROWS = {
    "noise": torch.randn(5, 3000, generator=torch.Generator().manual_seed(1)),
    "fewer than parts": torch.randn(2, 7, generator=torch.Generator().manual_seed(2)),
    "more than a piece a part": torch.randn(1, 70_001, generator=torch.Generator().manual_seed(3)),
    "the very last": torch.arange(2048.0).view(1, -1),
    "all alike": torch.zeros(2, 2048),
    "below zero": -1 - torch.rand(1, 1500, generator=torch.Generator().manual_seed(4)),
}


def run(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    return function(logits).cpu()


@pytest.mark.parametrize("name", ROWS)
def test_the_first_of_the_largest(machine: Machine, name: str) -> None:
    logits = ROWS[name]
    found = machine.call(run, argmax, logits.to(machine.device))
    assert found.dtype == torch.int64
    first = [(row == row.max()).nonzero()[0].item() for row in logits]
    assert found.tolist() == first
    chosen = reference.argmax(logits)
    assert torch.equal(logits.gather(1, chosen[:, None]), logits.gather(1, found[:, None]))


@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_a_row_without_a_finite_largest_has_none(machine: Machine, place: int) -> None:
    logits = ROWS["noise"].clone()
    logits[0, place] = math.nan
    logits[1, place] = math.inf
    logits[2] = -math.inf
    logits[3, place] = -math.inf
    expected = reference.argmax(logits)
    assert [row == -1 for row in expected] == [True, True, True, False, False]
    assert machine.call(run, argmax, logits.to(machine.device)).tolist() == expected.tolist()
