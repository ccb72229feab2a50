"""Residual streams: what a block takes of them, and what they take of it."""

from __future__ import annotations

import torch

from strata.kernels.hyper_connections.reference import inject, mix
from strata.kernels.layer import HyperConnection, Kernels
from strata.kernels.matrix import Matrix, Norm
from strata.kernels.operations import REFERENCE

STREAMS, HIDDEN, RANK = 3, 8, 5


def matrix(*shape: int) -> Matrix:
    return Matrix("bf16", {"weight": torch.randn(shape)})


def test_streams_without_gates_are_taken_by_half_and_take_all() -> None:
    normed = torch.randn(4, STREAMS, HIDDEN)
    x, shares = mix(
        normed, lambda rows: torch.zeros(4, RANK + STREAMS), lambda low: torch.zeros(4, STREAMS * HIDDEN), RANK
    )
    assert torch.allclose(x, normed.mean(1) / 2)
    assert torch.equal(shares, torch.ones(4, STREAMS))


def test_each_stream_takes_its_share() -> None:
    streams, out, shares = torch.randn(2, STREAMS * HIDDEN), torch.randn(2, HIDDEN), torch.tensor([[0.0, 1, 2]] * 2)
    found = inject(streams, out, shares).unflatten(1, (STREAMS, HIDDEN)) - streams.unflatten(1, (STREAMS, HIDDEN))
    assert torch.allclose(found, torch.stack([torch.zeros_like(out), out, 2 * out], 1), atol=1e-6)


def test_each_stream_is_normalised_by_itself() -> None:
    """However large one is, what the others give stays."""
    connection = HyperConnection(
        Norm(torch.ones(STREAMS, HIDDEN), 1e-6),
        matrix(RANK, STREAMS * HIDDEN),
        matrix(STREAMS * HIDDEN, RANK),
        None,
        RANK,
    )
    step = Kernels(REFERENCE, torch.float32).hyper_connection(connection)
    streams = torch.randn(4, STREAMS, HIDDEN)
    scaled = streams * torch.tensor([1.0, 100, 0.1])[:, None]
    x, shares = step(streams.flatten(1))
    assert shares.shape == (4, 0), "nothing goes back"
    assert torch.allclose(step(scaled.flatten(1))[0], x, atol=1e-3)
