"""One level-based reconcile: what is wanted and what is there, the plan, its actions, the status, the events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from strata_operator import status as statuses
from strata_operator.api.child import Child
from strata_operator.api.conditions import Trouble, shorten
from strata_operator.api.errors import ForeignObjectError, InvalidSpecError, LeavingError, RefusedError
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod, warned
from strata_operator.cluster import apply, events
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import Client
from strata_operator.plan import Action, Plan, plan
from strata_operator.render import children
from strata_operator.workers import Result

# A foreign object bears no label of ours, so no watch tells when it is gone: look again from time to time.
BLOCKED_SECONDS = 60.0
# A container that is not created after this time has a reason that only the pod's events tell.
CREATING_SECONDS = 10.0


class Reconciler:
    """Brings the cluster to what one model's spec says; called with its key as often as anything of it changes."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        *,
        engine_image: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._engine_image = engine_image
        self._clock = clock

    def __call__(self, key: Key) -> Result:
        """Raises UnavailableError where the API server should be asked again later."""
        obj = self._cache.model(key)
        # Once a model is being deleted its children are the garbage collector's: whatever is applied would fight it.
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            return Result("gone")
        try:
            model = StrataModel.parse(obj)
        except InvalidSpecError as error:
            generation = obj["metadata"]["generation"]
            new = statuses.refused(str(error), generation=generation, previous=obj["status"], now=self._clock())
            self._tell(obj, new, [])
            return Result("refused")
        desired = children(model, engine_image=self._engine_image)
        wanted = plan(model, desired, self._cache.observe(key))
        if any(action.verb == "create" for action in wanted.actions) and not apply.owner_exists(self._client, model):
            return Result("gone")
        try:
            done, outcome = self._carry_out(model, wanted)
        except LeavingError:
            return Result("gone")
        observed, creating = self._look_into_pods(self._cache.observe(key))
        new = statuses.status(model, desired, observed, outcome, previous=obj["status"], now=self._clock())
        changed = self._tell(obj, new, done)
        if outcome.blocked:
            return Result("blocked", again_in=BLOCKED_SECONDS)
        return Result("changed" if changed or done else "unchanged", again_in=CREATING_SECONDS if creating else None)

    def _carry_out(self, model: StrataModel, wanted: Plan) -> tuple[list[Action], Plan]:
        """The actions that succeeded, and the plan with what stood in the way of the others."""
        done: list[Action] = []
        for action in wanted.actions:
            try:
                answer = apply.apply_child(self._client, model, action)
            except ForeignObjectError as error:
                return done, replace(wanted, blocked=(*wanted.blocked, Trouble("NameConflict", str(error))))
            except LeavingError:
                raise
            except RefusedError as error:
                words = f"the API server refuses the {action.kind}: {shorten(error.answer)}"
                return done, replace(wanted, blocked=(*wanted.blocked, Trouble("ApplyRefused", words)))
            self._cache.note_applied(Child.of(action.kind, answer))
            self._cache.put(action.kind, answer)
            done.append(action)
        return done, wanted

    def _look_into_pods(self, observed: Observed) -> tuple[Observed, bool]:
        """Pods whose containers are not created for some time get the reason from their events; and whether any is."""
        pods = tuple(self._look_into(pod) if pod.creating else pod for pod in observed.pods)
        return replace(observed, pods=pods), any(pod.creating for pod in observed.pods)

    def _look_into(self, pod: Pod) -> Pod:
        try:
            age = self._clock() - datetime.fromisoformat(pod.since)
        except ValueError:
            return pod
        if age.total_seconds() < CREATING_SECONDS:
            return pod
        return replace(pod, trouble=warned(events.of_pod(self._client, pod)))

    def _tell(self, obj: Mapping[str, Any], new: Mapping[str, Any], done: list[Action]) -> bool:
        """Write the status if it differs, then post the events; whether it was written."""
        metadata, previous = obj["metadata"], obj["status"]
        written = bool(new != previous)
        if written:
            key = (metadata["namespace"], metadata["name"])
            answer = apply.apply_status(self._client, key, metadata["uid"], new)
            if answer is None:
                return False
            self._cache.put_model(answer, own=True)
        for event in statuses.events(new, previous, done):
            events.post(self._client, metadata, event, now=self._clock())
        return written
