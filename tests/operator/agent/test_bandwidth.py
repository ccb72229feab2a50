from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from strata_operator.agent import bandwidth
from strata_operator.agent.bandwidth import read_bandwidth


def test_something_is_measured_and_all_is_given_back() -> None:
    threads, affinity = threading.active_count(), os.sched_getaffinity(0)
    assert read_bandwidth(total_bytes=8 << 20, passes=2) > 100
    assert threading.active_count() == threads
    assert os.sched_getaffinity(0) == affinity


def test_every_byte_is_read_by_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Libc:
        @staticmethod
        def memset(start: int, value: int, size: int) -> None: ...

        @staticmethod
        def memchr(start: int, value: int, size: int) -> None:
            calls.append(size)

    monkeypatch.setattr(bandwidth, "_libc", Libc)
    read_bandwidth(total_bytes=8 << 20, passes=3)
    cpus = len(os.sched_getaffinity(0))
    assert len(calls) == 3 * cpus
    assert sum(calls) == pytest.approx(3 * (8 << 20), rel=0.01)


def test_memory_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        read_bandwidth(total_bytes=8 << 20)
