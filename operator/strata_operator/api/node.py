"""StrataNode, group strata.ai, version v1alpha1: one GPU node.

It is cluster-scoped and of the Node's own name. The operator writes ``spec.tuning``, an administrator ``spec.suspend``
and ``spec.powerBudgetWatts``, the agent ``status``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strata_operator.api import wire
from strata_operator.api.conditions import Trouble, having
from strata_operator.api.errors import InvalidSpecError

NODE_KIND = "StrataNode"
NODE_PLURAL = "stratanodes"

# Labels that the agent keeps on the Node, each only where it is true of every card of the node.
GPU_PRODUCT_LABEL = "strata.ai/gpu-product"  # see ``product_label``
VRAM_LABEL = "strata.ai/vram-gib"  # of the smallest card, to the nearest GiB: 24
PCIE_GENERATION_LABEL = "strata.ai/pcie-generation"  # the most that card and slot together do, of the slowest card
PCIE_WIDTH_LABEL = "strata.ai/pcie-width"
NODE_LABELS = (GPU_PRODUCT_LABEL, VRAM_LABEL, PCIE_GENERATION_LABEL, PCIE_WIDTH_LABEL)
_LABEL_LENGTH = 63  # of a value, at most
FORGET_FAULTS_ANNOTATION = "strata.ai/forget-faults"  # on the StrataNode: somebody reset or removed the card
UNHEALTHY_TAINT = "strata.ai/gpu-unhealthy"  # NoSchedule, while Healthy is False

HEALTHY = "Healthy"  # every card answers and has no fault
TUNED = "Tuned"  # all that spec asks for, of this generation, is in force
PCIE_DEGRADED = "PcieDegraded"  # under load, a link is slower than card and slot can do
THERMALLY_LIMITED = "ThermallyLimited"  # heat slows a card: it does so itself, or the agent holds its limit down
GPU_LOST = "GpuLost"  # a card fell off the bus, or one that was there is gone
NODE_CONDITIONS = (HEALTHY, TUNED, PCIE_DEGRADED, THERMALLY_LIMITED, GPU_LOST)

PAGE_BYTES = {"2Mi": 2 << 20, "1Gi": 1 << 30}


def product_label(products: Iterable[str]) -> str | None:
    """The label of a node with such cards: NVIDIA-GeForce-RTX-3090, as GPU Feature Discovery would write it, or several
    with "_" between them; None where they are too many for a label."""
    value = "_".join(sorted(set(products)))
    return value if len(value) <= _LABEL_LENGTH else None


# -- spec ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PagesWish:
    """Huge pages that a model wants to be there on the node, over all NUMA nodes."""

    size: str  # a key of PAGE_BYTES
    pages: int

    def __post_init__(self) -> None:
        """Raises InvalidSpecError for a size that this version does not know."""
        if self.size not in PAGE_BYTES:
            raise InvalidSpecError(f"huge pages of size {self.size!r} are wanted; allowed are {', '.join(PAGE_BYTES)}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one model wants of a node that runs it. None: no wish.

    Of several models the lowest limit wins; pages add up.
    """

    model: str  # NAMESPACE/NAME
    gpus: tuple[str, ...] = ()  # UUIDs of the cards that are meant; empty: all of the node
    power_limit_watts: int | None = None
    sm_clock_max_mhz: int | None = field(default=None, metadata={"json": "smClockMaxMHz"})
    memory_clock_max_mhz: int | None = field(default=None, metadata={"json": "memoryClockMaxMHz"})
    max_core_temperature_c: int | None = None
    max_memory_temperature_c: int | None = None  # not heeded on cards that do not tell it (all of the 30 series)
    hugepages: tuple[PagesWish, ...] = ()

    @property
    def is_of_cards(self) -> bool:
        """Whether it wants anything of cards, beside huge pages of the host."""
        clocks = (self.sm_clock_max_mhz, self.memory_clock_max_mhz)
        limits = (self.power_limit_watts, self.max_core_temperature_c, self.max_memory_temperature_c)
        return any(value is not None for value in (*clocks, *limits))


@dataclass(frozen=True, slots=True)
class Tuning:
    """All wishes; no two of one model."""

    models: tuple[Wish, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What is wanted of the node."""

    tuning: Tuning = field(default_factory=Tuning)
    power_budget_watts: int | None = None  # the sum of the cards' power limits stays within it
    suspend: bool = False  # give every setting its original value back and change nothing any more

    @property
    def is_of_cards(self) -> bool:
        """Whether it wants anything of cards, beside huge pages of the host."""
        return self.power_budget_watts is not None or any(wish.is_of_cards for wish in self.tuning.models)


# -- status --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pcie:
    """A card's link. It rests at generation 1, so what it is now is told as it was last seen under load."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None  # of card and slot together
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class Power:
    """A card's power limit now, the factory's, and what may be set."""

    limit_watts: int
    default_watts: int
    min_watts: int
    max_watts: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card."""

    uuid: str
    index: int
    product: str  # as a label's value: NVIDIA-GeForce-RTX-4090
    vram_bytes: int
    usable_vram_bytes: int  # without what the driver keeps for itself
    compute_capability: str  # "8.6"
    pcie: Pcie = field(default_factory=Pcie)
    power: Power | None = None  # None: this card tells no limit
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Pages:
    """Huge pages of one size that are reserved, used or not."""

    size: str
    pages: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory, and the CPUs near to it."""

    node: int
    cpus: str  # the kernel's list: "0-15,32-47"
    memory_bytes: int
    hugepages: tuple[Pages, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """The machine without its cards."""

    cpu: str  # its name
    cores: int  # logical CPUs
    cpu_flags: tuple[str, ...]  # those of which the engine's kernels make use, sorted
    memory_bytes: int
    numa: tuple[NumaNode, ...] = ()
    memlock_bytes: int | None = None  # that the agent may lock; None: without limit
    cgroup_version: int | None = None
    pods_memory_bytes: int | None = None  # that all pods together may use, by the kubelet's control group


@dataclass(frozen=True, slots=True)
class HostToDevice:
    """Copies from pinned memory to one card."""

    uuid: str
    megabytes_per_second: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured bandwidths in 10^6 bytes a second."""

    dram_megabytes_per_second: int | None = None  # all CPUs read at once
    host_to_device: tuple[HostToDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One wish for one card, and what came of it."""

    name: str  # the wish's field, as powerLimitWatts
    requested: int
    model: str | None = None  # whose wish it is: the lowest of all; None: the power budget's
    enforced: int | None = None  # None: it is not in force; the condition Tuned says why


@dataclass(frozen=True, slots=True)
class TunedGpu:
    """A card's settings."""

    uuid: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class TunedPages:
    """Huge pages of one size over all NUMA nodes."""

    size: str
    requested: int
    enforced: int  # reserved now
    allocatable: int  # what the kubelet tells the scheduler


@dataclass(frozen=True, slots=True)
class Enforced:
    """What came of the wishes."""

    gpus: tuple[TunedGpu, ...] = ()
    hugepages: tuple[TunedPages, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuOriginals:
    """What an administrator had on a card, of those settings alone that the agent changed or is about to change."""

    uuid: str
    power_limit_milliwatts: int | None = None
    persistence_mode: bool | None = None
    # NVML tells no locked clocks, so what was before cannot be known: they are unlocked again.
    locked_clocks: tuple[str, ...] = ()  # "sm", "memory"


@dataclass(frozen=True, slots=True)
class PagesOriginal:
    """Pages that were reserved on one NUMA node before."""

    node: int
    size: str
    pages: int


@dataclass(frozen=True, slots=True)
class Originals:
    """All that has to be put back."""

    gpus: tuple[GpuOriginals, ...] = ()
    hugepages: tuple[PagesOriginal, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """An XID that makes a card unfit until the machine is started anew, or until the annotation above is set."""

    uuid: str
    xid: int
    since: str  # RFC 3339


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """All that the agent tells, without the conditions."""

    observed_generation: int = 0
    boot_id: str | None = None  # of the machine's run that this tells of: with another, lost cards and faults are over
    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()  # in the order of their UUIDs
    host: Host | None = None
    calibration: Calibration | None = None
    enforced: Enforced = field(default_factory=Enforced)
    originals: Originals = field(default_factory=Originals)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class StrataNode:
    """One node. ``conditions`` are as in the status, for ``conditions.find``."""

    name: str
    uid: str
    generation: int
    spec: NodeSpec
    status: NodeStatus
    conditions: tuple[Mapping[str, Any], ...] = ()

    @property
    def ailment(self) -> Trouble | None:
        """Why it is not healthy, in its agent's words; None as long as that does not say so."""
        found = having(self.conditions, HEALTHY, "False")
        return Trouble(found[0].get("reason", "NotHealthy"), found[0].get("message", "")) if found else None

    @property
    def is_healthy(self) -> bool:
        return self.ailment is None

    @property
    def has_lost_its_card(self) -> bool:
        """Whether the only card of it is lost: no pod there computes any more, whatever it says. Of several nobody
        knows whose it was."""
        return len(self.status.gpus) == 1 and bool(having(self.conditions, GPU_LOST, "True"))

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> StrataNode:
        """Raises InvalidSpecError naming the field, for a spec that this version does not know or cannot read.

        A part of the status that cannot be read, edited by hand perhaps, counts as absent: the agent writes it again.
        """
        metadata, status = obj["metadata"], obj.get("status") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=wire.load(NodeSpec, obj.get("spec") or {}, "spec", closed=True),
            status=wire.load_parts(NodeStatus, status, "status"),
            conditions=tuple(status.get("conditions") or ()),
        )
