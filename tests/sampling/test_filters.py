"""Which tokens the filters leave, against a brute-force reading of the rules; and what a number picks of them."""

from __future__ import annotations

import pytest
import torch

from strata.sampling import filters
from strata.sampling.filters import candidates, draw, drop_unlikely, scale

VOCAB = 40


def kept(logits: torch.Tensor, top_k: int, top_p: float) -> set[int]:
    """The rules, one token after another in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if 0 < top_k < len(order):
        order = order[:top_k]
    probs = logits[order].double().softmax(0)
    chosen, mass = set(), 0.0
    for token, prob in zip(order, probs.tolist(), strict=True):
        if mass >= top_p and top_p < 1:
            break
        chosen.add(token)
        mass += prob
    return chosen


CASES = [
    pytest.param(5, 1.0, id="top_k alone"),
    pytest.param(1, 1.0, id="one token"),
    pytest.param(VOCAB, 0.51, id="top_k as large as the vocabulary"),
    pytest.param(VOCAB + 9, 0.51, id="top_k beyond the vocabulary"),
    pytest.param(0, 0.71, id="top_p alone"),
    pytest.param(0, 1e-9, id="top_p that the first token exceeds"),
    pytest.param(0, 0.999999, id="top_p that takes nearly all"),
    pytest.param(6, 0.61, id="top_p of what top_k leaves"),
]


@pytest.mark.parametrize(("top_k", "top_p"), CASES)
@pytest.mark.parametrize("looks", [pytest.param((), id="all at once"), pytest.param((8, 20), id="few, more, all")])
def test_candidates(monkeypatch: pytest.MonkeyPatch, top_k: int, top_p: float, looks: tuple[int, ...]) -> None:
    monkeypatch.setattr(filters, "LOOKS", looks)
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(5)) * 2
    logits[1] = logits[1].bfloat16().float()
    logits[2] = 0  # all alike: the smaller id first
    logits[3, 7:] = -torch.inf
    ids, probs = candidates(logits, [top_k] * 6, [top_p] * 6)
    for row in range(6):
        left = {int(i) for i, p in zip(ids[row], probs[row], strict=True) if p > 0}
        expected = {i for i in kept(logits[row], top_k, top_p) if logits[row, i] > -torch.inf}
        assert left == expected
        order = ids[row][probs[row] > 0].tolist()
        assert order == sorted(order, key=lambda i: (-float(logits[row, i]), i))


def test_rows_are_filtered_by_their_own_parameters() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(6))
    top_k, top_p = [3, 0, 12, 0], [1.0, 0.4, 0.8, 0.95]
    ids, probs = candidates(logits, top_k, top_p)
    for row in range(4):
        assert {int(i) for i in ids[row][probs[row] > 0]} == kept(logits[row], top_k[row], top_p[row])


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (7, 1.0), (20, 0.5)])
def test_the_whole_range_is_shared_by_probability(top_k: int, top_p: float) -> None:
    """Evenly spread numbers pick each token as often as its probability says."""
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(8))
    left = sorted(kept(logits[0], top_k, top_p))
    expected = torch.zeros(VOCAB, dtype=torch.float64)
    expected[left] = logits[0, left].double().softmax(0)
    n = 20_000
    numbers = [(i + 0.5) / n for i in range(n)]
    drawn = draw(logits.expand(n, -1), [top_k] * n, [top_p] * n, numbers)
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB)
    assert (counts - n * expected).abs().max() <= 1.01


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.5)])
def test_the_ends_of_the_range_pick_tokens_that_are_there(uniform: float, top_k: int, top_p: float) -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 10:14] = torch.tensor([1.0, 2.0, 0.5, 0.0])
    (token,) = draw(logits, [top_k], [top_p], [uniform])
    assert token in kept(logits[0], top_k, top_p) & set(range(10, 14))


def test_no_pick_is_outside_of_the_row() -> None:
    assert filters.pick(torch.full((1, VOCAB), torch.nan), [0.5]).tolist() == [VOCAB - 1]


def test_unlikely_tokens_are_not_swallowed() -> None:
    """100,000 tokens share a thousandth of the mass; float32 sums would round them away beside the likely one."""
    logits = torch.zeros(1, 100_001)
    logits[0, 0] = torch.tensor(100_000.0 * 999).log()
    n = 400
    numbers = [0.999 + 0.001 * (i + 0.5) / n for i in range(n)]
    drawn = torch.tensor(draw(logits.expand(n, -1), [0] * n, [1.0] * n, numbers))
    expected = torch.tensor([(i + 0.5) / n * 100_000 for i in range(n)])
    assert (drawn - expected).abs().max() < 20


@pytest.mark.parametrize("temperature", [1e-30, 0.5, 1.0, 100.0])
def test_scale(temperature: float) -> None:
    logits = torch.tensor([[1.0, -2.0, 3.0, 2.5]])
    expected = (logits.double() / temperature).softmax(-1)
    assert torch.allclose(scale(logits, [temperature]).softmax(-1).double(), expected, atol=1e-6)


@pytest.mark.parametrize("min_p", [0.0, 1e-30, 0.05, 0.5, 1.0])
def test_drop_unlikely(min_p: float) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(9)) * 2
    logits[1] = 0
    logits[2, 3:] = -torch.inf
    probs = (logits.double() / 0.7).softmax(-1)
    expected = (probs >= min_p * probs.amax(-1, keepdim=True)) & (probs > 0)
    left = drop_unlikely(scale(logits, [0.7] * 5), [min_p] * 5)
    assert torch.equal(left > -torch.inf, expected)


def test_rows_have_their_own_min_p() -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0, -3.0]]).expand(3, -1)
    left = drop_unlikely(scale(logits, [1.0] * 3), [0.0, 0.2, 0.9])
    assert (left > -torch.inf).sum(-1).tolist() == [4, 2, 1]
