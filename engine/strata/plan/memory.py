"""Who gets which bytes of a device: weights, workspace, KV cache. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strata.config import EngineConfig, ModelConfig
from strata.errors import HardwareError, OptionError

# Share of the memory left beside the weights that a KV cache of its own choice takes on a CPU: the server, the
# tokenizer and the page cache of the weights' files live there too.
CPU_KV_SHARE = 0.5

# Positions whose keys and values one attention call gathers for decoding sequences, padding included, if there are more
# sequences than one. 128 MiB for 8 KV heads of 128 in bf16: enough to fill a card, and little beside its memory.
MAX_GATHERED_POSITIONS = 32_768

# What kernels.linear and kernels.attention.sdpa take: weights that a product dequantises at a time, dimensions that a
# head grows by beside sinks. A test holds them together.
MAX_DEQUANTIZED = 1 << 26
SINK_DIMS = 8


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device. ``capacity_bytes`` is what Strata may fill there."""

    device: str
    capacity_bytes: int
    weight_bytes: int
    workspace_bytes: int
    kv_block_bytes: int
    num_blocks: int
    block_size: int
    max_model_len: int

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.kv_block_bytes

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.weight_bytes - self.workspace_bytes - self.kv_bytes


def kv_token_bytes(model: ModelConfig, element_bytes: int) -> int:
    """Bytes of KV cache that one token takes: 2 * layers * kv_heads * head_dim * element_bytes."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes


def resolve_max_model_len(model: ModelConfig, config: EngineConfig) -> int:
    """Tokens of prompt and output that one request may have.

    Raises OptionError where more is asked than the checkpoint's positions reach.
    """
    asked = config.scheduler.max_model_len
    if asked is None:
        return model.max_position_embeddings
    if not 1 <= asked <= model.max_positions:
        raise OptionError(
            f"max_model_len is {asked}; the checkpoint's positions reach {model.max_positions}: "
            f"set 1 to {model.max_positions}, or leave it out"
        )
    return asked


def gathered_positions(max_model_len: int, max_num_seqs: int, block_size: int) -> int:
    """Positions whose keys and values one attention call gathers, at most."""
    longest = math.ceil(max_model_len / block_size) * block_size
    return min(max_num_seqs * longest, max(longest, MAX_GATHERED_POSITIONS))


def workspace_bytes(model: ModelConfig, config: EngineConfig, element_bytes: int) -> int:
    """Bytes that one step takes beside weights and KV cache, at most: activations, logits and what sampling makes of
    them, the dequantised part of one matrix, the KV pages of one layer gathered for attention."""
    tokens, seqs = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    length = resolve_max_model_len(model, config)
    heads = model.num_heads + 2 * model.num_kv_heads
    activations = tokens * (4 * model.hidden_size + _feed_forward_elements(model) + 2 * heads * model.head_dim)
    # float32, sorted with int64 indices, probabilities and their sums.
    logits = seqs * model.vocab_size * (4 + 4 + 8 + 4 + 8)
    inner = max(2 * model.intermediate_size, model.experts.intermediate_size * 2 if model.experts else 0)
    matrix = min(MAX_DEQUANTIZED, model.hidden_size * max(inner, heads * model.head_dim, model.vocab_size))
    attention = _attention_elements(model, config, length)
    return (activations + attention) * element_bytes + logits + matrix * (element_bytes + 8)


def _feed_forward_elements(model: ModelConfig) -> int:
    """Of a token between the norm and the sum: gate, up and their product, or what its experts make of it."""
    dense = 0 if all(model.expert_layers) else 3 * model.intermediate_size
    experts = model.experts
    if experts is None:
        return dense
    # Every token once for each of its experts, in and out; an expert that all tokens take; the router's float32 and
    # int64 numbers, as elements of 2 bytes.
    routed = experts.num_experts_per_tok * (2 * model.hidden_size + 16) + 4 * experts.num_experts
    return max(dense, routed + 5 * experts.intermediate_size + 3 * experts.shared_intermediate_size)


def _attention_elements(model: ModelConfig, config: EngineConfig, length: int) -> int:
    """Masks of chunks or of decoding sequences, one for each window; keys and values that one call gathers, in whole
    blocks. Beside sinks both are copied once more (``kernels.attention.sdpa``)."""
    tokens, block_size = config.scheduler.max_num_batched_tokens, config.cache.block_size
    seen = [length if window is None else min(length, window + tokens + block_size) for window in set(model.windows)]
    gathered = gathered_positions(length, config.scheduler.max_num_seqs, block_size)
    pages = 2 * gathered * model.num_kv_heads * model.head_dim
    if not model.attention_sinks:
        return tokens * sum(seen) + pages
    return tokens * (sum(seen) + max(seen)) + 2 * pages + 2 * gathered * model.num_kv_heads * SINK_DIMS


def plan_memory(
    model: ModelConfig,
    config: EngineConfig,
    *,
    device: str,
    capacity_bytes: int,
    weight_bytes: int,
    element_bytes: int,
) -> MemoryPlan:
    """Size the KV cache: the tokens asked for, else what the budget leaves, at most ``max_num_seqs`` sequences of
    ``max_model_len``.

    ``device``: "cpu" or "cuda", for the share that is taken and for messages. Raises HardwareError when not even one
    sequence of ``max_model_len`` fits, OptionError when ``num_kv_tokens`` asks for less than that.
    """
    length = resolve_max_model_len(model, config)
    block_size = config.cache.block_size
    workspace = workspace_bytes(model, config, element_bytes)
    block_bytes = block_size * kv_token_bytes(model, element_bytes)
    left = capacity_bytes - weight_bytes - workspace
    needed = math.ceil(length / block_size)  # blocks of one whole sequence
    asked = config.cache.num_kv_tokens
    if asked is not None:
        wanted = math.ceil(asked / block_size)
        if wanted < needed:
            raise OptionError(
                f"num_kv_tokens is {asked}, less than one sequence of max_model_len {length}: set num_kv_tokens to "
                f"{needed * block_size} or more, or max_model_len to {asked} or less"
            )
        num_blocks = wanted
    else:
        share = CPU_KV_SHARE if device == "cpu" else 1.0
        num_blocks = max(needed, min(int(left * share) // block_bytes, needed * config.scheduler.max_num_seqs))
    plan = MemoryPlan(device, capacity_bytes, weight_bytes, workspace, block_bytes, num_blocks, block_size, length)
    if plan.free_bytes < 0:
        raise HardwareError(_does_not_fit(plan, config))
    return plan


def _does_not_fit(plan: MemoryPlan, config: EngineConfig) -> str:
    left = plan.capacity_bytes - plan.weight_bytes - plan.workspace_bytes
    what = f"{plan.num_kv_tokens} tokens of KV cache"
    if config.cache.num_kv_tokens is None:
        what = f"one sequence of max_model_len {plan.max_model_len}"
    message = (
        f"{plan.device} has not the memory for {what}: {format_bytes(plan.kv_bytes)} are needed; of "
        f"{format_bytes(plan.capacity_bytes)} that Strata may fill, weights take {format_bytes(plan.weight_bytes)} and "
        f"workspace {format_bytes(plan.workspace_bytes)}, which leaves {format_bytes(max(0, left))}"
    )
    tokens = max(0, left) // plan.kv_block_bytes * plan.block_size
    short = format_bytes(plan.kv_bytes - left)
    more = f"give {plan.device} {short} more"
    if plan.device == "cuda":
        more = (
            f"raise gpu_memory_utilization above {config.device.gpu_memory_utilization} or use a card with {short} more"
        )
    elif plan.device == "cpu":
        more = f"give the process {short} more memory (the container's limit, or other processes' use)"
    if not tokens:
        return f"{message}. Set a smaller dtype, or {more}."
    setting = "max_model_len" if config.cache.num_kv_tokens is None else "num_kv_tokens"
    return f"{message}. Set {setting} to {tokens} or less, or {more}."


def budget_table(plan: MemoryPlan) -> tuple[str, ...]:
    """Lines of a table that says where the bytes go."""
    rows = [
        ("weights", plan.weight_bytes, ""),
        (
            "KV cache",
            plan.kv_bytes,
            f"{plan.num_kv_tokens} tokens in blocks of {plan.block_size}; "
            f"{plan.num_kv_tokens / plan.max_model_len:.1f} sequences of {plan.max_model_len}",
        ),
        ("workspace", plan.workspace_bytes, "at most, in a step"),
        ("free", plan.free_bytes, ""),
        ("budget", plan.capacity_bytes, f"on {plan.device}"),
    ]
    return tuple(f"{name:<10} {format_bytes(size):>11}  {note}".rstrip() for name, size, note in rows)


def format_bytes(size: int) -> str:
    """Binary units, one decimal: "1.5 GiB"."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
