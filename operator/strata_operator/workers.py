"""The threads that work a queue off, and try again what failed."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from strata_operator.api.errors import UnavailableError
from strata_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K")

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one reconcile came to; ``again_in`` asks for another look after so many seconds, come what may."""

    outcome: str
    again_in: float | None = None


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

    def ailment(self) -> str | None:
        """Why the process should be started anew: somebody who works on keys has ended, and was not told to."""
        if not self._queue.is_closed and any(one.ident is not None and not one.is_alive() for one in self._threads):
            return "a worker has ended"
        return None

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
