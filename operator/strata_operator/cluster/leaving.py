"""Lets a model that is being deleted go once what it wished for is undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_operator import tuning
from strata_operator.api.conditions import age, shorten
from strata_operator.api.errors import RefusedError
from strata_operator.api.event import Event
from strata_operator.api.names import TUNING_FINALIZER
from strata_operator.cluster.cache import Key
from strata_operator.cluster.client import Client
from strata_operator.cluster.events import Outbox
from strata_operator.cluster.nodes import Nodes
from strata_operator.cluster.wishes import Wishes
from strata_operator.workers import Result

# A model that is being deleted waits so long for its nodes' agents to put settings back; a dead node never does.
RESTORE_SECONDS = 60.0
RESTORE_LOOK_SECONDS = 5.0
REFUSED_SECONDS = 60.0  # until the API server is asked again to take the finalizer away


class Leaving:
    """The finalizer that ``wishes`` sets is taken away here."""

    def __init__(self, client: Client, wishes: Wishes, nodes: Nodes, outbox: Outbox) -> None:
        self._clock = client.now
        self._wishes = wishes
        self._nodes = nodes
        self._outbox = outbox

    def __call__(self, key: Key, obj: Mapping[str, Any]) -> Result:
        """Undo what the model wished for, and let it go once its nodes have undone it, or could not for long."""
        metadata = obj["metadata"]
        if TUNING_FINALIZER not in metadata.get("finalizers", ()):
            self._outbox.forget(key)
            return Result("gone")
        kept = self._wishes.take_back(key)
        names = (node["name"] for node in obj["status"].get("nodes") or ())
        waiting = tuning.unsettled(tuning.key(*key), names, self._nodes.all())
        if (waiting or kept) and age(metadata["deletionTimestamp"], self._clock()) < RESTORE_SECONDS:
            return Result("leaving", again_in=RESTORE_LOOK_SECONDS)
        if kept:
            words = f"what the model wants of nodes stays wanted there, for it cannot be taken back: {'; '.join(kept)}"
            self._outbox.add(metadata, [Event("Warning", "NodeNotRestored", words)])
        elif waiting:
            words = (
                f"the agent of {', '.join(waiting)} has not put the cards' settings back; it does once it runs, for no "
                "model wants anything there any more"
            )
            self._outbox.add(metadata, [Event("Warning", "NodeNotRestored", words)])
        try:
            self._wishes.set_finalizer(key, metadata["uid"], present=False)
        except RefusedError as error:
            words = f"the model stays, for {shorten(error.answer)}"
            self._outbox.add(metadata, [Event("Warning", "FinalizerRefused", words)])
            return Result("leaving", again_in=REFUSED_SECONDS)
        return Result("gone")
