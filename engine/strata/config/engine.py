"""What a user tunes, grouped; each field has its unit and its reason. Change one with ``dataclasses.replace``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DTYPES = ("bf16", "int8", "int4")  # what matrices may be rounded to; others are kept where a checkpoint has them
DEVICES = ("auto", "cpu", "cuda")
BLOCK_SIZES = (16, 32)
CPU_STEP_TOKENS = 512  # where nothing else is asked for
# Of experts beyond VRAM. vram: there must be none; fetch: over PCIe; cpu: computed there; hybrid: both at once; auto:
# of these what decodes fastest at the start.
EXPERT_PLACEMENTS = ("auto", "vram", "fetch", "cpu", "hybrid")
PAGE_BYTES = {"2Mi": 2 << 20, "1Gi": 1 << 30}  # of huge pages
HUGEPAGES = ("off", *PAGE_BYTES)
# Who says which of the next layer's experts are fetched ahead. gate: its router; history: what it took in the last
# steps; auto: of these, and of nobody, what decodes fastest at the start.
PREFETCH = ("auto", "off", "gate", "history")
ROUTING_DEVICES = ("gpu", "cpu", "auto")  # auto: where steps of one sequence are faster at the start
SPECULATIVE = ("off", "lookup")
# Of what keys and values may take, for states that the prefix cache keeps of models with linear attention.
STATE_CACHE_SHARE = 0.05
PIPELINE_DEPTHS = range(1, 65)
SHARD_SIZE = 128 << 20  # bytes of a store's file of weights, at most, unless told otherwise


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Where the model runs."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: CUDA where there is a card, else the CPU; says which
    num_threads: int | None = None  # CPU threads for tensors; None: up to the CPUs that the process may use, by trial
    gpu_memory_utilization: float = 0.90  # share of the card's memory that Strata may fill
    vram_bytes: int | None = None  # of the card's memory that counts, as on a smaller card; None: all
    cuda_graphs: bool = True  # decode steps replay CUDA graphs where kernels allow it; off: to look for a fault
    expert_placement: Literal["auto", "vram", "fetch", "cpu", "hybrid"] = "auto"  # what becomes of experts beyond VRAM
    calibrate_anew: bool = False  # whether the split of missing experts is tried anew, whatever an earlier start found
    expert_vram_bytes: int | None = None  # of the card's memory that routed experts may fill; None: what is left of it
    hugepages: Literal["off", "2Mi", "1Gi"] = "off"  # reserved pages for experts in host memory; off: ordinary memory
    prefetch: Literal["auto", "off", "gate", "history"] = "auto"  # who guesses experts that are then fetched ahead
    # From which on "history" fetches: 0.85 if the last step needed it, and 0.30 and 0.15 more for the two before that.
    prefetch_probability: float = 0.85
    # Where steps of few tokens have their experts chosen, as far as the CPU computes any.
    routing_device: Literal["gpu", "cpu", "auto"] = "gpu"
    cpu_routing_threads: int = 4  # of those that compute experts: may share the choice for a step; each takes 4 tokens
    pipeline_depth: int = 8  # requests of the card to the CPU's experts that may be under way together


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16  # tokens a KV block
    num_kv_tokens: int | None = None  # tokens that fit in the pool; None: what the memory budget leaves
    prefix_cache: bool = True  # requests that begin alike share the blocks of what they have in common
    # States of linear attention that are kept for these, at most; None: a share of the KV cache, and room for one.
    state_cache_bytes: int | None = None


MAX_DRAFT = 7  # tokens: with the one before it 8 rows, of which kernels for few rows make the most


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Which requests run together."""

    max_model_len: int | None = None  # prompt + output tokens of one request; None: what the checkpoint declares
    max_num_seqs: int = 16  # sequences decoded together
    # Tokens of one step: decode first, the rest for prefill chunks. None: as many as suit the device.
    max_num_batched_tokens: int | None = None
    max_waiting: int = 256  # requests that may queue; more are answered 429
    # What a step with decoding sequences may take; prompts' chunks shrink to it. 100 ms a token is faster than people
    # read. None: chunks are as large as step_tokens allows.
    decode_latency_seconds: float | None = 0.1
    speculative: Literal["off", "lookup"] = "off"  # lookup: drafts of what followed the newest tokens before

    @property
    def step_tokens(self) -> int:
        """Tokens of one step; on a card see ``plan.step``, too."""
        return self.max_num_batched_tokens or max(CPU_STEP_TOKENS, self.max_num_seqs)

    @property
    def max_draft(self) -> int:
        """Tokens of one draft; 0: there are none."""
        return 0 if self.speculative == "off" else MAX_DRAFT

    @property
    def max_sampled(self) -> int:
        """Rows of logits of one step."""
        return max(self.max_num_seqs, self.max_draft + 1)

    @property
    def capacity(self) -> int:
        """Requests that may be in flight together."""
        return self.max_num_seqs + self.max_waiting


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything the engine process needs to start. Picklable."""

    model: str  # as the user names it; see strata.config.model_name
    dtype: Literal["bf16", "int8", "int4"] = "int4"
    device: DeviceConfig = field(default_factory=DeviceConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
