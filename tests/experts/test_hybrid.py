"""VRAM as a cache of experts, and the CPU for what it has not: close to all in VRAM, whatever the slots and shares."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.errors import CheckpointError
from strata.experts import cpu, hybrid, layers
from strata.experts.counts import ExpertCounts
from strata.experts.cpu import CpuExperts
from strata.experts.hybrid import Hybrid
from strata.experts.trial import Trial
from strata.experts.ways import Way
from strata.kernels.layer import Kernels
from strata.memory.host import PinnedMemory
from strata.native.pool import PoolOptions
from strata.plan.hardware import disk_bytes_read
from strata.plan.memory import HEADROOM_BYTES
from strata.runner import runner as runner_module
from strata.runner.contest import keep_fastest
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch
from strata.store.layout import ExpertLayout
from strata.store.reader import Store
from tests.experts.blob_kernels import BlobKernels, CachedKernels
from tests.experts.counting import counts_of
from tests.experts.test_resident import ARCHITECTURES, TOKEN_IDS, Stores, made_store
from tests.models import tiny


def load(
    store: Store,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    num_slots: int | None = None,
    placement: str = "auto",
    prefetch: str = "off",
    probability: float = 0.85,
    routing: str = "gpu",
    depth: int = 8,
) -> Runner:
    layout = store.manifest.contents.experts
    assert layout is not None
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    vram = None if num_slots is None else num_slots * len(layout.layers) * layout.blob_bytes
    device = DeviceConfig(
        device="cpu",
        num_threads=1,
        expert_vram_bytes=vram,
        expert_placement=placement,  # type: ignore[arg-type]
        prefetch=prefetch,  # type: ignore[arg-type]
        prefetch_probability=probability,
        routing_device=routing,  # type: ignore[arg-type]
        pipeline_depth=depth,
    )
    config = EngineConfig(model="tiny", device=device, cache=CacheConfig(num_kv_tokens=128))
    return Runner.load(store, config, compute_dtype=torch.float32)


Logits = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def all_in_vram(stores: Stores) -> Logits:
    """Of such a store: float32 [tokens, vocab], computed once."""

    @cache
    def logits(*kind: str) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            return tiny.run_chunks(load(stores(*kind), BlobKernels(), patch), TOKEN_IDS, 5, list(range(8)))

    return logits


@pytest.mark.parametrize("name", [*ARCHITECTURES, "one layer"])
@pytest.mark.parametrize(
    ("dtype", "placement", "num_slots"),
    [
        pytest.param("int4", "cpu", 1, id="the CPU computes what one slot has not"),
        pytest.param("int4", "fetch", 3, id="fetched, as far as there are slots"),
        pytest.param("int4", "hybrid", 2, id="both, split as a trial says"),
        pytest.param("int8", "cpu", 1, id="int8 on the CPU"),
        pytest.param("int8", "fetch", 3, id="int8 fetched"),
        pytest.param("bf16", "cpu", 1, id="bf16 on the CPU"),
        pytest.param("bf16", "hybrid", 2, id="bf16 both ways"),
    ],
)
def test_the_numbers_stay(
    stores: Stores,
    all_in_vram: Logits,
    name: str,
    dtype: str,
    placement: str,
    num_slots: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store, expected = stores(dtype, name), all_in_vram(dtype, name)
    runner = load(store, CachedKernels(), monkeypatch, num_slots, placement)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        found = tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8)))
        runner.check()
        # The CPU's threads round activations to 8 bits, unless weights are bf16; the reference does not.
        assert tiny.relative(found, expected) < (1e-4 if dtype == "bf16" else 0.1)
        counts = counts_of(tier)
        assert counts.needed > counts.in_vram
        if placement != "hybrid":
            assert (counts.fetched > 0) == (placement == "fetch")
    finally:
        tier.close()


@pytest.mark.parametrize(
    ("placement", "prefetch", "name"),
    [
        pytest.param("cpu", "off", "a dense layer between", id="and computes at once"),
        pytest.param("cpu", "off", "beside a shared one", id="and computes at once, shares of all experts"),
        pytest.param("cpu", "off", "biases, another activation", id="and computes at once, biases"),
        pytest.param("cpu", "history", "a dense layer between", id="while experts come ahead"),
        pytest.param("fetch", "off", "a dense layer between", id="what is then fetched"),
    ],
)
def test_the_cpu_chooses_as_the_card_does(
    stores: Stores, placement: str, prefetch: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    # Rounded to 8 bits, an activation that differs in its last bit may turn a later layer's choice.
    monkeypatch.setattr(cpu, "PoolOptions", partial(PoolOptions, activations="int16"))
    store = stores("int4", name)
    logits, counts = [], []
    for routing in ("gpu", "cpu"):
        runner = load(store, CachedKernels(), monkeypatch, 2, placement, prefetch, routing=routing, depth=3)
        tier = runner.model.tier
        assert isinstance(tier, Hybrid)
        try:
            logits.append(tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8))))
            runner.check()
            stats = tier.stats(wait=True)
            assert stats is not None
            assert stats.cpu is not None
            assert stats.cpu.stale == 0
            assert stats.cpu.routed == (len(TOKEN_IDS) * len(stats.layers) if routing == "cpu" else 0)
            counts.append(replace(counts_of(tier), waited_ns=0))
        finally:
            tier.close()
    assert tiny.relative(logits[1], logits[0]) < 1e-3
    assert counts[0] == counts[1]


@pytest.mark.parametrize("placement", ["cpu", "fetch"])
def test_experts_on_two_numa_nodes(
    stores: Stores, all_in_vram: Logits, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ((0,), (min(1, max(os.sched_getaffinity(0))),))
    near: list[tuple[int, ...]] = []

    class Recorded(PinnedMemory):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            near.append(options.get("near", ()))

    monkeypatch.setattr(cpu, "PinnedMemory", Recorded)
    monkeypatch.setattr(cpu, "cores_of_nodes", lambda keep: nodes)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store, expected = stores("int4"), all_in_vram("int4")
    runner = load(store, CachedKernels(), monkeypatch, 1, placement)
    assert isinstance(runner.model.tier, Hybrid)
    try:
        found = tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8)))
        runner.check()
        assert tiny.relative(found, expected) < 0.1
    finally:
        runner.model.tier.close()
    assert near == [*nodes, ()], "of each node's experts, and of the mailbox"


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Host memory has room for three experts of each layer; the others are in this directory."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("STRATA_CACHE_DIR", str(directory))
    monkeypatch.setattr(cpu, "_fitting", lambda layout, size, num_slots: (max(num_slots, 3), 0))
    monkeypatch.setattr("strata.experts.spill._is_memory", lambda directory: False)  # whatever /tmp is
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    yield directory
    assert not list(directory.glob("tmp*")), "it has no name that could stay"


@pytest.mark.parametrize(
    ("placement", "num_slots"),
    [
        pytest.param("cpu", 1, id="the CPU computes all"),
        pytest.param("fetch", 2, id="what the card can read is fetched"),
        pytest.param("hybrid", 1, id="split as a trial says"),
        pytest.param("auto", 3, id="VRAM has all that host memory has"),
    ],
)
def test_what_host_memory_has_no_room_for_is_on_disk(
    stores: Stores,
    all_in_vram: Logits,
    on_disk: Path,
    placement: str,
    num_slots: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, expected = stores("int4"), all_in_vram("int4")
    runner = load(store, CachedKernels(), monkeypatch, num_slots, placement)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        read = disk_bytes_read()
        monkeypatch.setattr(cpu, "disk_bytes_read", lambda: (read or 0) + 123_456)
        found = tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8)))
        runner.check()
        assert tiny.relative(found, expected) < 0.1
        layout = store.manifest.contents.experts
        stats = tier.stats(wait=True)
        assert layout is not None
        assert stats is not None
        assert (stats.num_host, stats.num_disk) == (3 * len(layout.layers), len(layout.layers))
        assert stats.disk_bytes is not None
        assert stats.disk_bytes >= 123_456
        assert stats.cpu is not None
        assert stats.cpu.jobs > 0
        if placement == "fetch":
            assert counts_of(tier).fetched > 0
    finally:
        tier.close()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    spilled = layout.num_blobs - stats.num_host
    assert f"neither host memory nor VRAM has room for {spilled} of {layout.num_blobs} experts" in warning
    assert f"which are in {on_disk}: read at " in warning


@pytest.mark.parametrize("num_disk", [0, 1], ids=["none on disk", "one on disk"])
@pytest.mark.parametrize(
    ("dtype", "placement", "routing", "max_tokens"),
    [
        pytest.param("int4", "fetch", "gpu", 16, id="few tokens"),
        pytest.param("bf16", "fetch", "gpu", 16, id="few tokens in bf16"),
        pytest.param("int4", "cpu", "cpu", 16, id="the CPU chooses, the card computes what it has"),
        pytest.param("bf16", "fetch", "gpu", 4, id="prompts"),
    ],
)
def test_what_host_memory_has_no_room_for_stays_in_vram(
    stores: Stores,
    all_in_vram: Logits,
    dtype: str,
    placement: str,
    routing: str,
    max_tokens: int,
    num_disk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_host, num_slots = 3 - num_disk, 2  # of four; one stays
    monkeypatch.setattr(cpu, "_fitting", lambda layout, size, num_slots: (num_host, 1))
    monkeypatch.setattr(hybrid, "MAX_TOKENS", max_tokens)
    monkeypatch.setattr("strata.experts.spill._is_memory", lambda directory: False)  # whatever /tmp is
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store, expected = stores(dtype), all_in_vram(dtype)
    runner = load(store, CachedKernels(), monkeypatch, num_slots, placement, routing=routing)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        there = tier.slots.registry.table[:, num_host].clone()
        found = tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8)))
        runner.check()
        assert tiny.relative(found, expected) < 0.1
        stats = tier.stats(wait=True)
        assert stats is not None
        assert (stats.num_vram, stats.num_host, stats.num_disk) == (2 * 2, 2 * num_host, 2 * num_disk)
        assert (stats.total.streamed > 0) == (max_tokens == 4)
        tier.begin(Way((0,) * 5))  # slots as at first
        assert there.all()
        assert torch.equal(tier.slots.registry.table[:, num_host], there)
    finally:
        tier.close()


def assert_prompts_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that bring experts have the logits of all in VRAM, to the bit."""
    expected = tiny.run_chunks(load(store, BlobKernels(), monkeypatch), TOKEN_IDS, 17, list(range(8)))
    runner = load(store, CachedKernels(), monkeypatch, 1, "fetch")
    assert isinstance(runner.model.tier, Hybrid)
    try:
        assert torch.equal(tiny.run_chunks(runner, TOKEN_IDS, 17, list(range(8))), expected)
    finally:
        runner.model.tier.close()


def test_prefill_brings_experts_from_disk(stores: Stores, on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 4)
    assert_prompts_stay(stores("int4"), monkeypatch)


@pytest.mark.parametrize(
    ("room", "num_slots", "found"),
    [
        pytest.param(8 * 3, 6, (8, 0), id="all"),
        pytest.param(8 * 3 - 1, 6, (7, 1), id="not all: one stays in VRAM"),
        pytest.param(6 * 3, 6, (6, 2), id="as many stay as leave slots to the others"),
        pytest.param(6 * 3 - 1, 6, (4, 2), id="too few slots for the rest: a layer's worth is left to the page cache"),
        pytest.param(8 * 3 - 1, 2, (5, 0), id="no slots but those that change"),
        pytest.param(8 + 3 * 4, 2, (4, 0), id="exactly so many"),
        pytest.param(5, 2, (2, 0), id="no fewer than those slots hold"),
        pytest.param(5, 6, (4, 2), id="no fewer than those slots hold, beside others"),
    ],
)
def test_where_experts_lie(room: int, num_slots: int, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    layout = ExpertLayout((0, 1, 2), 8, {}, 1)
    monkeypatch.setattr(cpu, "available_memory", lambda: HEADROOM_BYTES + 1000 * room)
    assert cpu._fitting(layout, 1000, num_slots) == found


@pytest.mark.parametrize(
    ("whole", "nodes"),
    [
        pytest.param(False, 1, id="what is missing"),
        pytest.param(True, 1, id="whole layers, in pieces"),
        pytest.param(True, 2, id="whole layers from two NUMA nodes"),
    ],
)
def test_prefill_brings(stores: Stores, whole: bool, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = [(core,) for core in sorted(os.sched_getaffinity(0))] * 2
    monkeypatch.setattr(cpu, "cores_of_nodes", lambda keep: tuple(cores[:nodes]))
    monkeypatch.setattr(layers, "copies_whole_layers", lambda num_slots, num_experts: whole)
    monkeypatch.setattr(layers, "PIECE", 3)
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 4)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    assert_prompts_stay(stores("int4"), monkeypatch)


@pytest.mark.parametrize("whole", [False, True], ids=["beside what is missing", "beside whole layers, in pieces"])
@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_of_few_tokens_prefill_brings_what_they_take(
    tmp_path: Path, dtype: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 3 tokens between longer ones, which have whole layers brought into the same buffers."""
    monkeypatch.setattr(layers, "copies_whole_layers", lambda num_slots, num_experts: whole)
    monkeypatch.setattr(layers, "max_chosen_tokens", lambda num_experts, top_k, num_slots: 3)
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 2)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, dtype)
    resident, runner = load(store, BlobKernels(), monkeypatch), load(store, CachedKernels(), monkeypatch, 1, "fetch")
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    streamed = []
    try:
        for length in (20, 3, 17, 3):  # the last chunks of the first two have 3 tokens, too
            before = counts_of(tier).streamed
            found, expected = (tiny.run_chunks(each, TOKEN_IDS[:length], 17, [0, 1]) for each in (runner, resident))
            assert torch.equal(found, expected), length
            streamed.append(counts_of(tier).streamed - before)
    finally:
        tier.close()
    layers_brought = 2 * (4 if whole else 3)  # of each of two layers, whose first expert has a slot
    first, few, many, again = streamed
    assert many == layers_brought
    assert layers_brought < first <= 2 * layers_brought
    assert 0 < few == again <= 2 * 3


def test_auto_keeps_what_decodes_fastest(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the trial says: here each fetch takes a while, which no layer alone shows."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    monkeypatch.setattr(Trial, "seconds", lambda self, missing, fetched: 1.0 - fetched / 10)
    decoded: list[tuple[int, ...]] = []
    texts: list[list[int]] = []
    run, now = Runner.run, [0.0]

    def slow_fetches(self: Runner, batch: Batch, feed: torch.Tensor | None = None) -> StepResult:
        tier = self.model.tier
        assert tier is not None
        split = tuple(tier.slots.split.tolist())  # type: ignore[attr-defined]
        decoded.append(split)
        (sequence,) = batch.sequences
        texts.extend([[]] if sequence.start == 0 else [])
        texts[-1] += sequence.token_ids
        now[0] += 0.01 + 0.01 * any(split)
        return run(self, batch, feed)

    monkeypatch.setattr(Runner, "run", slow_fetches)
    monkeypatch.setattr(runner_module, "keep_fastest", partial(keep_fastest, clock=lambda: now[0]))
    runner = load(stores("int4"), CachedKernels(), monkeypatch, 2, "auto")
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        assert set(decoded) == {(0, 1, 2, 3, 4), (0, 0, 0, 0, 0)}
        assert tier.slots.split.tolist() == [0] * 5
        assert "kept: cpu" in caplog.text
        longest = max(texts, key=len)
        assert all(text == longest[: len(text)] for text in texts), "every way decodes the same"
        assert counts_of(tier) == ExpertCounts()
    finally:
        tier.close()


def test_others_may_change_what_is_done_about_misses(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """Outside of the inference mode in which the tensors were made."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    runner = load(stores("int4"), CachedKernels(), monkeypatch, 2, "hybrid")
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        assert not torch.is_inference_mode_enabled()
        calibration = tier.calibrate()
        assert calibration is not None
        assert calibration.fetch_seconds() > 0
        tier.begin(Way((0,) * 5, "history"))
        tier.start_counting()
        assert tier.stats(wait=True).way == Way((0, 0, 0), "history")  # type: ignore[union-attr]
    finally:
        tier.close()


@pytest.mark.parametrize("placement", ["fetch", "cpu", "hybrid"])
def test_a_placement_that_was_asked_for_stays(stores: Stores, placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    monkeypatch.setattr(Trial, "seconds", lambda self, missing, fetched: 1.0 - fetched / 10)
    runner = load(stores("int4"), CachedKernels(), monkeypatch, 2, placement)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    tier.close()
    assert len(tier.choices()) == 1
    assert tier.slots.split.tolist()[:3] == {"fetch": [0, 1, 2], "cpu": [0, 0, 0], "hybrid": [0, 1, 1]}[placement]


def test_the_next_start_takes_the_times_of_the_one_before(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    each, tried = [0.001], list[tuple[int, int]]()

    def seconds(self: Trial, missing: int, fetched: int) -> float:
        tried.append((missing, fetched))
        return each[0] * max(fetched, missing - fetched)

    monkeypatch.setattr(Trial, "seconds", seconds)
    store = stores("int4")

    def start() -> int:
        tried.clear()
        caplog.clear()
        runner = load(store, CachedKernels(), monkeypatch, 2, "hybrid")
        tier = runner.model.tier
        assert isinstance(tier, Hybrid)
        tier.close()
        assert tier.slots.split.tolist()[:3] == [0, 0, 1]
        return len(tried)

    first = start()
    (path,) = (cache_dir / "calibration").iterdir()
    facts = json.loads(path.read_text())["facts"]
    assert (facts["num_experts"], facts["top_k"], facts["format"]) == (4, 2, "int4")
    assert "as an earlier start found" not in caplog.text
    written = path.read_bytes()
    assert start() < first
    assert "as an earlier start found" in caplog.text
    assert path.read_bytes() == written
    each[0] = 0.002  # e.g. the card is in a slower slot
    assert start() >= first
    assert "in an earlier trial" in caplog.text
    assert path.read_bytes() != written


def test_a_damaged_expert_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes reach host memory and VRAM before the checksum is known, and no step."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, "int4")
    (file,) = (store.path / "experts").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{file.name}: its checksum is"):
        load(store, CachedKernels(), monkeypatch, 2, "fetch")


def test_a_request_is_expected_once_its_kernel_is_built(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building it takes longer than the CPU's threads wait for a request that was announced."""
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    events: list[str] = []
    expect, misses = CpuExperts.expect, CachedKernels().misses

    def share_out(*arguments: Any) -> None:
        events.append("sent")
        misses.share_out(*arguments)

    def announce(self: CpuExperts, requests: int) -> None:
        events.append("expected")
        expect(self, requests)

    monkeypatch.setattr(CachedKernels, "misses", replace(misses, share_out=share_out))
    monkeypatch.setattr(CpuExperts, "expect", announce)
    runner = load(stores("int4"), CachedKernels(), monkeypatch, 1, "hybrid")
    assert runner.model.tier is not None
    runner.model.tier.close()
    assert events
    assert events == ["sent", "expected"] * (len(events) // 2)
