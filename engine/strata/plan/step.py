"""How many tokens a step runs where nobody says. Pure arithmetic.

A prompt's chunk reads all weights once, so on a card it must be long before arithmetic, not memory, is what takes the
time; on a CPU it soon takes seconds, in which nothing else is done.
"""

from __future__ import annotations

from dataclasses import replace

from strata.config import EngineConfig

CARD_GIB, CARD_TOKENS = 16, 2048
LARGE_CARD_GIB, LARGE_CARD_TOKENS = 64, 8192


def step_choices(config: EngineConfig, device: str, total_bytes: int) -> tuple[EngineConfig, ...]:
    """``config`` with each ``max_num_batched_tokens`` that suits a device ("cpu" or "cuda") with so much memory, the
    best first; the last takes least memory. Only ``config`` where it is given."""
    scheduler = config.scheduler
    if scheduler.max_num_batched_tokens is not None:
        return (config,)
    suited = []
    if device == "cuda" and total_bytes >= LARGE_CARD_GIB << 30:
        suited.append(LARGE_CARD_TOKENS)
    if device == "cuda" and total_bytes >= CARD_GIB << 30:
        suited.append(CARD_TOKENS)
    sizes = [max(tokens, scheduler.max_num_seqs) for tokens in suited] + [scheduler.step_tokens]
    return tuple(replace(config, scheduler=replace(scheduler, max_num_batched_tokens=size)) for size in sizes)
