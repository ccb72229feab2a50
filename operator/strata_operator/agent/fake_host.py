"""A host without the host: a made-up file tree under ``sysfs.Sysfs``, with a kernel that makes and frees huge pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strata_operator.agent.sysfs import Sysfs
from strata_operator.api.node import PAGE_BYTES


@dataclass
class Memory:
    """Huge pages of one size on one NUMA node, as the fake's kernel has them."""

    total: int = 0
    used: int = 0  # of total, those that somebody touched
    possible: int = 1 << 20  # so many can be made with the memory as it is
    after_compaction: int = 1 << 20  # so many once small pages were moved together


class FakeSysfs(Sysfs):
    """Two NUMA nodes of 64 GiB and eight CPUs each, unless told otherwise, written below ``root``.

    ``memory`` is keyed by node and size; change it, then ``refresh``. ``promised`` pages are mapped and untouched.
    """

    def __init__(self, root: Path, *, nodes: int = 2, boot_id: str = "11111111-2222-3333-4444-555555555555") -> None:
        super().__init__(root)
        self.memory = {(node, size): Memory() for node in range(nodes) for size in PAGE_BYTES}
        self.promised = dict.fromkeys(PAGE_BYTES, 0)
        self.num_compactions = 0
        self.num_measurements = 0
        self._put("proc/meminfo", f"MemTotal: {nodes * 64 << 20} kB\nMemAvailable: {nodes * 60 << 20} kB\n")
        flags = "fpu avx2 fma f16c avx512f avx512bw avx512_vnni"
        self._put("proc/cpuinfo", f"processor: 0\nmodel name: Pretend CPU\nflags: {flags}\n\nprocessor: 1\n")
        self._put(
            "proc/self/limits", f"Max locked memory         {8 << 20}              {8 << 20}              bytes\n"
        )
        self._put("proc/self/cgroup", "0::/\n")
        self._put("proc/sys/vm/compact_memory", "")
        self.restart(boot_id)
        self._put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
        self._put("sys/fs/cgroup/kubepods.slice/memory.max", f"{nodes * 56 << 30}\n")
        self._put("sys/devices/system/cpu/online", f"0-{8 * nodes - 1}\n")
        for node in range(nodes):
            place = f"sys/devices/system/node/node{node}"
            self._put(f"{place}/cpulist", f"{8 * node}-{8 * node + 7}\n")
            self._put(f"{place}/meminfo", f"Node {node} MemTotal:       {64 << 20} kB\n")
        self.refresh()

    def restart(self, boot_id: str) -> None:
        """The machine starts anew: no huge pages, and another boot id."""
        self._put("proc/sys/kernel/random/boot_id", f"{boot_id}\n")
        for one in self.memory.values():
            one.total = one.used = 0
        self.refresh()

    def put_card(self, bus_id: str, node: int) -> None:
        """A card hangs on that NUMA node."""
        self._put(f"sys/bus/pci/devices/{bus_id.lower()[-12:]}/numa_node", f"{node}\n")

    def refresh(self) -> None:
        """Write the files that follow from ``memory`` and ``promised``."""
        for (node, size), one in self.memory.items():
            self._put(f"{self._place(node, size)}/nr_hugepages", f"{one.total}\n")
            self._put(f"{self._place(node, size)}/free_hugepages", f"{one.total - one.used}\n")
        for size, promised in self.promised.items():
            name = f"hugepages-{PAGE_BYTES[size] // 1024}kB"
            self._put(f"sys/kernel/mm/hugepages/{name}/resv_hugepages", f"{promised}\n")

    def dram_bandwidth(self) -> int:
        self.num_measurements += 1
        return 60_000

    def reserve_hugepages(self, node: int, size: str, pages: int) -> int:
        """As the kernel: as many as can be made or freed, without a word where it is less."""
        super().reserve_hugepages(node, size, pages)
        one = self.memory[node, size]
        one.total = max(one.used, min(pages, max(one.possible, one.total)))
        self.refresh()
        return one.total

    def compact_memory(self) -> None:
        super().compact_memory()
        self.num_compactions += 1
        for one in self.memory.values():
            one.possible = max(one.possible, one.after_compaction)

    def _put(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
