"""The node's own two objects, as their watches show them, and how they are written. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from strata_operator.api.errors import ApiError, MissingError
from strata_operator.api.event import Event
from strata_operator.api.model import API_VERSION
from strata_operator.api.node import NODE_KIND, UNHEALTHY_TAINT
from strata_operator.cluster import events
from strata_operator.cluster.client import Client
from strata_operator.cluster.watch import Watch

FIELD_MANAGER = "strata-agent"

Object = Mapping[str, Any]


class Mirror:
    """``on_change`` is called when one of the objects is another than before."""

    def __init__(self, client: Client, name: str, on_change: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._client = client
        self._on_change = on_change
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        mine = {"fieldSelector": f"metadata.name={name}"}
        self.loops = [Watch(client, kind, self, mine) for kind in (NODE_KIND, "Node")]

    @property
    def is_synced(self) -> bool:
        """Whether both objects are known, or known not to be there."""
        return all(loop.synced.is_set() for loop in self.loops)

    @property
    def strata_node(self) -> Object | None:
        return self._objects.get(NODE_KIND)

    @property
    def node(self) -> Object | None:
        return self._objects.get("Node")

    def refresh(self) -> None:
        """Look once, where no watch runs. Raises ApiError."""
        for kind in (NODE_KIND, "Node"):
            try:
                self.replace(kind, [self._client.get(kind, None, self.name)])
            except MissingError:
                self.replace(kind, [])
        for loop in self.loops:
            loop.synced.set()

    # -- what the watches tell (cluster.watch.Sink) -------------------------------------------------------------------

    def put(self, kind: str, obj: Object) -> None:
        with self._lock:
            held = self._objects.get(kind)
            if held is not None and _is_older(obj, held):
                return
            self._objects[kind] = obj
        if held is None or _version(held) != _version(obj):
            self._on_change()

    def remove(self, kind: str, obj: Object) -> None:
        with self._lock:
            held = self._objects.get(kind)
            if held is None or held["metadata"]["uid"] != obj["metadata"]["uid"]:
                return
            del self._objects[kind]
        self._on_change()

    def replace(self, kind: str, objects: Iterable[Object]) -> None:
        found = next(iter(objects), None)
        if found is not None:
            self.put(kind, found)
            return
        with self._lock:
            gone = self._objects.pop(kind, None)
        if gone is not None:
            self._on_change()

    # -- what is written ----------------------------------------------------------------------------------------------

    def create(self) -> Object | None:
        """Make the StrataNode, owned by the Node; None while there is no Node. Raises ApiError."""
        node = self.node
        if node is None:
            return None
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node["metadata"]["uid"]}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": NODE_KIND,
            "metadata": {"name": self.name, "ownerReferences": [owner]},
            "spec": {},
        }
        try:
            made = self._client.create(NODE_KIND, manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            made = self._client.get(NODE_KIND, None, self.name)
        self.put(NODE_KIND, made)
        return made

    def write_status(self, uid: str, status: Object) -> None:
        """The whole of it. Raises ApiError, MissingError where that very StrataNode is gone."""
        manifest = {
            "apiVersion": API_VERSION,
            "kind": NODE_KIND,
            "metadata": {"name": self.name, "uid": uid},
            "status": status,
        }
        self.put(
            NODE_KIND,
            self._client.apply(NODE_KIND, manifest, manager=FIELD_MANAGER, force=True, subresource="status"),
        )

    def mark_node(self, labels: Mapping[str, str | None], *, is_unhealthy: bool) -> bool:
        """Labels (None: none of that name) and taint of the Node; whether anything was written. Raises ApiError."""
        node = self.node
        if node is None or "deletionTimestamp" in node["metadata"]:
            return False
        held = node["metadata"].get("labels") or {}
        changed = {key: value for key, value in labels.items() if held.get(key) != value}
        taints = [taint for taint in (node.get("spec") or {}).get("taints") or [] if taint["key"] != UNHEALTHY_TAINT]
        if is_unhealthy:
            taints.append({"key": UNHEALTHY_TAINT, "effect": "NoSchedule"})
        patch: dict[str, Any] = {}
        if changed:
            patch["metadata"] = {"labels": changed}
        if is_unhealthy != self._is_tainted(node):
            # The list is written as a whole: the version makes sure that nobody else's taint is lost.
            patch.setdefault("metadata", {})["resourceVersion"] = _version(node)
            patch["spec"] = {"taints": taints}
        if not patch:
            return False
        self.put("Node", self._client.merge("Node", None, self.name, patch))
        return True

    def post(self, event: Event, *, now: datetime) -> None:
        """On the StrataNode. Raises UnavailableError where it may be posted later."""
        obj = self.strata_node
        if obj is not None:
            metadata = {"name": self.name, "uid": obj["metadata"]["uid"]}
            events.post(self._client, metadata, event, now=now, kind=NODE_KIND, component=FIELD_MANAGER)

    def take_annotation(self, name: str) -> None:
        """Take an annotation off the StrataNode. Raises ApiError."""
        patch = {"metadata": {"annotations": {name: None}}}
        self.put(NODE_KIND, self._client.merge(NODE_KIND, None, self.name, patch))

    def suspend(self) -> None:
        """Set ``spec.suspend``. Raises ApiError, MissingError where there is no StrataNode."""
        self.put(NODE_KIND, self._client.merge(NODE_KIND, None, self.name, {"spec": {"suspend": True}}))

    @staticmethod
    def _is_tainted(node: Object) -> bool:
        return any(taint["key"] == UNHEALTHY_TAINT for taint in (node.get("spec") or {}).get("taints") or [])


def _version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _is_older(obj: Object, held: Object) -> bool:
    """Of two states of one object; another uid is another object, whose later state the watch tells."""
    is_same = obj["metadata"]["uid"] == held["metadata"]["uid"]
    return is_same and int(_version(obj)) < int(_version(held))
