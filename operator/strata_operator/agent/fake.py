"""A node's driver and host without the node: for tests, and for clusters that have no cards (``strata-agent --fake``).

``FakeDriver`` stands in for the module ``pynvml`` below ``nvml.NvmlGpus``, ``FakeSysfs`` for the kernel below
``sysfs.Sysfs``, so that all of the agent's own code runs. Cards have a simple physics: power follows load, clock and
limit; temperature follows power with a time constant. Power is in milliwatts, clocks in MHz.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from strata.plan.fake_nvml import GIB, FakeCard, FakeNvml, FakeNvmlError
from strata_operator.agent.nvml import THROTTLE_REASONS, NvmlGpus


@dataclass
class SimulatedCard(FakeCard):
    """An RTX 3090 Founders Edition at rest, unless told otherwise.

    ``errors`` has NVML's code for each function that is to fail, by its name; ``hangs`` the names of those that do not
    come back until ``let_go``.
    """

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    power_limit_range: tuple[int, int] | None = (100_000, 400_000)
    max_pcie_generation: int | None = 4
    memory_temperature: int | None = None  # GeForce cards tell none on Linux
    reserved_bytes: int = 400 << 20
    persistence: int = 0
    max_sm_clock: int = 2100
    max_memory_clock: int = 9751
    sm_lock: int | None = None
    memory_lock: int | None = None
    ecc_errors: int | None = None
    # Physics.
    load: float = 0.0  # share of what it can do that it is asked to do
    idle_power: int = 25_000
    full_power: int = 420_000  # what it would draw at full load and clock without a limit
    ambient: float = 28.0
    degrees_per_watt: float = 0.15
    seconds: float = 20.0  # time constant of the cooler
    heat: float = 41.0  # the chip's temperature, exactly
    energy: float = 0.0  # millijoules
    errors: dict[str, int] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    let_go: threading.Event = field(default_factory=threading.Event)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        clock = min(self.max_sm_clock, self.sm_lock or self.max_sm_clock)
        wanted = self.idle_power + self.load * (self.full_power - self.idle_power) * clock / self.max_sm_clock
        drawn = min(wanted, float(self.power_limit or math.inf))
        end = self.ambient + self.degrees_per_watt * drawn / 1000
        self.heat = end + (self.heat - end) * math.exp(-seconds / self.seconds)
        self.energy += drawn * seconds
        busy = self.load > 0.01
        self.power, self.temperature = int(drawn), round(self.heat)
        self.utilization = round(100 * self.load)
        self.sm_clock = int(clock * min(1.0, drawn / wanted)) if busy else 210
        self.memory_clock = min(self.max_memory_clock, self.memory_lock or self.max_memory_clock) if busy else 405
        self.pcie_generation = self.max_pcie_generation if busy else 1

    def reset(self) -> None:
        """As a driver that was loaded anew: all settings are the factory's."""
        self.power_limit, self.persistence = self.default_power_limit, 0
        self.sm_lock = self.memory_lock = None


def rtx3090(number: int = 1, **changes: Any) -> SimulatedCard:
    """Founders Edition: 350 W, 100 to 400 W may be set."""
    return SimulatedCard(**{"uuid": _uuid(3090, number), **changes})


def rtx4090(number: int = 1, **changes: Any) -> SimulatedCard:
    """Founders Edition: 450 W, 150 to 600 W may be set."""
    given: dict[str, Any] = {
        "uuid": _uuid(4090, number),
        "name": "NVIDIA GeForce RTX 4090",
        "compute_capability": (8, 9),
        "vram_bytes": 24564 << 20,
        "power_limit": 450_000,
        "default_power_limit": 450_000,
        "power_limit_range": (150_000, 600_000),
        "max_sm_clock": 3105,
        "max_memory_clock": 10501,
        "full_power": 520_000,
        "degrees_per_watt": 0.11,
    }
    return SimulatedCard(**{**given, **changes})


def rtx4090_48g(number: int = 1, **changes: Any) -> SimulatedCard:
    """A 4090 with twice the memory, as workshops make them; NVML gives it the plain name."""
    return rtx4090(number, **{"uuid": _uuid(4848, number), "vram_bytes": 49140 << 20, **changes})


def h200(number: int = 1, **changes: Any) -> SimulatedCard:
    """A data-centre card: memory temperature and ECC are told."""
    given: dict[str, Any] = {
        "uuid": _uuid(200, number),
        "name": "NVIDIA H200",
        "compute_capability": (9, 0),
        "vram_bytes": 141 * GIB,
        "power_limit": 700_000,
        "default_power_limit": 700_000,
        "power_limit_range": (200_000, 700_000),
        "max_pcie_generation": 5,
        "max_sm_clock": 1980,
        "max_memory_clock": 3201,
        "memory_temperature": 45,
        "ecc_errors": 0,
        "idle_power": 75_000,
        "full_power": 720_000,
        "degrees_per_watt": 0.07,
    }
    return SimulatedCard(**{**given, **changes})


CARDS = {"rtx3090": rtx3090, "rtx4090": rtx4090, "rtx4090-48g": rtx4090_48g, "h200": h200}


class FakeDriver(FakeNvml):
    """``clock`` tells the seconds by which the cards' physics goes on; without one, ``advance`` them yourself."""

    NVMLError = FakeNvmlError
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_TIMEOUT = 10
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlMemory_v2 = 33554472  # noqa: N815 - NVML's name

    def __init__(
        self, cards: Sequence[SimulatedCard] = (), *, clock: Callable[[], float] | None = None, **options: Any
    ) -> None:
        super().__init__(cards, **options)
        self.cards: list[SimulatedCard] = list(cards)  # type: ignore[assignment]
        self.num_event_sets = 0
        self.num_copies = 0
        self.errors: dict[str, int] = {}  # NVML's code for each function that is to fail, by its name
        self.sets: list[tuple[str, str, Any]] = []  # function, UUID and value of all that was set
        self._clock = clock
        self._at = clock() if clock else 0.0
        self._events: list[tuple[SimulatedCard, int]] = []
        self._lock = threading.Lock()

    def fail(self, code: int | None) -> None:
        """``nvmlInit`` and every other call fail with that code from now on; None mends it."""
        self._init_error = code

    def send_xid(self, card: SimulatedCard, code: int) -> None:
        self._events.append((card, code))

    def advance(self, seconds: float) -> None:
        for card in self.cards:
            card.advance(seconds)

    def copy_bandwidth(self, uuid: str) -> int:
        """Not NVML's: for ``nvml.NvmlGpus``, 10^6 bytes a second."""
        self.num_copies += 1
        (card,) = (card for card in self.cards if card.uuid == uuid)
        return {3: 12_300, 4: 24_600, 5: 52_000}[card.max_pcie_generation or 3]

    def nvmlDeviceGetCount(self) -> int:
        self._step()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        return self._handle(self.cards[index], "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeCard:
        self._step()
        for card in self.cards:
            if card.uuid == uuid:
                return self._handle(card, "nvmlDeviceGetHandleByUUID")
        raise FakeNvmlError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: SimulatedCard) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeCard, version: int | None = None) -> Any:
        told = super().nvmlDeviceGetMemoryInfo(handle)
        if version is not None:
            told.reserved = handle.reserved_bytes  # type: ignore[attr-defined]
        return told

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeCard) -> int:
        return self.nvmlDeviceGetEnforcedPowerLimit(handle)

    def nvmlDeviceSetPowerManagementLimit(self, handle: SimulatedCard, limit: int) -> None:
        self._set(handle, "nvmlDeviceSetPowerManagementLimit", limit)
        if handle.power_limit_range is None:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        low, high = handle.power_limit_range
        if not low <= limit <= high:
            raise FakeNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        handle.power_limit = limit

    def nvmlDeviceGetPersistenceMode(self, handle: SimulatedCard) -> int:
        return handle.persistence

    def nvmlDeviceSetPersistenceMode(self, handle: SimulatedCard, mode: int) -> None:
        self._set(handle, "nvmlDeviceSetPersistenceMode", mode)
        handle.persistence = mode

    def nvmlDeviceSetGpuLockedClocks(self, handle: SimulatedCard, low: int, high: int) -> None:
        self._set(handle, "nvmlDeviceSetGpuLockedClocks", high)
        handle.sm_lock = high

    def nvmlDeviceResetGpuLockedClocks(self, handle: SimulatedCard) -> None:
        self._set(handle, "nvmlDeviceResetGpuLockedClocks", None)
        handle.sm_lock = None

    def nvmlDeviceSetMemoryLockedClocks(self, handle: SimulatedCard, low: int, high: int) -> None:
        self._set(handle, "nvmlDeviceSetMemoryLockedClocks", high)
        handle.memory_lock = high

    def nvmlDeviceResetMemoryLockedClocks(self, handle: SimulatedCard) -> None:
        self._set(handle, "nvmlDeviceResetMemoryLockedClocks", None)
        handle.memory_lock = None

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimulatedCard) -> int:
        return int(handle.energy)

    def nvmlDeviceGetFanSpeed(self, handle: SimulatedCard) -> int:
        return max(0, min(100, round(2 * (handle.heat - 45))))

    def nvmlDeviceGetPcieThroughput(self, handle: SimulatedCard, counter: int) -> int:
        return round(handle.load * (1_000_000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 10_000))

    def nvmlDeviceGetFieldValues(self, handle: SimulatedCard, fields: Sequence[int]) -> Any:
        told = handle.memory_temperature
        answer = SimpleNamespace(nvmlReturn=0 if told is not None else 3, value=SimpleNamespace(uiVal=told or 0))
        return [answer for _ in fields]

    def nvmlDeviceGetTotalEccErrors(self, handle: SimulatedCard, kind: int, counter: int) -> int:
        if handle.ecc_errors is None:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return handle.ecc_errors

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: SimulatedCard) -> int:
        if handle.load <= 0.01:
            return THROTTLE_REASONS["idle"]
        held = handle.power is not None and handle.power_limit is not None and handle.power >= handle.power_limit
        return (THROTTLE_REASONS["power_cap"] if held else 0) | (
            THROTTLE_REASONS["hardware_thermal"] if handle.heat > 93 else 0
        )

    def nvmlEventSetCreate(self) -> object:
        self.num_event_sets += 1
        return object()

    def nvmlDeviceRegisterEvents(self, handle: SimulatedCard, types: int, events: object) -> None:
        return None

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> Any:
        if not self._events:
            raise FakeNvmlError(self.NVML_ERROR_TIMEOUT)
        card, code = self._events.pop(0)
        return SimpleNamespace(device=card, eventType=8, eventData=code)

    def __getattribute__(self, name: str) -> Any:
        """Whatever is asked of a card fails or hangs as its ``errors`` and ``hangs`` say."""
        found = super().__getattribute__(name)
        if not name.startswith("nvml") or not callable(found):
            return found
        broken, errors = super().__getattribute__("_init_error"), super().__getattribute__("errors")

        def call(*arguments: Any) -> Any:
            code = broken if broken is not None else errors.get(name)
            if code is not None:
                raise FakeNvmlError(code)
            card = arguments[0] if arguments and isinstance(arguments[0], SimulatedCard) else None
            if card is not None:
                if name in card.hangs:
                    card.let_go.wait()
                if card.lost and name != "nvmlDeviceGetUUID":
                    raise FakeNvmlError(FakeNvml.NVML_ERROR_GPU_IS_LOST)
                if name in card.errors:
                    raise FakeNvmlError(card.errors[name])
            return found(*arguments)

        return call

    def _handle(self, card: SimulatedCard, name: str) -> SimulatedCard:
        if card.lost:
            raise FakeNvmlError(self.NVML_ERROR_GPU_IS_LOST)
        if name in card.errors:
            raise FakeNvmlError(card.errors[name])
        return card

    def _set(self, card: SimulatedCard, name: str, value: Any) -> None:
        self.sets.append((name, card.uuid, value))

    def _step(self) -> None:
        if self._clock is None:
            return
        with self._lock:
            now = self._clock()
            passed, self._at = now - self._at, now
            for card in self.cards:
                card.advance(passed)


def gpus_of(driver: FakeDriver) -> NvmlGpus:
    """The agent's own code over a fake driver."""
    return NvmlGpus(driver, driver.copy_bandwidth)


def _uuid(product: int, number: int) -> str:
    return f"GPU-{product:08d}-0000-4000-8000-{number:012d}"
