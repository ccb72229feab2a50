"""What the sidecar knows of models and clients' keys, kept by watches. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import KIND
from strata_operator.gateway.backend import Backend
from strata_operator.gateway.client_key import ClientKey

log = logging.getLogger(__name__)

KEYS = "Secret"  # the kind
_Place = tuple[str, str]  # namespace and name


class Book:
    """``on_change()`` is called where something changed that the gateway is told: a model's status is not."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._backends: dict[_Place, Backend] = {}
        self._keys: dict[_Place, ClientKey] = {}

    def backends(self) -> list[Backend]:
        with self._lock:
            return list(self._backends.values())

    def client_keys(self) -> list[ClientKey]:
        with self._lock:
            return list(self._keys.values())

    def put(self, kind: str, obj: Mapping[str, Any]) -> None:
        """One as its watch shows it. A key that cannot be read lets nobody in, and the log says why."""
        place = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        new: Backend | ClientKey | None = None
        try:
            if kind == KEYS:
                new = ClientKey.of(obj)
            elif not obj["metadata"].get("deletionTimestamp"):
                new = Backend.of(obj)
        except InvalidSpecError as error:
            log.error("%s: %s", "/".join(place), error)
        self._keep(kind, place, new)

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        """One that is gone, or that lost its label."""
        self._keep(kind, (obj["metadata"]["namespace"], obj["metadata"]["name"]), None)

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]], *, namespace: str | None = None) -> None:
        """The whole list, of a namespace or all: what it lacks is gone."""
        seen = set()
        for obj in objects:
            seen.add((obj["metadata"]["namespace"], obj["metadata"]["name"]))
            self.put(kind, obj)
        with self._lock:
            held = [place for place in self._entries(kind) if namespace in (None, place[0])]
        for place in held:
            if place not in seen:
                self._keep(kind, place, None)

    def _keep(self, kind: str, place: _Place, new: Backend | ClientKey | None) -> None:
        with self._lock:
            entries = self._entries(kind)
            if entries.get(place) == new:
                return
            if new is None:
                del entries[place]
            else:
                entries[place] = new
        self._on_change()

    def _entries(self, kind: str) -> dict[_Place, Any]:
        assert kind in (KIND, KEYS), kind
        return self._keys if kind == KEYS else self._backends
