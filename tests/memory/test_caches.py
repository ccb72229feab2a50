"""What the layers of Qwen4's preview keep: as many bytes as are planned, each layer its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strata.config import CacheConfig, EngineConfig, SchedulerConfig
from strata.errors import OptionError
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.indexed_attention.indexer import IndexedCache
from strata.plan.budget import plan_memory
from strata.plan.memory import DeviceMemory, MemoryPlan, kv_token_bytes
from strata.plan.states import state_bytes
from strata.runner.device import Device
from strata.runner.load import make_caches
from tests.plan.configs import public

MODEL = replace(
    public("qwen3.8-flash-next"),
    num_layers=4,
    windows=(None,) * 4,
    expert_layers=(True,) * 4,
    linear_layers=(True, True, False, True),
)


def plan(block_size: int = 16) -> MemoryPlan:
    return plan_memory(
        MODEL,
        EngineConfig(
            model="tiny",
            cache=CacheConfig(block_size=block_size, num_kv_tokens=320, prefix_cache=False),
            scheduler=SchedulerConfig(max_num_seqs=2, max_model_len=64),
        ),
        memory=DeviceMemory("cpu", 1 << 33, 1 << 33),
        weight_bytes=0,
        element_bytes=2,
    )


def test_each_layer_has_what_its_kind_keeps() -> None:
    sized = plan()
    caches = make_caches(sized, Device(torch.device("cpu"), "cpu"), torch.bfloat16)
    kinds = [type(layer) for layer in caches.layers]
    assert kinds == [DeltaState, DeltaState, IndexedCache, DeltaState]
    with_ngrams = [layer for layer in caches.layers if isinstance(layer, DeltaState) and layer.ngrams is not None]
    assert with_ngrams == [caches.layers[1]], "the second layer alone"
    assert caches.states is not None
    assert caches.index is not None
    assert caches.states.num_bytes == (sized.num_states + 1) * state_bytes(MODEL, 2)
    tokens = (sized.num_blocks + 1) * sized.block_size
    assert caches.kv.num_bytes + caches.index.num_bytes == tokens * kv_token_bytes(MODEL, 2)


def test_a_copy_takes_what_n_grams_know_along() -> None:
    states = make_caches(plan(), Device(torch.device("cpu"), "cpu"), torch.bfloat16).states
    assert states is not None
    ngrams = states.layers[1].ngrams
    assert ngrams is not None
    ngrams.tokens[0], ngrams.conv[0] = 5, 3
    states.copy([(0, 2)])
    assert ngrams.tokens.tolist() == [[5] * 3, [0] * 3, [5] * 3]
    assert [bool((slot == 3).all()) for slot in ngrams.conv] == [True, False, True]


def test_blocks_hold_whole_groups() -> None:
    with pytest.raises(OptionError, match="block_size is 18; the model's indexer takes 4 tokens together"):
        plan(block_size=18)
