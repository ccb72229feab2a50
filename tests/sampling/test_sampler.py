"""The sampler's bookkeeping, and the distribution of what it draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from strata.request import SamplingParams
from strata.sampling.sampler import Sampler, uniform

VOCAB = 32
CPU = torch.device("cpu")


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1000, **changes})


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draws(name: str, settings: SamplingParams, steps: int, beside: int = 0) -> list[int]:
    """Tokens of ``steps`` steps of one request, with ``beside`` others of all kinds in every batch."""
    sampler = Sampler(VOCAB, CPU)
    sampler.add(name, settings, (1, 2, 3))
    kinds = [
        params(),
        params(temperature=0, frequency_penalty=0.5),
        params(top_k=4, logprobs=3),
        params(top_p=0.3, repetition_penalty=1.5),
        params(min_p=0.2, logit_bias=((3, 4.0),)),
    ]
    others = [f"other {i}" for i in range(beside)]
    for i, other in enumerate(others):
        sampler.add(other, kinds[i % len(kinds)], (4,))
    out = []
    for step in range(steps):
        rows = torch.cat([logits_of(500 + step, beside), logits_of(step)])
        token_id = sampler.sample(rows, [*others, name]).token_ids[-1]
        assert token_id is not None
        out.append(token_id)
    return out


def test_temperature_zero_is_greedy() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(temperature=0, top_k=5, top_p=0.1), (1,))
    assert [sampler.sample(logits_of(s), ["a"]).token_ids for s in range(9)] == [
        [int(logits_of(s).argmax())] for s in range(9)
    ]


@pytest.mark.parametrize("temperature", [1e-46, 1e-40, 9e-6])
def test_a_temperature_next_to_zero_is_greedy(temperature: float) -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(temperature=temperature, seed=1), (1,))
    assert [sampler.sample(logits_of(s), ["a"]).token_ids for s in range(9)] == [
        [int(logits_of(s).argmax())] for s in range(9)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"top_k": 4}, id="filtered"),
        pytest.param({"repetition_penalty": 1e-38}, id="a penalty that overflows"),
        pytest.param({"repetition_penalty": 1e-46}, id="a penalty that is zero in float32"),
    ],
)
def test_a_row_that_is_not_finite_ends_alone(settings: dict[str, Any]) -> None:
    """Each row beside the bad one draws what it would draw without it."""
    sampler = Sampler(VOCAB, CPU)
    for name in "ac":
        sampler.add(name, params(seed=1), (1,))
    sampler.add("b", params(**settings), tuple(range(VOCAB)))
    rows = logits_of(4, 3)
    if "repetition_penalty" not in settings:
        rows[1, 7] = torch.nan
    alone = Sampler(VOCAB, CPU)
    for name in "ac":
        alone.add(name, params(seed=1), (1,))
    first, bad, last = sampler.sample(rows, ["a", "b", "c"]).token_ids
    assert bad is None
    assert [first, last] == alone.sample(rows[[0, 2]], ["a", "c"]).token_ids


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_row_of_one_value_that_is_no_number_gives_none(value: float) -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(), (1,))
    assert sampler.sample(torch.full((1, VOCAB), value), ["a"]).token_ids == [None]


@pytest.mark.parametrize(
    "settings",
    [
        params(seed=11),
        params(seed=11, top_k=9),
        params(seed=11, top_p=0.8),
        params(seed=11, min_p=0.1),
        params(seed=11, repetition_penalty=1.3),
        params(seed=11, presence_penalty=0.7, frequency_penalty=0.3, logit_bias=((5, 1.5), (31, -100.0))),
    ],
)
def test_a_seed_gives_the_same_tokens_whatever_else_runs(settings: SamplingParams) -> None:
    alone = draws("a", settings, 40)
    assert draws("b", settings, 40, beside=5) == alone
    assert len(set(alone)) > 3


def test_seeds_and_positions_differ() -> None:
    assert draws("a", params(seed=1), 40) != draws("a", params(seed=2), 40)
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(seed=1), (1,))
    assert len({sampler.sample(torch.zeros(1, VOCAB), ["a"]).token_ids[0] for _ in range(40)}) > 10


def test_without_a_seed_requests_differ() -> None:
    assert draws("a", params(), 40) != draws("a", params(), 40)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        pytest.param({}, VOCAB, id="plain"),
        pytest.param({"temperature": 0.6}, VOCAB, id="temperature"),
        pytest.param({"top_k": 6}, 6, id="top_k"),
        pytest.param({"top_k": 12, "top_p": 0.7}, None, id="top_k and top_p"),
        pytest.param({"min_p": 0.2, "temperature": 0.6}, None, id="min_p at a temperature"),
        pytest.param({"min_p": 0.1, "top_p": 0.8}, None, id="min_p and top_p"),
    ],
)
def test_distribution(settings: dict[str, Any], left: int | None) -> None:
    """Pearson's chi-square over 20,000 seeded draws; 4.5 standard deviations of its distribution are allowed."""
    logits, n = logits_of(21) / 2, 20_000
    order = logits[0].argsort(descending=True)[: settings.get("top_k", VOCAB)]
    probs = (logits[0, order].double() / settings.get("temperature", 1.0)).softmax(0)
    probs = torch.where(probs >= settings.get("min_p", 0.0) * probs[0], probs, 0)
    probs = probs / probs.sum()
    probs = torch.where(probs.cumsum(0) - probs < settings.get("top_p", 1.1), probs, 0)
    probs = probs / probs.sum()
    assert left is None or int((probs > 0).sum()) == left
    sampler = Sampler(VOCAB, CPU)
    ids = [str(i) for i in range(500)]
    for i in range(500):
        sampler.add(ids[i], params(seed=i, **settings), (0,))
    counts = torch.zeros(VOCAB)
    for _ in range(n // 500):
        counts += torch.bincount(torch.tensor(sampler.sample(logits.expand(500, -1), ids).token_ids), minlength=VOCAB)
    expected = torch.zeros(VOCAB, dtype=torch.float64).scatter(0, order, probs) * n
    assert not counts[expected == 0].any()
    there = expected > 0
    chi_square = float(((counts - expected)[there] ** 2 / expected[there]).sum())
    degrees = int(there.sum()) - 1
    assert chi_square < degrees + 4.5 * math.sqrt(2 * degrees)


def test_repetition_penalty_counts_prompt_and_output() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 6, 7]] = torch.tensor([3.0, 2.0, 1.8])
    sampler.add("a", params(temperature=0, repetition_penalty=2.0), (5,))
    sampler.add("b", params(temperature=0), (5,))
    both = logits.expand(2, -1)
    assert [sampler.sample(both, ["a", "b"]).token_ids for _ in range(3)] == [[6, 5], [7, 5], [5, 5]]
    assert torch.equal(both, logits.expand(2, -1)), "the caller's logits are left alone"


def test_removed_requests_can_come_again() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(seed=3), (1,))
    first = [sampler.sample(logits_of(s), ["a"]).token_ids[0] for s in range(5)]
    sampler.remove("a")
    sampler.remove("a")
    sampler.add("a", params(seed=3), (1,))
    assert [sampler.sample(logits_of(s), ["a"]).token_ids[0] for s in range(5)] == first


def test_uniform_is_spread_evenly_over_seeds_and_positions() -> None:
    for numbers in ([uniform(seed, 7) for seed in range(4000)], [uniform(7, position) for position in range(4000)]):
        counts = torch.histc(torch.tensor(numbers), bins=20, min=0, max=1)
        assert float(((counts - 200) ** 2 / 200).sum()) < 19 + 4.5 * math.sqrt(2 * 19)


def test_logprobs_are_those_of_the_model_after_penalties_and_bias() -> None:
    """At whatever temperature and filter the token is drawn."""
    sampler = Sampler(VOCAB, CPU)
    settings = {"temperature": 0.3, "top_k": 3, "seed": 5, "logit_bias": ((4, 2.0),), "presence_penalty": 1.0}
    for name, num_top in (("none", None), ("drawn", 0), ("two", 2), ("all", VOCAB + 8)):
        sampler.add(name, params(logprobs=num_top, **settings), (1,))
    names = ["none", "drawn", "two", "all"]
    output: list[int] = []
    for step in range(6):
        logits = logits_of(step).expand(4, -1)
        drawn = sampler.sample(logits, names)
        token = drawn.token_ids[0]
        assert token is not None
        assert drawn.token_ids == [token] * 4, "asking for them changes no draw"
        adjusted = logits[0].double().clone()
        adjusted[4] += 2
        adjusted[sorted(set(output))] -= 1
        expected = adjusted.log_softmax(-1)
        order = sorted(range(VOCAB), key=lambda i: -float(expected[i]))
        assert set(drawn.logprobs) == {"drawn", "two", "all"}
        for name, num_top in (("drawn", 0), ("two", 2), ("all", VOCAB)):
            got = drawn.logprobs[name]
            assert got.logprob == pytest.approx(float(expected[token]), abs=1e-5)
            assert [token_id for token_id, _ in got.top] == order[:num_top]
            assert [value for _, value in got.top] == pytest.approx(expected[order[:num_top]].tolist(), abs=1e-5)
        output.append(token)


def test_a_logprob_is_always_a_number() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("a", params(logprobs=5, temperature=0), (1,))
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 3] = 1.0
    drawn = sampler.sample(logits, ["a"])
    assert (drawn.token_ids, drawn.logprobs["a"].logprob) == ([3], 0.0)
    assert drawn.logprobs["a"].top[0] == (3, 0.0)
    assert [value for _, value in drawn.logprobs["a"].top[1:]] == [-9999.0] * 4


def test_presence_and_frequency_penalty_count_the_output_alone() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros(2, VOCAB)
    logits[:, [5, 6]] = torch.tensor([3.0, 2.0])
    sampler.add("presence", params(temperature=0, presence_penalty=1.5), (5, 5, 5))
    sampler.add("frequency", params(temperature=0, frequency_penalty=0.6), (5, 5, 5))
    drawn = [sampler.sample(logits, ["presence", "frequency"]).token_ids for _ in range(4)]
    assert drawn == [[5, 5], [6, 5], [5, 6], [5, 5]]
