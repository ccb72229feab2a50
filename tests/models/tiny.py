"""Tiny random models that show faults: with the usual initialisation (std 0.02) a wrong RoPE moves no argmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor

from strata.config import EngineConfig, ModelConfig, SchedulerConfig, read_hf_config
from strata.kernels.select import kernels_for
from strata.models import registry
from strata.plan.memory import DeviceMemory, plan_memory
from strata.quant import QuantizedTensor
from strata.runner.device import Device
from strata.runner.load import make_caches
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence

BLOCK_SIZE = 16


SETTINGS: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def hf_model(architecture: str, **changes: Any) -> Any:
    """A random model of that class of ``transformers`` in float32: norms 1 + 0.1 * randn, all else, biases and sinks
    too, of std 0.2."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**SETTINGS, **changes}, attn_implementation="eager")
    config._experts_implementation = "eager"
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.2 * noise)
    for module in model.modules():
        if hasattr(module, "limit"):  # transformers 5.17 clamps gpt-oss' experts at 7.0, whatever the config says
            module.limit = changes.get("swiglu_limit", module.limit)
    return model


def hf_llama(**changes: Any) -> Any:
    """A random LlamaForCausalLM."""
    return hf_model("LlamaForCausalLM", **changes)


def model_config(model: Any) -> ModelConfig:
    """What Strata reads from the config.json that the model would be saved with."""
    return read_hf_config({**model.config.to_dict(), "architectures": [type(model).__name__]}, origin="config.json")


def runner_of(
    config: ModelConfig,
    tensors: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    max_model_len: int | None = None,
) -> Runner:
    """A runner over tensors in memory."""
    where = torch.device(device)
    plan = plan_memory(
        config,
        EngineConfig(model="tiny", scheduler=SchedulerConfig(max_model_len=max_model_len)),
        memory=DeviceMemory(device, 1 << 28, 1 << 28),
        weight_bytes=0,
        element_bytes=dtype.itemsize,
    )
    moved = {name: _move(weight, where) for name, weight in tensors.items()}
    model = registry.build(config, moved, kernels_for(where, dtype), plan.max_model_len)
    opened = Device(where, device)
    return Runner(model, config.vocab_size, opened, plan, make_caches(plan, opened, dtype))


def _move(weight: Any, device: torch.device) -> Any:
    if isinstance(weight, QuantizedTensor):
        return replace(weight, parts={name: part.to(device) for name, part in weight.parts.items()})
    return weight.to(device)


def checkpoint(model: Any) -> dict[str, Any]:
    """The tensors that a checkpoint of the model holds, by their canonical names.

    ``transformers`` stacks the experts, and gate and up of each: side by side, in gpt-oss in turns and transposed.
    """
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        layer, _, kind = name.partition(".mlp.experts.")
        if not kind:
            tensors[name.replace(".mlp.router.", ".mlp.gate.")] = tensor.detach()
            continue
        for expert, matrix in enumerate(tensor.detach()):
            for part, value in _parts(kind, matrix, in_turns=isinstance(model, transformers.GptOssForCausalLM)):
                tensors[f"{layer}.mlp.experts.{expert}.{part}"] = value.contiguous()
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def _parts(kind: str, value: Tensor, in_turns: bool) -> list[tuple[str, Tensor]]:
    """The named parts of one expert's tensor."""
    stem, what = (kind.removesuffix("_bias"), "bias") if kind.endswith("_bias") else (kind, "weight")
    if in_turns and what == "weight":
        value = value.T
    if stem == "down_proj":
        return [(f"down_proj.{what}", value)]
    gate, up = (value[::2], value[1::2]) if in_turns else value.chunk(2)
    return [(f"gate_proj.{what}", gate), (f"up_proj.{what}", up)]


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
