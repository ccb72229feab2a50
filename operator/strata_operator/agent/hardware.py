"""The one interface behind which cards and host are: values that pass through it, and what may be asked and set.

Real are ``nvml.NvmlGpus`` and ``sysfs.Sysfs``; ``fake`` puts a simulated driver and a made-up file tree under them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from strata_operator.api.node import Host as HostFacts

Clock = Literal["sm", "memory"]


@dataclass(frozen=True, slots=True)
class Card:
    """What stays the same of a card as long as it is in its slot. None: this card does not tell."""

    uuid: str
    index: int
    product: str  # as a label's value: NVIDIA-GeForce-RTX-3090
    bus_id: str  # "00000000:65:00.0"
    compute_capability: str
    vram_bytes: int
    usable_vram_bytes: int
    max_pcie_generation: int | None  # of card and slot together
    max_pcie_width: int | None
    default_power_limit: int | None  # milliwatts, as all power here
    power_limit_range: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What moves. None: this card does not tell."""

    core_temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power: int | None = None  # milliwatts
    power_limit: int | None = None  # as set; milliwatts
    energy: int | None = None  # millijoules since the driver was loaded
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilization_percent: int | None = None
    vram_used_bytes: int | None = None
    fan_percent: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_rx_bytes_per_second: int | None = None  # of the last 20 ms: a sample, no mean
    pcie_tx_bytes_per_second: int | None = None
    throttle_reasons: frozenset[str] = frozenset()  # keys of nvml.THROTTLE_REASONS
    persistence_mode: bool | None = None
    uncorrected_ecc_errors: int | None = None  # since the driver was loaded


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault that the driver told of."""

    uuid: str | None  # None: of no card in particular
    code: int


@dataclass(frozen=True, slots=True)
class Found:
    """Cards that answer, and the words of those that the driver counts and that do not: lost ones, and others."""

    cards: tuple[Card, ...]
    lost: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePages:
    """Huge pages of one size on one NUMA node."""

    node: int
    size: str  # a key of api.node.PAGE_BYTES
    total: int
    free: int


class Gpus(Protocol):
    """All cards. Every method may raise HardwareError or one of its kinds."""

    def driver_version(self) -> str: ...
    def find(self) -> Found: ...
    def read(self, uuid: str) -> Reading: ...
    def take_xids(self) -> tuple[Xid, ...]:
        """Those that came since the last call."""
        ...

    def copy_bandwidth(self, uuid: str) -> int:
        """10^6 bytes a second from pinned memory to the card; measured, with 300 MiB of the card for some seconds."""
        ...

    def set_power_limit(self, uuid: str, milliwatts: int) -> None: ...
    def set_persistence_mode(self, uuid: str, on: bool) -> None: ...
    def lock_clock(self, uuid: str, clock: Clock, max_mhz: int) -> None: ...
    def unlock_clock(self, uuid: str, clock: Clock) -> None: ...


class Host(Protocol):
    """The machine. Every method may raise HardwareError or one of its kinds."""

    def boot_id(self) -> str:
        """Another one after each start of the machine."""
        ...

    def facts(self) -> HostFacts: ...
    def dram_bandwidth(self) -> int:
        """10^6 bytes a second that all CPUs together read; measured, which takes about a second of all of them."""
        ...

    def numa_node_of(self, bus_id: str) -> int | None: ...
    def hugepages(self) -> tuple[NodePages, ...]: ...
    def promised_hugepages(self, size: str) -> int:
        """Pages that are mapped somewhere and not touched yet: free, but not to be taken away."""
        ...

    def reserve_hugepages(self, node: int, size: str, pages: int) -> int:
        """Ask the kernel for that many on that node; how many there are then."""
        ...

    def compact_memory(self) -> None:
        """Have the kernel move small pages together, so that large ones can be made."""
        ...
