"""What the nodes' agents tell, kept by a watch. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.node import StrataNode
from strata_operator.cluster.cache import Key

log = logging.getLogger(__name__)

Change = tuple[StrataNode | None, StrataNode | None]  # before and after


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
        self._tell([self._keep(kind, obj)])

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        """A node that is gone."""
        self._tell([self._drop(obj["metadata"]["name"])])

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None:
        """The whole list: what it lacks is gone."""
        seen, changes = set(), []
        for obj in objects:
            seen.add(obj["metadata"]["name"])
            changes.append(self._keep(kind, obj))
        with self._lock:
            gone = sorted(set(self._nodes) - seen)
        self._tell([*changes, *map(self._drop, gone)])

    def _keep(self, kind: str, obj: Mapping[str, Any]) -> Change:
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        try:
            new = StrataNode.parse(obj)
        except InvalidSpecError as error:
            log.error("%s %s cannot be read, and counts as absent: %s", kind, name, error)
            return self._drop(name)
        with self._lock:
            held, before = self._nodes.get(name, (0, None))
            if before is not None and before.uid == new.uid and held >= version:
                return before, before
            self._nodes[name] = (version, new)
            self._all = None
        return before, new

    def _drop(self, name: str) -> Change:
        with self._lock:
            _, before = self._nodes.pop(name, (0, None))
            self._all = None
        return before, None

    def _tell(self, changes: Sequence[Change]) -> None:
        """Of all at once: the fit of each model is asked for once, however many nodes are others."""
        changes = [(before, new) for before, new in changes if before is not new]
        if any(_inventory(before) != _inventory(new) for before, new in changes):
            with self._lock:
                self.fit_version += 1
            self._on_fit()
        there = [node for change in changes for node in change if node is not None]
        for model in sorted({wish.model for node in there for wish in node.spec.tuning.models}):
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
    room = (host.memory_bytes, host.pods_memory_bytes, host.cores) if host else None
    return cards, room, node.status.calibration, node.ailment
