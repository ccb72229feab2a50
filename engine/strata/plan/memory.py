"""Who gets which bytes of a device: weights, workspace, states, KV cache. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strata.config import EngineConfig, ModelConfig
from strata.config.engine import STATE_CACHE_SHARE
from strata.errors import OptionError
from strata.plan.advice import Way, find_ways
from strata.plan.capture import capture_bytes
from strata.plan.parts import loaded_parts
from strata.plan.states import max_draft, state_bytes, step_seqs_bytes, step_token_bytes
from strata.plan.step import step_choices

# Share of the memory left beside the weights that a KV cache of its own choice takes on a CPU: the server, the
# tokenizer and the page cache of the weights' files live there too.
CPU_KV_SHARE = 0.5

# What server and engine take of the host's memory without weights, workspace and KV cache, as far as a control group
# counts it: Python, torch, the tokenizer, threads, what loading leaves behind. SmolLM2-135M under a limit of 1500 MiB
# took 388 MiB in int4, 431 in int8, 444 in bf16 (2 Zen 4 cores, torch 2.10, 2026-11-30); the process of its chat
# template has 11 MiB of its own beside that.
PROCESS_BYTES = 464 << 20
# Host memory that is left to the server, the tokenizer and torch itself where the rest is pinned for experts.
HEADROOM_BYTES = 1 << 30

# Positions whose keys and values one attention call gathers for decoding sequences, padding included, if there are more
# sequences than one. 128 MiB for 8 KV heads of 128 in bf16: enough to fill a card, and little beside its memory.
MAX_GATHERED_POSITIONS = 32_768

# Entries of the sampler's lists of penalties and biases that a device works on at a time, and the bytes of one: place,
# divisor, addend, and six numbers on the way to the new logit.
MAX_ADJUSTED = 1 << 18
ADJUSTED_BYTES = 8 + 4 + 4 + 6 * 4

# What kernels.linear and kernels.attention take: weights that a product dequantises at a time, dimensions that a head
# grows by beside sinks, programs that a card's attention of few sequences is split into. A test holds them together.
MAX_DEQUANTIZED = 1 << 26
SINK_DIMS = 8
MAX_SPLIT_PROGRAMS = 264


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device, in bytes."""

    device: str  # "cpu" or "cuda"
    total_bytes: int
    available_bytes: int  # free, or filled by Strata

    def capacity_bytes(self, gpu_memory_utilization: float) -> int:
        """What Strata may fill. A card: its share of the whole, or what others have left of it."""
        if self.device == "cpu":
            return self.available_bytes
        return min(int(self.total_bytes * gpu_memory_utilization), self.available_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device. ``capacity_bytes`` is what Strata may fill there."""

    model: ModelConfig
    device: str
    capacity_bytes: int
    weight_bytes: int
    workspace_bytes: int
    element_bytes: int  # of KV cache and activations
    num_blocks: int
    block_size: int
    max_model_len: int
    step_tokens: int
    num_states: int  # sequences that have a state at once; 0 where no layer has linear attention
    num_snapshots: int  # states beside these that the prefix cache keeps
    max_draft: int  # tokens of a draft, of which states keep the inputs; 0: there are no drafts

    @property
    def spare_state(self) -> int | None:
        """The slot for what fills up a step, behind all others; None where there are none."""
        return self.num_states + self.num_snapshots if self.num_states else None

    @property
    def state_bytes(self) -> int:
        """Of linear attention, for one sequence."""
        return state_bytes(self.model, self.element_bytes, self.max_draft)

    @property
    def states_bytes(self) -> int:
        """Of linear attention, for all sequences that may run together, and those that the prefix cache keeps."""
        return (self.num_states + self.num_snapshots) * self.state_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Of states that the prefix cache keeps."""
        return self.num_snapshots * self.state_bytes

    @property
    def kv_bytes(self) -> int:
        return self.num_kv_tokens * kv_token_bytes(self.model, self.element_bytes)

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def holds_one_sequence(self) -> bool:
        """Whether the KV cache holds ``max_model_len`` tokens."""
        return self.num_whole_seqs >= 1

    @property
    def num_whole_seqs(self) -> int:
        """Sequences of ``max_model_len`` that the KV cache holds at once."""
        return self.num_blocks // math.ceil(self.max_model_len / self.block_size)

    @property
    def fits(self) -> bool:
        return self.holds_one_sequence and self.free_bytes >= 0

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.taken_bytes

    @property
    def taken_bytes(self) -> int:
        """By weights, workspace, states and KV cache."""
        return self.weight_bytes + self.workspace_bytes + self.states_bytes + self.kv_bytes


def kv_token_bytes(model: ModelConfig, element_bytes: int) -> int:
    """Bytes of KV cache that one token takes: 2 * layers * kv_heads * head_dim * element_bytes, of the layers that have
    keys and values, and their index keys."""
    of_layer = 2 * model.num_kv_heads * model.head_dim * element_bytes + _index_token_bytes(model, element_bytes)
    return model.num_kv_layers * of_layer


def _index_token_bytes(model: ModelConfig, element_bytes: int) -> int:
    """Of one layer: the token's index key, and its part of its group's."""
    indexer = model.indexer
    return 0 if indexer is None else indexer.head_dim * element_bytes * (1 + indexer.group_size) // indexer.group_size


def check_block_size(model: ModelConfig, config: EngineConfig) -> None:
    """Raises OptionError where a block of KV cache would end within a group of the indexer."""
    indexer, block_size = model.indexer, config.cache.block_size
    if indexer is not None and block_size % indexer.group_size:
        raise OptionError(
            f"block_size is {block_size}; the model's indexer takes {indexer.group_size} tokens together: set a "
            "multiple of that"
        )


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


def num_states(model: ModelConfig, config: EngineConfig) -> int:
    """Sequences that have a state of linear attention at once."""
    return config.scheduler.max_num_seqs if any(model.linear_layers) else 0


def workspace_bytes(model: ModelConfig, config: EngineConfig, element_bytes: int, device: str) -> int:
    """Bytes that one step takes beside weights and KV cache, at most: activations, logits and what sampling makes of
    them, the dequantised part of one matrix, what attention takes; on a card CUDA graphs, and the block of KV cache and
    the state that fill up their batches."""
    tokens, seqs = config.scheduler.step_tokens, config.scheduler.max_num_seqs
    length = resolve_max_model_len(model, config)
    heads = model.num_heads + 2 * model.num_kv_heads
    linear = math.ceil(step_token_bytes(model, element_bytes, device) / element_bytes)
    of_token = (
        4 * model.hidden_size
        + _stream_elements(model)
        + _feed_forward_elements(model)
        + max(2 * heads * model.head_dim, linear)
    )
    logits = config.scheduler.max_sampled * model.vocab_size
    # float32, sorted with int64 indices, probabilities and their sums; before that, a copy and what adjusts it.
    sampling = max(logits * (4 + 4 + 8 + 4 + 8), logits * (4 + 4) + min(logits, MAX_ADJUSTED) * ADJUSTED_BYTES)
    inner = max(2 * model.intermediate_size, model.experts.intermediate_size * 2 if model.experts else 0)
    matrix = min(MAX_DEQUANTIZED, model.hidden_size * max(inner, heads * model.head_dim, model.vocab_size))
    attention = _attention_elements(model, config, length, device)
    graphs = 0
    if device == "cuda":
        graphs = capture_bytes(model, seqs, tokens, of_token * element_bytes)
        graphs += config.cache.block_size * kv_token_bytes(model, element_bytes)
        graphs += state_bytes(model, element_bytes, max_draft(model, config))
    states = step_seqs_bytes(model, seqs, element_bytes, device)
    return (tokens * of_token + attention) * element_bytes + sampling + matrix * (element_bytes + 8) + graphs + states


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


def _stream_elements(model: ModelConfig) -> int:
    """Of a token where it has several residual streams: these, normalised, their gates, each once more on the way; with
    n-grams keys, what is gated, and the convolution's input and result."""
    if model.hyper_connections is None:
        return 0
    return (6 if model.ngrams is None else 10) * model.stream_width


def _attention_elements(model: ModelConfig, config: EngineConfig, length: int, device: str) -> int:
    """On a card, which reads the cache's pages in place: the queries, turned; the shares that decoding is split into,
    in float32. On a CPU: masks of chunks or of decoding sequences, one for each window; keys and values that one call
    gathers, in whole blocks, and beside sinks both copied once more (``kernels.attention.sdpa``)."""
    tokens, block_size = config.scheduler.step_tokens, config.cache.block_size
    if device == "cuda":
        programs = MAX_SPLIT_PROGRAMS + config.scheduler.max_num_seqs * model.num_kv_heads
        shares = programs * (model.num_heads // model.num_kv_heads) * (model.head_dim + 2)
        return tokens * model.num_heads * model.head_dim + 2 * shares
    seen = [length if window is None else min(length, window + tokens + block_size) for window in set(model.kv_windows)]
    gathered = gathered_positions(length, config.scheduler.max_num_seqs, block_size)
    pages = 2 * gathered * model.num_kv_heads * model.head_dim
    if not model.attention_sinks:
        return tokens * sum(seen) + pages
    return tokens * (sum(seen) + max(seen)) + 2 * pages + 2 * gathered * model.num_kv_heads * SINK_DIMS


def advise(
    model: ModelConfig, config: EngineConfig, *, memory: DeviceMemory, weight_bytes: int, element_bytes: int
) -> list[Way]:
    """Changes that make it fit, for arguments of which ``size_memory`` makes a plan that does not."""

    def size(changed: EngineConfig) -> MemoryPlan:
        weights = weight_bytes
        if changed.dtype != config.dtype:
            before, after = (loaded_parts(model, dtype, memory.device) for dtype in (config.dtype, changed.dtype))
            share = after.total / before.total
            weights = math.ceil(weight_bytes * share)
        return size_memory(model, changed, memory, weights, element_bytes)

    return find_ways(config, lambda changed: size(changed).fits, max_model_len=size(config).max_model_len)


def size_memory(
    model: ModelConfig, config: EngineConfig, memory: DeviceMemory, weight_bytes: int, element_bytes: int
) -> MemoryPlan:
    """Size the KV cache: the tokens asked for, else what the budget leaves, at most ``max_num_seqs`` sequences of
    ``max_model_len``. Each of ``max_num_seqs`` sequences has a state where layers have linear attention, and the prefix
    cache keeps some as far as one sequence's keys and values leave room. Steps have as many tokens as fit, of those
    that suit the device.

    ``weight_bytes``: what the weights, in ``config.dtype``, take of the memory. The plan may not fit.
    """
    plans = (
        _size(model, choice, memory, weight_bytes, element_bytes)
        for choice in step_choices(config, memory.device, memory.total_bytes)
    )
    plan = next(plans)
    while not plan.fits and (smaller := next(plans, None)) is not None:
        plan = smaller
    return plan


def _size(
    model: ModelConfig, config: EngineConfig, memory: DeviceMemory, weight_bytes: int, element_bytes: int
) -> MemoryPlan:
    check_block_size(model, config)
    length, block_size = resolve_max_model_len(model, config), config.cache.block_size
    capacity = memory.capacity_bytes(config.device.gpu_memory_utilization)
    workspace = workspace_bytes(model, config, element_bytes, memory.device)
    states, of_state = num_states(model, config), state_bytes(model, element_bytes, max_draft(model, config))
    left, of_block = (
        capacity - weight_bytes - workspace - states * of_state,
        block_size * kv_token_bytes(model, element_bytes),
    )
    if config.cache.num_kv_tokens is not None:
        num_blocks = math.ceil(config.cache.num_kv_tokens / block_size)
        snapshots = _snapshot_bytes(config, num_blocks * of_block, of_state)
    else:
        room = int(left * (CPU_KV_SHARE if memory.device == "cpu" else 1.0))
        needed = math.ceil(length / block_size)  # blocks of one whole sequence
        most = needed * config.scheduler.max_num_seqs
        snapshots = _snapshot_bytes(config, room, of_state)
        num_blocks = max(needed, min((room - snapshots) // of_block, most))
    num_snapshots = (
        min(max(0, min(snapshots, left - num_blocks * of_block)) // of_state, num_blocks) if snapshots else 0
    )
    return MemoryPlan(
        model,
        memory.device,
        capacity,
        weight_bytes,
        workspace,
        element_bytes,
        num_blocks,
        block_size,
        length,
        config.scheduler.step_tokens,
        states,
        num_snapshots,
        max_draft(model, config),
    )


def _snapshot_bytes(config: EngineConfig, kv_room: int, of_state: int) -> int:
    """That states which the prefix cache keeps may take, at most."""
    if not config.cache.prefix_cache or not of_state:
        return 0
    asked = config.cache.state_cache_bytes
    return max(of_state, int(STATE_CACHE_SHARE * kv_room)) if asked is None else asked
