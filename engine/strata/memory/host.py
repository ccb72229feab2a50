"""Host memory that a GPU reads in place."""

from __future__ import annotations

import mmap

import torch

from strata.errors import HardwareError
from strata.plan.hardware import available_memory
from strata.plan.units import format_bytes

HEADROOM = 1 << 30  # bytes of host memory that are left to the server, the tokenizer and torch itself
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


class PinnedMemory:
    """``tensor``: uint8 [num_bytes] that begins at a page. It is locked into RAM and mapped for the GPU, whose kernels
    read it over PCIe at the same addresses and whose copy engine moves it without a stop in between.

    Huge pages are asked for, where the kernel gives them: fewer are to be locked, and the CPU reads 10 % faster.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """For ``device``; where that is a CPU, nothing needs to be locked. Raises HardwareError when control group or
        host have not that much left, or the driver does not lock it."""
        left = available_memory() - HEADROOM
        if num_bytes > left:
            raise HardwareError(
                f"{format_bytes(num_bytes, round_up=True)} of host memory are needed for experts; host and control "
                f"group leave {format_bytes(max(0, left))}. Raise the container's memory limit, let more experts into "
                "VRAM, or choose a dtype with fewer bits"
            )
        self._map = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)[:num_bytes]
        if device.type == "cuda" and num_bytes:
            self._lock()

    def _lock(self) -> None:
        # torch's own page-locked allocations round up to a power of two, and are not the kernel's huge pages.
        error = torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), len(self.tensor), _PORTABLE_AND_MAPPED)
        if int(error) != 0:
            raise HardwareError(
                f"the driver did not lock {format_bytes(len(self.tensor))} of host memory for the GPU (error "
                f"{int(error)}); {format_bytes(available_memory())} are left. Raise the container's memory limit, let "
                "more experts into VRAM, or choose a dtype with fewer bits"
            )
