"""A machine's cards without the machine: stands in for the module ``pynvml`` wherever Strata takes one.

It has the functions that ``strata.plan.nvml`` calls, under their own names, and none that changes anything. A value
that is None is one that the card does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class FakeNvmlError(Exception):
    """As ``pynvml.NVMLError``: ``value`` is NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(_MESSAGES.get(value, f"NVML error {value}"))
        self.value = value


@dataclass
class FakeCard:
    """An RTX 3090 at rest in a PCIe 3.0 slot, unless told otherwise. Power in milliwatts, clocks in MHz."""

    name: str = "NVIDIA GeForce RTX 3090"
    compute_capability: tuple[int, int] = (8, 6)
    vram_bytes: int = 24 * GIB
    vram_used_bytes: int = GIB // 2
    pcie_generation: int | None = 1  # at rest
    pcie_width: int | None = 16
    max_pcie_generation: int | None = 3
    max_pcie_width: int | None = 16
    power_limit: int | None = 350_000
    default_power_limit: int | None = 350_000
    power_limit_range: tuple[int, int] | None = (100_000, 350_000)
    temperature: int | None = 41
    power: int | None = 25_000
    sm_clock: int | None = 210
    memory_clock: int | None = 405
    utilization: int | None = 0
    lost: bool = False  # fallen off the bus: whatever is asked fails


class FakeNvml:
    """``init_error``: one of the codes below, with which ``nvmlInit`` fails."""

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(
        self,
        cards: Sequence[FakeCard] = (),
        *,
        driver: str = "580.65.06",
        cuda: int = 13000,
        init_error: int | None = None,
    ) -> None:
        self.cards = list(cards)
        self.num_open = 0
        self._driver = driver
        self._cuda = cuda
        self._init_error = init_error

    def nvmlInit(self) -> None:
        if self._init_error is not None:
            raise FakeNvmlError(self._init_error)
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self._cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        card = self.cards[index]
        if card.lost:
            raise FakeNvmlError(self.NVML_ERROR_GPU_IS_LOST)
        return card

    def nvmlDeviceGetName(self, handle: FakeCard) -> str:
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: FakeCard) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x65 + self.cards.index(handle):02X}:00.0")

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeCard) -> tuple[int, int]:
        return handle.compute_capability

    def nvmlDeviceGetMemoryInfo(self, handle: FakeCard) -> Any:
        used = handle.vram_used_bytes
        return SimpleNamespace(total=handle.vram_bytes, free=handle.vram_bytes - used, used=used)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeCard) -> int:
        return _told(handle.pcie_generation)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeCard) -> int:
        return _told(handle.pcie_width)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: FakeCard) -> int:
        return _told(handle.max_pcie_generation)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: FakeCard) -> int:
        return _told(handle.max_pcie_width)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeCard) -> int:
        return _told(handle.power_limit)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: FakeCard) -> int:
        return _told(handle.default_power_limit)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: FakeCard) -> list[int]:
        if handle.power_limit_range is None:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return list(handle.power_limit_range)

    def nvmlDeviceGetTemperature(self, handle: FakeCard, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return _told(handle.temperature)

    def nvmlDeviceGetPowerUsage(self, handle: FakeCard) -> int:
        return _told(handle.power)

    def nvmlDeviceGetClockInfo(self, handle: FakeCard, clock: int) -> int:
        return _told({self.NVML_CLOCK_SM: handle.sm_clock, self.NVML_CLOCK_MEM: handle.memory_clock}[clock])

    def nvmlDeviceGetUtilizationRates(self, handle: FakeCard) -> Any:
        return SimpleNamespace(gpu=_told(handle.utilization))


_MESSAGES = {
    FakeNvml.NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    FakeNvml.NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    FakeNvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    18: "Driver/library version mismatch",
}


def _told(value: int | None) -> int:
    if value is None:
        raise FakeNvmlError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    return value
