"""The Jobs that bring image and weights to nodes: which one is started, and which end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_operator.api.conditions import shorten
from strata_operator.api.errors import RefusedError
from strata_operator.api.event import Event
from strata_operator.api.model import StrataModel
from strata_operator.cluster import apply
from strata_operator.cluster.client import Client
from strata_operator.cluster.events import Outbox
from strata_operator.preflight import retries, superseded
from strata_operator.render import PREFLIGHT_ROLE, WARM_ROLE, preflight
from strata_operator.target import Facts, Target


class Preflights:
    """``image``: the engine's, of specs that name none."""

    def __init__(self, client: Client, outbox: Outbox, image: str) -> None:
        self._client = client
        self._outbox = outbox
        self._image = image

    def job(self, target: Target) -> Mapping[str, Any] | None:
        """What brings image and weights to a node, where one has to: before a pod is stopped, or ahead of any."""
        node, role = target.preflight_node, PREFLIGHT_ROLE
        if node is None:
            node, role = target.warm_node, WARM_ROLE
        if node is None:
            return None
        return preflight(target.model, target.revision, node, engine_image=self._image, role=role)

    def end(self, facts: Facts, target: Target) -> tuple[list[float], bool]:
        """End those that nobody needs any more, and those that have to be tried again now: the seconds until others
        have to be, and whether all end that should."""
        trials, revision = facts.observed.preflight, target.revision
        due = retries(trials, revision, facts.now)
        over = [*superseded(trials, revision)]
        over += [(revision, node) for node, seconds in due.items() if seconds <= 0]
        ended = [self._expire(facts.obj["metadata"], target.model, *one) for one in over]
        return [seconds for seconds in due.values() if seconds > 0], all(ended)

    def _expire(self, metadata: Mapping[str, Any], model: StrataModel, revision: str, node: str) -> bool:
        """Whether the Job that tries ``revision`` on ``node`` ends; else it is told why it does not."""
        try:
            apply.expire_preflight(self._client, model, revision, node)
        except RefusedError as error:
            words = f"the Job that fetches for revision {revision} on {node} cannot be ended: {shorten(error.answer)}"
            self._outbox.add(metadata, [Event("Warning", "ExpiryRefused", words)])
            return False
        return True
