"""Tiny random Llamas that show faults: with the usual initialisation (std 0.02) a wrong RoPE moves no argmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from strata.config import EngineConfig, ModelConfig, read_hf_config
from strata.kernels.select import kernels_for
from strata.memory.kv import KVPool
from strata.models import registry
from strata.plan.memory import plan_memory
from strata.quant import QuantizedTensor
from strata.runner.device import Device
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence

BLOCK_SIZE = 16


def hf_llama(**changes: Any) -> Any:
    """A random LlamaForCausalLM in float32: std 0.2, norms 1 + 0.1 * randn, biases random."""
    torch.manual_seed(7)
    settings: dict[str, Any] = {
        "vocab_size": 160,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
            elif "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
    return model


def model_config(model: Any) -> ModelConfig:
    """What Strata reads from the config.json that the model would be saved with."""
    return read_hf_config({**model.config.to_dict(), "architectures": ["LlamaForCausalLM"]}, origin="config.json")


def runner_of(
    config: ModelConfig, tensors: dict[str, Any], *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Runner:
    """A runner over tensors in memory."""
    where = torch.device(device)
    plan = plan_memory(
        config,
        EngineConfig(model="tiny"),
        device=device,
        capacity_bytes=1 << 28,
        weight_bytes=0,
        element_bytes=dtype.itemsize,
    )
    moved = {name: _move(weight, where) for name, weight in tensors.items()}
    model = registry.build(config, moved, kernels_for(where, dtype), dtype, plan.max_model_len)
    pool = KVPool(config.num_layers, plan.num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype, where)
    return Runner(model, config.vocab_size, Device(where, device), plan, pool)


def _move(weight: Any, device: torch.device) -> Any:
    if isinstance(weight, QuantizedTensor):
        return replace(weight, parts={name: part.to(device) for name, part in weight.parts.items()})
    return weight.to(device)


def checkpoint(model: Any) -> dict[str, Any]:
    """The tensors that a checkpoint of the model holds, by name."""
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def reference_logits(model: Any, token_ids: list[int]) -> Tensor:
    """float32 [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0]


def sequence(token_ids: list[int], start: int, end: int, block_ids: list[int], name: str = "a") -> ScheduledSequence:
    """Tokens start .. end of a sequence as the scheduler would schedule them."""
    used = tuple(block_ids[: -(-end // BLOCK_SIZE)])
    return ScheduledSequence(name, tuple(token_ids[start:end]), start, used, samples=end == len(token_ids))


def run_chunks(runner: Runner, token_ids: list[int], chunk: int, block_ids: list[int]) -> Tensor:
    """All logits of a sequence run in chunks: float32 [tokens, vocab]."""
    parts = []
    for start in range(0, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        parts.append(runner.run_all(Batch((sequence(token_ids, start, end, block_ids),))))
    return torch.cat(parts)


def relative(found: Tensor, expected: Tensor) -> float:
    """Relative norm of the difference."""
    return float((found - expected).norm() / expected.norm())
