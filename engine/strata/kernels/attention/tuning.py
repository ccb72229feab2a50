"""Launch parameters of the attention kernels, by GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kernels.triton_functions import INTERPRETED


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """tile: positions at a time, ``stages`` of these on their way. programs: how many ``split`` should have, all
    sequences and KV heads together. columns: of one program of ``combine``; chunk: splits that it reads at a time."""

    tile: int
    stages: int
    warps: int
    programs: int
    columns: int
    chunk: int
    combine_warps: int


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


_AMPERE = Tuning(DecodeTuning(64, 2, 4, 256, 32, 16, 1), PrefillTuning(64, 64, 2, 4, 8, 4))
_HOPPER = Tuning(DecodeTuning(64, 3, 4, 528, 32, 16, 1), PrefillTuning(128, 64, 3, 8, 8, 4))


def tuning_for(device: torch.device) -> Tuning:
    if not INTERPRETED and torch.cuda.get_device_capability(device) >= (9, 0):
        return _HOPPER
    return _AMPERE
