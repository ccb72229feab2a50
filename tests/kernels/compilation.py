"""Triton kernels compiled for GPUs that are not here.

A driver that answers for the GPU lets a launcher choose, specialise and compile its kernels as it would there; nothing
is launched. So a case is a call of a launcher with tensors of a real model's shapes, empty and on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True, slots=True)
class Case:
    """wide: names of kernels that must read 16 bytes a thread at once. everywhere: on sm_90 as well; not where another
    case has its kernels there, and they are laid out as on sm_86."""

    name: str
    launch: Callable[[], Any]
    wide: frozenset[str] = frozenset()
    everywhere: bool = True


@dataclass(frozen=True, slots=True)
class Compiled:
    """shared: bytes of shared memory a program needs."""

    kernel: str
    shared: int
    ptx: str


class _Driver:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability[0] * 10 + self.capability[1], 32)

    def get_current_device(self) -> int:
        return self.capability[0] * 10 + self.capability[1]  # kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _gpu(capability: tuple[int, int], compiled: list[Compiled]) -> Iterator[None]:
    run, active, of_device = JITFunction.run, driver._active, torch.cuda.get_device_capability

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append(Compiled(self.fn.__name__, kernel.metadata.shared, kernel.asm["ptx"]))
        return kernel

    JITFunction.run = compile_only
    driver._active = _Driver(capability)
    torch.cuda.get_device_capability = lambda *_: capability
    try:
        yield
    finally:
        JITFunction.run, driver._active, torch.cuda.get_device_capability = run, active, of_device


def compile_case(case: Case, capability: tuple[int, int]) -> list[Compiled]:
    """The kernels that the case would launch on a GPU of ``capability``, in this order."""
    compiled: list[Compiled] = []
    with _gpu(capability, compiled):
        case.launch()
    return compiled
