"""Blobs of a store in one slab: found through the table of addresses, and through it alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.experts import place
from strata.experts.resident import Resident
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import ExpertsFn, Kernels, Routed
from strata.kernels.matrix import SILU, Activation
from strata.kernels.operations import REFERENCE
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.store.convert import convert
from strata.store.reader import Store
from tests.engine.tiny_llama import write_checkpoint
from tests.experts.blob_kernels import BlobKernels, as_router
from tests.models import tiny

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "eos_token_id": None}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "a dense layer between": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "norm_topk_prob": True,
        "num_hidden_layers": 3,
        "mlp_only_layers": [1],
    },
    "biases, another activation": {"architectures": ["GptOssForCausalLM"], "head_dim": 16, "sliding_window": 10},
    "beside a shared one": {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 32},
    "all of one kind": {"architectures": ["MixtralForCausalLM"], "intermediate_size": 64},
}
MORE = {
    "a dense layer first": ARCHITECTURES["a dense layer between"] | {"mlp_only_layers": [0]},
    "one layer": ARCHITECTURES["beside a shared one"] | {"num_hidden_layers": 1},
}
TOKEN_IDS = [(7 * i + i * i) % 90 + 2 for i in range(40)]


Stores = Callable[..., Store]  # made_store's last two arguments; see ``conftest``


@as_router
def no_router(x: torch.Tensor) -> Routed:
    raise AssertionError("who looks ahead here?")


def made_store(directory: Path, dtype: str, name: str = "a dense layer between") -> Store:
    source = write_checkpoint(directory / "tiny", **(EXPERTS | (ARCHITECTURES | MORE)[name]))
    return Store.open(convert(str(source), directory / "store", dtype))


def load(store: Store, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    config = EngineConfig(
        model="tiny", device=DeviceConfig(device="cpu", num_threads=1), cache=CacheConfig(num_kv_tokens=128)
    )
    return Runner.load(store, config, compute_dtype=torch.float32)


def logits(store: Store, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    return tiny.run_chunks(load(store, kernels, monkeypatch), TOKEN_IDS, 17, list(range(8)))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_experts_in_blobs_are_those_of_their_tensors(
    stores: Stores, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores(dtype, name)
    expected = logits(store, Kernels(REFERENCE, torch.float32), monkeypatch)
    assert torch.equal(logits(store, BlobKernels(), monkeypatch), expected)


def test_a_loaded_model_keeps_its_experts_memory(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels know addresses alone."""
    kept: list[weakref.ref[Resident]] = []

    class Counted(Resident):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept.append(weakref.ref(self))

    monkeypatch.setattr(place, "Resident", Counted)
    runner = load(stores("int4"), BlobKernels(), monkeypatch)
    gc.collect()
    assert [tier() is None for tier in kept] == [False]
    del runner
    gc.collect()
    assert [tier() is None for tier in kept] == [True]


class Watched(BlobKernels):
    """Keeps the addresses that each layer was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def blob_experts(self, layout: BlobLayout, addresses: torch.Tensor, activation: Activation) -> ExpertsFn:
        self.seen.append(addresses)
        return super().blob_experts(layout, addresses, activation)


def test_an_expert_moves_by_one_write_to_the_table(stores: Stores) -> None:
    store = stores("int4")
    layout = store.manifest.contents.experts
    assert layout is not None
    kernels = Watched()
    tier = Resident(layout, kernels, torch.device("cpu"))
    for layer in layout.layers:
        tier.layer(layer, SILU, no_router)
    seen = kernels.seen
    first, last = seen
    before = [row.tolist() for row in seen]
    assert len({*before[0], *before[1]}) == layout.num_blobs
    assert all(address % 4096 == 0 for row in before for address in row)
    tier.registry.put({(layout.layers[1], 3): 1 << 40, (layout.layers[0], 0): 1 << 41})
    assert first.tolist() == [1 << 41, *before[0][1:]]
    assert last.tolist() == [*before[1][:3], 1 << 40]
