"""Draws for which the host does not wait: the same tokens, also where a second look is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata.kernels.argmax.reference import argmax
from strata.request import SamplingParams
from strata.sampling import filters
from strata.sampling.sampler import Drawing, Sampler

VOCAB = 2000
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "whole": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.9, "temperature": 0.6},
    "both": {"top_k": 300, "top_p": 0.95},
    "min_p": {"min_p": 0.1, "top_p": 0.99},
}


def sampler_of(kinds: list[str], *, at_once: bool) -> Sampler:
    sampler = Sampler(VOCAB, torch.device("cpu"))
    sampler._draws_at_once = at_once
    for seed, name in enumerate(kinds):
        sampler.add(name, SamplingParams(max_tokens=99, **{"seed": seed, **KINDS[name]}), (1, 2, 3))
    return sampler


def begin(sampler: Sampler, logits: torch.Tensor, kinds: list[str]) -> Drawing:
    drawing: Drawing = sampler.begin(logits, sampler.states(kinds), argmax(logits))
    return drawing


def logits_of(step: int, rows: int, spread: float = 6.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(step)) * spread


@pytest.mark.parametrize("kinds", [list(KINDS), ["whole"], ["top_p"], ["greedy", "top_k"], ["min_p", "whole"]], ids=str)
def test_the_same_tokens_as_in_turn(kinds: list[str]) -> None:
    at_once, in_turn = (sampler_of(kinds, at_once=it_is) for it_is in (True, False))
    for step in range(20):
        logits = logits_of(step, len(kinds))
        if step == 7:
            logits[-1, 3] = torch.nan
        drawing = begin(at_once, logits, kinds)
        known = drawing.token_ids.tolist()
        logits_before, logits = logits.clone(), logits.fill_(0)  # the next step's, before anybody asks
        drawn = at_once.finish(drawing)
        assert not drawing.was_wrong
        assert [-1 if token is None else token for token in drawn.token_ids] == known
        assert drawn == in_turn.sample(logits_before, kinds)
        assert (drawn.token_ids[-1] is None) == (step == 7)


def test_a_row_whose_filters_leave_more_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "LOOKS", (4, 64))
    kinds = ["top_k", "top_p", "greedy"]
    at_once, in_turn = (sampler_of(kinds, at_once=it_is) for it_is in (True, False))
    wrong = []
    for step in range(4):
        logits = logits_of(step, len(kinds), spread=0.5)
        drawing = begin(at_once, logits, kinds)
        drawn = at_once.finish(drawing)
        wrong.append(drawing.was_wrong)
        assert drawn == in_turn.sample(logits, kinds)
        assert drawing.token_ids.tolist() == drawn.token_ids
    assert wrong == [True, False, False, False], "who needs it once is drawn in turn from then on"


def test_what_takes_more_than_the_logits_is_drawn_in_turn() -> None:
    sampler = sampler_of([], at_once=True)
    settings = SamplingParams(max_tokens=9, seed=1, logprobs=2)
    sampler.add("a", settings, (1,))
    logits = logits_of(1, 1)
    drawn = sampler.finish(begin(sampler, logits, ["a"]))
    assert set(drawn.logprobs) == {"a"}
