"""What the client and the engine process say to each other: frozen, picklable, no tensors, no text of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strata.errors import StrataError
from strata.experts.counts import ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import GenerationRequest, TokenOutput
from strata.scheduler.stats import SchedulerStats

# --- client to engine


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request."""

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request and free its blocks before the next step; unknown ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the process; requests in flight end with ``FinishReason.ABORT``."""


Command = Submit | Abort | Shutdown

# --- engine to client


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the start has come. ``phase`` is "wait" (for another process that converts the same), "download",
    "convert", "verify", "load", "prepare", "capture" or "warm up"; bytes are of that phase, and 0 in all where that is
    not known. Of the last two they are no bytes, but tokens of steps: those that become CUDA graphs, then others."""

    phase: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine steps from now on. Everything the server needs to know about the model."""

    store_path: str  # directory with tokenizer.json and tokenizer_config.json
    dtype: str
    device: str  # what was chosen, e.g. "cpu" or "cuda (NVIDIA GeForce RTX 3090)"
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # as the checkpoint's publisher wrote it


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request was not let in: RequestError if it can never be served, OverloadedError if not now."""

    request_id: str
    error: StrataError


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """The outputs of one step, for every request that got any; and requests that were not let in after all."""

    outputs: tuple[TokenOutput, ...]
    stats: SchedulerStats
    rejected: tuple[Rejected, ...] = ()
    tables: TableCounts | None = None  # what was read of tables of n-grams so far; None: the model has none


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine ends. ``error``: a UsageError where the user must change something, else an EngineError."""

    error: StrataError


# Steps say little of experts, and often; their figures are many, and come about once a second.
Event = LoadProgress | EngineReady | StepOutputs | ExpertStats | Rejected | EngineFailed
