"""``spec.hardware``: what one replica runs on and gets."""

from __future__ import annotations

from dataclasses import dataclass

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields
from strata_operator.api.node import PAGE_BYTES
from strata_operator.api.quantity import format_quantity, parse_quantity

ACCELERATORS = ("nvidia", "cpu")
GPUS = ("RTX3090", "RTX3090Ti", "RTX4090", "RTX4090D")
DEFAULT_GPUS = ("RTX3090", "RTX4090")

# Beside the pinned budget, where the spec leaves the memory out: an allowance for the server, the tokenizer, CUDA's
# part on the host, and the pages of the store's files while it loads.
WORKING_SET_BYTES = 4 << 30
MIN_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Pcie:
    """A PCIe link, by what it can do at most: idle links train down."""

    generation: int | None = None
    width: int | None = None  # lanes


@dataclass(frozen=True, slots=True)
class Hardware:
    """Requests equal limits, so that the kubelet can give whole CPUs of one NUMA node."""

    accelerator: str  # nvidia | cpu; never one in place of the other
    cpu: int  # whole CPUs
    memory: str  # a Kubernetes quantity: all that is not in huge pages
    memory_bytes: int  # the same
    gpus: tuple[str, ...] = ()  # any of these; empty for cpu
    count: int = 0  # GPUs of one replica; 0 for cpu
    min_vram_gib: int | None = None
    min_pcie: Pcie = Pcie()
    pinned_bytes: int | None = None  # host memory for experts; None: what follows from the memory
    hugepages: str | None = None  # page size in which the pinned budget lies: a key of PAGE_BYTES

    @property
    def hugepages_bytes(self) -> int:
        """The pinned budget in whole huge pages; 0 where it lies in ordinary memory."""
        if self.hugepages is None or self.pinned_bytes is None:
            return 0
        page = PAGE_BYTES[self.hugepages]
        return -(-self.pinned_bytes // page) * page

    @classmethod
    def parse(cls, fields: Fields) -> Hardware:
        """Raises InvalidSpecError naming the field."""
        accelerator = fields.choice("accelerator", ACCELERATORS)
        gpus, count = fields.texts("gpus"), fields.get("count", int)
        min_vram, link = fields.between(1, 1024, "minVramGiB"), fields.table("minPcie")
        min_pcie = Pcie(link.between(1, 6, "generation"), link.choice_or_none("width", (1, 2, 4, 8, 16)))
        host = fields.table("hostMemory")
        unknown = [gpu for gpu in gpus if gpu not in GPUS]
        if unknown:
            raise InvalidSpecError(f"spec.hardware.gpus holds {unknown[0]!r}; allowed are {', '.join(GPUS)}")
        if accelerator == "cpu" and (gpus or (count, min_vram, min_pcie) != (None, None, Pcie())):
            raise InvalidSpecError(
                "spec.hardware.gpus, count, minVramGiB and minPcie belong to accelerator nvidia; remove them for cpu"
            )
        if accelerator == "nvidia" and count not in (None, 1):
            raise InvalidSpecError(
                f"spec.hardware.count is {count}; one replica runs on 1 GPU: set 1, or raise spec.replicas"
            )
        pinned, hugepages = _host_memory(host)
        cpu = fields.need("cpu", int)
        if cpu < 1:
            raise InvalidSpecError(f"spec.hardware.cpu is {cpu}; it must be at least 1")
        memory, memory_bytes = _memory(fields.get("memory", str), pinned, hugepages)
        return cls(
            accelerator=accelerator,
            cpu=cpu,
            memory=memory,
            memory_bytes=memory_bytes,
            gpus=(gpus or DEFAULT_GPUS) if accelerator == "nvidia" else (),
            count=1 if accelerator == "nvidia" else 0,
            min_vram_gib=min_vram,
            min_pcie=min_pcie,
            pinned_bytes=pinned,
            hugepages=hugepages,
        )


def _host_memory(fields: Fields) -> tuple[int | None, str | None]:
    """Bytes of the pinned budget, and the page size."""
    pinned = fields.get("pinned", str, "auto")
    hugepages = fields.choice("hugepages", ("none", *PAGE_BYTES), "none")
    size = None if pinned in (None, "auto") else parse_quantity(str(pinned), "spec.hardware.hostMemory.pinned")
    if hugepages == "none":
        return size, None
    if size is None:
        raise InvalidSpecError(
            f"spec.hardware.hostMemory.hugepages is {hugepages}, and pinned is auto; huge pages are reserved ahead, so "
            "give pinned a size such as 48Gi, or set hugepages: none"
        )
    return size, hugepages


def _memory(given: str | None, pinned: int | None, hugepages: str | None) -> tuple[str, int]:
    """Request and limit: as given, else the pinned budget and a working set. Huge pages count for themselves."""
    inside = 0 if hugepages else pinned or 0
    if given is None:
        if pinned is None:
            raise InvalidSpecError(
                "spec.hardware.memory is missing; give it, or a size for spec.hardware.hostMemory.pinned"
            )
        return format_quantity(inside + WORKING_SET_BYTES), inside + WORKING_SET_BYTES
    size = parse_quantity(given, "spec.hardware.memory")
    if size < inside + MIN_MEMORY_BYTES:
        raise InvalidSpecError(
            f"spec.hardware.memory is {given!r}; at least {format_quantity(inside + MIN_MEMORY_BYTES)} is needed: "
            "hostMemory.pinned lies in it, and 512Mi beside"
        )
    return given, size
