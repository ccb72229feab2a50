"""Trials of a tiny tier, run where its kernels run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from strata.config import DeviceConfig
from strata.experts.counts import ExpertCounts
from strata.experts.hybrid import Hybrid
from strata.experts.times import Bounds
from strata.experts.trial import open_trial
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import Kernels, Routed
from strata.kernels.matrix import SILU
from strata.kernels.misses.table import MissSteps
from strata.kernels.select import kernels_for
from strata.plan.placement import ExpertBytes, ExpertPlacement
from strata.store.reader import Store
from tests.experts.blob_kernels import CachedKernels, as_router
from tests.experts.counting import counts_of


class TritonMisses(CachedKernels):
    """Triton decides about misses, in its interpreter; the experts in VRAM are computed in plain torch."""

    @property
    def misses(self) -> MissSteps:
        from strata.kernels.misses import routing, triton

        return replace(
            super().misses,
            ask_route=routing.ask_route,
            take_choice=routing.take_choice,
            share_out=triton.share_out,
            add_answer=triton.add_answer,
            untile=_untile_with_few_programs,
        )


def _untile_with_few_programs(sources: Tensor, targets: Tensor, count: Tensor, layout: BlobLayout) -> None:
    """As many as a card runs at once take the interpreter half a minute."""
    from strata.kernels.misses import untile

    with mock.patch.object(untile, "PROGRAMS", 1):
        untile.untile(sources, targets, count, layout)


@as_router
def _route(x: Tensor) -> Routed:
    raise AssertionError("nobody guesses here")


@contextmanager
def open_tier(where: str, path: str, num_slots: int) -> Iterator[tuple[Hybrid, Bounds]]:
    """All layers of a store. ``where``: "reference", "interpreted" or "cuda"."""
    device = torch.device("cuda" if where == "cuda" else "cpu")
    kernels: Kernels = CachedKernels() if where == "reference" else TritonMisses()
    if where == "cuda":
        kernels = kernels_for(device, torch.bfloat16)
    store = Store.open(path)
    layout, experts = store.manifest.contents.experts, store.model_config.experts
    assert layout is not None
    assert experts is not None
    sizes = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
    placement = ExpertPlacement(sizes, num_slots * len(layout.layers))
    top_k = experts.num_experts_per_tok
    tier = Hybrid(layout, placement, kernels, device, top_k, DeviceConfig())
    try:
        dict(store.load(device, put_expert=tier.put))
        for layer in layout.layers:
            tier.layer(layer, SILU, _route)
        yield tier, Bounds(top_k, num_slots, layout.num_experts)
        tier.check()
    finally:
        tier.close()


def run_trial(
    where: str, path: str, num_slots: int, tokens: int, asked: Sequence[tuple[int, int]]
) -> list[ExpertCounts]:
    """What each run of (missing, fetched) counted."""
    counts = []
    with open_tier(where, path, num_slots) as (tier, bounds), open_trial(tier.few, bounds, tokens, 99) as trial:
        for missing, fetched in asked:
            before = counts_of(tier)
            assert trial.seconds(missing, fetched) > 0
            counts.append(counts_of(tier).since(before))
    return counts
