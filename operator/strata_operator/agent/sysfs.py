"""The host through procfs and sysfs, under a root that tests and the fake replace."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from strata.plan.hardware import total_memory
from strata.plan.host import cpu_flags, cpu_name, memlock_limit, numa_node_of_pci, numa_nodes, parse_cpus
from strata_operator.agent.bandwidth import read_bandwidth
from strata_operator.agent.errors import HardwareError, NoPermissionError, UnsupportedError
from strata_operator.agent.hardware import NodePages
from strata_operator.api.node import PAGE_BYTES, NumaNode, Pages
from strata_operator.api.node import Host as HostFacts

# Of the CPU's flags, those that the engine's kernels ask for.
CPU_FLAGS = frozenset(
    ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16")
)
_UNLIMITED = 1 << 60  # control groups of version 1 write a number near 2^63 where there is no limit
_NODES = "sys/devices/system/node"


class Sysfs:
    """Raises NoPermissionError where the container is not privileged, UnsupportedError for what the kernel lacks."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def boot_id(self) -> str:
        return self._read("proc/sys/kernel/random/boot_id")

    def facts(self) -> HostFacts:
        try:
            memory = total_memory(self.root)
        except OSError as error:
            raise HardwareError(f"the machine's memory cannot be read: {error}") from error
        pages = self.hugepages()
        return HostFacts(
            cpu=cpu_name(self.root),
            cores=len(parse_cpus(self._read("sys/devices/system/cpu/online"))),
            cpu_flags=tuple(sorted(CPU_FLAGS & cpu_flags(self.root))),
            memory_bytes=memory,
            numa=tuple(
                NumaNode(
                    node=one.number,
                    cpus=self._read(f"{_NODES}/node{one.number}/cpulist"),
                    memory_bytes=one.memory_bytes,
                    hugepages=tuple(Pages(p.size, p.total) for p in pages if p.node == one.number and p.total),
                )
                for one in numa_nodes(self.root)
            ),
            memlock_bytes=memlock_limit(self.root),
            cgroup_version=self._cgroup_version(),
            pods_memory_bytes=self._pods_memory(),
        )

    def dram_bandwidth(self) -> int:
        try:
            return read_bandwidth()
        except OSError as error:
            raise HardwareError(f"the memory's bandwidth cannot be measured: {error}") from error

    def numa_node_of(self, bus_id: str) -> int | None:
        return numa_node_of_pci(bus_id, self.root)

    def hugepages(self) -> tuple[NodePages, ...]:
        found = []
        for node in self._nodes():
            for size in PAGE_BYTES:
                place = self._place(node, size)
                if (self.root / place).is_dir():
                    total, free = (int(self._read(f"{place}/{name}_hugepages")) for name in ("nr", "free"))
                    found.append(NodePages(node, size, total, free))
        return tuple(found)

    def promised_hugepages(self, size: str) -> int:
        return int(self._read(f"sys/kernel/mm/hugepages/{_directory(size)}/resv_hugepages"))

    def reserve_hugepages(self, node: int, size: str, pages: int) -> int:
        place = f"{self._place(node, size)}/nr_hugepages"
        self._write(place, str(pages))
        return int(self._read(place))

    def compact_memory(self) -> None:
        self._write("proc/sys/vm/compact_memory", "1")

    def _nodes(self) -> Iterator[int]:
        names = sorted(path.name for path in (self.root / _NODES).glob("node[0-9]*"))
        yield from sorted(int(name.removeprefix("node")) for name in names)

    def _place(self, node: int, size: str) -> str:
        return f"{_NODES}/node{node}/hugepages/{_directory(size)}"

    def _cgroup_version(self) -> int | None:
        mount = self.root / "sys/fs/cgroup"
        if (mount / "cgroup.controllers").exists():
            return 2
        return 1 if mount.is_dir() else None

    def _pods_memory(self) -> int | None:
        mount = self.root / "sys/fs/cgroup"
        for place in (
            *(mount / group / "memory.max" for group in ("kubepods.slice", "kubepods")),
            *(mount / "memory" / group / "memory.limit_in_bytes" for group in ("kubepods.slice", "kubepods")),
        ):
            try:
                limit = int(place.read_text())
            except (OSError, ValueError):  # not there, or "max"
                continue
            return limit if limit < _UNLIMITED else None
        return None

    def _read(self, place: str) -> str:
        try:
            return (self.root / place).read_text().strip()
        except OSError as error:
            raise self._error(place, error) from error

    def _write(self, place: str, text: str) -> None:
        try:
            (self.root / place).write_text(text)
        except OSError as error:
            raise self._error(place, error) from error

    def _error(self, place: str, error: OSError) -> HardwareError:
        path = self.root / place
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return NoPermissionError(f"{path}: {error.strerror}; the agent has to be root in a privileged container")
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            return UnsupportedError(f"{path}: {error.strerror}; this kernel does not have that")
        return HardwareError(f"{path}: {error.strerror}")


def _directory(size: str) -> str:
    return f"hugepages-{PAGE_BYTES[size] // 1024}kB"
