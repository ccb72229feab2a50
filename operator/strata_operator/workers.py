"""A queue that holds each key once, and the threads that work it off."""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from strata_operator.api.errors import UnavailableError

log = logging.getLogger(__name__)

K = TypeVar("K")

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one reconcile came to; ``again_in`` asks for another look after so many seconds, come what may."""

    outcome: str
    again_in: float | None = None


class WorkQueue(Generic[K]):
    """Keys in the order of arrival. One that is added while it is worked on comes once more afterwards."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._busy: dict[K, float] = {}  # since when, monotonic
        self._dirty: set[K] = set()
        self._later: list[tuple[float, int, K]] = []  # heap by due time
        self._due: dict[K, float] = {}  # the one entry of _later that counts, for each key
        self._ticket = 0
        self._closed = False

    def add(self, key: K) -> None:
        """Have the key worked on as soon as a worker is free."""
        with self._changed:
            self._due.pop(key, None)
            if key in self._busy:
                self._dirty.add(key)
            elif key not in self._ready:
                self._ready[key] = None
                self._changed.notify()

    def add_after(self, key: K, seconds: float) -> None:
        """Have it worked on after a while, unless it is added before; an earlier date wins over a later one."""
        with self._changed:
            due = time.monotonic() + seconds
            if key in self._ready or key in self._dirty or self._due.get(key, due) < due:
                return
            self._due[key] = due
            self._ticket += 1
            heapq.heappush(self._later, (due, self._ticket, key))
            self._changed.notify()

    def get(self) -> K | None:
        """Wait for a key and take it; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                wait = self._take_due()
                if self._ready:
                    key, _ = self._ready.popitem(last=False)
                    self._busy[key] = time.monotonic()
                    return key
                self._changed.wait(wait)
            return None

    def done(self, key: K) -> None:
        """The key that ``get`` gave is worked off."""
        with self._changed:
            self._busy.pop(key, None)
            if key in self._dirty:
                self._dirty.discard(key)
                self._ready[key] = None
                self._changed.notify()

    def close(self) -> None:
        """No key is given out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._ready)

    def longest_busy(self) -> float:
        """Seconds for which the slowest key is being worked on; 0 when none is."""
        with self._changed:
            return time.monotonic() - min(self._busy.values()) if self._busy else 0.0

    def _take_due(self) -> float | None:
        """Move what is due into the queue; seconds until the next, None where none waits."""
        now = time.monotonic()
        while self._later:
            due, _, key = self._later[0]
            if self._due.get(key) != due:
                heapq.heappop(self._later)  # superseded
            elif due > now:
                return due - now
            else:
                heapq.heappop(self._later)
                del self._due[key]
                if key in self._busy:
                    self._dirty.add(key)
                else:
                    self._ready[key] = None
        return None


class Workers(Generic[K]):
    """Threads that call ``work(key)``; a failure is tried again with growing pauses, each key by itself.

    ``on_done(outcome, seconds)`` is called after each; outcome is the Result's, or "retry" or "error".
    """

    def __init__(
        self, queue: WorkQueue[K], work: Callable[[K], Result], *, count: int, on_done: Callable[[str, float], None]
    ) -> None:
        self._queue = queue
        self._work = work
        self._on_done = on_done
        self._failures: dict[K, int] = {}
        self._threads = [threading.Thread(target=self._run, name=f"worker-{n}", daemon=True) for n in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> bool:
        """Give out no more keys and wait for those in work; False if some were not worked off in time."""
        self._queue.close()
        end = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (key := self._queue.get()) is not None:
            began = time.monotonic()
            try:
                outcome = self._one(key)
            finally:
                self._queue.done(key)
            self._on_done(outcome, time.monotonic() - began)

    def _one(self, key: K) -> str:
        try:
            result = self._work(key)
        except UnavailableError as error:
            self._retry(key, str(error))
            return "retry"
        except Exception:  # one object's defect must not end the worker that serves all others
            log.exception("%s: reconcile failed", key)
            self._retry(key, "see above")
            return "error"
        self._failures.pop(key, None)
        if result.again_in is not None:
            self._queue.add_after(key, result.again_in)
        return result.outcome

    def _retry(self, key: K, why: str) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 20), LAST_RETRY_SECONDS) * random.uniform(0.8, 1.2)
        log.warning("%s: %s; again in %.1f s", key, why, pause)
        self._queue.add_after(key, pause)
