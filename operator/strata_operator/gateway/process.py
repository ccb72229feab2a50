"""The sidecar's parts put together: watches, and a writer that waits a moment for changes that come together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from strata_operator.api.model import KIND
from strata_operator.api.names import GATEWAY_KEY_LABEL
from strata_operator.cluster.client import Client
from strata_operator.cluster.loop import Loop
from strata_operator.cluster.scope import Scope
from strata_operator.cluster.watch import Watch
from strata_operator.gateway.book import KEYS, Book
from strata_operator.gateway.writer import Writer

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.2
LOOK_SECONDS = 60.0  # no watch tells of the Secrets with models' API keys


class Process:
    """``run`` until ``stop``; the file is first written once all is known that there is."""

    def __init__(self, client: Client, path: Path, namespace: str, served: Sequence[str]) -> None:
        """``namespace``: of the clients' keys; ``served``: of models, empty for all."""
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self.book = Book(self._changed.set)
        self.writer = Writer(client, self.book, path)
        self.loops: list[Loop] = [
            Watch(client, KIND, Scope(self.book, one), select={}, namespace=one) for one in served or (None,)
        ]
        self.loops.append(
            Watch(client, KEYS, self.book, select={"labelSelector": GATEWAY_KEY_LABEL}, namespace=namespace)
        )

    def run(self) -> str | None:
        """What ailed it; None where it was stopped."""
        for loop in self.loops:
            loop.start()
        for loop in self.loops:
            while not loop.synced.wait(1.0):
                if self._stopped.is_set() or (ailment := loop.ailment()):
                    return None if self._stopped.is_set() else ailment
        while not self._stopped.is_set():
            self._changed.clear()
            self.writer.write()
            if self._changed.wait(LOOK_SECONDS):
                self._stopped.wait(GATHER_SECONDS)
            for loop in self.loops:
                if ailment := loop.ailment():
                    return ailment
        return None

    def stop(self) -> None:
        self._stopped.set()
        self._changed.set()
        for loop in self.loops:
            loop.stop()
