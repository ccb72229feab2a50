"""How many tokens a step runs where nobody says. Pure arithmetic.

A prompt's chunk reads all weights once, so on a card it must be long before arithmetic, not memory, is what takes the
time; on a CPU it soon takes seconds, in which nothing else is done. Where experts come over PCIe for every chunk, it
should be so long that its arithmetic takes as long as they do.
"""

from __future__ import annotations

from dataclasses import replace

from strata.config import EngineConfig, ModelConfig
from strata.plan.speed import multiplications_per_token

LARGE_CARD_GIB, LARGE_CARD_TOKENS = 64, 8192
CARD_GIB, CARD_TOKENS = 16, 2048
# Multiplications and additions that a card does while PCIe moves a byte, as kernels and links go: an RTX 3090 1,600 on
# PCIe 4.0 and 3,200 on 3.0, an RTX 4090 3,600 on 4.0, an H200 7,000 on 5.0 (data sheets, shares measured on the last).
FLOPS_PER_BYTE = 3000


def balanced_tokens(model: ModelConfig, streamed_bytes: float) -> int:
    """Of a chunk whose arithmetic takes as long as so many bytes of experts over PCIe."""
    return int(streamed_bytes * FLOPS_PER_BYTE / (2 * multiplications_per_token(model)))


def step_choices(config: EngineConfig, device: str, total_bytes: int, *, balanced: int = 0) -> tuple[EngineConfig, ...]:
    """``config`` with each ``max_num_batched_tokens`` that suits a device ("cpu" or "cuda") with so much memory, the
    best first; the last takes least memory. Only ``config`` where it is given. ``balanced``: see ``balanced_tokens``;
    the sizes nearest to it suit any card."""
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
