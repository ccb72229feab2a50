"""The cards through NVIDIA's management library: nvidia-ml-py's ``pynvml``, or ``fake.FakeDriver`` in its place."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from strata_operator.agent.errors import (
    DriverMismatchError,
    DriverMissingError,
    GpuLostError,
    HardwareError,
    HungError,
    NoPermissionError,
    OutOfRangeError,
    UnsupportedError,
)
from strata_operator.agent.hardware import Card, Clock, Found, Reading, Xid

log = logging.getLogger(__name__)

T = TypeVar("T")

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons.
THROTTLE_REASONS = {
    "idle": 0x1,
    "clock_setting": 0x2,
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
    "display_clock": 0x100,
}

_MEMORY_TEMPERATURE_FIELD = 82  # NVML_FI_DEV_MEMORY_TEMP
_XID_EVENTS = 8  # nvmlEventTypeXidCriticalError
_LOWEST_MHZ = 0  # a clock's range is locked; only its upper end is meant

_KINDS: dict[int, tuple[type[HardwareError], str]] = {
    1: (DriverMissingError, "the library was shut down; it is opened again"),
    2: (OutOfRangeError, "the card does not take that value"),
    3: (UnsupportedError, "this card does not have that"),
    4: (NoPermissionError, "the agent has to run as root in a privileged container"),
    6: (GpuLostError, "no card of that UUID is there"),
    9: (DriverMissingError, "load NVIDIA's driver on the node (nvidia-smi has to work there)"),
    10: (HungError, "the driver gave up waiting for the card"),
    12: (DriverMissingError, "install NVIDIA's driver on the node, and have its container toolkit give it to this pod"),
    13: (UnsupportedError, "the driver is too old for that"),
    15: (GpuLostError, "it fell off the bus: see dmesg for an Xid, check power cables and risers, restart the node"),
    16: (GpuLostError, "it needs a reset: drain the node and restart it"),
    18: (
        DriverMismatchError,
        "the driver was replaced while in use: restart the node, or this pod if the new one is loaded already",
    ),
    24: (OutOfRangeError, "the card does not run at that clock"),
    25: (UnsupportedError, "the driver is too old for that"),
    28: (GpuLostError, "no such card is there"),
}


class NvmlGpus:
    """Opens the library when it is first asked, and anew after the driver went away. Not thread-safe for one card.

    ``measure_copies`` takes a UUID; NVML itself cannot copy.
    """

    def __init__(self, library: Any, measure_copies: Callable[[str], int]) -> None:
        self._library = library
        self._measure_copies = measure_copies
        self._is_open = False
        self._events: Any | None = None
        self._registered: set[str] = set()

    def driver_version(self) -> str:
        with self._opened("the driver's version") as library:
            return str(library.nvmlSystemGetDriverVersion())

    def find(self) -> Found:
        with self._opened("the number of cards") as library:
            number = int(library.nvmlDeviceGetCount())
        cards: list[Card] = []
        lost: list[str] = []
        failing: list[str] = []
        for index in range(number):
            try:
                cards.append(self._card(index))
            except GpuLostError as error:
                lost.append(str(error))
            except (DriverMissingError, DriverMismatchError):
                raise
            except HardwareError as error:
                failing.append(str(error))
        return Found(tuple(cards), tuple(lost), tuple(failing))

    def _card(self, index: int) -> Card:
        with self._opened(f"card {index}") as library:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            memory = self._memory(handle)
            major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
            limits = self._ask(library.nvmlDeviceGetPowerManagementLimitConstraints, handle)
            name = str(library.nvmlDeviceGetName(handle))
            return Card(
                uuid=str(library.nvmlDeviceGetUUID(handle)),
                index=index,
                product=product(name),
                bus_id=str(library.nvmlDeviceGetPciInfo(handle).busId),
                compute_capability=f"{major}.{minor}",
                vram_bytes=int(memory.total),
                usable_vram_bytes=int(memory.total) - int(getattr(memory, "reserved", 0)),
                max_pcie_generation=self._ask(library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
                max_pcie_width=self._ask(library.nvmlDeviceGetMaxPcieLinkWidth, handle),
                default_power_limit=self._ask(library.nvmlDeviceGetPowerManagementDefaultLimit, handle),
                power_limit_range=(int(limits[0]), int(limits[1])) if limits is not None else None,
            )

    def read(self, uuid: str) -> Reading:
        with self._of(uuid) as (library, handle):
            ask = self._ask
            utilization = ask(library.nvmlDeviceGetUtilizationRates, handle)
            persistence = ask(library.nvmlDeviceGetPersistenceMode, handle)
            return Reading(
                core_temperature_c=ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU),
                memory_temperature_c=self._memory_temperature(handle),
                power=ask(library.nvmlDeviceGetPowerUsage, handle),
                power_limit=ask(library.nvmlDeviceGetPowerManagementLimit, handle),
                energy=ask(library.nvmlDeviceGetTotalEnergyConsumption, handle),
                sm_clock_mhz=ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
                memory_clock_mhz=ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
                utilization_percent=int(utilization.gpu) if utilization is not None else None,
                vram_used_bytes=int(self._memory(handle).used),
                fan_percent=ask(library.nvmlDeviceGetFanSpeed, handle),
                pcie_generation=ask(library.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                pcie_width=ask(library.nvmlDeviceGetCurrPcieLinkWidth, handle),
                pcie_rx_bytes_per_second=self._pcie(handle, library.NVML_PCIE_UTIL_RX_BYTES),
                pcie_tx_bytes_per_second=self._pcie(handle, library.NVML_PCIE_UTIL_TX_BYTES),
                throttle_reasons=self._throttle_reasons(handle),
                persistence_mode=bool(persistence) if persistence is not None else None,
                uncorrected_ecc_errors=ask(
                    library.nvmlDeviceGetTotalEccErrors,
                    handle,
                    library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    library.NVML_VOLATILE_ECC,
                ),
            )

    def take_xids(self) -> tuple[Xid, ...]:
        with self._opened("faults") as library:
            if self._events is None:
                self._events = library.nvmlEventSetCreate()
            for index in range(int(library.nvmlDeviceGetCount())):
                self._register(index)
            taken: list[Xid] = []
            while True:
                try:
                    event = library.nvmlEventSetWait_v2(self._events, 0)
                except library.NVMLError as error:
                    if error.value == library.NVML_ERROR_TIMEOUT:
                        return tuple(taken)
                    self._events = None  # a set that holds a lost card answers nothing else any more
                    self._registered.clear()
                    raise
                if event.eventType & _XID_EVENTS:
                    taken.append(Xid(self._uuid(event.device), int(event.eventData)))

    def copy_bandwidth(self, uuid: str) -> int:
        return self._measure_copies(uuid)

    def set_power_limit(self, uuid: str, milliwatts: int) -> None:
        with self._of(uuid) as (library, handle):
            library.nvmlDeviceSetPowerManagementLimit(handle, milliwatts)

    def set_persistence_mode(self, uuid: str, on: bool) -> None:
        with self._of(uuid) as (library, handle):
            library.nvmlDeviceSetPersistenceMode(handle, int(on))

    def lock_clock(self, uuid: str, clock: Clock, max_mhz: int) -> None:
        with self._of(uuid) as (library, handle):
            if clock == "sm":
                library.nvmlDeviceSetGpuLockedClocks(handle, _LOWEST_MHZ, max_mhz)
            else:
                library.nvmlDeviceSetMemoryLockedClocks(handle, _LOWEST_MHZ, max_mhz)

    def unlock_clock(self, uuid: str, clock: Clock) -> None:
        with self._of(uuid) as (library, handle):
            if clock == "sm":
                library.nvmlDeviceResetGpuLockedClocks(handle)
            else:
                library.nvmlDeviceResetMemoryLockedClocks(handle)

    # -- below here: one question each ------------------------------------------------------------------------------

    def _memory(self, handle: Any) -> Any:
        """With ``reserved``, what the driver keeps for itself, where the driver tells it."""
        told = self._ask(self._library.nvmlDeviceGetMemoryInfo, handle, self._library.nvmlMemory_v2)
        return told if told is not None else self._library.nvmlDeviceGetMemoryInfo(handle)

    def _memory_temperature(self, handle: Any) -> int | None:
        fields = self._ask(self._library.nvmlDeviceGetFieldValues, handle, [_MEMORY_TEMPERATURE_FIELD])
        if fields is None or fields[0].nvmlReturn != 0:
            return None
        return int(fields[0].value.uiVal) or None  # GeForce cards say 0 where they mean that they do not tell

    def _pcie(self, handle: Any, counter: int) -> int | None:
        kilobytes = self._ask(self._library.nvmlDeviceGetPcieThroughput, handle, counter)
        return None if kilobytes is None else 1000 * int(kilobytes)

    def _throttle_reasons(self, handle: Any) -> frozenset[str]:
        bits = self._ask(self._library.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return frozenset(name for name, bit in THROTTLE_REASONS.items() if bits & bit)

    def _register(self, index: int) -> None:
        """A lost card and one that has no such events are passed over; the former comes again when it is back."""
        try:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            uuid = str(self._library.nvmlDeviceGetUUID(handle))
            if uuid not in self._registered:
                self._ask(self._library.nvmlDeviceRegisterEvents, handle, _XID_EVENTS, self._events)
                self._registered.add(uuid)
        except self._library.NVMLError as error:
            log.debug("card %d sends no events: %s", index, error)

    def _uuid(self, handle: Any) -> str | None:
        try:
            return str(self._library.nvmlDeviceGetUUID(handle))
        except self._library.NVMLError:
            return None

    @contextmanager
    def _of(self, uuid: str) -> Iterator[tuple[Any, Any]]:
        with self._opened(f"card {uuid}") as library:
            yield library, library.nvmlDeviceGetHandleByUUID(uuid)

    @contextmanager
    def _opened(self, what: str) -> Iterator[Any]:
        """The library's errors as ours; ``what`` was asked."""
        library = self._library
        try:
            if not self._is_open:
                library.nvmlInit()
                self._is_open, self._events = True, None
                self._registered.clear()
            yield library
        except library.NVMLError as error:
            kind, advice = _KINDS.get(error.value, (HardwareError, "see the kernel's log (dmesg)"))
            if kind in (DriverMissingError, DriverMismatchError):
                self._close()
            raise kind(f"{what}: NVML says {str(error)!r}; {advice}") from error

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._library.nvmlShutdown()
            except self._library.NVMLError as error:
                log.debug("the library does not shut down: %s", error)

    def _ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """None where this card does not tell."""
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            kind, _ = _KINDS.get(error.value, (HardwareError, ""))
            if kind is UnsupportedError or error.value == self._library.NVML_ERROR_NO_PERMISSION:
                return None
            raise


def load_library() -> Any:
    """nvidia-ml-py. Raises DriverMissingError where the package is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise DriverMissingError(
            "the Python package nvidia-ml-py is not installed: pip install '.[operator]' in a checkout of Strata"
        ) from error
    return pynvml


def product(name: str) -> str:
    """A card's name as a label's value, as GPU Feature Discovery writes it."""
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", name.strip())
    return value[:63].strip("-._")
