"""What models want of nodes, in the nodes' StrataNodes: written, and taken back before a model goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from strata_operator import tuning
from strata_operator.api.conditions import APPLY_REFUSED, NODE_TUNED, Condition, shorten
from strata_operator.api.errors import ApiError, MissingError, RefusedError
from strata_operator.api.model import KIND, StrataModel
from strata_operator.api.names import TUNING_FINALIZER
from strata_operator.api.node import NODE_KIND, Wish
from strata_operator.cluster import apply
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import Client
from strata_operator.cluster.nodes import Nodes

log = logging.getLogger(__name__)


class Wishes:
    """A model whose wishes are heeded has a finalizer, from before the first one is written: so it does not go before
    nodes have put back what they had."""

    def __init__(self, client: Client, cache: Cache, nodes: Nodes) -> None:
        self._client = client
        self._cache = cache
        self._nodes = nodes

    def keep(
        self, key: Key, obj: Mapping[str, Any], model: StrataModel, wishes: Mapping[str, Wish]
    ) -> tuple[bool, Condition]:
        """Have the nodes hold those wishes of the model and no others: whether anything was written, and the condition
        NodeTuned.

        Raises MissingError where the model is gone, LeavingError where it is about to go.
        """
        try:
            changed = self._write(key, obj, wishes, is_heeded=tuning.is_heeded(model, self._nodes.all()))
        except RefusedError as error:  # by a CRD of another version, for one; or the finalizer, by a webhook
            words = f"the API server refuses what the spec wants of the nodes: {shorten(error.answer)}"
            return False, Condition(NODE_TUNED, False, APPLY_REFUSED, words)
        return changed, tuning.verdict(model, wishes, self._nodes.all())

    def withdraw(self, key: Key) -> bool:
        """Take back what a model that is gone wished for: its finalizer was removed by hand, or the wish was written
        so, or could not be taken back before. Whether none is left."""
        if not self._nodes.is_wished_by(tuning.key(*key)):
            return True
        try:
            self._client.get(KIND, *key)
        except MissingError:
            kept = self.take_back(key)
            log.info("%s/%s is gone, and its wishes for nodes with it", *key)
            for words in kept:
                log.error("%s/%s is gone, and its wish for a node cannot be taken back from %s", *key, words)
            return not kept
        return True

    def take_back(self, key: Key) -> list[str]:
        """Take back all that the model wishes for; the nodes where the API server does not, and what it answers."""
        kept = []
        for action in tuning.actions(tuning.key(*key), {}, self._nodes.all()):
            try:
                self._apply(key, [action])
            except ApiError as error:
                if error.status == 0:
                    raise
                kept.append(f"{action.node.name}: {shorten(error.answer)}")
        return kept

    def set_finalizer(self, key: Key, uid: str, *, present: bool) -> None:
        """Raises RefusedError whose ``answer`` says what was refused."""
        try:
            self._cache.put_model(apply.apply_finalizer(self._client, key, uid, present=present), own=True)
        except RefusedError as error:
            words = f"the finalizer {TUNING_FINALIZER} cannot be {'set' if present else 'removed'}: {error.answer}"
            raise RefusedError(str(error), status=error.status, answer=words) from error

    def _write(self, key: Key, obj: Mapping[str, Any], wishes: Mapping[str, Wish], *, is_heeded: bool) -> bool:
        """``is_heeded``: whether an agent acts on what the model's spec wishes for."""
        metadata = obj["metadata"]
        has_finalizer = TUNING_FINALIZER in metadata.get("finalizers", ())
        if not (wishes or is_heeded or has_finalizer or self._nodes.is_wished_by(tuning.key(*key))):
            return False
        todo = tuning.actions(tuning.key(*key), wishes, self._nodes.all())
        if is_heeded and not has_finalizer:
            self.set_finalizer(key, metadata["uid"], present=True)
        self._apply(key, todo)
        if has_finalizer and not is_heeded:
            self.set_finalizer(key, metadata["uid"], present=False)
        return bool(todo) or has_finalizer != is_heeded

    def _apply(self, key: Key, todo: Iterable[tuning.NodeAction]) -> None:
        for action in todo:
            self._nodes.put(NODE_KIND, apply.apply_wish(self._client, key, action))
