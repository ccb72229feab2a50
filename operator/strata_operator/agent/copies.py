"""How fast pinned host memory is copied to a card: measured through CUDA's driver library, in a process of its own.

A process, because a defect of a library that is called by hand ends whoever calls it, and because the memory that a
CUDA context takes on the card (some 300 MiB) is given back with certainty only when its process ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from strata_operator.agent.errors import HardwareError, HungError, UnsupportedError

BYTES = 128 << 20
PASSES = 8  # the best of them counts
SECONDS = 30.0  # a context on a card that wakes up takes a few


def measure(uuid: str) -> int:
    """10^6 bytes a second. Raises UnsupportedError where there is no CUDA, HungError where it takes too long."""
    # The card alone is visible there, and so is device 0.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    command = [sys.executable, "-m", "strata_operator.agent.copies"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise HungError(f"card {uuid}: no copy within {SECONDS:g} s") from error
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UnsupportedError(f"card {uuid}: copies cannot be measured: {words[0]}")
    return int(done.stdout)


def copy(cuda: Any, clock: Callable[[], float] = time.perf_counter) -> int:
    """10^6 bytes a second to device 0 of ``cuda``, the library libcuda. Raises HardwareError with CUDA's number."""

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            raise HardwareError(f"{name} answers {code}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    host, card = ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(BYTES)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAllocHost_v2", ctypes.byref(host), size)
    call("cuMemAlloc_v2", ctypes.byref(card), size)
    best = float("inf")
    for _ in range(PASSES):
        began = clock()
        call("cuMemcpyHtoD_v2", card, host, size)
        call("cuCtxSynchronize")
        best = min(best, clock() - began)
    return round(BYTES / best / 1e6)


def main() -> int:
    """Prints the number. What was taken is given back by the process's end."""
    try:
        sys.stdout.write(f"{copy(ctypes.CDLL('libcuda.so.1'))}\n")
    except (OSError, HardwareError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
