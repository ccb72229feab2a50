"""A queue that holds each key once."""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")


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

    def add_all(self, keys: Iterable[K]) -> None:
        """Have each of them worked on."""
        for key in keys:
            self.add(key)

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

    @property
    def is_closed(self) -> bool:
        return self._closed

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
