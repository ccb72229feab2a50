"""What to change, and to which value, so that a model fits: found by trying, so that what is said holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from strata.config import EngineConfig
from strata.config.engine import DTYPES

Fits = Callable[[EngineConfig], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """A setting and the value that is nearest to the present one of those that fit."""

    setting: str  # a field of EngineConfig or of one of its groups
    value: int | float | str

    def apply(self, config: EngineConfig) -> EngineConfig:
        """The settings after the change."""
        changed = {self.setting: self.value}
        for group in ("scheduler", "cache", "device"):
            settings = getattr(config, group)
            if hasattr(settings, self.setting):
                return replace(config, **{group: replace(settings, **changed)})
        return replace(config, **changed)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.setting} {self.value}"


Way = tuple[Change, ...]  # changes that make it fit together


def find_ways(config: EngineConfig, fits: Fits, *, max_model_len: int) -> list[Way]:
    """Ways to make it fit; empty if neither one change nor a smaller dtype with shorter sequences does.

    ``fits``: whether given settings do. Smaller sizes and a larger share of a card must never fit worse.
    ``max_model_len``: what ``config`` comes to.
    """
    scheduler, cache = config.scheduler, config.cache
    one_sequence = math.ceil(max_model_len / cache.block_size) * cache.block_size
    asked = 0 if cache.num_kv_tokens is None else max(cache.num_kv_tokens, one_sequence + 1)
    # A store may be of a format that conversions do not offer.
    smaller_dtypes = DTYPES[DTYPES.index(config.dtype) + 1 :] if config.dtype in DTYPES else ()
    smaller = [Change("dtype", dtype) for dtype in smaller_dtypes]
    ways = [
        _shrink(config, fits, "num_kv_tokens", one_sequence, asked),
        _shrink(config, fits, "max_model_len", 1, max_model_len),
        _shrink(config, fits, "max_num_batched_tokens", scheduler.max_num_seqs, scheduler.step_tokens),
        _shrink(config, fits, "max_num_seqs", 1, scheduler.max_num_seqs),
        _first(config, fits, smaller),
        _first(config, fits, _shares(config.device.gpu_memory_utilization)),
    ]
    if not any(ways) and smaller:
        shorter = _shrink(smaller[-1].apply(config), fits, "max_model_len", 1, max_model_len)
        ways = [(smaller[-1], *shorter) if shorter else ()]
    return [way for way in ways if way]


def _shrink(config: EngineConfig, fits: Fits, setting: str, low: int, high: int) -> Way:
    size = largest(low, high, lambda size: fits(Change(setting, size).apply(config)))
    return () if size is None else (Change(setting, size),)


def _first(config: EngineConfig, fits: Fits, changes: Iterable[Change]) -> Way:
    return next(((change,) for change in changes if fits(change.apply(config))), ())


def _shares(present: float) -> Iterator[Change]:
    return (Change("gpu_memory_utilization", n / 100) for n in range(1, 101) if n / 100 > present)


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest number from ``low`` to below ``high`` that ``holds``, as all smaller ones do; None: none does."""
    if low >= high or not holds(low):
        return None
    while high - low > 1:  # holds(low), and not known of high
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
