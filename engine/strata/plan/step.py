"""How many tokens a step runs where nobody says. Pure arithmetic.

A prompt's chunk reads all weights once, so on a card it must be long before arithmetic, not memory, is what takes the
time; on a CPU it soon takes seconds, in which nothing else is done.
"""

from __future__ import annotations

from dataclasses import replace

from strata.config import EngineConfig

CARD_GIB, CARD_TOKENS = 16, 2048
LARGE_CARD_GIB, LARGE_CARD_TOKENS = 64, 8192


def with_step_tokens(config: EngineConfig, device: str, total_bytes: int) -> EngineConfig:
    """``config`` with ``max_num_batched_tokens`` as it suits a device ("cpu" or "cuda") with so much memory, unless it
    is given."""
    scheduler = config.scheduler
    if device == "cpu" or total_bytes < CARD_GIB << 30 or scheduler.max_num_batched_tokens is not None:
        return config
    tokens = LARGE_CARD_TOKENS if total_bytes >= LARGE_CARD_GIB << 30 else CARD_TOKENS
    return replace(config, scheduler=replace(scheduler, max_num_batched_tokens=max(tokens, scheduler.max_num_seqs)))
