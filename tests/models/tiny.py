"""Tiny random models that show faults: with the usual initialisation (std 0.02) a wrong RoPE moves no argmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor

from strata.config import EngineConfig, ModelConfig, SchedulerConfig, read_hf_config
from strata.kernels.select import kernels_for
from strata.models import registry
from strata.plan.budget import plan_memory
from strata.plan.memory import DeviceMemory
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


# Of models that read images, too.
VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 96}


def hf_model(architecture: str, **changes: Any) -> Any:
    """A random model of that class of ``transformers`` in float32: norms 1 + 0.1 * randn, states that fade over 2 to
    200 tokens, all else, biases and sinks too, of std 0.2."""
    model_class = getattr(transformers, architecture)
    config = hf_config(architecture, {**SETTINGS, **changes}, attn_implementation="eager")
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        part._experts_implementation = "eager"
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(7)
    zero_centred = model_config(model).zero_centred_norms
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                centre = 0 if zero_centred and not name.endswith("linear_attn.norm.weight") else 1
                parameter.copy_(centre + 0.1 * noise)
            elif name.endswith(".A_log"):
                parameter.copy_(-3 + noise)
            else:
                parameter.copy_((0.5 if name.endswith(".conv1d.weight") else 0.2) * noise)
    for module in model.modules():
        if hasattr(module, "limit"):  # transformers 5.17 clamps gpt-oss' experts at 7.0, whatever the config says
            module.limit = changes.get("swiglu_limit", module.limit)
    return model


def hf_config(architecture: str, table: Mapping[str, Any], **more: Any) -> Any:
    """The configuration of that class, in the part that reads text where it has several."""
    config_class = getattr(transformers, architecture).config_class
    if "text_config" not in config_class.sub_configs:
        return config_class(**dict(table), **more)
    tied = {key: table[key] for key in ("tie_word_embeddings",) if key in table}
    return config_class(text_config=dict(table), vision_config=VISION, **tied, **more)


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
    """The tensors that a checkpoint of the model holds, by their canonical names; those of text alone, without numbers
    that the configuration says.

    ``transformers`` stacks the experts, and gate and up of each: side by side, in gpt-oss in turns and transposed. It
    fuses the projections of attention with gates, and of linear attention in Qwen3-Next, head by head.
    """
    tensors: dict[str, Any] = {}
    for stored, tensor in model.state_dict().items():
        name = stored.replace("model.language_model.", "model.")
        if name.startswith("model.visual.") or (".ple_embedding." in name and not name.endswith(".weight")):
            continue
        fused = _unfused(model.config.get_text_config(), name, tensor.detach())
        if fused:
            tensors |= fused
            continue
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


def _unfused(config: Any, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The canonical tensors of one that is fused; none if it is not."""
    if not hasattr(config, "linear_num_key_heads"):
        return {}
    module, _, kind = name.rpartition(".")
    stem = module.rpartition(".")[0]
    if module.endswith("self_attn.q_proj"):
        query, gate = tensor.view(config.num_attention_heads, 2, -1, *tensor.shape[1:]).unbind(1)
        return {f"{stem}.q_proj.{kind}": query.flatten(0, 1), f"{stem}.gate_proj.{kind}": gate.flatten(0, 1)}
    groups = config.linear_num_key_heads
    sharing = config.linear_num_value_heads // groups
    if module.endswith("in_proj_ba"):
        b, a = tensor.view(groups, 2, sharing, -1).unbind(1)
        return {f"{stem}.in_proj_b.weight": b.flatten(0, 1), f"{stem}.in_proj_a.weight": a.flatten(0, 1)}
    if module.endswith("in_proj_qkvz"):
        keys, values = config.linear_key_head_dim, sharing * config.linear_value_head_dim
        *qkv, z = (
            part.flatten(0, 1) for part in tensor.unflatten(0, (groups, -1)).split([keys, keys, values, values], 1)
        )
        return {f"{stem}.in_proj_qkv.weight": torch.cat(qkv), f"{stem}.in_proj_z.weight": z}
    return {}


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


def sequence(
    token_ids: list[int], start: int, end: int, block_ids: list[int], name: str = "a", state_slot: int | None = None
) -> ScheduledSequence:
    """Tokens start .. end of a sequence as the scheduler would schedule them."""
    used = tuple(block_ids[: -(-end // BLOCK_SIZE)])
    samples = end == len(token_ids)
    return ScheduledSequence(name, tuple(token_ids[start:end]), start, used, samples, state_slot=state_slot)


def run_chunks(
    runner: Runner, token_ids: list[int], chunk: int, block_ids: list[int], *, begin: int = 0, slot: int = 0
) -> Tensor:
    """All logits of a sequence from token ``begin`` on, run in chunks: float32 [tokens, vocab]. ``slot``: of its
    state, if the model has any."""
    parts, state_slot = [], slot if runner.num_states else None
    for start in range(begin, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        parts.append(runner.run_all(Batch((sequence(token_ids, start, end, block_ids, state_slot=state_slot),))))
    return torch.cat(parts)


def relative(found: Tensor, expected: Tensor) -> float:
    """Relative norm of the difference."""
    return float((found - expected).norm() / expected.norm())
