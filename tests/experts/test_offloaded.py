"""Experts of which some lie in VRAM, some in host memory: the same numbers from wherever they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.experts import offloaded
from strata.experts.offloaded import Offloaded
from strata.kernels.layer import Kernels
from strata.kernels.matrix import SILU
from strata.kernels.operations import REFERENCE
from strata.plan.placement import ExpertBytes, place_experts
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.store.reader import Store
from tests.experts.blob_kernels import BlobKernels, bytes_at
from tests.experts.test_resident import ARCHITECTURES, TOKEN_IDS, made_store, no_router
from tests.models import tiny


def logits(store: Store, kernels: Kernels, num_resident: int, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    layout = store.manifest.contents.experts
    assert layout is not None
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    config = EngineConfig(
        model="tiny",
        device=DeviceConfig(device="cpu", num_threads=1, expert_vram_bytes=num_resident * layout.blob_bytes),
        cache=CacheConfig(num_kv_tokens=128),
    )
    runner = Runner.load(store, config, compute_dtype=torch.float32)
    return tiny.run_chunks(runner, TOKEN_IDS, 17, list(range(8)))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("num_resident", [0, 3, 7])
@pytest.mark.parametrize("streamed_tokens", [pytest.param(96, id="in place"), pytest.param(6, id="streamed")])
def test_the_numbers_do_not_depend_on_where_experts_lie(
    tmp_path: Path, name: str, num_resident: int, streamed_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offloaded, "STREAMED_TOKENS", streamed_tokens)
    store = made_store(tmp_path, "int4", name)
    expected = logits(store, Kernels(REFERENCE, torch.float32), 0, monkeypatch)
    made: list[Offloaded] = []
    original = Offloaded.__init__

    def watched(self: Offloaded, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Offloaded, "__init__", watched)
    assert torch.equal(logits(store, BlobKernels(), num_resident, monkeypatch), expected)
    assert len(made) == 1


def test_each_expert_has_a_place_of_its_own(tmp_path: Path) -> None:
    store = made_store(tmp_path, "int4")
    layout = store.manifest.contents.experts
    assert layout is not None
    experts = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
    placement = place_experts(experts, 1 << 30, at_most=3 * layout.blob_bytes)
    tier = Offloaded(layout, placement, BlobKernels(), torch.device("cpu"))
    for layer in layout.layers:
        tier.layer(layer, SILU, no_router)
    addresses = tier.registry.table.flatten().tolist()
    assert len({address // layout.blob_bytes for address in addresses}) == layout.num_blobs
    for number, expert in enumerate(layout.experts):
        tier.put(expert, torch.full((layout.blob_bytes,), number, dtype=torch.uint8))
    assert [int(bytes_at(address, 1)[0]) for address in addresses] == list(range(layout.num_blobs))
