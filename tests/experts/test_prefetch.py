"""Experts fetched one layer ahead: the numbers stay, whoever guesses, and what was guessed is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from strata.experts import hybrid
from strata.experts.counts import ExpertCounts
from strata.experts.hybrid import Hybrid
from strata.experts.prefetch import PREDICTORS
from strata.experts.ways import Way
from strata.kernels.layer import Routed
from strata.runner import runner as runner_module
from strata.runner.contest import keep_fastest
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch
from strata.store.reader import Store
from tests.experts import test_counts
from tests.experts.blob_kernels import BlobKernels, CachedKernels
from tests.experts.counting import counts_of
from tests.experts.test_counts import Running
from tests.experts.test_hybrid import load
from tests.experts.test_resident import ARCHITECTURES, TOKEN_IDS, Stores
from tests.models import tiny

store = test_counts.store  # a fixture


@pytest.fixture
def tiers() -> Iterator[list[Hybrid]]:
    """They end with the test."""
    opened: list[Hybrid] = []
    yield opened
    for tier in opened:
        tier.check()
        tier.close()


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("name", [*ARCHITECTURES, "a dense layer first", "one layer"])
def test_the_numbers_stay(
    stores: Stores, name: str, predictor: str, tiers: list[Hybrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit where no expert is the CPU's: in steps of one token, with slots for the experts of one. There what
    the last step needed is in its slot, so "history" has only the steps before it to go by."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 2)
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 16)
    made = stores("int4", name)
    expected = load(made, BlobKernels(), monkeypatch)
    runner = load(made, CachedKernels(), monkeypatch, 2, "fetch", predictor, 0.15)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    tiers.append(tier)
    blocks = list(range(8))
    for start, end in ((0, 20), *((token, token + 1) for token in range(20, 40))):  # a prompt streams its experts
        batch = Batch((tiny.sequence(TOKEN_IDS, start, end, blocks),))
        assert torch.equal(runner.run_all(batch), expected.run_all(batch))
    counts = counts_of(tier)
    assert counts.computed == 0
    assert counts.prefetched == counts.prefetch_used + counts.prefetch_wasted
    assert (counts.prefetch_used > 0) == (name != "one layer"), "the only layer has nobody before it"


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("tokens", [2, 16])
def test_what_was_fetched_is_no_longer_the_cpus(
    stores: Stores, predictor: str, tokens: int, tiers: list[Hybrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    made = stores("int4")
    expected = tiny.run_chunks(load(made, BlobKernels(), monkeypatch), TOKEN_IDS, tokens, list(range(8)))
    runner = load(made, CachedKernels(), monkeypatch, 2, "cpu", predictor)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    tiers.append(tier)
    # The CPU's threads round activations to 8 bits, the reference does not.
    assert tiny.relative(tiny.run_chunks(runner, TOKEN_IDS, tokens, list(range(8))), expected) < 0.1
    counts = counts_of(tier)
    assert counts.fetched == 0
    assert counts.prefetched > 0
    assert counts.prefetch_used > 0 or tokens == 16, "only a step that needs nearly all has no slot to give"


def counted(running: Running) -> dict[int, ExpertCounts]:
    """But for the time that the device waited."""
    return {layer: replace(counts, waited_ns=0) for layer, counts in running.stats.layers.items()}


def guessed(*ids: int) -> Routed:
    return Routed(torch.tensor([ids]), torch.tensor([[0.6, 0.4]]), None)


def test_the_router_of_the_next_layer_is_asked(store: Store, tiers: list[Hybrid]) -> None:
    seen: list[torch.Tensor] = []

    def route(x: torch.Tensor) -> Routed:
        seen.append(x)
        return guessed(2, 3)

    running = Running(store, "cpu", route)
    tiers.append(running.tier)
    running.tier.begin(Way((0, 0, 0, 0, 0), "gate"))
    running.step(0, (0, 1))  # the first layer: nobody looked ahead for it
    assert len(seen) == 1
    running.step(2, (2, 0))  # 2 came, and so did 3
    assert len(seen) == 1, "nobody comes after the last layer"
    assert counted(running) == {0: ExpertCounts(2, 2), 2: ExpertCounts(2, 2, 0, 2, 1, 1)}
    running.step(0, (0, 1))
    running.step(2, (2, 0))  # 2 is there since, and 3 came again
    assert counted(running)[2] == ExpertCounts(4, 4, 0, 3, 1, 2)


def test_the_last_steps_of_a_layer_say_what_it_needs(store: Store, tiers: list[Hybrid]) -> None:
    running = Running(store, "cpu")
    tiers.append(running.tier)
    running.tier.begin(Way((0, 0, 0, 0, 0), "history"))
    for ids in ((2, 0), (2, 3), (2, 3)):
        running.step(0, (0, 1))
        running.step(2, ids)
    # 2 came for the third step, for which two speak; for 3 one does. Of the first layer nothing is missing.
    assert counted(running) == {0: ExpertCounts(6, 6), 2: ExpertCounts(6, 2, 0, 1, 1, 0)}


def test_nobody_guesses_while_it_is_off(store: Store, tiers: list[Hybrid]) -> None:
    running = Running(store, "cpu")  # whose router refuses
    tiers.append(running.tier)
    running.step(0, (0, 1))
    running.step(2, (2, 3))
    assert counted(running) == {0: ExpertCounts(2, 2), 2: ExpertCounts(2, 0)}


def test_auto_keeps_whoever_makes_decoding_faster(
    stores: Stores,
    tiers: list[Hybrid],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    tried: list[str] = []
    run, now = Runner.run, [0.0]

    def timed(self: Runner, batch: Batch, feed: torch.Tensor | None = None) -> StepResult:
        predictor = self.model.tier.few.way.predictor  # type: ignore[union-attr]
        tried.append(predictor)
        now[0] += 0.010 if predictor == "history" else 0.011
        return run(self, batch, feed)

    monkeypatch.setattr(Runner, "run", timed)
    monkeypatch.setattr(runner_module, "MAX_STEPS", 3)
    monkeypatch.setattr(runner_module, "keep_fastest", partial(keep_fastest, clock=lambda: now[0]))
    runner = load(stores("int4"), CachedKernels(), monkeypatch, 2, "cpu", "auto")
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    tiers.append(tier)
    assert set(tried) == {"off", *PREDICTORS}
    assert tier.few.way.predictor == "history"
    assert caplog.messages[-1].endswith("; kept: cpu, prefetch history")
    assert counts_of(tier) == ExpertCounts()
