"""What keeps the cache in step with the cluster: a thread that turns, backs off after failures, and can be judged."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from strata_operator.api.errors import ApiError

log = logging.getLogger(__name__)

_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
_SLOT_SECONDS = 5.0  # between two signs of life of a loop that waits for its turn
_HASTY_SECONDS = 1.0  # a turn that ends sooner came to nothing: a proxy ends every watch at once, for one


class Loop(ABC):
    """Calls ``turn`` again and again, from a daemon thread.

    ``silent_seconds`` is longer than the longest turn and the longest pause together.
    """

    def __init__(self, kind: str, *, silent_seconds: float) -> None:
        self.kind = kind
        self.synced = threading.Event()  # set once the cache holds the kind
        self.active_at = time.monotonic()  # last sign of life; the next comes within ``silent_seconds``
        self.stopped = threading.Event()
        self.name = f"{type(self).__name__.lower()} of {kind}"
        self._silent_seconds = silent_seconds
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Returns at once; ``synced`` tells when the cache holds the kind."""
        self.active_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """The thread ends after its turn; it is a daemon, so nobody need wait."""
        self.stopped.set()

    def ailment(self) -> str | None:
        """Why the process should be started anew. An API server that is down is no reason."""
        if self._thread.ident is not None and time.monotonic() - self.active_at > self._silent_seconds:
            return f"the {self.name} hangs"
        return None

    @contextmanager
    def taking_turns(self, slots: threading.Semaphore) -> Iterator[None]:
        """Hold one of the slots. To wait for it is no silence: those that hold them are judged."""
        while not slots.acquire(timeout=_SLOT_SECONDS):
            self.active_at = time.monotonic()
        self.active_at = time.monotonic()
        try:
            yield
        finally:
            slots.release()

    @abstractmethod
    def turn(self) -> None:
        """One step. Raises ApiError where it failed; any other error is a defect."""

    def _run(self) -> None:
        failures, told = 0, ""
        while not self.stopped.is_set():
            began = self.active_at = time.monotonic()
            try:
                self.turn()
                if time.monotonic() - began > _HASTY_SECONDS:
                    failures, told = 0, ""
                    continue
            except ApiError as error:
                if str(error) != told:  # an outage fails each turn with the same words
                    log.warning("%s: %s", self.name, error)
                    told = str(error)
            except Exception:  # a defect in the reading of one object must not end the loop in silence
                log.exception("%s: starting over", self.name)
            self.stopped.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            failures += 1
