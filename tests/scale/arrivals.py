"""When objects show up in the cluster, as a watch of the bench's own sees them."""

from __future__ import annotations

import threading
import time
from typing import Any

from strata_operator.api.names import MODEL_LABEL
from strata_operator.cluster.client import Client


class Arrivals:
    """The first moment (monotonic seconds) at which an object of a kind was there for each model, by its name."""

    def __init__(self, config: Any, kind: str) -> None:
        self.at: dict[str, float] = {}
        self._client = Client(config, on_request=lambda verb, status: None, threads=1)
        self._kind = kind
        _, self._version = self._client.list_all(kind)
        threading.Thread(target=self._run, name=f"arrivals of {kind}", daemon=True).start()

    def _run(self) -> None:
        while True:
            query = {"resourceVersion": self._version, "labelSelector": MODEL_LABEL}
            for event in self._client.watch(self._kind, **query):
                now, metadata = time.monotonic(), event["object"]["metadata"]
                self._version = metadata["resourceVersion"]
                if event["type"] == "ADDED":
                    self.at.setdefault(metadata["labels"][MODEL_LABEL], now)

    def after(self, asked: dict[str, float]) -> list[float]:
        """Seconds from the asking to the arrival, sorted, of those that have arrived."""
        return sorted(self.at[name] - then for name, then in asked.items() if name in self.at)
