"""Router and experts against their definitions in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strata.kernels.experts.reference import run_experts
from strata.kernels.router.reference import route

DTYPES = [pytest.param(torch.float32, 1e-6, id="float32"), pytest.param(torch.bfloat16, 6e-3, id="bf16")]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_route(dtype: torch.dtype, tolerance: float, normalize: bool) -> None:
    logits = torch.randn(40, 12, generator=torch.Generator().manual_seed(1)).to(dtype) * 3
    weights, ids = route(logits, 4, normalize)
    assert (weights.dtype, ids.dtype) == (dtype, torch.int64)
    shares = logits.double().softmax(-1)
    for token in range(40):
        chosen = shares[token][ids[token]]
        assert set(ids[token].tolist()) == set(shares[token].argsort(descending=True)[:4].tolist())
        assert torch.equal(chosen, chosen.sort(descending=True).values)
        expected = chosen / chosen.sum() if normalize else chosen
        assert torch.allclose(weights[token].double(), expected, rtol=tolerance, atol=0)


def test_unlikely_experts_keep_their_order() -> None:
    """In float32 a softmax over these is 0 for all but the first."""
    weights, ids = route(torch.tensor([[0.0, -200.0, -150.0, -300.0]]), 3, normalize=False)
    assert ids.tolist() == [[0, 2, 1]]
    assert weights[0, 0] == 1


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([[3, 0]], id="one token"),
        pytest.param([[3, 0], [0, 3], [5, 0], [1, 5]], id="experts without a token"),
        pytest.param([[2, 4]] * 9, id="all tokens to the same"),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_run_experts(ids: list[list[int]], dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(len(ids))
    matrices = torch.randn(6, 32, 32, generator=generator).to(dtype) / 6
    x = torch.randn(len(ids), 32, generator=generator).to(dtype)
    weights = torch.rand(len(ids), 2, generator=generator).to(dtype)
    calls: list[int] = []

    def expert(number: int, rows: Tensor) -> Tensor:
        calls.append(number)
        return rows @ matrices[number].T

    experts = [lambda rows, number=number: expert(number, rows) for number in range(6)]
    found = run_experts(x, weights, torch.tensor(ids), experts)
    expected = torch.stack(
        [
            sum((weights[t, k].double() * (matrices[e].double() @ x[t].double()) for k, e in enumerate(chosen)))
            for t, chosen in enumerate(ids)
        ]
    )
    assert found.dtype == dtype
    assert float((found.double() - expected).norm() / expected.norm()) < tolerance
    assert sorted(calls) == sorted({number for chosen in ids for number in chosen}), "each expert runs once"
