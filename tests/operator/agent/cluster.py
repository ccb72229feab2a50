"""The cluster in memory behind real HTTP: for the agent as a process of its own."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from strata_operator.api.errors import ApiError
from strata_operator.cluster.client import RESOURCES
from tests.operator.cluster.fake import FakeClient
from tests.operator.cluster.server import Answer, Request, ScriptedServer

_KINDS = {resource.plural: kind for kind, resource in RESOURCES.items()}


class HttpCluster:
    """Gets, lists and watches by name, creates, applies and merges as ``FakeClient`` does."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.table = FakeClient(*objects)
        self.end = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def served(self, kubeconfig: Path) -> Iterator[ScriptedServer]:
        """Until the block ends; ``kubeconfig`` is written and names the server."""
        with ScriptedServer(self.answer) as server:
            address = server.client().config.host
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
            kubeconfig.write_text(yaml.safe_dump(config))
            yield server
            self.end.set()

    def object(self, kind: str, name: str) -> dict[str, Any]:
        """As it is now; empty where there is none."""
        with self._lock:
            return copy.deepcopy(self.table.objects.get((kind, "", name), {}))

    def write(self, obj: dict[str, Any]) -> None:
        with self._lock:
            self.table._written((obj["kind"], "", obj["metadata"]["name"]), copy.deepcopy(obj))

    def answer(self, request: Request) -> Answer:
        parts = request.path.split("/")
        plural = next(part for part in parts if part in _KINDS)
        kind, after = _KINDS[plural], parts[parts.index(plural) + 1 :]
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
        selected = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        if request.query.get("watch"):
            return Answer(lines=self._follow(kind, selected, int(request.query["resourceVersion"])))
        try:
            with self._lock:
                return Answer(body=self._do(request, kind, namespace, after, selected))
        except ApiError as error:
            return Answer(error.status, {"kind": "Status", "message": str(error), "code": error.status})

    def _do(self, request: Request, kind: str, namespace: str | None, after: list[str], selected: str) -> Any:
        if request.method == "POST":
            return self.table.create(kind, request.body)
        if request.method == "GET" and after:
            return self.table.get(kind, namespace, after[0])
        if request.method == "GET":
            found = [obj for (one, _, name), obj in self.table.objects.items() if one == kind and name == selected]
            return {"metadata": {"resourceVersion": str(self.table.version)}, "items": copy.deepcopy(found)}
        if "apply-patch" in request.headers["Content-Type"]:
            subresource = after[1] if len(after) > 1 else None
            return self.table.apply(kind, request.body, manager="m", force=True, subresource=subresource)
        return self.table.merge(kind, namespace, after[0], request.body)

    def _follow(self, kind: str, name: str, version: int) -> Iterator[Any]:
        while not self.end.wait(0.02):
            obj = self.object(kind, name)
            if obj and int(obj["metadata"]["resourceVersion"]) > version:
                version = int(obj["metadata"]["resourceVersion"])
                yield json.loads(json.dumps({"type": "MODIFIED", "object": obj}))
