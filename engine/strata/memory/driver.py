"""Host memory that the CUDA driver locks for GPUs. The runtime's calls for it would keep the error of a refusal, which
torch reports at its next call, whatever that is."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

_PORTABLE_AND_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class DriverError(Exception):
    """``code``: a CUresult."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code} of the CUDA driver")
        self.code = code


class Lock:
    """Keeps memory in RAM and mapped for all GPUs until ``release``. That has to come before the memory is unmapped:
    the driver takes whatever lies at those addresses next for what it locked."""

    locked_bytes: ClassVar[int] = 0  # by all of them now

    def __init__(self, address: int, num_bytes: int, device: int) -> None:
        """``device``: index of a GPU, whose primary context is kept for as long. Raises DriverError."""
        self._address, self._num_bytes, self._device = ctypes.c_void_p(address), num_bytes, device
        self._context = ctypes.c_void_p()
        _check(_driver().cuInit(0))
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        try:
            with self._current():
                _check(_driver().cuMemHostRegister_v2(self._address, ctypes.c_size_t(num_bytes), _PORTABLE_AND_MAPPED))
        except DriverError:
            _driver().cuDevicePrimaryCtxRelease_v2(device)
            raise
        Lock.locked_bytes += num_bytes

    def release(self) -> None:
        """Once. What goes wrong is not told: then the driver itself goes, and its locks with it."""
        with self._current():
            _driver().cuMemHostUnregister(self._address)
        _driver().cuDevicePrimaryCtxRelease_v2(self._device)
        Lock.locked_bytes -= self._num_bytes

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Whatever this thread's context is, and whether or not it captures a graph: owners go at any time."""
        mode = ctypes.c_int(_RELAXED)
        _driver().cuCtxPushCurrent_v2(self._context)
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int) -> None:
    if code:
        raise DriverError(code)
