"""List-then-watch: keeps the cache equal to one kind of object in the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from strata_operator.api.errors import MissingError, RefusedError, UnavailableError
from strata_operator.api.names import MODEL_LABEL
from strata_operator.cluster.client import WATCH_SILENCE_SECONDS, Client
from strata_operator.cluster.loop import Loop

MODELS_ONLY = {"labelSelector": MODEL_LABEL}  # children and pods of models


_ABSENT_SECONDS = 60.0  # until a CRD that is not there is looked for again


class Sink(Protocol):
    """Where a watch puts what it sees; ``cluster.cache.Cache`` is one."""

    def put(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def remove(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None: ...


class Watch(Loop):
    """One kind, in a namespace or the cluster. ``select`` is the list's query: what it leaves out never reaches this
    process."""

    def __init__(
        self,
        client: Client,
        kind: str,
        sink: Sink,
        select: Mapping[str, str] = MODELS_ONLY,
        *,
        namespace: str | None = None,
    ) -> None:
        # It turns at least once in a watch's silence; a list of many pages takes longer.
        super().__init__(kind, silent_seconds=WATCH_SILENCE_SECONDS + 150)
        self._client = client
        self._sink = sink
        self._select = select
        self._namespace = namespace
        if namespace is not None:
            self.name += f" in {namespace}"
        self._version = ""  # from which to go on; "" to list anew

    def turn(self) -> None:
        """Follow until the server ends the watch or it breaks."""
        try:
            if not self._version:
                self._list()
                self.synced.set()
            self._follow()
        except UnavailableError:
            raise  # it goes on where it broke
        except Exception:
            # Too old by now; or forbidden, and to be started over once somebody mended it; or an object not understood.
            self._version = ""
            raise

    def _list(self) -> None:
        """Put the whole list into the sink."""
        with self.taking_turns(self._client.listing):
            objects, version = self._client.list_all(self.kind, self._namespace, **self._select)
            self._sink.replace(self.kind, objects)
        self._version = version

    def _follow(self) -> None:
        """Put events into the sink until the server ends the watch."""
        for event in self._client.watch(self.kind, self._namespace, **self._select, resourceVersion=self._version):
            self.active_at = time.monotonic()
            if self.stopped.is_set():
                break
            obj = event["object"]
            if event["type"] == "ERROR":
                code = obj.get("code") or 0
                made = RefusedError if code == 410 else UnavailableError
                raise made(f"the watch was ended: {obj.get('message')}", status=code)
            if event["type"] == "DELETED":
                self._sink.remove(self.kind, obj)
            elif event["type"] != "BOOKMARK":
                self._sink.put(self.kind, obj)
            self._version = obj["metadata"]["resourceVersion"]


class OptionalWatch(Watch):
    """A kind whose CRD may not be there; ``present`` tells, and ``on_change()`` is called when that changes."""

    def __init__(
        self, client: Client, kind: str, sink: Sink, on_change: Callable[[], None], *, namespace: str | None = None
    ) -> None:
        super().__init__(client, kind, sink, namespace=namespace)
        self.present = False
        self._on_change = on_change

    def turn(self) -> None:
        """Follow; or wait a while for the CRD."""
        try:
            super().turn()
        except MissingError:
            self._sink.replace(self.kind, ())
            self._tell(present=False)
            self.synced.set()
            self.stopped.wait(_ABSENT_SECONDS)

    def _list(self) -> None:
        super()._list()
        self._tell(present=True)

    def _tell(self, *, present: bool) -> None:
        if present != self.present:
            self.present = present
            self._on_change()
