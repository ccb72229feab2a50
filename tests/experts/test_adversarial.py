"""The cache of experts where nothing goes its way: every token takes other experts, guesses are wrong, slots too few,
and requests leave in the middle."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.loop import EngineLoop
from strata.experts import cpu
from strata.experts.hybrid import Hybrid
from strata.experts.prefetch import PREDICTORS
from strata.experts.resident import Resident
from strata.experts.splits import plain_split
from strata.experts.ways import Split, Way
from strata.kernels.layer import Kernels, Router, Scored
from strata.kernels.matrix import SILU
from strata.kernels.router.reference import route
from strata.native.pool import PoolOptions
from strata.plan.placement import ExpertBytes, ExpertPlacement
from strata.request import GenerationRequest, SamplingParams
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.store.convert import convert
from strata.store.layout import ExpertLayout
from strata.store.reader import Store
from tests.engine.tiny_llama import write_checkpoint
from tests.experts.blob_kernels import BlobKernels, CachedKernels
from tests.experts.counting import counts_of
from tests.experts.test_resident import EXPERTS
from tests.kernels.test_misses import assert_sound
from tests.models import tiny

NUM_EXPERTS, TOP_K, HIDDEN = 8, 2, 64
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    directory = tmp_path_factory.mktemp("adversarial")
    more = {"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True, "num_experts": NUM_EXPERTS}
    changes: dict[str, Any] = EXPERTS | more
    return Store.open(convert(str(write_checkpoint(directory / "tiny", **changes)), directory / "store", "int4"))


def layout_of(store: Store) -> ExpertLayout:
    layout = store.manifest.contents.experts
    assert layout is not None
    return layout


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's threads round activations to 15 bits, where 8 bits may turn a token's choice of experts."""
    monkeypatch.setattr(cpu, "PoolOptions", partial(PoolOptions, activations="int16"))


class Adversary:
    """Decides what the routers say."""

    def __init__(self) -> None:
        self._dice, self._used, self._steps = random.Random(0), 0, 0

    def scores(self, tokens: int) -> torch.Tensor:
        """float32 [tokens, experts]: in one step for what was not used for longest, in the next one for anything."""
        self._steps += 1
        if self._steps % 2:
            return self.lies(tokens)
        first, self._used = self._used, self._used + tokens * TOP_K
        return self._of((torch.arange(first, self._used).view(tokens, TOP_K) % NUM_EXPERTS).tolist())

    def lies(self, tokens: int) -> torch.Tensor:
        """To who looks ahead; by chance it is the truth at times."""
        return self._of([self._dice.sample(range(NUM_EXPERTS), TOP_K) for _ in range(tokens)])

    def _of(self, chosen: list[list[int]]) -> torch.Tensor:
        scores = torch.tensor([[self._dice.random() for _ in range(NUM_EXPERTS)] for _ in chosen])
        return scores.scatter_add(1, torch.tensor(chosen), torch.full((len(chosen), TOP_K), 9.0))


def choose(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shares, ids = route(scores, TOP_K, True)
    return ids, shares


@pytest.mark.parametrize("routed_on", ["gpu", "cpu"])
@pytest.mark.parametrize("predictor", ["off", *PREDICTORS])
@pytest.mark.parametrize(
    "split",
    [
        *(pytest.param(plain_split(placement, NUM_EXPERTS), id=placement) for placement in ("fetch", "cpu", "hybrid")),
        pytest.param((0,) * (TOP_K + 1) + (1,) * (NUM_EXPERTS - TOP_K), id="fetched for several tokens alone"),
    ],
)
@pytest.mark.parametrize("slots", [pytest.param(1, id="one slot"), pytest.param(TOP_K, id="slots for one token")])
def test_every_answer_is_right(store: Store, slots: int, split: Split, predictor: str, routed_on: str) -> None:
    layout = layout_of(store)
    sizes = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
    adversary = Adversary()
    resident = Resident(layout, BlobKernels(), CPU)
    placement = ExpertPlacement(sizes, slots * len(layout.layers))
    config = DeviceConfig(prefetch_probability=0.15)
    tier = Hybrid(layout, placement, CachedKernels(), CPU, TOP_K, config)
    for put in (resident.put, tier.put):
        dict(store.load(CPU, put_expert=put))
    now: dict[str, Any] = {}

    def router(layer: int) -> Router:
        """That says what the layer that runs has to take, and lies to who looks ahead."""

        def score(x: torch.Tensor) -> Scored:
            return Scored(now["scores"], now["x"]) if layer == now["layer"] else Scored(adversary.lies(len(x)), None)

        return Router(score, choose, normalize=True)

    found, expected = ([each.layer(layer, SILU, router(layer)) for layer in layout.layers] for each in (tier, resident))
    tier.begin(Way(split, predictor, routed_on))
    generator = torch.Generator().manual_seed(0)
    try:
        for tokens in (1, 1, 2, 5) * 4:
            for layer, mine, theirs, table in zip(layout.layers, found, expected, tier.slots.tables, strict=True):
                x = torch.randn(tokens, HIDDEN, generator=generator)
                now = {"layer": layer, "x": x, "scores": adversary.scores(tokens)}
                assert tiny.relative(mine(x.clone()) - x, theirs(x.clone()) - x) < 5e-4
                assert_sound(table)
        tier.check()
        counts = counts_of(tier)
        assert counts.prefetched == counts.prefetch_used + counts.prefetch_wasted
        assert (counts.prefetch_wasted > 0) == (predictor != "off")
        assert counts.needed >= counts.in_vram + counts.fetched
        assert (counts.fetched > 0) == any(split)
    finally:
        tier.close()


PROMPTS = [[(5 * i * i + 3 * number) % 90 + 2 for i in range(6 + 3 * number)] for number in range(6)]


def loop_of(
    store: Store, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, placement: str, predictor: str
) -> EngineLoop:
    layout = layout_of(store)
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    device = DeviceConfig(
        device="cpu",
        num_threads=1,
        expert_vram_bytes=None if kernels.misses is None else len(layout.layers) * layout.blob_bytes,
        expert_placement=placement,  # type: ignore[arg-type]
        prefetch=predictor,  # type: ignore[arg-type]
        prefetch_probability=0.15,
    )
    scheduler = SchedulerConfig(max_model_len=128, max_num_seqs=4, max_num_batched_tokens=32)
    config = EngineConfig("tiny", device=device, cache=CacheConfig(num_kv_tokens=512), scheduler=scheduler)
    return EngineLoop(store, Runner.load(store, config, compute_dtype=torch.float32), config)


def request(number: int) -> GenerationRequest:
    return GenerationRequest(f"r{number}", tuple(PROMPTS[number]), SamplingParams(20, temperature=0.0, ignore_eos=True))


@pytest.mark.parametrize(("placement", "predictor"), [("cpu", "gate"), ("fetch", "history")])
def test_requests_that_leave_take_nothing_with_them(
    store: Store, placement: str, predictor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    monkeypatch.setattr(Runner, "runs_ahead", True)  # a step is launched before the last one is taken in, as on a card
    alone = loop_of(store, BlobKernels(), monkeypatch, "auto", "off")
    expected: dict[str, list[int]] = {}
    for number in range(len(PROMPTS)):
        alone.add(request(number))
        expected |= drain(alone)
    loop = loop_of(store, CachedKernels(), monkeypatch, placement, predictor)
    tier = loop._runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        leaving = {1: 3, 3: 5, 4: 8}  # after which step
        for number in range(len(PROMPTS)):
            loop.add(request(number))
        found: dict[str, list[int]] = {}
        for step in range(1, 200):
            for output in loop.step().outputs:
                found.setdefault(output.request_id, []).extend(output.token_ids)
            for number, last in leaving.items():
                if step == last:
                    loop.abort(f"r{number}")
            if not loop.has_work:
                break
        loop.check_integrity()
        tier.check()
        assert loop.stats().num_free_blocks == loop.stats().num_total_blocks
        for number in range(len(PROMPTS)):
            mine, theirs = found.get(f"r{number}", []), expected[f"r{number}"]
            assert mine == theirs[: len(mine)]
            assert (len(mine) < 20) == (number in leaving)
        for table in tier.slots.tables:
            assert_sound(table)
        loop.add(request(5))
        assert drain(loop)["r5"] == expected["r5"], "who comes afterwards"
    finally:
        tier.close()


def drain(loop: EngineLoop) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while loop.has_work:
        for output in loop.step().outputs:
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return found
