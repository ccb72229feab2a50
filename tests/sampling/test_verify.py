"""Drafts change how many tokens a step draws, never which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from strata.kernels.argmax.reference import argmax
from strata.request import SamplingParams, TokenLogprobs
from strata.sampling.sampler import Sampler
from strata.sampling.verify import Accepted, accepted, verify

VOCAB, CPU, PROMPT = 32, torch.device("cpu"), (1, 2, 3)
LENGTH = 24

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "filtered": {"top_k": 9, "top_p": 0.8, "temperature": 0.7},
    "min_p": {"min_p": 0.1},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "greedy with penalties": {"temperature": 0.0, "frequency_penalty": 1.5},
    "biased": {"logit_bias": ((5, 1.5), (31, -100.0))},
    "logprobs": {"logprobs": 3},
}


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1000, "seed": 7, **changes})


def text_logits(seed: int = 0) -> torch.Tensor:
    """Of each position, whatever was drawn before it."""
    return torch.randn(LENGTH, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def one_by_one(settings: SamplingParams, logits: torch.Tensor) -> tuple[list[int], list[TokenLogprobs]]:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", settings, PROMPT)
    tokens: list[int] = []
    scores: list[TokenLogprobs] = []
    for row in logits:
        drawn = sampler.sample(row[None], ["a"])
        tokens += [token_id for token_id in drawn.token_ids if token_id is not None]
        scores += drawn.logprobs.values()
    return tokens, scores


def drafts_for(expected: Sequence[int], done: int, num_right: int, num_wrong: int) -> tuple[int, ...]:
    room = len(expected) - done - 1
    right = expected[done : done + min(num_right, room)]
    wrong = [(token_id + 1) % VOCAB for token_id in expected[done + len(right) : done + len(right) + num_wrong]]
    return (*right, *wrong)[:room]


def check(sampler: Sampler, names: Sequence[str], logits: torch.Tensor, drafts: Sequence[Sequence[int]]) -> Accepted:
    return verify(sampler, logits, sampler.states(names), drafts, argmax(logits))


@pytest.mark.parametrize("settings", [pytest.param(settings, id=name) for name, settings in KINDS.items()])
def test_tokens_are_those_drawn_one_by_one(settings: dict[str, Any]) -> None:
    logits = text_logits()
    expected, scores = one_by_one(params(**settings), logits)
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(**settings), PROMPT)
    tokens: list[int] = []
    found: list[TokenLogprobs] = []
    for num_right, num_wrong in [(0, 0), (3, 0), (0, 3), (2, 2), (1, 1), (0, 1), (9, 0), (9, 9)]:
        draft = drafts_for(expected, len(tokens), num_right, num_wrong)
        step = check(sampler, ["a"], logits[len(tokens) : len(tokens) + len(draft) + 1], [draft])
        assert len(step.token_ids["a"]) == min(num_right, len(draft)) + 1
        tokens += step.token_ids["a"]
        found += step.logprobs.get("a", ())
    assert tokens == expected[: len(tokens)]
    for one, other in zip(found, scores, strict=False):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
    assert len(found) == (len(tokens) if "logprobs" in settings else 0)


def test_requests_of_all_kinds_at_once() -> None:
    sampler = Sampler(VOCAB, CPU)
    expected: dict[str, list[int]] = {}
    texts: dict[str, torch.Tensor] = {}
    for place, (name, settings) in enumerate(KINDS.items()):
        texts[name] = text_logits(place)
        expected[name] = one_by_one(params(**settings), texts[name])[0]
        sampler.add(name, params(**settings), PROMPT)
    tokens: dict[str, list[int]] = {name: [] for name in KINDS}
    for step in range(4):
        drafts = {
            name: drafts_for(expected[name], len(tokens[name]), (step + place) % 4, place % 3)
            for place, name in enumerate(KINDS)
        }
        rows = [texts[name][len(tokens[name]) :][: len(draft) + 1] for name, draft in drafts.items()]
        for name, found in check(sampler, list(KINDS), torch.cat(rows), list(drafts.values())).token_ids.items():
            tokens[name] += found
    for name, whole in tokens.items():
        assert len(whole) >= 4
        assert whole == expected[name][: len(whole)], name


def test_a_step_without_drafts_is_a_plain_draw() -> None:
    logits = text_logits()
    plain, other = Sampler(VOCAB, CPU), Sampler(VOCAB, CPU)
    for sampler in (plain, other):
        for place, (name, settings) in enumerate(KINDS.items()):
            sampler.add(name, params(**settings), PROMPT[:place])
    rows = logits[: len(KINDS)]
    drawn = plain.sample(rows, list(KINDS))
    assert accepted(drawn, plain.states(list(KINDS))) == check(other, list(KINDS), rows, [()] * len(KINDS))


@pytest.mark.parametrize("name", ["greedy", "plain", "penalties"])
def test_a_row_that_is_not_finite_ends_the_draft(name: str) -> None:
    logits = text_logits()
    expected, _ = one_by_one(params(**KINDS[name]), logits)
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(**KINDS[name]), PROMPT)
    rows = logits[:4].clone()
    rows[2] = torch.nan
    assert check(sampler, ["a"], rows, [expected[:3]]).token_ids == {"a": tuple(expected[:2])}
    assert check(sampler, ["a"], rows[2:3], [()]).token_ids == {"a": ()}


def test_a_sampled_draft_is_accepted_as_often_as_it_is_likely() -> None:
    """Pearson's chi-square of two tokens over 4,000 seeds against the distribution that they come from; 4.5 standard
    deviations are allowed."""
    vocab, count = 6, 4_000
    first, second = torch.randn(2, vocab, generator=torch.Generator().manual_seed(3)).double()
    sampler = Sampler(vocab, CPU)
    names = [str(seed) for seed in range(count)]
    for seed, name in enumerate(names):
        sampler.add(name, params(seed=seed, logprobs=0 if seed % 2 else None), (0,))
    logits = torch.stack([first, second]).float().repeat(count, 1)
    drafts = [(seed % vocab,) for seed in range(count)]
    token_ids = check(sampler, names, logits, drafts).token_ids
    counts = torch.zeros(vocab, dtype=torch.float64)
    behind = torch.zeros(vocab, dtype=torch.float64)
    for (draft,), (drawn, *more) in zip(drafts, token_ids.values(), strict=True):
        counts[drawn] += 1
        assert len(more) == (drawn == draft)
        for token_id in more:
            behind[token_id] += 1
    for seen, row in ((counts, first), (behind, second)):
        likely = row.softmax(0) * seen.sum()
        assert float(((seen - likely) ** 2 / likely).sum()) < vocab - 1 + 4.5 * math.sqrt(2 * (vocab - 1))
