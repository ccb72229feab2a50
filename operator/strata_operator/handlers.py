"""Kopf's part: watches StrataModel, keeps the connection alive, stops on a signal. No logic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from strata_operator.api.model import GROUP, PLURAL, VERSION
from strata_operator.cluster.cache import Cache

# Kubelets renew a pod's token long before it ends; reading it again this often is always in time.
_LOGIN_SECONDS = 600


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler asks what has changed since it ran last, and kopf's copy of each object takes most of an event."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None: ...


def settings() -> kopf.OperatorSettings:
    """Names under which kopf would ever write are ours from the start, and no request may hang for ever."""
    made = kopf.OperatorSettings()
    made.persistence.finalizer = f"{GROUP}/operator"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"operator.{GROUP}")
    made.persistence.diffbase_storage = _NoDiffs()
    made.posting.enabled = False  # cluster/events posts, counted and aggregated
    made.peering.standalone = True
    made.queueing.idle_timeout = 0.5  # of the task that each object gets; it keeps the event
    made.scanning.disabled = True  # no right to list CRDs and namespaces is needed
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 5
    made.networking.error_backoffs = (1, 1, 2, 3, 5) + (10,) * 100_000  # kopf ends the process after the last one
    made.watching.connect_timeout = 5
    made.watching.server_timeout = 300
    made.watching.client_timeout = 330
    return made


def registry(cache: Cache, configuration: Any, heard: Callable[[], None]) -> kopf.OperatorRegistry:
    """One handler: keep a slim copy, which enqueues the key. Credentials are those of our own client.

    ``heard`` is called for each event.
    """
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**_: Any) -> kopf.ConnectionInfo:
        scheme, _space, token = (configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=token or None,
            expiration=datetime.now(UTC) + timedelta(seconds=_LOGIN_SECONDS),
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=made)
    async def on_model(event: Any, **_: Any) -> None:
        heard()
        if event["type"] == "DELETED":
            cache.remove_model(event["object"])
        else:
            cache.put_model(event["object"])

    return made
