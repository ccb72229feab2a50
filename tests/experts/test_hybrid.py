"""VRAM as a cache of experts, and the CPU for what it has not: close to all in VRAM, whatever the slots and shares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.experts import hybrid
from strata.experts.hybrid import Hybrid
from strata.kernels.layer import Kernels
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.store.reader import Store
from tests.experts.blob_kernels import BlobKernels, CachedKernels
from tests.experts.test_resident import ARCHITECTURES, TOKEN_IDS, made_store
from tests.models import tiny

ONE_LAYER = ARCHITECTURES["beside a shared one"] | {"num_hidden_layers": 1}


def load(
    store: Store, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, num_slots: int = 0, placement: str = "auto"
) -> Runner:
    layout = store.manifest.contents.experts
    assert layout is not None
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    vram = num_slots * len(layout.layers) * layout.blob_bytes
    device = DeviceConfig(
        device="cpu",
        num_threads=1,
        expert_vram_bytes=vram,
        expert_placement=placement,  # type: ignore[arg-type]
    )
    config = EngineConfig(model="tiny", device=device, cache=CacheConfig(num_kv_tokens=128))
    return Runner.load(store, config, compute_dtype=torch.float32)


@pytest.mark.parametrize("name", [*ARCHITECTURES, "one layer"])
@pytest.mark.parametrize(
    ("placement", "num_slots"),
    [
        pytest.param("cpu", 1, id="the CPU computes what one slot has not"),
        pytest.param("fetch", 3, id="fetched, as far as there are slots"),
        pytest.param("hybrid", 1, id="both, shared as a trial says"),
    ],
)
def test_the_numbers_stay(
    tmp_path: Path, name: str, placement: str, num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    monkeypatch.setitem(ARCHITECTURES, "one layer", ONE_LAYER)
    store = made_store(tmp_path, "int4", name)
    expected = tiny.run_chunks(load(store, BlobKernels(), monkeypatch), TOKEN_IDS, 5, list(range(8)))
    runner = load(store, CachedKernels(), monkeypatch, num_slots, placement)
    tier = runner.model.tier
    assert isinstance(tier, Hybrid)
    try:
        found = tiny.run_chunks(runner, TOKEN_IDS, 5, list(range(8)))
        runner.check()
        # The CPU's threads round activations to 8 bits, the reference does not.
        assert tiny.relative(found, expected) < 0.1
        counts = tier.counts()
        assert counts.needed > counts.in_vram
        if placement != "hybrid":
            assert (counts.fetched > 0) == (placement == "fetch")
    finally:
        tier.close()


def test_prefill_brings_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid, "MAX_TOKENS", 4)
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    store = made_store(tmp_path, "int4")
    expected = tiny.run_chunks(load(store, BlobKernels(), monkeypatch), TOKEN_IDS, 17, list(range(8)))
    runner = load(store, CachedKernels(), monkeypatch, 1, "fetch")
    assert isinstance(runner.model.tier, Hybrid)
    try:
        assert torch.equal(tiny.run_chunks(runner, TOKEN_IDS, 17, list(range(8))), expected)
    finally:
        runner.model.tier.close()
