"""What NVIDIA's management library tells of the cards. It is only ever asked, never told to change anything.

The library is nvidia-ml-py's module ``pynvml``, or ``strata.plan.fake_nvml.FakeNvml`` in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from strata.errors import HardwareError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One card now. None: this card does not tell."""

    index: int
    name: str
    bus_id: str
    compute_capability: tuple[int, int]
    vram_bytes: int
    vram_free_bytes: int
    pcie_generation: int | None
    pcie_width: int | None
    max_pcie_generation: int | None  # of card and slot together
    max_pcie_width: int | None
    power_limit_watts: float | None
    default_power_limit_watts: float | None
    power_limit_range_watts: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What moves while a card works. None: this card does not tell."""

    temperature_c: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    utilization_percent: int | None
    vram_used_bytes: int | None


class Nvml:
    """The library, while it is open."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @property
    def driver_version(self) -> str:
        """As "580.65.06"."""
        return str(self._call(self._library.nvmlSystemGetDriverVersion))

    @property
    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that the driver runs."""
        number = int(self._call(self._library.nvmlSystemGetCudaDriverVersion))
        return number // 1000, number % 1000 // 10

    @property
    def num_gpus(self) -> int:
        return int(self._call(self._library.nvmlDeviceGetCount))

    def facts(self, index: int) -> GpuFacts:
        """Raises HardwareError when the card does not answer."""
        library = self._library
        handle = self._call(library.nvmlDeviceGetHandleByIndex, index)
        memory = self._call(library.nvmlDeviceGetMemoryInfo, handle)
        limits = self._ask(library.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        return GpuFacts(
            index=index,
            name=str(self._call(library.nvmlDeviceGetName, handle)),
            bus_id=str(self._call(library.nvmlDeviceGetPciInfo, handle).busId),
            compute_capability=tuple(self._call(library.nvmlDeviceGetCudaComputeCapability, handle)),
            vram_bytes=int(memory.total),
            vram_free_bytes=int(memory.free),
            pcie_generation=self._ask(library.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_width=self._ask(library.nvmlDeviceGetCurrPcieLinkWidth, handle),
            max_pcie_generation=self._ask(library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            max_pcie_width=self._ask(library.nvmlDeviceGetMaxPcieLinkWidth, handle),
            power_limit_watts=_watts(self._ask(library.nvmlDeviceGetEnforcedPowerLimit, handle)),
            default_power_limit_watts=_watts(self._ask(library.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
            power_limit_range_watts=(limits[0] / 1000, limits[1] / 1000) if limits is not None else None,
        )

    def sample(self, index: int) -> GpuSample:
        """Raises HardwareError when the card does not answer."""
        library = self._library
        handle = self._call(library.nvmlDeviceGetHandleByIndex, index)
        utilization = self._ask(library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(library.nvmlDeviceGetMemoryInfo, handle)
        return GpuSample(
            temperature_c=self._ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU),
            power_watts=_watts(self._ask(library.nvmlDeviceGetPowerUsage, handle)),
            sm_clock_mhz=self._ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
            utilization_percent=utilization.gpu if utilization is not None else None,
            vram_used_bytes=memory.used if memory is not None else None,
        )

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            raise HardwareError(f"NVML: {function.__name__}: {error}") from error

    def _ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """None where this card does not tell."""
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            if error.value in (self._library.NVML_ERROR_NOT_SUPPORTED, self._library.NVML_ERROR_NO_PERMISSION):
                return None
            raise HardwareError(f"NVML: {function.__name__}: {error}") from error


@contextmanager
def open_nvml(library: Any | None = None) -> Iterator[Nvml]:
    """The library for as long as the block runs; None loads nvidia-ml-py's.

    Raises HardwareError that says whether package, driver or permission is missing.
    """
    if library is None:
        try:
            import pynvml
        except ImportError as error:
            raise HardwareError("the Python package nvidia-ml-py is not installed") from error
        library = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise HardwareError(f"no NVIDIA driver answers ({error})") from error
    try:
        yield Nvml(library)
    finally:
        library.nvmlShutdown()


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
