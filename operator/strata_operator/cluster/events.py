"""Kubernetes events: those that we post on a model, and those that the kubelet posted on a pod."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from strata_operator.api.conditions import timestamp
from strata_operator.api.errors import ApiError
from strata_operator.api.model import API_VERSION, KIND
from strata_operator.api.names import FIELD_MANAGER
from strata_operator.api.pod import Pod
from strata_operator.cluster.client import Client
from strata_operator.status import Event

log = logging.getLogger(__name__)

_MESSAGE_LIMIT = 1024  # characters; the API server refuses more


def post(client: Client, metadata: Mapping[str, Any], event: Event, *, now: datetime) -> None:
    """Post an event on the model of that metadata, or count up the same one posted before.

    An event that cannot be posted is logged: it must not hold up what it tells of.
    """
    namespace, name = metadata["namespace"], metadata["name"]
    digest = hashlib.sha256(f"{metadata['uid']} {event.reason} {event.message}".encode()).hexdigest()[:16]
    # The same words about the same object get the same name: that is what aggregates them.
    event_name = f"{name[:200]}.{digest}"
    log.info("%s/%s: %s: %s", namespace, name, event.reason, event.message)
    manifest = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": name,
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_LIMIT],
        "source": {"component": FIELD_MANAGER},
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
        log.warning("event %s on %s/%s could not be posted: %s", event.reason, namespace, name, error)


def of_pod(client: Client, pod: Pod) -> list[Mapping[str, Any]]:
    """What was posted on that pod, in no order."""
    return list(client.list("Event", pod.namespace, fieldSelector=f"involvedObject.uid={pod.uid}").get("items") or [])
