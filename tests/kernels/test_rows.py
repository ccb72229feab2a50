"""Activations rounded to 8 bits."""

from __future__ import annotations

import torch

from strata.kernels.rows import GROUP, dequantize_rows, quantize_rows


def test_the_error_is_at_most_half_a_step() -> None:
    x = torch.randn(5, 96) * torch.logspace(-3, 3, 5)[:, None]
    error = (dequantize_rows(quantize_rows(x)) - x).view(5, -1, GROUP).abs()
    step = x.view(5, -1, GROUP).abs().amax(-1, keepdim=True) / 127
    assert (error <= 0.5001 * step).all()


def test_the_sums_are_those_of_what_the_codes_stand_for() -> None:
    rows = quantize_rows(torch.randn(3, 64))
    expected = dequantize_rows(rows).double().view(3, -1, GROUP).sum(-1)
    assert torch.allclose(rows.sums.double(), expected, atol=1e-5)


def test_a_group_of_zeros_stays_zero() -> None:
    rows = quantize_rows(torch.zeros(2, 32))
    assert not rows.codes.any()
    assert torch.equal(dequantize_rows(rows), torch.zeros(2, 32))
