"""The GPU's norm, against float64."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.rms_norm.triton import norm_quantize, norm_rows
from strata.kernels.rows import dequantize_rows, quantize_rows
from tests.kernels.conftest import Machine


def make(tokens: int, width: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, the weight, and the norm in float64."""
    torch.manual_seed(tokens + width)
    x, weight = 3 * torch.randn(tokens, width), 1 + 0.3 * torch.randn(width)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    return x.to(device), weight.to(device), expected


@pytest.mark.parametrize(
    ("tokens", "width"),
    [pytest.param(3, 64, id="power of two"), pytest.param(2, 96, id="not a power of two")],
)
def test_norm(machine: Machine, tokens: int, width: int) -> None:
    x, weight, expected = make(tokens, width, machine.device)
    found = machine.call(norm_rows, x, weight, 1e-6).cpu()
    assert found.dtype == torch.bfloat16
    # Half a step of bf16 is 2^-8; the interpreter cuts off where a GPU rounds.
    assert torch.allclose(found.double(), expected, rtol=2**-7, atol=1e-6)


def test_norm_quantized(machine: Machine) -> None:
    x, weight, expected = make(3, 96, machine.device)
    found = machine.call(norm_quantize, x, weight, 1e-6)
    wanted = quantize_rows(expected.float())
    assert (found.codes.cpu().int() - wanted.codes.int()).abs().max() <= 1  # a tie may fall to either side
    assert torch.allclose(found.scales.cpu(), wanted.scales, rtol=1e-5)
    sums = dequantize_rows(found).view(3, -1, 32).sum(-1)
    assert torch.allclose(found.sums, sums, atol=1e-4)
