"""Host memory that a GPU reads in place."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from strata.config.engine import PAGE_BYTES
from strata.errors import HardwareError
from strata.memory.driver import DriverError, Lock
from strata.plan.hardware import available_memory, huge_page_limit, num_cpus
from strata.plan.host import ROOT, huge_pages
from strata.plan.memory import HEADROOM_BYTES
from strata.plan.units import format_bytes

_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26  # of linux/mman.h
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_PART_BYTES = 256 << 20  # that a thread asks the kernel for at a time


class PinnedMemory:
    """``tensor``: uint8 [num_bytes] that begins at a page. It is locked into RAM and mapped for the GPU, whose kernels
    read it over PCIe at the same addresses and whose copy engine moves it without a stop in between, for as long as
    there is a tensor in it.

    ``hugepages``: the size of reserved pages in which it lies, a key of ``PAGE_BYTES``. "off": ordinary memory, in
    large pages as far as the kernel finds some: fewer are to be locked, and the CPU reads 10 % faster.
    """

    def __init__(
        self,
        num_bytes: int,
        device: torch.device,
        hugepages: str = "off",
        *,
        near: Sequence[int] = (),
        root: Path = ROOT,
    ) -> None:
        """For ``device``; where that is a CPU, nothing needs to be locked. ``near``: CPUs of the NUMA node in whose
        memory it is to lie, as far as that has room; none: wherever. ``root``: of procfs and sysfs. Raises
        HardwareError when control group or host have not that much left, or the driver does not lock it."""
        made = _ordinary(num_bytes, root) if hugepages == "off" else _reserved(num_bytes, hugepages, root)
        whole = torch.frombuffer(made, dtype=torch.uint8)
        self.tensor = whole[:num_bytes]
        try:
            _populate(whole, near)
        except OSError as error:
            # Without this, a thread that touches the page that is not there ends the process with SIGBUS.
            raise _refused(len(whole), hugepages, root, f" ({error.strerror})") from error
        if device.type == "cuda" and num_bytes:
            made.lock = _lock(whole, device)


class _Map(mmap.mmap):
    """Kept by the tensors in it; unlocked before it is unmapped."""

    lock: Lock | None = None

    def __del__(self) -> None:
        if self.lock is not None:
            self.lock.release()


def check_room(num_bytes: int, root: Path = ROOT) -> None:
    """Raise HardwareError when control group or host have not that much ordinary memory left for experts."""
    left = available_memory(root) - HEADROOM_BYTES
    if num_bytes > left:
        raise HardwareError(
            f"{format_bytes(num_bytes, round_up=True)} of host memory are needed for experts; host and control "
            f"group leave {format_bytes(max(0, left))}. Raise the container's memory limit, let more experts into "
            "VRAM, or choose a dtype with fewer bits"
        )


def _ordinary(num_bytes: int, root: Path) -> _Map:
    check_room(num_bytes, root)
    made = _Map(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _reserved(num_bytes: int, hugepages: str, root: Path) -> _Map:
    """Of whole pages. Shared, so that a child that is forked never takes pages for copies of them."""
    page = PAGE_BYTES[hugepages]
    size = -(-max(num_bytes, 1) // page) * page
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_HUGETLB | (page.bit_length() - 1) << _MAP_HUGE_SHIFT
    try:
        return _Map(-1, size, flags=flags)
    except OSError as error:
        raise _refused(size, hugepages, root, "") from error


def _refused(size: int, hugepages: str, root: Path, why: str) -> HardwareError:
    needed = f"the kernel does not give {format_bytes(size, round_up=True)} of host memory for experts"
    if hugepages == "off":
        return HardwareError(
            f"{needed}{why}; {format_bytes(available_memory(root))} are left. Raise the container's memory limit, let "
            "more experts into VRAM, or choose a dtype with fewer bits"
        )
    page = PAGE_BYTES[hugepages]
    total, free = next(((p.total, p.free) for p in huge_pages(root) if p.page_bytes == page), (0, 0))
    limit = huge_page_limit(page, root)
    allowed = "" if limit is None else f", and the control group allows {limit // page}"
    return HardwareError(
        f"{needed} in huge pages{why}: {size // page} pages of {hugepages} are needed; of {total} that are reserved "
        f"{free} are free{allowed}. Reserve more (/sys/kernel/mm/hugepages/hugepages-{page // 1024}kB/nr_hugepages, or "
        f"hugepagesz={page // 1024}K hugepages=N when the machine starts), raise the container's limit of them, let "
        "more experts into VRAM, or set hugepages off"
    )


def _populate(memory: torch.Tensor, near: Sequence[int]) -> None:
    """Have the kernel find and clear all pages now, on all cores: page after page, as they are first touched, takes
    several times as long. Raises OSError when it has not enough.

    A page lies on the node of the thread that asks. (Containers may choose their threads' cores, but not bind memory.)
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def populate(at: int) -> None:
        part = memory[at : at + _PART_BYTES]
        if not libc.madvise(ctypes.c_void_p(part.data_ptr()), ctypes.c_size_t(len(part)), _MADV_POPULATE_WRITE):
            return
        error = ctypes.get_errno()
        if error != errno.EINVAL:
            raise OSError(error, os.strerror(error))
        part.numpy()[:: mmap.PAGESIZE] = 0  # older kernels cannot be asked

    def move() -> None:
        if near:
            os.sched_setaffinity(0, near)  # this thread alone

    parts = range(0, len(memory), _PART_BYTES)
    with ThreadPoolExecutor(min(len(parts), len(near) or num_cpus()), initializer=move) as pool:
        for _ in pool.map(populate, parts):
            pass


def _lock(memory: torch.Tensor, device: torch.device) -> Lock:
    # torch's own page-locked allocations round up to a power of two, and are not the kernel's huge pages.
    try:
        return Lock(memory.data_ptr(), len(memory), device.index or 0)
    except DriverError as error:
        raise HardwareError(
            f"the driver did not lock {format_bytes(len(memory))} of host memory for the GPU (error {error.code}) "
            f"beside {format_bytes(Lock.locked_bytes)} that are locked; {format_bytes(available_memory())} are left. "
            "Raise the container's memory limit, let more experts into VRAM, or choose a dtype with fewer bits"
        ) from error
