"""What is there: slim copies of models, children and pods, kept by watches. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from strata_operator.api.child import Child
from strata_operator.api.names import child_name
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace and name of a StrataModel
Object = Mapping[str, Any]


class Cache:
    """``on_change(key)`` is called for each model that is gone, or of which something changed that a reconcile would
    look at; ``on_part(key)``, if there is one, where that is a child or a pod; ``on_free()`` where a pod has let go of
    its cards."""

    def __init__(
        self,
        on_change: Callable[[Key], None],
        on_part: Callable[[Key], None] | None = None,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_change = on_change
        self._on_free = on_free
        self._on_part = on_part or on_change
        self._lock = threading.RLock()
        self._models: dict[Key, dict[str, Any]] = {}
        self._names: dict[Key, set[str]] = defaultdict(set)  # (namespace, child name) -> names of models
        self._children: dict[Key, dict[str, Child]] = defaultdict(dict)  # (namespace, child name) -> kind -> child
        self._pods: dict[Key, dict[str, Pod]] = defaultdict(dict)  # (namespace, child name) -> pod name -> pod
        self._homes: dict[Key, str] = {}  # (namespace, pod name) -> child name
        self._gpus: Counter[str] = Counter()  # by node, see ``used_gpus``
        self._applied: dict[tuple[str, str], int] = {}  # (kind, uid) -> hash of the owned fields after our last apply

    # -- models ------------------------------------------------------------------------------------------------

    def put_model(self, obj: Object, *, own: bool = False) -> bool:
        """Keep what a reconcile reads, and whether it was news: a version no newer than the one held is ignored.

        ``own``: the answer to our own write, which calls for another look only if it brings another spec.
        """
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        kept = ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp", "finalizers")
        slim = {
            "metadata": {field: metadata[field] for field in kept if field in metadata},
            "spec": obj.get("spec") or {},
            "status": obj.get("status") or {},
        }
        with self._lock:
            held = self._models.get(key)
            if held and int(held["metadata"]["resourceVersion"]) >= int(metadata["resourceVersion"]):
                return False
            self._models[key] = slim
            self._names[key[0], child_name(key[1])].add(key[1])
        if not (own and held and held["metadata"]["generation"] == metadata["generation"]):
            self._on_change(key)
        return True

    def remove_model(self, obj: Object) -> None:
        """The model is gone; its children go by their owner references.

        The uid counts: the news of a deletion may come after that of a new model of the same name.
        """
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        with self._lock:
            held = self._models.get(key)
            if held is None or held["metadata"]["uid"] != obj["metadata"]["uid"]:
                return
            del self._models[key]
            names = self._names[key[0], child_name(key[1])]
            names.discard(key[1])
            if not names:
                del self._names[key[0], child_name(key[1])]
        self._on_change(key)

    def replace_models(self, objects: Iterable[Object], version: int, *, namespace: str | None = None) -> int:
        """The whole list as of ``version``, of a namespace or all: what it lacks is gone, unless it is newer. How many
        were news."""
        news, seen = 0, set()
        for obj in objects:
            seen.add(obj["metadata"]["uid"])
            news += self.put_model(obj)
        with self._lock:
            held = [model for key, model in self._models.items() if namespace in (None, key[0])]
        for model in held:
            if model["metadata"]["uid"] not in seen and int(model["metadata"]["resourceVersion"]) <= version:
                self.remove_model(model)
        return news

    def models(self) -> list[Key]:
        """All of them."""
        with self._lock:
            return list(self._models)

    def models_of_nodes(self) -> list[Key]:
        """Models for which it counts what nodes have: those that want a card or huge pages."""
        with self._lock:
            return [key for key, model in self._models.items() if _looks_at_nodes(model["spec"].get("hardware") or {})]

    def statuses(self) -> list[Mapping[str, Any]]:
        """Of all models."""
        with self._lock:
            return [model["status"] for model in self._models.values()]

    def model(self, key: Key) -> Mapping[str, Any] | None:
        """The slim copy, None where there is no such model."""
        return self._models.get(key)

    # -- children and pods -------------------------------------------------------------------------------------

    def put(self, kind: str, obj: Object, *, own: bool = False) -> None:
        """A child or pod as its watch shows it. ``own``: the answer to our own apply, which calls for no other look."""
        try:
            new: Child | Pod = Pod.of(obj) if kind == "Pod" else Child.of(kind, obj)
        except Exception:  # anybody may make such an object: it must not end the watch that all models need
            log.exception("%s %s/%s cannot be read, and counts as absent", kind, *_place(obj))
            self.remove(kind, obj)
            return
        entries: dict[Key, Any] = self._pods if kind == "Pod" else self._children
        entry = new.name if kind == "Pod" else kind
        home = before = (new.namespace, new.model if isinstance(new, Pod) else new.name)
        with self._lock:
            if isinstance(new, Pod):
                before = (new.namespace, self._homes.get((new.namespace, new.name), new.model))
            held = entries.get(before, {}).get(entry)
            if held is not None and held.uid == new.uid and held.resource_version >= new.resource_version:
                return
            if before != home:  # somebody changed the pod's label or owner: it is another model's, or nobody's
                self._drop(entries, before, entry)
            is_free = isinstance(held, Pod) and isinstance(new, Pod) and held.holds not in (None, new.holds)
            if isinstance(held, Pod):
                self._count_gpus(held, -1)
            entries[home][entry] = new
            is_news = not own and (held is None or replace(held, resource_version=new.resource_version) != new)
            if isinstance(new, Pod):
                self._count_gpus(new, 1)
                self._homes[new.namespace, new.name] = new.model
        if is_news:
            for one in {home, before}:
                self._changed(one)
        if is_free:
            self._on_free()

    def note_applied(self, child: Child) -> None:
        """``child`` is the answer to our own apply: what it owns then is all that it can own."""
        with self._lock:
            self._applied[child.kind, child.uid] = hash(child.owned_fields)

    def remove(self, kind: str, obj: Object) -> None:
        """A child or pod that is gone, or that lost our label."""
        namespace, name = _place(obj)
        with self._lock:
            entries: dict[Key, Any] = self._pods if kind == "Pod" else self._children
            entry = name if kind == "Pod" else kind
            home = (namespace, self._homes.pop((namespace, name), "") if kind == "Pod" else name)
            gone = self._drop(entries, home, entry)
            if gone is None:
                return
            if isinstance(gone, Pod):
                self._count_gpus(gone, -1)
            self._applied.pop((kind, gone.uid), None)
        self._changed(home)
        if isinstance(gone, Pod) and gone.holds:
            self._on_free()

    def replace(self, kind: str, objects: Iterable[Object], *, namespace: str | None = None) -> None:
        """A whole list, of a namespace or all: what it lacks is gone, for a relist brings no deletions."""
        seen = set()
        for obj in objects:
            seen.add(_place(obj))
            self.put(kind, obj)
        with self._lock:
            held = [
                (one.namespace, one.name)
                for entries in (self._pods if kind == "Pod" else self._children).values()
                for entry, one in entries.items()
                if kind in ("Pod", entry) and namespace in (None, one.namespace)
            ]
        for home, name in held:
            if (home, name) not in seen:
                self.remove(kind, {"metadata": {"namespace": home, "name": name}})

    def observe(self, key: Key) -> Observed:
        """All that is there of a model's children and pods; a Deployment that is not its own has pods that are not."""
        held = (key[0], child_name(key[1]))
        with self._lock:
            children = dict(self._children.get(held, {}))
            model, deployment = self._models.get(key), children.get("Deployment")
            is_foreign = model and deployment and deployment.owner_uid != model["metadata"]["uid"]
            pods = {} if is_foreign else self._pods.get(held, {})
            return Observed(
                children=children,
                pods=tuple(pods[name] for name in sorted(pods) if not pods[name].role),
                preflight=tuple(pods[name] for name in sorted(pods) if pods[name].role),
                applied_fields={
                    kind: fields
                    for kind, child in children.items()
                    if (fields := self._applied.get((kind, child.uid))) is not None
                },
            )

    def pods(self) -> list[Pod]:
        """Of all models."""
        with self._lock:
            return [pod for (_, model), pods in self._pods.items() if model for pod in pods.values()]

    def told_of(self, pod: Pod) -> None:
        """Its engine told something that a reconcile would look at."""
        self._changed((pod.namespace, pod.model))

    def used_gpus(self) -> dict[str, int]:
        """Cards that pods with our label hold, by node; those on their way out, and those of no model, too."""
        with self._lock:
            return dict(self._gpus)

    def _count_gpus(self, pod: Pod, sign: int) -> None:
        if pod.holds is not None:
            node, cards = pod.holds
            self._gpus[node] += sign * cards
            if not self._gpus[node]:
                del self._gpus[node]

    @staticmethod
    def _drop(entries: dict[Key, Any], home: Key, entry: str) -> Any:
        gone = entries.get(home, {}).pop(entry, None)
        if not entries.get(home, True):
            del entries[home]
        return gone

    def _changed(self, held: Key) -> None:
        with self._lock:
            names = sorted(self._names.get(held, ()))
        for name in names:
            self._on_part((held[0], name))


def _looks_at_nodes(hardware: Mapping[str, Any]) -> bool:
    pages = (hardware.get("hostMemory") or {}).get("hugepages")
    return hardware.get("accelerator") == "nvidia" or pages not in (None, "none")


def _place(obj: Object) -> Key:
    """Namespace and name."""
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
