"""How many tokens a step runs where nobody says. Pure arithmetic.

A prompt's chunk reads all weights once, so on a card it must be long before arithmetic, not memory, is what takes the
time; on a CPU it soon takes seconds, in which nothing else is done. Where experts come over PCIe for every chunk, it
should be so long that its arithmetic takes as long as they do.
"""

from __future__ import annotations

from dataclasses import replace

from strata.config import EngineConfig

LARGE_CARD_GIB, LARGE_CARD_TOKENS = 64, 8192
CARD_GIB, CARD_TOKENS = 16, 2048


def step_choices(config: EngineConfig, device: str, total_bytes: int, *, balanced: int = 0) -> tuple[EngineConfig, ...]:
    """``config`` with each ``max_num_batched_tokens`` that suits a device ("cpu" or "cuda") with so much memory, the
    best first; the last takes least memory. Only ``config`` where it is given. ``balanced``: tokens of a chunk whose
    arithmetic takes as long as the experts that come for it; the sizes nearest to it suit any card."""
    scheduler = config.scheduler
    if scheduler.max_num_batched_tokens is not None:
        return (config,)
    suited = [
        tokens
        for gib, tokens in ((LARGE_CARD_GIB, LARGE_CARD_TOKENS), (CARD_GIB, CARD_TOKENS))
        if device == "cuda" and (total_bytes >= gib << 30 or tokens <= 2 * balanced)
    ]
    sizes = [max(tokens, scheduler.max_num_seqs) for tokens in suited] + [scheduler.step_tokens]
    return tuple(replace(config, scheduler=replace(scheduler, max_num_batched_tokens=size)) for size in sizes)
