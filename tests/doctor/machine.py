"""A machine as a tree of files: a desktop with two NUMA nodes, unless told otherwise."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30

CPUINFO = (
    "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\nflags\t\t: fpu sse4_2 avx2 fma\n\n"
    "processor\t: 1\nmodel name\t: another\nflags\t\t: avx512f\n"
)
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             96365                96365                processes \n"
    "Max locked memory         {memlock:<20} unlimited            bytes     \n"
)


def machine(root: Path, *, memlock: str = "unlimited", thp: str = "always [madvise] never", nodes: int = 2) -> Path:
    """The tree, made under ``root``; more files may be added to it."""
    write(
        root,
        {
            "proc/cpuinfo": CPUINFO,
            "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {60 * GIB // 1024} kB\n",
            "proc/self/limits": LIMITS.format(memlock=memlock),
            "sys/kernel/mm/transparent_hugepage/enabled": f"{thp}\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0\n",
            "sys/bus/pci/devices/0000:65:00.0/numa_node": "1\n" if nodes > 1 else "-1\n",
        },
    )
    for node in range(nodes):
        first, last = 14 * node, 14 * node + 13
        write(
            root / f"sys/devices/system/node/node{node}",
            {"cpulist": f"{first}-{last}\n", "meminfo": f"Node {node} MemTotal: {32 * GIB // 1024} kB\n"},
        )
    (root / "dev/shm").mkdir(parents=True)
    return root


def write(root: Path, files: dict[str, str]) -> None:
    """Files under ``root``, with the directories that they need."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
