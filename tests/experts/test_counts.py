"""What is counted of experts beyond VRAM: known routing, exact numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields, replace
from functools import partial

import pytest
import torch

from strata.config import DeviceConfig
from strata.experts import counters, hybrid
from strata.experts.counters import Counters
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.experts.hybrid import Hybrid
from strata.experts.ways import Way
from strata.kernels.layer import Routed, Router
from strata.kernels.matrix import SILU
from strata.kernels.misses.table import Counter
from strata.native.layout import TileLayout
from strata.native.pool import CpuWork
from strata.plan.placement import ExpertBytes, ExpertPlacement, max_chosen_tokens
from strata.store.layout import ExpertLayout
from strata.store.reader import Store
from tests.experts.blob_kernels import CachedKernels, as_router
from tests.experts.test_resident import made_store

HIDDEN, SLOTS = 64, 2


def no_guess(x: torch.Tensor) -> Routed:
    raise AssertionError("who looks ahead here?")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("counts"), "int4")


def layout_of(store: Store) -> ExpertLayout:
    layout = store.manifest.contents.experts
    assert layout is not None
    assert layout.layers == (0, 2), "a dense layer between"
    assert layout.num_experts == 4
    return layout


class Running:
    """A tier of four experts a layer, two of them in VRAM, and its two layers, which take what ``step`` says."""

    def __init__(self, store: Store, placement: str, guess: Callable[[torch.Tensor], Routed] = no_guess) -> None:
        """``guess``: the router of a layer that another one looks ahead to."""
        layout = layout_of(store)
        sizes = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
        where = ExpertPlacement(sizes, SLOTS * len(layout.layers))
        device = torch.device("cpu")
        config = DeviceConfig(expert_placement=placement, prefetch_probability=1.0)  # type: ignore[arg-type]
        self.tier = Hybrid(layout, where, CachedKernels(), device, 2, config)
        dict(store.load(device, put_expert=self.tier.put))
        self._guess = guess
        self._now: tuple[int, Routed] | None = None  # the layer that runs, and what it takes
        self.layers = {layer: self.tier.layer(layer, SILU, self._router(layer)) for layer in layout.layers}

    def step(self, layer: int, *ids: tuple[int, int]) -> None:
        x = torch.randn(len(ids), HIDDEN)
        self._now = layer, Routed(torch.tensor(ids), torch.full((len(ids), 2), 0.5), x)
        self.layers[layer](x.clone(), x.clone())

    def _router(self, layer: int) -> Router:
        def choose(x: torch.Tensor) -> Routed:
            assert self._now is not None
            running, routed = self._now
            return routed if layer == running else self._guess(x)

        return as_router(choose)

    @property
    def stats(self) -> ExpertStats:
        stats = self.tier.stats(wait=True)
        assert stats is not None
        return stats


@pytest.fixture
def running(store: Store, request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(store, request.param)
    yield running
    running.tier.check()
    running.tier.close()


@pytest.mark.parametrize("running", ["fetch"], indirect=True, ids=["fetched"])
def test_each_layer_counts_its_own_hits_and_fetches(running: Running) -> None:
    running.step(0, (0, 1))  # both in their slots
    running.step(0, (1, 2))  # 2 takes the slot of 0
    running.step(0, (1, 2), (2, 1))  # two tokens, two experts, there by now
    running.step(2, (2, 3), (3, 0))  # 0 is there, and one slot is free: the other one is the CPU's
    stats = running.stats
    assert {layer: astuple(counts)[:3] for layer, counts in stats.layers.items()} == {0: (6, 5, 1), 2: (3, 1, 1)}
    assert astuple(stats.total)[:-1] == (9, 6, 2, 0, 0, 0, 0)
    assert [counts.waited_ns > 0 for counts in stats.layers.values()] == [False, True], "the first left nothing to it"
    assert stats.cpu is not None
    assert stats.cpu.jobs == 1
    assert stats.total.computed == 1
    assert stats.total.hit_ratio == 6 / 9
    assert (stats.num_vram, stats.num_host) == (4, 8)


@pytest.mark.parametrize("running", ["cpu"], indirect=True, ids=["on the CPU"])
def test_bytes_are_those_of_whole_experts(running: Running) -> None:
    running.step(0, (0, 3))
    running.step(2, (2, 3))
    stats = running.stats
    # Tiles of int4: 16 rows x 64 inputs of gate and of up, and x 32 inputs of down, with their headers.
    gate_block, down_block = 320 + 2 * 256, 320 + 256
    assert stats.expert_bytes == 2 * 2 * gate_block + 4 * down_block == TileLayout("int4", 64, 32).num_bytes
    assert stats.num_bytes(stats.total.computed) == 3 * stats.expert_bytes


@pytest.mark.parametrize("running", ["fetch"], indirect=True, ids=["fetched"])
def test_a_prompt_counts_what_it_brings_and_nothing_else(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 1)
    for layer in (0, 2):
        running.step(layer, (0, 1), (2, 3))
    stats = running.stats
    # Two of four are in VRAM already, in each layer.
    assert stats.layers == {0: ExpertCounts(streamed=2), 2: ExpertCounts(streamed=2)}
    assert stats.total.hit_ratio is None, "prompts are not part of it"


@pytest.mark.parametrize("running", ["fetch"], indirect=True, ids=["fetched"])
@pytest.mark.parametrize(
    ("ids", "streamed"),
    [
        pytest.param([(0, 1), (1, 0)], 0, id="both are in VRAM"),
        pytest.param([(0, 1), (1, 3)], 1, id="one is not"),
        pytest.param([(3, 0), (1, 3), (3, 1)], 1, id="one that all take"),
        pytest.param([(0, 1)] * 4, 2, id="so many tokens have all brought, whatever they take"),
    ],
)
def test_a_short_prompt_brings_what_it_takes(
    running: Running, ids: list[tuple[int, int]], streamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 1)
    assert max_chosen_tokens(num_experts=4, top_k=2, num_slots=SLOTS) == 3
    for layer in (0, 2):
        running.step(layer, *ids)
    assert running.stats.layers == {layer: ExpertCounts(streamed=streamed) for layer in (0, 2)}


@pytest.mark.parametrize("running", ["hybrid"], indirect=True, ids=["both"])
def test_what_came_before_the_start_is_forgotten(running: Running) -> None:
    running.step(0, (0, 3))
    running.tier.start_counting()
    assert running.stats.total == ExpertCounts()
    running.step(0, (0, 3))
    assert running.stats.total.needed == 2


@pytest.mark.parametrize("running", ["cpu"], indirect=True, ids=["on the CPU"])
def test_the_way_is_the_one_that_steps_go(running: Running) -> None:
    assert running.stats.way == Way((0, 0, 0))
    running.tier.begin(Way((0, 1, 1, 1, 1), "history"))
    assert running.stats.way == Way((0, 1, 1), "history"), "as many as a token takes"
    running.step(0, (2, 3))
    assert astuple(running.stats.layers[0])[:3] == (2, 0, 1)


def test_places_on_the_device_are_the_fields_of_the_host() -> None:
    assert [counter.name.lower() for counter in Counter] == [field.name for field in fields(ExpertCounts)]


def test_differences_and_sums_go_through_every_field() -> None:
    one, two = ExpertCounts(*range(1, 9)), ExpertCounts(*range(10, 90, 10))
    assert astuple(one + two) == (11, 22, 33, 44, 55, 66, 77, 88)
    assert (one + two).since(two) == one


def test_a_look_waits_for_nothing_and_is_due_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, arrived = [100.0], [False]
    counted = Counters((3, 8), torch.device("cpu"))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(torch.cpu.Event, "query", lambda self: arrived[0])
    look = partial(counted.look, wait=False)
    counted.tensor[1, Counter.NEEDED] = 5
    assert look() is None, "begins a copy"
    counted.tensor[1, Counter.NEEDED] = 6  # by a later step
    assert look() is None, "the copy is on its way"
    arrived[0] = True
    assert look() == {3: ExpertCounts(), 8: ExpertCounts(5)}
    clock[0] += counters.SECONDS / 2
    assert [look(), look()] == [None, None], "none is due"
    clock[0] += counters.SECONDS / 2
    assert look() is None
    assert look() == {3: ExpertCounts(), 8: ExpertCounts(6)}


def test_stats_without_a_step_have_no_ratio() -> None:
    stats = ExpertStats({0: ExpertCounts()}, 1, 4, 100, CpuWork(0, 0.0, 0.0))
    assert stats.total.hit_ratio is None
    assert replace(stats, layers={0: ExpertCounts(4, 1)}).total.hit_ratio == 0.25
