"""Ranks that share a tiny store's experts, all on one device, run where their kernels run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from strata.config import DeviceConfig
from strata.experts import cpu, hybrid
from strata.experts.counts import ExpertStats
from strata.experts.hybrid import Hybrid
from strata.experts.place import blob_tier
from strata.experts.tier import BlobTier, TierStep
from strata.experts.ways import Way
from strata.kernels.layer import Kernels, Router
from strata.kernels.matrix import SILU, Matrix, Norm
from strata.kernels.misses.table import MissSteps
from strata.kernels.select import kernels_for
from strata.models.moe import ExpertsBesideShared
from strata.models.weights import Weights
from strata.native.pool import PoolOptions
from strata.plan.placement import ExpertBytes, ExpertPlacement
from strata.plan.rank import Rank
from strata.store.reader import Store
from tests.experts.blob_kernels import CachedKernels

# Of steps, one after another: up to 4 tokens one by one, 5 as they have chosen, 20 as whole layers.
TOKENS = (1, 3, 4, 20, 5, 2, 20, 1, 1, 1)
MAX_TOKENS = 4


class TritonRanks(CachedKernels):
    """Triton says, in its interpreter, which experts are a rank's own, and decides about missing ones and guesses. They
    come without it, which would take long."""

    @property
    def misses(self) -> MissSteps:
        from strata.kernels.misses import routing, triton
        from strata.kernels.prefetch import triton as prefetch

        return replace(
            super().misses,
            ask_route=routing.ask_route,
            take_choice=routing.take_choice,
            share_out=triton.share_out,
            add_answer=triton.add_answer,
            guess_routed=prefetch.guess_routed,
            guess_recent=prefetch.guess_recent,
            admit=prefetch.admit,
        )

    def own(self, ids: Tensor, index: int, count: int, nobody: int) -> Tensor:
        from strata.kernels.own import triton

        return triton.own(ids, index, count, nobody)


def kernels_of(where: str) -> tuple[torch.device, Kernels]:
    """``where``: "reference", "interpreted" or "cuda"."""
    if where == "cuda":
        device = torch.device("cuda")
        return device, kernels_for(device, torch.bfloat16)
    return torch.device("cpu"), CachedKernels() if where == "reference" else TritonRanks()


@dataclass(frozen=True, slots=True)
class Ranks:
    """All that share the experts, and what else their layers need."""

    tiers: list[BlobTier]
    store: Store
    device: torch.device
    kernels: Kernels

    def layers(self, route: Router) -> list[list[TierStep]]:
        """Of each layer the ranks' steps."""
        layout = self.store.manifest.contents.experts
        assert layout is not None
        return [[tier.layer(layer, SILU, route) for tier in self.tiers] for layer in layout.layers]

    def stats(self) -> list[ExpertStats]:
        found = [tier.stats(wait=True) for tier in self.tiers]
        return [stats for stats in found if stats is not None]


@contextmanager
def open_ranks(where: str, path: str, count: int, placement: str) -> Iterator[Ranks]:
    """``placement``: "resident", or as ``DeviceConfig.expert_placement`` with half of each rank's experts in VRAM."""
    device, kernels = kernels_of(where)
    store = Store.open(path)
    layout, experts = store.manifest.contents.experts, store.model_config.experts
    assert layout is not None
    assert experts is not None
    sizes, config = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes), DeviceConfig()
    if placement != "resident":
        config = DeviceConfig(expert_placement=placement, prefetch_probability=0.15)  # type: ignore[arg-type]
    # Rounded to 8 bits, an activation that differs in its last bit may fall to its other side.
    exact = partial(PoolOptions, activations="int16")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(cpu, "PoolOptions", exact))
        stack.enter_context(mock.patch.object(hybrid, "MAX_TOKENS", MAX_TOKENS))
        stack.enter_context(torch.inference_mode())
        tiers = []
        for rank in (Rank(index, count) for index in range(count)):
            own = sizes.own(rank)
            slots = own.num_experts if placement == "resident" else own.num_experts // 2
            placed = ExpertPlacement(own, slots * own.num_layers)
            top_k = experts.num_experts_per_tok
            tier = blob_tier(layout, placed, kernels, device, top_k, config, rank)
            tiers.append(stack.enter_context(closing(tier)))
            assert isinstance(tier, Hybrid) == (placement != "resident")
        dict(store.load(device, put_expert=lambda expert, blob: [tier.put(expert, blob) for tier in tiers]))  # type: ignore[arg-type,func-returns-value]
        yield Ranks(tiers, store, device, kernels)


def run_layers(
    where: str, path: str, count: int, placement: str, predictor: str = "off", routed_on: str = "gpu"
) -> tuple[list[Tensor], list[ExpertStats]]:
    """Of each step and layer what the ranks add up to, and what each rank has counted. The same tokens and routers
    whatever the arguments."""
    with open_ranks(where, path, count, placement) as ranks:
        config, generator = ranks.store.model_config, torch.Generator().manual_seed(3)
        assert config.experts is not None
        num_experts, hidden = config.experts.num_experts, config.hidden_size
        weight = torch.randn(num_experts, hidden, generator=generator).bfloat16().to(ranks.device)
        norm = Norm(torch.ones(hidden, device=ranks.device), 1e-6)
        route = ranks.kernels.route(norm, Matrix("bf16", {"weight": weight}), config.experts.num_experts_per_tok, True)
        layers = ranks.layers(route)
        for tier in ranks.tiers:
            if isinstance(tier, Hybrid):
                tier.begin(Way(tier.few.way.split, predictor, routed_on))
        sums = []
        for tokens in TOKENS:
            for steps in layers:
                x = torch.randn(tokens, hidden, generator=generator).to(ranks.device)
                sums.append(added_up(steps, x).cpu())
        for tier in ranks.tiers:
            tier.check()
        return sums, ranks.stats()


def run_beside_shared(where: str, path: str, count: int, placement: str) -> Tensor:
    """What the ranks' halves of a layer add up to, of 3 tokens."""
    with open_ranks(where, path, count, placement) as ranks:
        config, kernels, halves = ranks.store.model_config, ranks.kernels, []
        assert config.experts is not None
        for tier in ranks.tiers:
            tensors = dict(ranks.store.load(ranks.device, put_expert=lambda expert, blob: None))
            weights, name = Weights(dict(tensors), kernels, tier=tier), "model.layers.0"
            norm = weights.norm(f"{name}.post_attention_layernorm", config.rms_norm_eps)
            halves.append(ExpertsBesideShared(config.experts, weights, f"{name}.mlp", norm, 0))
        x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(5))
        return added_up(halves, x.to(ranks.device)).cpu()


def run_calibration(where: str, path: str, count: int) -> list[tuple[int, ...]]:
    """The splits that the ranks find."""
    with open_ranks(where, path, count, "hybrid") as ranks:
        hidden, found = ranks.store.model_config.hidden_size, []
        weight = torch.randn(8, hidden).bfloat16().to(ranks.device)
        norm = Norm(torch.ones(hidden, device=ranks.device), 1e-6)
        ranks.layers(ranks.kernels.route(norm, Matrix("bf16", {"weight": weight}), 3, True))
        for tier in ranks.tiers:
            calibration = tier.calibrate()
            assert calibration is not None
            found.append(calibration.split)
        return found


def added_up(steps: Sequence[TierStep], x: Tensor) -> Tensor:
    return torch.stack([step(x.clone(), x.clone()) for step in steps]).sum(0)
