"""A tiny decoder of attention and linear attention in turns, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from strata.config import CacheConfig, EngineConfig, LinearAttentionConfig, ModelConfig, SchedulerConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.layer import Heads, Kernels, Rotation
from strata.kernels.matrix import Norm
from strata.kernels.operations import REFERENCE
from strata.models.decoder import Decoder
from strata.plan.budget import plan_memory
from strata.plan.memory import DeviceMemory, MemoryPlan
from strata.plan.states import state_bytes
from strata.runner.device import Device
from strata.runner.load import make_caches
from strata.runner.runner import Runner
from tests.plan.configs import public
from tests.runner.paged_kernels import PagedKernels

VOCAB, HIDDEN, BLOCK, MAX_LEN = 50, 16, 16, 96
LINEAR = LinearAttentionConfig(num_key_heads=1, num_value_heads=2, key_head_dim=8, value_head_dim=8, conv_kernel_size=4)
LAYERS = (True, False, True)


class HybridModel:
    """What a runner takes of a ``Decoder``."""

    tier = None
    can_capture = True
    windows = frozenset({None})

    def __init__(self, kernels: Kernels) -> None:
        self.reads_pages = kernels.reads_pages
        self.likeliest = kernels.argmax
        generator = torch.Generator().manual_seed(3)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) / shape[0] ** 0.5

        self._embedding = random(VOCAB, HIDDEN) * VOCAB**0.5
        self._head = random(HIDDEN, VOCAB) * 4
        self._attend = kernels.attention(Heads(2, 1, 8))
        self._qkv, self._out = random(HIDDEN, 32), random(16, HIDDEN)
        values = LINEAR.num_value_heads * LINEAR.value_head_dim
        self._linear = [
            (
                random(HIDDEN, LINEAR.channels + values),
                random(HIDDEN, 4),
                kernels.delta_net(_net(random)),
                random(values, HIDDEN),
            )
            for _ in range(2)
        ]

    def forward(self, token_ids: Tensor, batch: StepBatch, caches: Sequence[Any]) -> Tensor:
        x, linear = self._embedding[token_ids], iter(self._linear)
        still = torch.ones(len(token_ids), 1, 8)
        for is_linear, cache in zip(LAYERS, caches, strict=True):
            if is_linear:
                projection, gates, read, out = next(linear)
                x = x + read(x @ projection, x @ gates, cache, batch) @ out
            else:
                x = x + self._attend(x @ self._qkv, Rotation(still, torch.zeros_like(still)), cache, batch) @ self._out
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._head


def _net(random: Any) -> DeltaNet:
    heads = LINEAR.num_value_heads
    return DeltaNet(
        LINEAR.num_key_heads,
        heads,
        LINEAR.key_head_dim,
        LINEAR.value_head_dim,
        conv=random(LINEAR.channels, LINEAR.conv_kernel_size) * 4,
        decay=random(heads) - 3,
        dt_bias=random(heads),
        norm=Norm(torch.ones(LINEAR.value_head_dim), 1e-6),
    )


def config() -> ModelConfig:
    return replace(
        public("qwen3-8b"),
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_layers=len(LAYERS),
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        windows=(None,) * len(LAYERS),
        expert_layers=(False,) * len(LAYERS),
        linear_attention=LINEAR,
        linear_layers=LAYERS,
    )


def plan(max_num_seqs: int = 4, num_snapshots: int = 0, *, drafts: bool = False) -> MemoryPlan:
    limits = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_model_len=MAX_LEN, speculative="lookup" if drafts else "off"
    )
    return plan_memory(
        config(),
        EngineConfig(
            model="hybrid",
            cache=CacheConfig(
                block_size=BLOCK, state_cache_bytes=num_snapshots * state_bytes(config(), 4, limits.max_draft)
            ),
            scheduler=limits,
        ),
        memory=DeviceMemory("cpu", 1 << 28, 1 << 28),
        weight_bytes=0,
        element_bytes=4,
    )


def runner(*, reads_pages: bool = True, num_snapshots: int = 0, drafts: bool = False) -> Runner:
    """In float32 on the CPU."""
    kernels = PagedKernels() if reads_pages else Kernels(REFERENCE, torch.float32)
    sized, device = plan(num_snapshots=num_snapshots, drafts=drafts), Device(torch.device("cpu"), "cpu")
    model = cast("Decoder", HybridModel(kernels))
    return Runner(model, VOCAB, device, sized, make_caches(sized, device, torch.float32))
