"""How fast all CPUs together read the machine's memory: measured with libc, for there is no numpy here."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time

# Together more than what last-level caches hold; below the memory limit of the agent's container.
TOTAL_BYTES = 512 << 20
PASSES = 4  # the best of them counts: others may have had the bus

_libc = ctypes.CDLL(None)
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memchr.restype = ctypes.c_void_p


def read_bandwidth(total_bytes: int = TOTAL_BYTES, passes: int = PASSES) -> int:
    """10^6 bytes a second. Takes about a second, in which every CPU that this process may use is busy."""
    cpus = sorted(os.sched_getaffinity(0))
    size = max(mmap.PAGESIZE, total_bytes // len(cpus) // mmap.PAGESIZE * mmap.PAGESIZE)
    barrier = threading.Barrier(len(cpus) + 1)
    failed: list[OSError] = []

    def read(cpu: int) -> None:
        try:
            os.sched_setaffinity(0, {cpu})  # of this thread alone
            chunk = mmap.mmap(-1, size)
            start = ctypes.c_char.from_buffer(chunk)
            # Touched from here, so that it lies on this CPU's NUMA node.
            _libc.memset(ctypes.addressof(start), 0, size)
        except OSError as error:
            failed.append(error)
            barrier.abort()
            return
        try:
            for _ in range(passes):
                barrier.wait()
                # Looks for what is not there, and so reads all; ctypes lets other threads run meanwhile.
                _libc.memchr(ctypes.addressof(start), 1, size)
                barrier.wait()
        except threading.BrokenBarrierError:
            pass
        finally:
            del start
            chunk.close()

    threads = [threading.Thread(target=read, args=(cpu,), daemon=True) for cpu in cpus]
    for thread in threads:
        thread.start()
    best = float("inf")
    try:
        for _ in range(passes):
            barrier.wait()
            began = time.perf_counter()
            barrier.wait()  # all have read once
            best = min(best, time.perf_counter() - began)
    except threading.BrokenBarrierError:
        raise failed[0] from None
    for thread in threads:
        thread.join()
    return round(size * len(cpus) / best / 1e6)
