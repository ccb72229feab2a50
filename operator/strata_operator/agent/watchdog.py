"""Cards behind a watchdog: a driver call that hangs costs one thread, never the agent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from strata_operator.agent.errors import HungError
from strata_operator.agent.hardware import Clock, Found, Gpus, Reading, Xid

T = TypeVar("T")

CALL_SECONDS = 10.0  # a card that wakes up takes one or two; one that resets answers with an error
FIND_FACTOR = 3


class WatchedGpus:
    """``gpus`` with every call bounded in time.

    A call that hangs cannot be ended: the driver sleeps in the kernel. Its thread is left behind, and until it returns
    whatever concerns the same card raises HungError at once, so that threads do not pile up.
    """

    def __init__(self, gpus: Gpus, seconds: float = CALL_SECONDS) -> None:
        self._gpus = gpus
        self._seconds = seconds
        self._hung: dict[str, threading.Thread] = {}

    def driver_version(self) -> str:
        return self._call("the driver", self._gpus.driver_version)

    def find(self) -> Found:
        # The first time, the driver wakes every card up, one after another.
        return self._call("the driver", self._gpus.find, seconds=FIND_FACTOR * self._seconds)

    def take_xids(self) -> tuple[Xid, ...]:
        return self._call("the driver's events", self._gpus.take_xids)

    def read(self, uuid: str) -> Reading:
        return self._call(uuid, lambda: self._gpus.read(uuid))

    def copy_bandwidth(self, uuid: str) -> int:
        return self._gpus.copy_bandwidth(uuid)  # which is a process of its own, with an end of its own

    def set_power_limit(self, uuid: str, milliwatts: int) -> None:
        self._call(uuid, lambda: self._gpus.set_power_limit(uuid, milliwatts))

    def set_persistence_mode(self, uuid: str, on: bool) -> None:
        self._call(uuid, lambda: self._gpus.set_persistence_mode(uuid, on))

    def lock_clock(self, uuid: str, clock: Clock, max_mhz: int) -> None:
        self._call(uuid, lambda: self._gpus.lock_clock(uuid, clock, max_mhz))

    def unlock_clock(self, uuid: str, clock: Clock) -> None:
        self._call(uuid, lambda: self._gpus.unlock_clock(uuid, clock))

    def _call(self, whom: str, ask: Callable[[], T], *, seconds: float | None = None) -> T:
        hung = self._hung.get(whom)
        if hung is not None and hung.is_alive():
            raise self._error(whom)
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((ask(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that asked
                answers.put((None, error))

        thread = threading.Thread(target=run, name=f"nvml {whom}", daemon=True)
        thread.start()
        try:
            answer, error = answers.get(timeout=seconds or self._seconds)
        except queue.Empty:
            self._hung[whom] = thread
            raise self._error(whom) from None
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]

    def _error(self, whom: str) -> HungError:
        return HungError(
            f"{whom}: no answer from the driver within {self._seconds:g} s; restart the node unless it comes back"
        )
