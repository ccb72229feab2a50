"""What the nodes have free, looked at before a pod leaves one for another, and where a pod finds no room: the scheduler
says how many nodes lack what, and not which one comes closest."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from strata_operator.api.errors import ApiError, MissingError, UnavailableError
from strata_operator.cluster.client import Client
from strata_operator.render.meta import digest
from strata_operator.room import asked, closest, obstacle, used

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0  # between two looks, for all models together: each is a list of all nodes and pods
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


class Vacancies:
    """Thread-safe."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_at: float | None = None
        self._nodes: list[tuple[Mapping[str, Any], Counter[str] | None]] = []  # with what their pods use
        self._answers: dict[str, str] = {}  # many models ask for the same

    def closest(self, wanted: Mapping[str, Any]) -> str:
        """The node that comes closest to what a pod of that spec needs, and what it lacks; "" where one lacks nothing,
        or that cannot be looked at."""
        with self._lock:
            if self._seen_at is None or self._clock() - self._seen_at > LOOK_SECONDS:
                self._nodes, self._answers = self._look(), {}
                self._seen_at = self._clock()
            placed_by = {field: wanted.get(field) for field in ("nodeSelector", "affinity", "tolerations")}
            question = digest({**placed_by, "asked": asked(wanted)})
            if question not in self._answers:
                self._answers[question] = closest(self._nodes, wanted)
            return self._answers[question]

    def obstacle(self, wanted: Mapping[str, Any], node: str) -> str:
        """What keeps such a pod from a node now, "" for nothing; without the right to see it, none is known."""
        try:
            there = self._client.get("Node", None, node)
        except MissingError:
            return "is gone"
        except UnavailableError as error:
            if error.status != 403:
                raise
            log.warning("node %s cannot be looked at before a pod leaves another for it: %s", node, error)
            return ""
        try:
            pods = self._client.list_all("Pod", None, fieldSelector=f"spec.nodeName={node}")[0]
            return obstacle(there, pods, wanted)
        except UnavailableError as error:
            if error.status != 403:  # who serves some namespaces alone does not see the others' pods
                raise
            return obstacle(there, None, wanted)

    def _look(self) -> list[tuple[Mapping[str, Any], Counter[str] | None]]:
        """Nothing where it fails: what the scheduler says is told all the same."""
        try:
            with self._client.listing:
                nodes = [_slim(node) for node in self._client.list_all("Node")[0]]
                held = self._held()
        except ApiError as error:  # a list of many pages may grow too old, for one
            log.warning("which node comes closest to what a pod needs cannot be told: %s", error)
            return []
        return [(node, None if held is None else held[node["metadata"]["name"]]) for node in nodes]

    def _held(self) -> dict[str, Counter[str]] | None:
        """What pods use of each node; None for who may not see them all, as one that serves some namespaces alone.

        Raises ApiError.
        """
        held: dict[str, Counter[str]] = defaultdict(Counter)
        try:
            for pod in self._client.list_all("Pod", fieldSelector=_RUNNING)[0]:
                if node := pod["spec"].get("nodeName"):
                    held[node].update(used([pod]))
        except UnavailableError as error:
            if error.status != 403:
                raise
            return None
        return held


def _slim(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """What counts of a Node, of which the images that it has are the most."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels")},
        "spec": {field: spec.get(field) for field in ("taints", "unschedulable")},
        "status": {"allocatable": (node.get("status") or {}).get("allocatable")},
    }
