"""Penalties and bias against OpenAI's and CTRL's formulas, written out token by token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from strata.request import SamplingParams
from strata.sampling.adjust import Adjustment, adjust, needs_adjusting

VOCAB = 24


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=9, **changes)


def expected(
    logits: torch.Tensor, settings: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """Repetition penalty over prompt and output, then bias, frequency and presence penalty over the output."""
    out = logits.double().clone()
    counts: Mapping[int, int] = Counter(output)
    bias = dict(settings.logit_bias)
    for token in range(VOCAB):
        value = float(out[token])
        if token in counts or token in prompt:
            penalty = settings.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        value += bias.get(token, 0)
        value -= settings.frequency_penalty * counts[token] + settings.presence_penalty * (counts[token] > 0)
        out[token] = value
    return out


KINDS = [
    pytest.param(params(repetition_penalty=1.7), id="repetition"),
    pytest.param(params(repetition_penalty=0.5), id="repetition that is wanted"),
    pytest.param(params(presence_penalty=1.5), id="presence"),
    pytest.param(params(frequency_penalty=-0.7), id="frequency below zero"),
    pytest.param(params(logit_bias=((0, -100.0), (7, 2.5), (23, 100.0))), id="bias"),
    pytest.param(
        params(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.6, logit_bias=((1, 3.0), (9, -2.0))),
        id="all",
    ),
]


@pytest.mark.parametrize("settings", KINDS)
def test_each_rule(settings: SamplingParams) -> None:
    """Over outputs that repeat tokens of the prompt, of the bias and of their own."""
    rng = random.Random(3)
    prompt, output = (1, 2, 2, 9), [0, 1]
    adjustment = Adjustment(settings, prompt)
    for token in output:
        adjustment.record(token)
    for step in range(30):
        logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(step)) * 3
        before = logits.clone()
        adjust(logits, {1: adjustment})
        assert torch.equal(logits[0], before[0]), "a row of another request"
        wanted = expected(before[1], settings, prompt, output)
        assert torch.allclose(logits[1].double(), wanted, atol=1e-5)
        output.append(rng.randrange(VOCAB))
        adjustment.record(output[-1])


@pytest.mark.parametrize("at_a_time", [3, 1 << 18], ids=["in pieces", "at once"])
def test_requests_beside_each_other(monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    """Lists of different lengths in any order of rows, some of them empty."""
    monkeypatch.setattr("strata.sampling.adjust.MAX_ADJUSTED", at_a_time)
    rng = random.Random(4)
    kinds: list[SamplingParams] = [param.values[0] for param in KINDS]  # type: ignore[misc]
    live = []
    for settings in kinds * 2:
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9)))
        live.append((settings, prompt, list[int](), Adjustment(settings, prompt)))
    for step in range(30):
        chosen = rng.sample(live, k=rng.randrange(len(live) + 1))
        logits = torch.randn(len(chosen), VOCAB, generator=torch.Generator().manual_seed(step))
        wanted = [expected(row, *one[:3]) for row, one in zip(logits, chosen, strict=True)]
        adjust(logits, {row: adjustment for row, (*_, adjustment) in enumerate(chosen)})
        for row, exact in zip(logits, wanted, strict=True):
            assert torch.allclose(row.double(), exact, atol=1e-5)
        for *_, output, adjustment in chosen:
            output.append(rng.randrange(VOCAB))
            adjustment.record(output[-1])


def test_a_list_is_as_long_as_there_are_different_tokens() -> None:
    adjustment = Adjustment(params(frequency_penalty=1.0), (1, 2, 3))
    for step in range(5000):
        adjustment.record(step % 17)
    assert len(adjustment.token_ids) == len(adjustment.divisors) == len(adjustment.addends) == 17
    logits = torch.zeros(1, VOCAB)
    adjust(logits, {0: adjustment})
    counts = Counter(step % 17 for step in range(5000))
    assert logits[0].tolist() == [-float(counts[token]) for token in range(VOCAB)]


def test_a_bias_alone_does_not_grow() -> None:
    adjustment = Adjustment(params(logit_bias=((7, 2.5),)), (1, 2, 3))
    for step in range(50):
        adjustment.record(step % 17)
    assert list(adjustment.token_ids) == [7]


def test_numbers_that_are_not_finite_stay_as_they_are() -> None:
    adjustment = Adjustment(params(repetition_penalty=1.5, logit_bias=((0, 1.0), (1, 1.0), (2, 1.0))), (0, 1, 2))
    logits = torch.tensor([[-torch.inf, torch.inf, torch.nan] + [0.0] * (VOCAB - 3)])
    adjust(logits, {0: adjustment})
    assert logits[0, :2].tolist() == [-torch.inf, torch.inf]
    assert logits[0, 2].isnan()


def test_only_requests_that_change_something_need_a_list() -> None:
    assert not needs_adjusting(params(temperature=0.5, min_p=0.1, top_k=3))
    assert all(needs_adjusting(param.values[0]) for param in KINDS)  # type: ignore[arg-type]
