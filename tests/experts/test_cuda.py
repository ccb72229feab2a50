"""Experts beyond VRAM on a card, where there is one: the logits of the same model all in VRAM."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.experts.hybrid import Hybrid
from strata.experts.prefetch import PREDICTORS
from strata.experts.resident import Resident
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.store.reader import Store
from tests.experts.test_resident import made_store
from tests.models import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NAMES = ["a dense layer between", "biases, another activation"]
PROMPT = [(7 * i + i * i) % 90 + 2 for i in range(100)]


def load(
    store: Store, num_slots: int | None, placement: str = "auto", prefetch: str = "off", routing: str = "gpu"
) -> Runner:
    layout = store.manifest.contents.experts
    assert layout is not None
    vram = None if num_slots is None else num_slots * len(layout.layers) * layout.blob_bytes
    device = DeviceConfig(
        device="cuda",
        expert_vram_bytes=vram,
        expert_placement=placement,  # type: ignore[arg-type]
        prefetch=prefetch,  # type: ignore[arg-type]
        prefetch_probability=0.15,
        routing_device=routing,  # type: ignore[arg-type]
    )
    scheduler = SchedulerConfig(max_model_len=128, max_num_seqs=2)
    config = EngineConfig(model="tiny", device=device, cache=CacheConfig(num_kv_tokens=256), scheduler=scheduler)
    return Runner.load(store, config)


def logits(runner: Runner) -> torch.Tensor:
    """Of a long prompt's end, and of tokens after it, in graphs."""
    blocks = tuple(range(8))
    found = []
    for start, tokens in [(0, PROMPT), *((100 + i, [(31 * i) % 90 + 2]) for i in range(12))]:
        sequence = ScheduledSequence("a", tuple(tokens), start, blocks, samples=True)
        found.append(runner.run(Batch((sequence,))).logits.clone())
    runner.check()
    return torch.cat(found).cpu()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "num_slots", "placement", "prefetch"),
    [
        pytest.param("int4", 1, "cpu", "off", id="on the CPU"),
        pytest.param("int4", 2, "fetch", "off", id="fetched"),
        pytest.param("int4", 1, "hybrid", "off", id="both"),
        pytest.param("int4", 2, "cpu", "gate", id="fetched ahead as the next router says"),
        pytest.param("int4", 2, "fetch", "history", id="fetched ahead as the last steps say"),
        pytest.param("int8", 1, "hybrid", "off", id="int8 both ways"),
        pytest.param("bf16", 1, "hybrid", "off", id="bf16 both ways"),
        pytest.param("bf16", 2, "fetch", "history", id="bf16 fetched ahead"),
    ],
)
def test_logits_stay(
    tmp_path: Path,
    name: str,
    dtype: str,
    num_slots: int,
    placement: str,
    prefetch: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, dtype, name)
    resident = load(store, None)
    assert isinstance(resident.model.tier, Resident)
    expected = logits(resident)
    runner = load(store, num_slots, placement, prefetch)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        began = time.perf_counter()
        # Sums are taken in another order, and a quantised activation may fall to its other side.
        assert tiny.relative(logits(runner), expected) < 0.02
        stats = runner.expert_stats(wait=True)
        elapsed = time.perf_counter() - began
        assert stats is not None
        assert (stats.total.prefetch_used > 0) == (prefetch != "off")
        assert stats.total.needed == 12 * 2 * len(stats.layers), "a token takes two of each layer"
        assert stats.total.streamed > 0, "of the prompt"
        assert stats.cpu is not None
        if placement == "fetch":
            assert stats.cpu.jobs == 12, "of each token the last layer's, which leaves it nothing"
        else:
            assert 12 < stats.cpu.jobs <= 12 * len(stats.layers), "what finds all in VRAM asks nothing"
        assert 0 <= stats.total.waited_seconds < elapsed, "layers wait one after the other"
        assert runner.expert_stats() is None, "a copy is begun"
        torch.cuda.synchronize()
        assert runner.expert_stats() == stats
    finally:
        tier.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", ["fetch", "cpu"])
def test_logits_stay_with_experts_on_disk(
    tmp_path: Path, name: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("strata.experts.cpu._fitting", lambda layout, size, num_slots: (max(num_slots, 3), 0))
    monkeypatch.setattr("strata.experts.spill._is_memory", lambda directory: False)  # whatever /tmp is
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, "int4", name)
    expected = logits(load(store, None))
    runner = load(store, 2, placement)
    assert runner.model.tier is not None
    try:
        assert tiny.relative(logits(runner), expected) < 0.02
        stats = runner.expert_stats(wait=True)
        assert stats is not None
        assert stats.num_host == 3 * len(stats.layers)
        assert (stats.total.fetched > 0) == (placement == "fetch")
    finally:
        runner.model.tier.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_logits_stay_where_only_chosen_experts_come(
    tmp_path: Path, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 2 tokens behind a long prompt, for which whole layers come into the same buffers, and before others."""
    monkeypatch.setattr("strata.experts.hybrid.MAX_TOKENS", 1)
    monkeypatch.setattr("strata.experts.layers.max_chosen_tokens", lambda num_experts, top_k, num_slots: 2)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, dtype, name)
    lengths = [90, 2, 2, 20, 2, 3, 2]
    found, resident, runner = [], load(store, None), load(store, 1, "fetch")
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        for each in (resident, runner):
            start, rows = 0, []
            for length in lengths:
                tokens = tuple((7 * i + i * i) % 90 + 2 for i in range(start, start + length))
                sequence = ScheduledSequence("a", tokens, start, tuple(range(8)), samples=True)
                rows.append(each.run(Batch((sequence,))).logits.clone())
                start += length
            each.check()
            found.append(torch.cat(rows).cpu())
        stats = runner.expert_stats(wait=True)
    finally:
        tier.close()
    # A graph fills a chunk of 2 up to 16 rows, whose products round otherwise, where experts are all in VRAM alone.
    assert tiny.relative(found[1], found[0]) < 0.03
    assert stats is not None
    whole = lengths.count(90) + lengths.count(20) + lengths.count(3)
    brought = stats.total.streamed / len(stats.layers)  # of a layer, which misses three of four
    assert 3 * whole < brought < 3 * len(lengths)


@pytest.mark.parametrize("name", NAMES)
def test_guesses_change_no_bit(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CPU computes nothing: with slots for the experts of one token, all of them fetched."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 2)
    store, found = made_store(tmp_path, "int4", name), {}
    for predictor in ("off", *PREDICTORS):
        runner = load(store, 2, "fetch", predictor)
        tier = runner.model.tier
        assert tier is not None
        try:
            found[predictor] = logits(runner)
        finally:
            tier.close()
    for predictor in PREDICTORS:
        assert torch.equal(found[predictor], found["off"]), predictor


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", ["cpu", "fetch"])
def test_the_cpu_chooses_as_the_card_does(
    tmp_path: Path, name: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes what it chooses at once, or the card waits for the choice and fetches."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 2)
    store, found = made_store(tmp_path, "int4", name), []
    for routing in ("gpu", "cpu"):
        runner = load(store, 2, placement, routing=routing)
        tier = runner.model.tier
        assert tier is not None
        try:
            found.append(logits(runner))
            stats = runner.expert_stats(wait=True)
            assert stats is not None
            assert stats.cpu is not None
            assert stats.cpu.routed == (12 * len(stats.layers) if routing == "cpu" else 0)
        finally:
            tier.close()
    # Shares differ in their last bits, and now and then a rounded activation with them.
    assert tiny.relative(found[1], found[0]) < 0.01
