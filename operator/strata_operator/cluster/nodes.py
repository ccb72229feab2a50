"""What the nodes' agents tell, kept by a watch. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.node import StrataNode
from strata_operator.cluster.cache import Key

log = logging.getLogger(__name__)


class Nodes:
    """``on_fit()`` is called when something changed by which a model fits or not, ``on_tuning(key)`` for each model
    whose wish is on a node where something else did."""

    def __init__(self, on_fit: Callable[[], None], on_tuning: Callable[[Key], None]) -> None:
        self._on_fit = on_fit
        self._on_tuning = on_tuning
        self._lock = threading.Lock()
        self._nodes: dict[str, tuple[int, StrataNode]] = {}  # with the version
        self._all: tuple[StrataNode, ...] | None = None  # None: to be made again
        self._wishing: frozenset[str] = frozenset()  # as of ``_all``
        self.fit_version = 0  # another number once something changed by which a model fits or not

    def all(self) -> tuple[StrataNode, ...]:
        """In the order of their names."""
        with self._lock:
            if self._all is None:
                self._all = tuple(node for _, (_, node) in sorted(self._nodes.items()))
                self._wishing = frozenset(wish.model for node in self._all for wish in node.spec.tuning.models)
            return self._all

    def is_wished_by(self, model: str) -> bool:
        """Whether any of them holds a wish of that model, by its ``tuning.key``."""
        self.all()
        return model in self._wishing

    def put(self, kind: str, obj: Mapping[str, Any]) -> None:
        """A node as its watch, or the answer to our own apply, shows it."""
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        try:
            new = StrataNode.parse(obj)
        except InvalidSpecError as error:
            log.error("%s %s cannot be read, and counts as absent: %s", kind, name, error)
            self.remove(kind, obj)
            return
        with self._lock:
            held, before = self._nodes.get(name, (0, None))
            if before is not None and before.uid == new.uid and held >= version:
                return
            self._nodes[name] = (version, new)
            self._all = None
        self._tell(before, new)

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        """A node that is gone."""
        with self._lock:
            _, before = self._nodes.pop(obj["metadata"]["name"], (0, None))
            self._all = None
        if before is not None:
            self._tell(before, None)

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None:
        """The whole list: what it lacks is gone."""
        seen = set()
        for obj in objects:
            seen.add(obj["metadata"]["name"])
            self.put(kind, obj)
        with self._lock:
            gone = sorted(set(self._nodes) - seen)
        for name in gone:
            self.remove(kind, {"metadata": {"name": name}})

    def _tell(self, before: StrataNode | None, new: StrataNode | None) -> None:
        if _inventory(before) != _inventory(new):
            with self._lock:
                self.fit_version += 1
            self._on_fit()
        wishes = {wish.model for node in (before, new) if node for wish in node.spec.tuning.models}
        for model in sorted(wishes):
            namespace, _, name = model.partition("/")
            self._on_tuning((namespace, name))


def _inventory(node: StrataNode | None) -> object:
    """What a model's fit, and what is said of its nodes, depend on; a power limit that moves is no part of it."""
    if node is None:
        return None
    cards = tuple(
        replace(gpu, power=None, pcie=replace(gpu.pcie, generation=None, width=None)) for gpu in node.status.gpus
    )
    host = node.status.host
    memory = (host.memory_bytes, host.pods_memory_bytes) if host else None
    return cards, memory, node.status.calibration, node.ailment
