from __future__ import annotations

import ctypes
from typing import Any

import pytest

from strata_operator.agent import copies
from strata_operator.agent.copies import BYTES, PASSES, copy, measure
from strata_operator.agent.errors import HardwareError, HungError, UnsupportedError


class FakeCuda:
    """libcuda with a card that copies 12.5 * 10^9 bytes a second, the third time 25."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.now = 0.0
        self.num_copies = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cuMemcpyHtoD_v2":
                self.num_copies += 1
                self.now += BYTES / (25e9 if self.num_copies == 3 else 12.5e9)
            if name == "cuMemAlloc_v2":
                arguments[0]._obj.value = 0x7000_0000_0000  # an address of 64 bits must not be cut
            return self.codes.get(name, 0)

        return call


def test_the_best_copy_counts_and_addresses_are_whole() -> None:
    cuda = FakeCuda()
    assert copy(cuda, lambda: cuda.now) == 25_000
    assert cuda.num_copies == PASSES
    card, _, size = next(arguments for name, arguments in cuda.calls if name == "cuMemcpyHtoD_v2")
    assert (card.value, size.value) == (0x7000_0000_0000, BYTES)
    assert isinstance(card, ctypes.c_uint64)


def test_cuda_s_number_is_told() -> None:
    with pytest.raises(HardwareError, match="cuMemAllocHost_v2 answers 2"):
        copy(FakeCuda(cuMemAllocHost_v2=2))


def test_without_cuda_it_says_so() -> None:
    """As on this machine, or where it has no such card."""
    with pytest.raises(UnsupportedError, match=r"card GPU-none: copies cannot be measured: .*(libcuda|cu[A-Z])"):
        measure("GPU-none")


def test_a_copy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "SECONDS", 0.001)
    with pytest.raises(HungError, match=r"no copy within 0\.001 s"):
        measure("GPU-none")
