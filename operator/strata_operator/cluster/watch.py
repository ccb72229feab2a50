"""List-then-watch: keeps the cache equal to one kind of object in the cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from strata_operator.api.errors import ApiError, UnavailableError
from strata_operator.api.names import MODEL_LABEL
from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

PAGE = "500"
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)


class Sink(Protocol):
    """Where a watch puts what it sees; ``cluster.cache.Cache`` is one."""

    def put(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def remove(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def replace(self, kind: str, objects: list[Mapping[str, Any]]) -> None: ...


class Watch:
    """One kind, in a thread of its own, label-selected: foreign objects never reach this process."""

    def __init__(self, client: Client, kind: str, sink: Sink) -> None:
        self.kind = kind
        self.synced = threading.Event()  # set after the first list
        self.active_at = time.monotonic()  # when the loop last turned; it turns at least once a watch's silence
        self._client = client
        self._sink = sink
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind}", daemon=True)

    def start(self) -> None:
        """Returns at once; ``synced`` tells when the cache holds the kind."""
        self._thread.start()

    def stop(self) -> None:
        """The thread ends with its next event; it is a daemon, so nobody need wait."""
        self._stopped.set()

    def _run(self) -> None:
        version, failures = "", 0
        while not self._stopped.is_set():
            self.active_at = time.monotonic()
            try:
                if not version:
                    version = self._list()
                    self.synced.set()
                version = self._follow(version)
                failures = 0
            except ApiError as error:
                if error.status == 410:
                    version = ""
                    continue
                if not isinstance(error, UnavailableError):
                    version = ""  # forbidden, for instance: start over once somebody mended it
                delay = _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]
                failures += 1
                log.warning("watch of %s: %s; again in %s s", self.kind, error, delay)
                self._stopped.wait(delay)
            except Exception:
                # A defect in the reading of one object must not end the watch in silence.
                log.exception("watch of %s: starting over", self.kind)
                version = ""
                self._stopped.wait(_RETRY_SECONDS[-1])

    def _list(self) -> str:
        """Put the whole list into the sink; the version from which to watch."""
        objects: list[Mapping[str, Any]] = []
        query = {"labelSelector": MODEL_LABEL, "limit": PAGE}
        while True:
            page = self._client.list(self.kind, **query)
            objects += page.get("items") or []  # an empty list of metadata has null here
            after = page["metadata"].get("continue")
            if not after:
                break
            query["continue"] = after
        self._sink.replace(self.kind, objects)
        return str(page["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        """Put events into the sink until the server ends the watch; the version to go on from, "" to list anew."""
        for event in self._client.watch(self.kind, labelSelector=MODEL_LABEL, resourceVersion=version):
            self.active_at = time.monotonic()
            if self._stopped.is_set():
                break
            obj = event["object"]
            if event["type"] == "ERROR":
                if obj.get("code") == 410:
                    return ""
                raise UnavailableError(f"the watch was ended: {obj.get('message')}", status=obj.get("code") or 0)
            version = obj["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._sink.remove(self.kind, obj)
            elif event["type"] != "BOOKMARK":
                self._sink.put(self.kind, obj)
        return version
