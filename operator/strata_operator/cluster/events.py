"""Kubernetes events: those that we post on an object, and those that the kubelet posted on a pod."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from strata_operator.api.conditions import Trouble, timestamp
from strata_operator.api.errors import ApiError, UnavailableError
from strata_operator.api.event import Event
from strata_operator.api.model import API_VERSION, KIND
from strata_operator.api.names import FIELD_MANAGER
from strata_operator.api.pod import warned
from strata_operator.cluster.cache import Key
from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

_MESSAGE_LIMIT = 1024  # characters; the API server refuses more


class Outbox:
    """Events on models, each kept until the API server took or refused it: what they tell of shows only once.

    One key is in one worker's hands at a time.
    """

    def __init__(self, client: Client, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock
        self._waiting: dict[Key, dict[tuple[str, Event], None]] = {}  # with the model's uid; in order, each once

    def add(self, metadata: Mapping[str, Any], events: Iterable[Event]) -> None:
        """Have them posted on the model of that metadata."""
        for event in events:
            waiting = self._waiting.setdefault((metadata["namespace"], metadata["name"]), {})
            waiting[metadata["uid"], event] = None

    def post(self, key: Key) -> None:
        """Post what waits. Raises UnavailableError where that has to be tried again."""
        waiting = self._waiting.get(key, {})
        for uid, event in list(waiting):
            post(self._client, {"namespace": key[0], "name": key[1], "uid": uid}, event, now=self._clock())
            del waiting[uid, event]
        self.forget(key)

    def forget(self, key: Key) -> None:
        """The model is gone, and nobody reads on."""
        self._waiting.pop(key, None)


def post(
    client: Client,
    metadata: Mapping[str, Any],
    event: Event,
    *,
    now: datetime,
    kind: str = KIND,
    component: str = FIELD_MANAGER,
) -> None:
    """Post an event on the object of that metadata and kind, or count up the same one posted before.

    One that is refused, or that we have no right to, is logged and given up. Raises UnavailableError where it may be
    posted later.
    """
    name = metadata["name"]
    namespace = metadata.get("namespace", "default")  # where events of objects without a namespace belong
    digest = hashlib.sha256(f"{metadata['uid']} {event.reason} {event.message}".encode()).hexdigest()[:16]
    # The same words about the same object get the same name: that is what aggregates them.
    event_name = f"{name[:200].rstrip('-.')}.{digest}"
    log.info("%s/%s: %s: %s", namespace, name, event.reason, event.message)
    manifest = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            **({"namespace": namespace} if "namespace" in metadata else {}),
            "name": name,
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_LIMIT],
        "source": {"component": component},
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
    try:
        try:
            client.create("Event", manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            count = client.get("Event", namespace, event_name).get("count") or 1
            client.merge("Event", namespace, event_name, {"count": count + 1, "lastTimestamp": timestamp(now)})
    except ApiError as error:
        if isinstance(error, UnavailableError) and error.status != 403:
            raise
        log.warning("event %s on %s/%s could not be posted: %s", event.reason, namespace, name, error)


def warning(client: Client, namespace: str, name: str, uid: str) -> Trouble | None:
    """Why a pod or a Job goes no further, by the newest event that was posted on it.

    Raises UnavailableError where that may be read later; without the right to it, none is known.
    """
    try:
        found = client.list("Event", namespace, fieldSelector=f"involvedObject.uid={uid}").get("items") or ()
    except ApiError as error:
        if isinstance(error, UnavailableError) and error.status != 403:
            raise
        log.warning("%s/%s: why it goes no further cannot be read: %s", namespace, name, error)
        return None
    return warned(found)
