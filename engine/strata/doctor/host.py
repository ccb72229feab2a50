"""CPUs, memory and disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from strata.doctor.finding import Finding, fail, ok, warn
from strata.plan.hardware import available_memory, cpu_limit, memory_limit, num_cpus, total_memory
from strata.plan.host import (
    cpu_flags,
    cpu_name,
    huge_pages,
    memlock_limit,
    numa_nodes,
    transparent_huge_pages,
)
from strata.plan.units import format_bytes
from strata.store.directories import nearest_existing

GIB = 1 << 30
LITTLE_MEMORY = 4 * GIB  # torch and the server take one of it
LITTLE_DISK = 20 * GIB  # an 8B model in int4 is 5, its bf16 checkpoint 16
LITTLE_SHM = GIB

# What the kernels can use, by the names that Linux gives to the CPU's flags.
_FEATURES = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "AMX": ("amx_int8", "amx_bf16"),
}


def check_host(root: Path, *, num_gpus: int, cache: Path | None) -> list[Finding]:
    """``cache``: where converted models are kept; None where no place for them is known."""
    memory = [*_memory(root), _memlock(root, num_gpus)]
    return [*_cpu(root), *memory, *_pages(root), _shm(root, num_gpus), check_disk(cache)]


def _cpu(root: Path) -> Iterator[Finding]:
    usable = num_cpus(root)
    yield ok("cpu", f"{cpu_name(root)}, {usable} {'CPU' if usable == 1 else 'CPUs'} usable")
    flags = cpu_flags(root)
    have = [name for name, words in _FEATURES.items() if any(word in flags for word in words)]
    lack = [name for name in _FEATURES if name not in have]
    message = ", ".join(have) or "none"
    if lack:
        message += f"; not {', '.join(lack)}"
    if "AVX2" in have:
        yield ok("cpu features", message)
    else:
        yield warn("cpu features", message, "a CPU without AVX2 computes very slowly; use another, or a card")
    quota = cpu_limit(root)
    if quota is None:
        yield ok("cpu limit", "no control group limits CPU time")
    elif quota < len(os.sched_getaffinity(0)):
        advice = "give it whole CPUs (in Kubernetes: requests equal to limits, and the static CPU manager)"
        yield warn("cpu limit", f"the control group allows {quota:g} CPUs' worth of time on more CPUs", advice)
    else:
        yield ok("cpu limit", f"the control group allows {quota:g} CPUs")
    nodes = numa_nodes(root)
    if nodes:
        listed = "; ".join(
            f"node {node.number}: {len(node.cpus)} CPUs, {format_bytes(node.memory_bytes)}" for node in nodes
        )
        yield ok("NUMA", listed)
    else:
        yield ok("NUMA", "not told by this kernel")


def _memory(root: Path) -> Iterator[Finding]:
    available = available_memory(root)
    message = f"{format_bytes(total_memory(root))}, {format_bytes(available)} free for this process"
    if available < LITTLE_MEMORY:
        yield warn("memory", message, "end other programs, or raise the container's memory limit")
    else:
        yield ok("memory", message)
    limit = memory_limit(root)
    yield ok("memory limit", "no control group limits it" if limit is None else f"control group: {format_bytes(limit)}")


def _memlock(root: Path, num_gpus: int) -> Finding:
    limit = memlock_limit(root)
    if limit is None:
        return ok("memlock", "unlimited")
    message = f"{format_bytes(limit)} may be locked"
    if not num_gpus:
        return ok("memlock", f"{message}; only copies to a card need more")
    return warn(
        "memlock",
        f"{message}; what a card reads from host memory is pinned",
        "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1",
    )


def _pages(root: Path) -> Iterator[Finding]:
    reserved = [pages for pages in huge_pages(root) if pages.total]
    transparent = transparent_huge_pages(root)
    message = "; ".join(
        f"{pages.free} of {pages.total} pages of {format_bytes(pages.page_bytes)} free" for pages in reserved
    )
    message = f"{message or 'none reserved'}; transparent: {transparent or 'not in this kernel'}"
    if reserved or transparent in ("always", "madvise"):
        yield ok("hugepages", message)
    else:
        advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: large pages save some 10 % on the CPU"
        yield warn("hugepages", message, advice)


def _shm(root: Path, num_gpus: int) -> Finding:
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError as error:
        message = f"/dev/shm cannot be looked at: {error.strerror}"
        return warn("/dev/shm", message, "mount a tmpfs there: programs share memory through it")
    size = stat.f_frsize * stat.f_blocks
    if size < LITTLE_SHM and num_gpus > 1:
        advice = "several cards exchange data through it: --shm-size 1g (docker), or an emptyDir of medium Memory"
        return warn("/dev/shm", format_bytes(size), advice)
    return ok("/dev/shm", format_bytes(size))


def check_disk(cache: Path | None, needed: int = LITTLE_DISK) -> Finding:
    """Room for ``needed`` bytes where converted models are kept."""
    if cache is None:
        advice = "set HOME, or STRATA_CACHE_DIR to a directory of yours"
        return fail("cache", "no place for converted models: the home directory is not known", advice)
    place = nearest_existing(cache)
    stat = os.statvfs(place)
    free = stat.f_frsize * stat.f_bavail
    message = f"{cache}: {format_bytes(free)} free"
    if not os.access(place, os.W_OK):
        return fail("cache", f"{message}; {place} cannot be written", "set STRATA_CACHE_DIR to a directory of yours")
    if free < needed:
        advice = "make room, or set STRATA_CACHE_DIR to a larger disk: converted models are kept there"
        return warn("cache", f"{message}, {format_bytes(needed)} are wished for", advice)
    return ok("cache", message)
