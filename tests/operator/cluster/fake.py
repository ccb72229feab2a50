"""A client whose cluster is a table in memory; it knows what the operator asks for and no more."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from strata_operator.api.errors import MissingError, UnavailableError
from strata_operator.api.names import FIELD_MANAGER
from tests.operator.samples import fields_of


class FakeClient:
    """``objects`` by (kind, namespace, name); ``failing`` holds errors by "verb Kind", raised until removed.

    ``losing`` holds "verb Kind" of which the answer is lost: it is done, and the caller does not learn it.
    """

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.failing: dict[str, Exception] = {}
        self.losing: set[str] = set()
        self.calls: list[str] = []
        self.merged: list[Mapping[str, Any]] = []  # patches, in order
        self.evicted: list[str] = []  # names of pods
        self.version = 100
        self.listing = threading.Semaphore()
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.wishes: dict[str, dict[str, list[Any]]] = {}  # on each StrataNode, by field manager
        for obj in objects:
            self.keep(obj)

    def keep(self, obj: dict[str, Any]) -> None:
        self.objects[_key(obj["kind"], obj["metadata"])] = obj

    def writes(self) -> list[str]:
        """Calls that change something, since the last question."""
        found = [call for call in self.calls if not call.startswith(("get", "list"))]
        self.calls.clear()
        return found

    def events(self) -> list[str]:
        """Reasons of the events that were posted, in order."""
        return [reason for reason, _ in self.told()]

    def told(self) -> list[tuple[str, str]]:
        """Reason and message of each."""
        found = [obj for (kind, *_), obj in self.objects.items() if kind == "Event" and "count" in obj]
        return [(obj["reason"], obj["message"]) for obj in found]

    def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        self._call("get", kind)
        try:
            return copy.deepcopy(self.objects[kind, namespace or "", name])
        except KeyError:
            raise MissingError(f"{kind} {name} is not there", status=404) from None

    def list(self, kind: str, namespace: str | None = None, **query: str) -> dict[str, Any]:
        self._call("list", kind)
        uid = query["fieldSelector"].removeprefix("involvedObject.uid=")
        items = [obj for (one, *_), obj in self.objects.items() if one == kind and obj["involvedObject"]["uid"] == uid]
        return {"items": items or None}

    def list_all(self, kind: str, namespace: str | None = None, **query: str) -> tuple[Sequence[dict[str, Any]], str]:
        self._call("list", kind)
        return [copy.deepcopy(obj) for (one, *_), obj in self.objects.items() if one == kind], str(self.version)

    def apply(
        self, kind: str, manifest: Mapping[str, Any], *, manager: str, force: bool, subresource: str | None = None
    ) -> dict[str, Any]:
        self._call("apply" + (f" {subresource}" if subresource else "") + (" by force" if force else ""), kind)
        metadata = manifest["metadata"]
        key = _key(kind, metadata)
        there = self.objects.get(key)
        if there is None and subresource:
            raise MissingError(f"{kind} {key[2]} is not there", status=404)
        if "uid" in metadata and (there is None or there["metadata"]["uid"] != metadata["uid"]):
            raise UnavailableError("Precondition failed: UID in precondition", status=409)
        self.version += 1
        if subresource:
            assert there is not None
            there["status"] = copy.deepcopy(dict(manifest["status"]))
        elif kind in ("StrataModel", "StrataNode"):
            assert there is not None
            self._merge_ours(there, manifest, manager)
        elif kind == "Job" and there is not None:
            there["spec"] |= manifest["spec"]  # by another manager than what is there
        else:
            there = copy.deepcopy(dict(manifest))
            there["metadata"] |= {
                "uid": metadata.get("uid", f"uid-{kind}-{self.version}"),
                "managedFields": [_entry(FIELD_MANAGER, "Apply", manifest)],
            }
            self.objects[key] = there
        there["metadata"]["resourceVersion"] = str(self.version)
        if self.calls[-1] in self.losing:
            raise UnavailableError("no answer")
        return copy.deepcopy(there)

    def _merge_ours(self, there: dict[str, Any], manifest: Mapping[str, Any], manager: str) -> None:
        """A finalizer, or an entry of a node's wishes: what the manager had applied before and leaves out now goes."""
        if manifest["kind"] == "StrataModel":
            there["metadata"]["finalizers"] = list(manifest["metadata"].get("finalizers", ()))
            if "deletionTimestamp" in there["metadata"] and not there["metadata"]["finalizers"]:
                del self.objects["StrataModel", there["metadata"]["namespace"], there["metadata"]["name"]]
            return
        mine = manifest["spec"].get("tuning", {}).get("models", [])
        held = self.wishes.setdefault(there["metadata"]["name"], {})
        held[manager] = copy.deepcopy(mine)
        models: dict[str, dict[str, Any]] = {}  # by the model's name: a list of type map
        for wish in (wish for wishes in held.values() for wish in wishes):
            models[wish["model"]] = {**models.get(wish["model"], {}), **wish}
        there["spec"] = {**there.get("spec", {}), "tuning": {"models": list(models.values())}}
        there["metadata"]["generation"] += 1

    def create(self, kind: str, manifest: Mapping[str, Any], *, manager: str | None = None) -> dict[str, Any]:
        self._call("create", kind)
        key = _key(kind, manifest["metadata"])
        if key in self.objects:
            raise UnavailableError(f"{kind} {key[2]} already exists", status=409)
        made = copy.deepcopy(dict(manifest))
        self.version += 1
        made["metadata"] = {"uid": f"uid-{kind}-{self.version}", "generation": 1, **made["metadata"]}
        if manager is not None:
            made["metadata"]["managedFields"] = [_entry(manager, "Update", manifest)]
        self._written(key, made)
        return copy.deepcopy(made)

    def merge(self, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        self._call("merge", kind)
        self.merged.append(patch)
        there = self.objects.get((kind, namespace or "", name))
        if there is None:
            raise MissingError(f"{kind} {name} is not there", status=404)
        wanted = (patch.get("metadata") or {}).get("resourceVersion")
        if wanted not in (None, there["metadata"].get("resourceVersion")):
            raise UnavailableError(f"{kind} {name} has been modified", status=409)
        made = _merged(there, patch)
        if made.get("spec") != there.get("spec"):
            made["metadata"]["generation"] = made["metadata"].get("generation", 0) + 1
        self._written((kind, namespace or "", name), made)
        return copy.deepcopy(made)

    def delete(self, kind: str, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        self._call("delete", kind)
        there = self.objects.get((kind, namespace or "", name))
        if there is not None and uid not in (None, there["metadata"]["uid"]):
            raise UnavailableError("Precondition failed: UID in precondition", status=409)
        if self.objects.pop((kind, namespace or "", name), None) is None:
            raise MissingError(f"{kind} {name} is not there", status=404)

    def evict(self, namespace: str, name: str, uid: str) -> None:
        self._call("evict", "Pod")
        self.evicted.append(name)

    def _written(self, key: tuple[str, str, str], obj: dict[str, Any]) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = obj

    def _call(self, verb: str, kind: str) -> None:
        call = f"{verb} {kind}"
        self.calls.append(call)
        for pattern, error in self.failing.items():
            if call.startswith(pattern.split()[0]) and call.endswith(pattern.split()[1]):
                raise error


def _entry(manager: str, operation: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    owned = fields_of({field: value for field, value in manifest.items() if field not in ("apiVersion", "kind")})
    return {"manager": manager, "operation": operation, "fieldsV1": owned}


def _key(kind: str, metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    return kind, metadata.get("namespace") or "", metadata["name"]


def _merged(there: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7396."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    made = dict(there) if isinstance(there, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made
