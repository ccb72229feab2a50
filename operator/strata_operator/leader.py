"""Which of several operators works: the one that holds a Lease. The others keep their caches and wait.

A holder renews every 2 s. Others take over 15 s after the last renewal that they saw, or at once when it was given up.
A holder that has not renewed for 10 s ends before that, so that two never write at the same time; a second thread looks
at that, for a request may hang for longer. Only durations are compared, each on its own clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from strata_operator.api.errors import ApiError, MissingError
from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

KIND = "Lease"
LEASE_SECONDS = 15
RENEW_SECONDS = 2.0
DEADLINE_SECONDS = 10.0  # in which a holder renews, or ends
READ_SECONDS = 3  # of a request, and as much to connect


class Leader:
    """Tries for the Lease ``namespace/name`` and holds it; ``leading`` is set while it does.

    ``on_lost()`` is called once where it could not be renewed in time, or somebody else holds it: whatever writes must
    have ended when it returns.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.leading = threading.Event()
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_lost = on_lost
        self._clock = clock
        self._seen: object = None  # holder and renewal of somebody else's Lease, as last seen
        self._seen_at = 0.0  # when it was first seen so
        self._told_of = ""  # whom the log names as the holder
        self._told = ""  # why the last turn failed
        self._held: Mapping[str, Any] | None = None  # the Lease as of our last renewal
        self._renewed_at = 0.0
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="leader's watchdog", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()
        self._watchdog.start()

    def stop(self) -> None:
        """Give the Lease up, so that another takes over at once. To be called when nothing is written any more."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(READ_SECONDS + RENEW_SECONDS)
        if not self.leading.is_set():
            return
        try:
            lease = self._client.get(KIND, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._identity:
                self._write(lease, {"holderIdentity": None})
        except ApiError as error:
            log.warning("the lease could not be given up, and runs out by itself: %s", error)

    def turn(self) -> None:
        """Try once."""
        began = self._clock()
        try:
            holds = self._try()
            self._told = ""
        except ApiError as error:
            if str(error) != self._told:  # an outage, or a right that is missing, fails each turn with the same words
                log.warning("the lease %s/%s: %s", self._namespace, self._name, error)
                self._told = str(error)
            holds = None
        except Exception:  # a thread that ended would renew no more, and this operator write beside the next leader
            log.exception("the lease %s/%s: once more", self._namespace, self._name)
            holds = None
        if holds:
            self._renewed_at = began
            if not self.leading.is_set():
                log.info("this operator leads: it holds the lease %s/%s", self._namespace, self._name)
            self.leading.set()
        elif holds is False or self._left() < 0:
            self._end()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.turn()
            self._stopped.wait(RENEW_SECONDS)

    def _watch(self) -> None:
        while not self._stopped.wait(self._left() if self.leading.is_set() else DEADLINE_SECONDS):
            if self.leading.is_set() and self._left() < 0:
                self._end()

    def _left(self) -> float:
        """Seconds in which it has to be renewed."""
        return self._renewed_at + DEADLINE_SECONDS - self._clock()

    def _end(self) -> None:
        """It is lost, if it was held. Both threads may find that."""
        with self._ending:
            if not self.leading.is_set():
                return
            self.leading.clear()
        self._stopped.set()
        self._on_lost()

    def _try(self) -> bool | None:
        """Whether it is ours now; None where that is not known."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._renew(held)
                return True
            except ApiError as error:
                if error.status not in (404, 409):  # else somebody wrote it, or deleted it: look
                    raise
        try:
            lease = self._client.get(KIND, self._namespace, self._name)
        except MissingError:
            metadata = {"namespace": self._namespace, "name": self._name}
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": KIND, "metadata": metadata}
            self._client.create(KIND, {**made, "spec": self._spec(transitions=0, acquires=True)})
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self._identity:
            self._renew(lease)
            return True
        if holder and not self._has_run_out(spec):
            if holder != self._told_of:
                log.warning("%s works: it holds the lease %s/%s; this one waits", holder, self._namespace, self._name)
                self._told_of = holder
            return False
        self._write(lease, self._spec(transitions=(spec.get("leaseTransitions") or 0) + 1, acquires=True))
        return True

    def _renew(self, lease: Mapping[str, Any]) -> None:
        """Raises UnavailableError where somebody else wrote in between."""
        transitions = lease["spec"].get("leaseTransitions") or 0
        self._held = self._write(lease, self._spec(transitions=transitions, acquires=False))

    def _has_run_out(self, spec: Mapping[str, Any]) -> bool:
        seen = (spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at > (spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    def _spec(self, *, transitions: int, acquires: bool) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "leaseTransitions": transitions,
            "renewTime": now,
            **({"acquireTime": now} if acquires else {}),
        }

    def _write(self, lease: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UnavailableError where somebody else wrote in between."""
        version = lease["metadata"]["resourceVersion"]
        return self._client.merge(
            KIND, self._namespace, self._name, {"metadata": {"resourceVersion": version}, "spec": spec}
        )
