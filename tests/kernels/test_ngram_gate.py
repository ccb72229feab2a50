"""Layers with n-grams: what they know of earlier tokens, however a sequence is cut into steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from strata.kernels.attention.batch import AttentionBatch
from strata.kernels.ngram_gate.reference import convolve_, gated, history_

EOS = 9


def step(*spans: tuple[int, int]) -> AttentionBatch:
    """Of sequences in slots 0, 1, ... that run from one position to another."""
    positions = torch.cat([torch.arange(*span) for span in spans])
    starts = torch.tensor([0, *(end - start for start, end in spans)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    states = torch.arange(len(spans), dtype=torch.int32)
    return AttentionBatch(positions, positions, starts, {}, states)


CUTS = [
    pytest.param([0, 20], id="one step"),
    pytest.param([0, 1, 2, 3, 4, 20], id="token by token, then the rest"),
    pytest.param([0, 13, 14, 20], id="a token between chunks"),
]


@pytest.mark.parametrize("cuts", CUTS)
def test_each_token_has_those_before_it_behind_it(cuts: list[int]) -> None:
    tokens = torch.arange(100, 120)
    ring = torch.full((2, 4), 77)
    found = [
        history_(
            torch.cat([tokens[start:end], 200 + tokens[start:end]]), ring, 3, EOS, step((start, end), (start, end))
        ).unflatten(0, (2, -1))
        for start, end in pairwise(cuts)
    ]
    padded = torch.cat([torch.full((3,), EOS), tokens])
    expected = padded.unfold(0, 4, 1)
    assert torch.equal(torch.cat(found, 1)[0], expected)
    assert torch.equal(torch.cat(found, 1)[1], torch.where(expected == EOS, EOS, expected + 200))


@pytest.mark.parametrize("cuts", CUTS)
def test_the_convolution_is_torchs(cuts: list[int]) -> None:
    inputs, weight, dilation = torch.randn(2, 20, 6), torch.randn(6, 4), 3
    ring = torch.full((2, 10, 6), torch.nan)
    found = [
        convolve_(inputs[:, start:end].flatten(0, 1), weight, dilation, ring, step((start, end), (start, end)))
        for start, end in pairwise(cuts)
    ]
    padded = functional.pad(inputs.transpose(1, 2), (9, 0))
    expected = functional.silu(functional.conv1d(padded, weight[:, None], groups=6, dilation=dilation))
    assert torch.allclose(torch.cat([part.unflatten(0, (2, -1)) for part in found], 1), expected.mT, atol=1e-5)


def test_sequences_that_run_apart_do_not_meet() -> None:
    """Each a different part of itself, in one step."""
    tokens, ring = torch.arange(100, 120), torch.zeros(3, 4, dtype=torch.int64)
    history_(torch.cat([tokens[:7], 200 + tokens[:2]]), ring, 3, EOS, step((0, 7), (0, 2)))
    found = history_(
        torch.cat([tokens[7:8], 200 + tokens[2:6], 400 + tokens[:1]]), ring, 3, EOS, step((7, 8), (2, 6), (0, 1))
    )
    assert found.tolist() == [
        [104, 105, 106, 107],
        [EOS, 300, 301, 302],
        [300, 301, 302, 303],
        [301, 302, 303, 304],
        [302, 303, 304, 305],
        [EOS, EOS, EOS, 500],
    ]


def test_a_gate_is_wide_open_where_key_and_query_agree() -> None:
    key = torch.ones(1, 3, 400)
    query = torch.stack([key[0, 0], torch.zeros(400), -key[0, 0]])[None]  # 20 apart from 0, 0, -20
    found = gated(key, query, torch.ones(1, 400))[0, :, 0]
    steep = torch.tensor(20.0).sqrt()
    assert torch.allclose(found, torch.stack([steep.sigmoid(), torch.tensor(0.5), (-steep).sigmoid()]), atol=1e-6)
