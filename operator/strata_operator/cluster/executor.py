"""Carries plans out, as far as the API server takes what they want."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from strata_operator.api.child import Child
from strata_operator.api.conditions import APPLY_REFUSED, Trouble, age, shorten
from strata_operator.api.errors import ForeignObjectError, MissingError, RefusedError, UnavailableError
from strata_operator.api.model import StrataModel
from strata_operator.api.names import NODE_ANNOTATION, ROLE_LABEL
from strata_operator.cluster import apply, events
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import Client
from strata_operator.plan import Action, Plan
from strata_operator.preflight import failed
from strata_operator.render import JOB, PREFLIGHT_ROLE

# Until the pod of a Job that was started shows.
PREFLIGHT_SECONDS = 10.0
# A Job without a pod of which no event tells is told of after so long: its event may be gone.
NO_POD_SECONDS = 60.0
# A child that an API server which answers has not taken for so long is told of: a webhook that is away, or a right that
# is missing, may last.
UNTAKEN_SECONDS = 15.0


class Executor:
    """One model is in one worker's hands at a time."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._cache = cache
        self._untaken: dict[tuple[Key, str], datetime] = {}  # since when a child of a part cannot be applied

    def carry_out(self, model: StrataModel, wanted: Plan, done: list[Action], *, part: str = "") -> Plan:
        """Adds the actions that succeeded to ``done``; returns the plan with what stood in the way of the others.

        ``part``: of the model's children, of which each has a plan of its own. Raises UnavailableError where the API
        server should be asked again later.
        """
        place = (model.namespace, model.name), part
        for action in wanted.actions:
            try:
                if action.verb == "delete":
                    self._delete(action)
                    done.append(action)
                    continue
                answer = apply.apply_child(self._client, model, action)
            except ForeignObjectError as error:
                return _blocked(wanted, "NameConflict", str(error))
            except (RefusedError, MissingError) as error:  # missing: the kind, or the namespace
                words = f"the API server refuses the {action.kind}: {shorten(error.answer)}"
                return _blocked(wanted, APPLY_REFUSED, words)
            except UnavailableError as error:
                if not self._lasts(place, error):
                    raise
                words = f"the API server fails to take the {action.kind}, and is asked again: {shorten(error.answer)}"
                return _blocked(wanted, APPLY_REFUSED, words)
            if action.kind == JOB and self._age(answer) >= PREFLIGHT_SECONDS:
                wanted = self._without_pod(wanted, answer)  # it was there, and nobody has seen a pod of it
                continue
            done.append(action)
            if action.kind != JOB:  # of a Job its pods tell
                self._cache.note_applied(Child.of(action.kind, answer))
                self._cache.put(action.kind, answer, own=True)
        self._untaken.pop(place, None)
        return wanted

    def forget(self, key: Key) -> None:
        """The model is gone."""
        for place in [one for one in list(self._untaken) if one[0] == key]:
            self._untaken.pop(place, None)

    def _delete(self, action: Action) -> None:
        """Raises UnavailableError where the name stands for another object by now."""
        assert action.known is not None
        metadata = action.manifest["metadata"]
        with suppress(MissingError):  # its watch has not told yet
            self._client.delete(action.kind, metadata["namespace"], metadata["name"], uid=action.known.uid)
        self._cache.remove(action.kind, action.manifest)

    def _lasts(self, place: tuple[Key, str], error: UnavailableError) -> bool:
        """Whether the API server answers, and has not taken a child for some time."""
        since = self._untaken.setdefault(place, self._client.now())
        return error.status != 0 and (self._client.now() - since).total_seconds() >= UNTAKEN_SECONDS

    def _age(self, obj: Mapping[str, Any]) -> float:
        return age(obj["metadata"].get("creationTimestamp", ""), self._client.now())

    def _without_pod(self, wanted: Plan, job: Mapping[str, Any]) -> Plan:
        trouble = self._why_no_pod(job)
        if trouble is None:
            return wanted
        pod = job["spec"]["template"]["metadata"]
        is_waited_for = wanted.held is not None and pod["labels"][ROLE_LABEL] == PREFLIGHT_ROLE
        held = failed(trouble) if is_waited_for else wanted.held
        return replace(wanted, held=held, unfetched=(pod["annotations"][NODE_ANNOTATION], trouble))

    def _why_no_pod(self, job: Mapping[str, Any]) -> Trouble | None:
        """By the newest of the Job's events; None while a pod may come yet."""
        metadata = job["metadata"]
        told = events.warning(self._client, metadata["namespace"], metadata["name"], metadata["uid"])
        has_ended = bool((job.get("status") or {}).get("conditions"))
        if told is not None or has_ended or self._age(job) < NO_POD_SECONDS:
            return told
        words = f"Job {metadata['name']} has no pod; kubectl describe job/{metadata['name']} -n {metadata['namespace']}"
        return Trouble("NoPod", f"{words} may tell why")


def _blocked(wanted: Plan, reason: str, words: str) -> Plan:
    return replace(wanted, blocked=(*wanted.blocked, Trouble(reason, words)))
