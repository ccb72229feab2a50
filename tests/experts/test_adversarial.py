"""The cache of experts where nothing goes its way: every token takes other experts, guesses are wrong, slots too few,
and requests leave in the middle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.loop import EngineLoop
from strata.experts import cpu
from strata.experts.hybrid import Hybrid
from strata.experts.prefetch import PREDICTORS
from strata.experts.resident import Resident
from strata.experts.splits import plain_split
from strata.experts.ways import Split, Way
from strata.kernels.capture import on_card
from strata.kernels.layer import Kernels, Router, Scored
from strata.kernels.matrix import SILU
from strata.kernels.misses.table import MissSteps
from strata.kernels.router.reference import route
from strata.kernels.select import kernels_for
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
# Of relative errors. A card rounds activations between an expert's products to 8 bits, the CPU's threads here to 15.
BOUNDS = {"reference": 5e-4, "cuda": 0.02}
PLACES = [
    "reference",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


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

    def scores(self, tokens: int) -> Tensor:
        """float32 [tokens, experts]: in one step for what was not used for longest, in the next one for anything."""
        self._steps += 1
        if self._steps % 2:
            return self.lies(tokens)
        first, self._used = self._used, self._used + tokens * TOP_K
        return self._of((torch.arange(first, self._used).view(tokens, TOP_K) % NUM_EXPERTS).tolist())

    def lies(self, tokens: int) -> Tensor:
        """To who looks ahead; by chance it is the truth at times."""
        return self._of([self._dice.sample(range(NUM_EXPERTS), TOP_K) for _ in range(tokens)])

    def _of(self, chosen: list[list[int]]) -> Tensor:
        scores = torch.tensor([[self._dice.random() for _ in range(NUM_EXPERTS)] for _ in chosen])
        return scores.scatter_add(1, torch.tensor(chosen), torch.full((len(chosen), TOP_K), 9.0))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of a step, at addresses that stay: each layer's tokens, and what its router says of them when the layer runs, and
    to who looks ahead. x, inner: of each layer; scores, lies: [layers, tokens, experts]."""

    x: Sequence[Tensor]
    inner: Sequence[Any]
    scores: Tensor
    lies: Tensor

    def change(self, adversary: Adversary) -> None:
        """What routers say."""
        for scores, lies in zip(self.scores, self.lies, strict=True):
            scores.copy_(adversary.scores(len(scores)))
            lies.copy_(adversary.lies(len(lies)))


class Layers:
    """Of a tier; they take what ``Inputs`` say, whatever their tokens are."""

    def __init__(self, tier: Hybrid | Resident, layers: Sequence[int]) -> None:
        self._now: tuple[int, Inputs] | None = None  # the layer that runs
        self._steps = [tier.layer(layer, SILU, self._router(row)) for row, layer in enumerate(layers)]

    def run(self, inputs: Inputs) -> list[Tensor]:
        """What each layer adds to its tokens."""
        added = []
        for row, (step, x) in enumerate(zip(self._steps, inputs.x, strict=True)):
            self._now = row, inputs
            added.append(step(x.clone(), x.clone()) - x)
        return added

    def _router(self, row: int) -> Router:
        def score(x: Tensor) -> Scored:
            assert self._now is not None
            running, inputs = self._now
            return Scored(inputs.scores[row], inputs.inner[row]) if row == running else Scored(inputs.lies[row], None)

        return Router(score, choose, normalize=True)


def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
    shares, ids = route(scores, TOP_K, True)
    return ids.int(), shares


STEPS = (1, 1, 2, 5) * 4  # tokens of each
Expected = Callable[[str], list[list[Tensor]]]


def device_of(where: str) -> torch.device:
    return torch.device("cpu" if where == "reference" else where)


def kernels_of(where: str) -> list[Kernels]:
    """With all experts in VRAM, and with some."""
    if where == "cuda":
        return [kernels_for(device_of(where), torch.bfloat16)] * 2
    return [BlobKernels(), CachedKernels()]


def make_inputs(num_layers: int, misses: MissSteps, device: torch.device) -> dict[int, Inputs]:
    """By the number of tokens; every time the same."""
    generator, inputs = torch.Generator().manual_seed(0), {}
    for tokens in sorted(set(STEPS)):
        x = [torch.randn(tokens, HIDDEN, generator=generator).to(device) for _ in range(num_layers)]
        scores, lies = torch.zeros(2, num_layers, tokens, NUM_EXPERTS, device=device)
        inputs[tokens] = Inputs(x, [misses.inner(each) for each in x], scores, lies)
    return inputs


@pytest.fixture(scope="module")
def expected(store: Store) -> Expected:
    """What the layers add in each step where VRAM has all experts: whatever else is tried, the same."""

    @cache
    def run(where: str) -> list[list[Tensor]]:
        device, (kernels, cached) = device_of(where), kernels_of(where)
        layout = layout_of(store)
        resident = Resident(layout, kernels, device)
        dict(store.load(device, put_expert=resident.put))
        assert cached.misses is not None
        layers, inputs = Layers(resident, layout.layers), make_inputs(len(layout.layers), cached.misses, device)
        adversary, found = Adversary(), []
        for each in inputs.values():
            each.change(adversary)
        for tokens in STEPS:
            inputs[tokens].change(adversary)
            found.append([added.cpu() for added in layers.run(inputs[tokens])])
        return found

    return run


def again(tier: Hybrid, step: Callable[[], list[Tensor]], device: torch.device) -> Callable[[], list[Tensor]]:
    """The step, as decoding runs it there: on a card as a CUDA graph."""
    if device.type == "cpu":
        return step
    replay, added = on_card(device)(step)

    def run() -> list[Tensor]:
        tier.announce_replay()
        replay()
        return added  # type: ignore[no-any-return]

    return run


@pytest.mark.parametrize("where", PLACES)
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
def test_every_answer_is_right(
    store: Store, expected: Expected, slots: int, split: Split, predictor: str, routed_on: str, where: str
) -> None:
    device, (_, kernels) = device_of(where), kernels_of(where)
    layout = layout_of(store)
    sizes = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
    placement = ExpertPlacement(sizes, slots * len(layout.layers))
    tier = Hybrid(layout, placement, kernels, device, TOP_K, DeviceConfig(prefetch_probability=0.15))
    dict(store.load(device, put_expert=tier.put))
    layers = Layers(tier, layout.layers)
    tier.begin(Way(split, predictor, routed_on))
    try:
        adversary, inputs = Adversary(), make_inputs(len(layout.layers), tier.few.misses, device)
        steps = {}
        for tokens, each in inputs.items():
            each.change(adversary)
            steps[tokens] = again(tier, partial(layers.run, each), device)
        for tokens, theirs in zip(STEPS, expected(where), strict=True):
            inputs[tokens].change(adversary)
            for mine, their in zip(steps[tokens](), theirs, strict=True):
                assert tiny.relative(mine.cpu(), their) < BOUNDS[where]
            for table in tier.slots.tables:
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
