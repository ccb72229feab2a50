"""Facts of the host, read from procfs and sysfs under a root that tests replace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory that some CPUs are near to."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class HugePages:
    """Reserved pages of one size; ``free``: neither used nor promised to a process."""

    page_bytes: int
    total: int
    free: int


def cpu_name(root: Path = ROOT) -> str:
    """As /proc/cpuinfo names the first CPU; "unknown CPU" where it does not."""
    return _cpuinfo(root).get("model name", "unknown CPU")


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """What the first CPU says that it can do, in Linux's words: "avx2", "avx512_vnni"."""
    return frozenset(_cpuinfo(root).get("flags", "").split())


def driver_version(root: Path = ROOT) -> str:
    """Of NVIDIA's kernel module, as "580.65.06"; "none" where none is loaded."""
    match = re.search(
        r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(root / "proc/driver/nvidia/version"), re.MULTILINE
    )
    return "none" if match is None else match[1]


def numa_nodes(root: Path = ROOT) -> tuple[NumaNode, ...]:
    """Every node that has memory; none where sysfs does not tell."""
    nodes = []
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        match = re.search(r"MemTotal:\s+(\d+) kB", _text(directory / "meminfo"))
        if match is not None:
            cpus = parse_cpus(_text(directory / "cpulist"))
            nodes.append(NumaNode(int(directory.name.removeprefix("node")), cpus, int(match[1]) * 1024))
    return tuple(sorted(nodes, key=lambda node: node.number))


def numa_node_of_pci(bus_id: str, root: Path = ROOT) -> int | None:
    """The node that a PCI device hangs on; ``bus_id`` as NVML writes it ("00000000:65:00.0"). None: not told."""
    text = _text(root / "sys/bus/pci/devices" / bus_id.lower()[-12:] / "numa_node").strip()
    return int(text) if text.isdigit() else None


def memlock_limit(root: Path = ROOT) -> int | None:
    """Bytes that this process may lock in memory; None where there is no limit, or none is told."""
    match = re.search(r"^Max locked memory\s+(\S+)", _text(root / "proc/self/limits"), re.MULTILINE)
    return int(match[1]) if match is not None and match[1].isdigit() else None


def huge_pages(root: Path = ROOT) -> tuple[HugePages, ...]:
    """Every size that the kernel knows, smallest first."""
    found = []
    for directory in (root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        size = int(directory.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        names = ("nr_hugepages", "free_hugepages", "resv_hugepages")
        total, free, promised = (int(_text(directory / name).strip() or 0) for name in names)
        found.append(HugePages(size, total, free - promised))
    return tuple(sorted(found, key=lambda pages: pages.page_bytes))


def transparent_huge_pages(root: Path = ROOT) -> str | None:
    """ "always", "madvise" or "never"; None where the kernel has none."""
    match = re.search(r"\[(\w+)\]", _text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return match[1] if match is not None else None


def parse_cpus(text: str) -> frozenset[int]:
    """The kernel's lists: "0-3,8" is 0, 1, 2, 3, 8."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _cpuinfo(root: Path) -> dict[str, str]:
    """Of the first CPU."""
    block = _text(root / "proc/cpuinfo").partition("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
