"""Norm, rotation, gate and gather against their definitions in float64."""

from __future__ import annotations

import pytest
import torch

from strata import quant
from strata.kernels.clamped_swiglu.reference import clamped_swiglu
from strata.kernels.embedding.reference import embedding
from strata.kernels.operations import operations_for
from strata.kernels.rms_norm.reference import rms_norm
from strata.kernels.rope.reference import rope_, rope_table
from strata.kernels.silu_mul.reference import silu_mul

DTYPES = [pytest.param(torch.float32, 1e-6, id="float32"), pytest.param(torch.bfloat16, 6e-3, id="bf16")]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rms_norm(dtype: torch.dtype, tolerance: float) -> None:
    # Small rows, so that eps counts.
    x, weight, eps = (torch.randn(7, 96) * 0.01).to(dtype), torch.randn(96).to(dtype), 1e-4
    wide = x.double()
    expected = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    assert relative(rms_norm(x, weight, eps), expected) < tolerance
    before = x.clone()
    assert relative(operations_for(torch.device("cpu"), dtype).rms_norm(weight, eps, dtype)(x), expected) < tolerance
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rms_norm_of_each_head(dtype: torch.dtype, tolerance: float) -> None:
    whole, weight, eps = torch.randn(7, 5, 16).to(dtype), torch.randn(3, 16).to(dtype), 1e-4
    x = whole[:, :3]
    wide = x.double()
    expected = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    assert relative(rms_norm(x, weight, eps), expected) < tolerance
    assert relative(operations_for(torch.device("cpu"), dtype).rms_norm(weight, eps, dtype)(x), expected) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rope_turns_pairs_of_half_a_head_apart(dtype: torch.dtype, tolerance: float) -> None:
    inv_freq = torch.tensor([1.0, 0.3, 0.02, 0.001])
    cos, sin = rope_table(inv_freq, 50, 1.0, dtype)
    positions = torch.tensor([0, 49, 7])
    x = torch.randn(3, 2, 8).to(dtype)
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double())
    turned = pairs * torch.polar(torch.ones(3, 1, 4).double(), (positions[:, None] * inv_freq.double())[:, None])
    whole = torch.cat([x, x], 1)  # rotated through a view of a larger tensor, as the model does
    rope_(whole[:, :2], cos[positions], sin[positions])
    assert relative(whole[:, :2], torch.cat([turned.real, turned.imag], -1)) < tolerance
    assert torch.equal(whole[:, 2:], x)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_silu_mul(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = torch.randn(3, 64).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert relative(silu_mul(gate_up), gate * torch.sigmoid(gate) * up) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_clamped_swiglu(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = (torch.randn(3, 64) * 4).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    gate, up = gate.clamp(max=2.5), up.clamp(-2.5, 2.5)
    assert relative(clamped_swiglu(gate_up, 2.5), gate * torch.sigmoid(1.702 * gate) * (up + 1)) < 1.5 * tolerance


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
def test_embedding_gathers_rows(kind: str) -> None:
    packed = quant.get(kind).pack(torch.randn(50, 64))
    ids = torch.tensor([49, 0, 7, 7])
    assert torch.equal(embedding(ids, kind, packed.parts, torch.float32), quant.get(kind).unpack(packed)[ids])
