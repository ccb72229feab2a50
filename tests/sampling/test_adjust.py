"""Penalties and bias against OpenAI's and CTRL's formulas, written out token by token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from strata.request import SamplingParams
from strata.sampling.adjust import Adjustments, needs_adjusting

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
    adjustments = Adjustments(torch.device("cpu"))
    prompt, output = (1, 2, 2, 9), [0, 1]
    slot = adjustments.add(settings, prompt)
    for token in output:
        adjustments.record([slot], [token])
    for step in range(30):
        logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(step)) * 3
        before = logits.clone()
        adjustments.apply(logits, [1], [slot])
        assert torch.equal(logits[0], before[0]), "a row of another request"
        wanted = expected(before[1], settings, prompt, output)
        assert torch.allclose(logits[1].double(), wanted, atol=1e-5)
        output.append(rng.randrange(VOCAB))
        adjustments.record([slot], [output[-1]])


def test_requests_come_and_go_without_traces() -> None:
    """Many lists of different lengths at once, slots that are used again, tables that grow."""
    rng = random.Random(4)
    kinds: list[SamplingParams] = [param.values[0] for param in KINDS]  # type: ignore[misc]
    adjustments = Adjustments(torch.device("cpu"))
    live: dict[int, tuple[SamplingParams, tuple[int, ...], list[int]]] = {}
    for step in range(60):
        while len(live) < 12 and rng.random() < 0.7:
            prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9)))
            settings = rng.choice(kinds)
            slot = adjustments.add(settings, prompt)
            assert slot not in live
            live[slot] = settings, prompt, []
        if live and rng.random() < 0.3:
            gone = rng.choice(sorted(live))
            adjustments.remove(gone)
            del live[gone]
        slots = rng.sample(sorted(live), k=rng.randrange(len(live) + 1))
        if not slots:
            continue
        logits = torch.randn(len(slots), VOCAB, generator=torch.Generator().manual_seed(step))
        wanted = [expected(row, *live[slot]) for row, slot in zip(logits, slots, strict=True)]
        adjustments.apply(logits, range(len(slots)), slots)
        assert torch.allclose(logits.double(), torch.stack(wanted), atol=1e-5)
        drawn = [rng.randrange(VOCAB) for _ in slots]
        adjustments.record(slots, drawn)
        for slot, token in zip(slots, drawn, strict=True):
            live[slot][2].append(token)


def test_an_output_longer_than_any_table_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.sampling.adjust._GROWTH", 4)
    adjustments = Adjustments(torch.device("cpu"))
    slot = adjustments.add(params(frequency_penalty=1.0), (1,))
    for step in range(50):
        adjustments.record([slot], [step % 17])
    logits = torch.zeros(1, VOCAB)
    adjustments.apply(logits, [0], [slot])
    counts = Counter(step % 17 for step in range(50))
    assert logits[0].tolist() == [-float(counts[token]) for token in range(VOCAB)]


def test_numbers_that_are_not_finite_stay_as_they_are() -> None:
    adjustments = Adjustments(torch.device("cpu"))
    slot = adjustments.add(params(repetition_penalty=1.5, logit_bias=((0, 1.0), (1, 1.0), (2, 1.0))), (0, 1, 2))
    logits = torch.tensor([[-torch.inf, torch.inf, torch.nan] + [0.0] * (VOCAB - 3)])
    adjustments.apply(logits, [0], [slot])
    assert logits[0, :2].tolist() == [-torch.inf, torch.inf]
    assert logits[0, 2].isnan()


def test_only_requests_that_change_something_need_a_list() -> None:
    assert not needs_adjusting(params(temperature=0.5, min_p=0.1, top_k=3))
    assert all(needs_adjusting(param.values[0]) for param in KINDS)  # type: ignore[arg-type]
