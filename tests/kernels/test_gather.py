"""Blobs copied from address to address."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strata.kernels.gather import reference
from strata.kernels.gather import triton as gather
from tests.kernels.conftest import Machine

BYTES = 3 * 4096 + 16  # no whole number of a program's pieces


def copied(name: str, count: int, device: str) -> tuple[Tensor, Tensor]:
    """Slots before filled with 171, and what was copied from: both uint8 [4, BYTES]."""
    torch.manual_seed(count)
    blobs = torch.randint(0, 256, (4, BYTES), dtype=torch.uint8)
    if device == "cuda":
        blobs = blobs.pin_memory()
    slots = torch.full((4, BYTES), 171, dtype=torch.uint8, device=device)
    sources = blobs.data_ptr() + BYTES * torch.tensor([2, 0, 3, 1], device=device)
    targets = slots.data_ptr() + BYTES * torch.tensor([3, 1, 0, 2], device=device)
    function = {"reference": reference.gather, "triton": gather.gather}[name]
    function(sources, targets, torch.tensor([count], dtype=torch.int32, device=device), BYTES)
    return slots.cpu(), blobs


def check(slots: Tensor, blobs: Tensor, count: int) -> None:
    for position, (source, target) in enumerate([(2, 3), (0, 1), (3, 0), (1, 2)]):
        expected = blobs[source] if position < count else torch.full_like(blobs[0], 171)
        assert torch.equal(slots[target], expected)


@pytest.mark.parametrize("count", [0, 3, 4])
def test_reference(count: int) -> None:
    check(*copied("reference", count, "cpu"), count)


@pytest.mark.parametrize("count", [0, 3, 4])
def test_gather(machine: Machine, count: int) -> None:
    slots, blobs = machine.call(copied, "triton", count, machine.device)
    check(slots, blobs, count)
