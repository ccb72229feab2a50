"""What the cards of this machine do meanwhile: temperature, power, clocks, every second, in a thread of its own."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from strata.errors import HardwareError
from strata.plan.nvml import GpuSample, Nvml, open_nvml

INTERVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """Of one card over one level. None: the card does not tell, or there was no sample."""

    index: int
    name: str
    num_samples: int
    max_temperature_c: float | None
    mean_power_watts: float | None
    max_power_watts: float | None
    mean_sm_clock_mhz: float | None
    min_sm_clock_mhz: float | None
    mean_memory_clock_mhz: float | None
    mean_utilization_percent: float | None
    max_vram_used_bytes: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class GpuSampler:
    """Collects samples; ``take`` sums up those since the last time."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._names = [nvml.facts(index).name for index in range(nvml.num_gpus)]
        self._samples: list[list[GpuSample]] = [[] for _ in self._names]
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Ask every card once. A card that does not answer gives no sample."""
        for index in range(len(self._names)):
            try:
                sample = self._nvml.sample(index)
            except HardwareError:
                continue
            with self._lock:
                self._samples[index].append(sample)

    def take(self) -> tuple[GpuSummary, ...]:
        """One summary a card."""
        with self._lock:
            taken, self._samples = self._samples, [[] for _ in self._names]
        return tuple(
            _summary(index, name, samples) for index, (name, samples) in enumerate(zip(self._names, taken, strict=True))
        )


@contextmanager
def sampling(library: Any | None = None, *, interval_seconds: float = INTERVAL_SECONDS) -> Iterator[GpuSampler | None]:
    """Samples while the block runs; None where NVML has no card. ``library``: see ``strata.plan.nvml``."""
    with ExitStack() as stack:
        yield _start(stack, library, interval_seconds)


def _start(stack: ExitStack, library: Any | None, interval_seconds: float) -> GpuSampler | None:
    try:
        nvml = stack.enter_context(open_nvml(library))
        if not nvml.num_gpus:
            return None
        sampler = GpuSampler(nvml)
    except HardwareError:
        return None
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(interval_seconds):
            sampler.sample()

    thread = threading.Thread(target=run, name="gpu-samples", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(ended.set)  # runs before the join
    return sampler


def _summary(index: int, name: str, samples: list[GpuSample]) -> GpuSummary:
    def of(field: str) -> list[float]:
        return [value for sample in samples if (value := getattr(sample, field)) is not None]

    power, clock = of("power_watts"), of("sm_clock_mhz")
    return GpuSummary(
        index=index,
        name=name,
        num_samples=len(samples),
        max_temperature_c=max(of("temperature_c"), default=None),
        mean_power_watts=_mean(power),
        max_power_watts=max(power, default=None),
        mean_sm_clock_mhz=_mean(clock),
        min_sm_clock_mhz=min(clock, default=None),
        mean_memory_clock_mhz=_mean(of("memory_clock_mhz")),
        mean_utilization_percent=_mean(of("utilization_percent")),
        max_vram_used_bytes=max(of("vram_used_bytes"), default=None),
    )


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
