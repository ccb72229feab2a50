"""Launch parameters of the attention kernels, by GPU."""

from __future__ import annotations

from dataclasses import dataclass

from strata.kernels.launch import capability


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """tile: positions at a time, ``stages`` of these on their way. programs: how many ``split`` should have, all
    sequences and KV heads together. columns: of one program of ``join``; chunk: splits that it reads at a time."""

    tile: int
    stages: int
    warps: int
    programs: int
    columns: int
    chunk: int
    join_warps: int


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """rows: query rows of a program; tile: positions at a time, ``stages`` of these on their way. heads: of one program
    of ``prepare``."""

    rows: int
    tile: int
    stages: int
    warps: int
    heads: int
    prepare_warps: int


@dataclass(frozen=True, slots=True)
class Tuning:
    decode: DecodeTuning
    prefill: PrefillTuning


# One H200, 2026-11-30, Qwen3-30B-A3B's heads (32, 4 KV heads, 128 wide). One sequence of 1,024 tokens: 4.4 us; three
# stages 4.5, and with these twice the warps 5.0, tiles of 32 5.2, no overlap of launches 7.8. One of 32,768: 26.3 us;
# chunks of 16 28.7. 32 of 8,192: 133 us; 396 programs 155. A prompt of 8,192: 437 TFLOP/s; two stages 394, tiles of 128
# 425, 64 rows 392.
HOPPER = Tuning(DecodeTuning(64, 2, 4, 264, 32, 32, 1), PrefillTuning(128, 64, 3, 8, 8, 2))
# Not measured: heads wider than NARROW_DIMS, and what fits 100 KiB of shared memory and 255 registers without spilling.
HOPPER_WIDE = Tuning(DecodeTuning(64, 2, 4, 264, 32, 32, 1), PrefillTuning(128, 64, 2, 8, 4, 2))
AMPERE = Tuning(DecodeTuning(64, 2, 4, 256, 32, 32, 1), PrefillTuning(128, 32, 3, 8, 8, 2))
AMPERE_WIDE = Tuning(DecodeTuning(32, 2, 4, 256, 32, 32, 1), PrefillTuning(64, 32, 2, 8, 4, 2))

NARROW_DIMS = 128


def tuning(head_dim: int) -> Tuning:
    """For the GPU at hand: a program may have 227 KiB of shared memory on sm_90 and sm_100, but 99 on sm_120."""
    if capability()[0] in (9, 10):
        return HOPPER if head_dim <= NARROW_DIMS else HOPPER_WIDE
    return AMPERE if head_dim <= NARROW_DIMS else AMPERE_WIDE
