"""One level-based reconcile: what is wanted and what is there, the plan, its actions, the status, the events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from strata_operator import cached, eviction, notices, rollout, tuning
from strata_operator import status as statuses
from strata_operator.api.conditions import APPLY_REFUSED, UNSCHEDULABLE, Condition, Trouble, age, shorten
from strata_operator.api.errors import (
    InvalidSpecError,
    LeavingError,
    MissingError,
    RefusedError,
)
from strata_operator.api.event import Event
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.api.route import RouteDefaults
from strata_operator.cached import Cached
from strata_operator.cluster import apply, events
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import Client
from strata_operator.cluster.executor import PREFLIGHT_SECONDS, Executor
from strata_operator.cluster.leaving import Leaving
from strata_operator.cluster.nodes import Nodes
from strata_operator.cluster.preflights import Preflights
from strata_operator.cluster.routes import Routes
from strata_operator.cluster.vacancies import Vacancies
from strata_operator.cluster.wishes import Wishes
from strata_operator.fit import Verdict, check_source, judge, least_vram_gib, shape_of
from strata_operator.placement import with_vram
from strata_operator.plan import Action, Plan, plan
from strata_operator.render import JOB, Monitors, children, revision_of
from strata_operator.rollout import stuck
from strata_operator.status import Outcome
from strata_operator.target import Children, Facts, Target, aim
from strata_operator.trouble import find_trouble, is_complete
from strata_operator.workers import Result

log = logging.getLogger(__name__)

# A foreign object bears no label of ours, so no watch tells when it is gone: look again from time to time.
BLOCKED_SECONDS = 60.0
# A container that is not created after this time has a reason that only the pod's events tell.
CREATING_SECONDS = 10.0
# No watch tells when a node for which a pod waits takes it: it is not cordoned any more, a foreign pod has left.
PLACE_SECONDS = 15.0
# A start takes several steps within a second: a status that tells of progress alone comes so long after the last.
PACE_SECONDS = 2.0


class Reconciler:
    """Brings the cluster to what one model's spec says; called with its key as often as anything of it changes.

    ``look(pod)`` is the pod with what its engine told lately; ``monitors()``, which a model gets, if any.
    ``routes``: what is left out of models' routes, None where there are none; ``serves(kind)``: whether the API server
    knows a kind of theirs.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        nodes: Nodes,
        *,
        engine_image: str,
        monitors: Callable[[], Monitors | None],
        routes: RouteDefaults | None = None,
        serves: Callable[[str], bool] = lambda kind: False,
        look: Callable[[Pod], Pod],
    ) -> None:
        self._client = client
        self._cache = cache
        self._nodes = nodes
        self._engine_image = engine_image
        self._monitors = monitors
        self._look = look
        self._clock = client.now  # it is compared with what the API server and kubelets write
        self._vacancies = Vacancies(client)
        self._wishes = Wishes(client, cache, nodes)
        self._executor = Executor(client, cache)
        self._routes = Routes(client, self._executor, routes, serves)
        self._outbox = events.Outbox(client, client.now)
        self._preflights = Preflights(client, self._outbox, engine_image)
        self._leaving = Leaving(client, self._wishes, nodes, self._outbox)
        self._told: dict[Key, datetime] = {}  # when the status was written last, or the first child
        self._verdicts: dict[Key, tuple[object, Verdict]] = {}  # with what was asked
        self._waiting: set[Key] = set()  # for a card that becomes free
        self._shared: WeakValueDictionary[object, Verdict] = WeakValueDictionary()  # by what was asked

    def __call__(self, key: Key) -> Result:
        """Raises UnavailableError where the API server should be asked again later."""
        obj = self._cache.model(key)
        if obj is None:
            self._outbox.forget(key)
            self._verdicts.pop(key, None)
            self._told.pop(key, None)
            self._waiting.discard(key)
            self._executor.forget(key)
            return Result("gone", again_in=None if self._wishes.withdraw(key) else BLOCKED_SECONDS)
        try:
            # Once a model is being deleted its children are the garbage collector's: what is applied would fight it.
            return self._leaving(key, obj) if "deletionTimestamp" in obj["metadata"] else self._reconcile(key, obj)
        except MissingError:
            self._cache.remove_model(obj)  # its watch has not told yet, or never will
            self._outbox.forget(key)
            return Result("gone")
        except LeavingError:
            self._outbox.forget(key)
            return Result("gone")
        except RefusedError as error:  # of the status: what else is refused is told where it is
            words = f"the conditions are of before, for they cannot be written: {shorten(error.answer)}"
            log.error("%s/%s: %s", *key, words)
            self._outbox.add(obj["metadata"], [Event("Warning", "StatusRefused", words)])
            return Result("untold", again_in=BLOCKED_SECONDS)
        finally:
            self._outbox.post(key)  # in an outage, too: what was done before it was done

    def waiting(self) -> list[Key]:
        """Models of which a pod cannot serve where it is, and waits for a card elsewhere."""
        return list(self._waiting)

    def _reconcile(self, key: Key, obj: Mapping[str, Any]) -> Result:
        """Raises MissingError where the model is gone, LeavingError where it is about to go."""
        try:
            facts = self._facts(key, obj)
            target = aim(facts, partial(self._render, facts))
        except InvalidSpecError as error:
            self._tell(obj, statuses.refused(error, obj, now=self._clock()))
            return Result("refused")
        done: list[Action] = []
        carried, unrouted = self._act(key, facts, target, done)
        retries, all_end = self._preflights.end(facts, target)
        there = self._observe(key)
        facts = replace(facts, observed=self._look_into_pods(there))
        wishes = tuning.desired(target.model, there.pods, facts.fit.nodes, there.nodes)
        retuned, tuned = self._wishes.keep(key, obj, target.model, wishes)
        outcome = self._outcome(facts, target, carried, tuned, self._routes.verdict(facts.model, there, unrouted))
        (self._waiting.add if outcome.stranded.waits else self._waiting.discard)(key)
        if done and not retuned:
            self._told.setdefault(key, self._clock())  # a new model may be Ready before anything else is told of it
        status = statuses.status(facts, outcome)
        pause = self._pause(key, status, facts.status)
        changed = pause is None and self._tell(obj, status, [kind for kind in target.desired if kind in there.children])
        if outcome.stranded.leaves is not None:
            self._evict(obj["metadata"], outcome.stranded.leaves)
        if carried.blocked:
            return Result("blocked", again_in=BLOCKED_SECONDS)
        waits = [*_waits(there, outcome), *retries]
        waits += [pause] if pause is not None else []
        waits += [BLOCKED_SECONDS] if unrouted is not None or not all_end else []
        return Result("changed" if changed or done or retuned else "unchanged", again_in=min(waits, default=None))

    def _facts(self, key: Key, obj: Mapping[str, Any]) -> Facts:
        """Raises InvalidSpecError."""
        version = self._nodes.fit_version  # before the nodes are looked at: what changes meanwhile is judged again
        observed = self._observe(key)
        model = StrataModel.parse(obj)
        check_source(model)
        return Facts(obj, model, observed, self._judge(key, model, observed, version), self._clock())

    def _act(self, key: Key, facts: Facts, target: Target, done: list[Action]) -> tuple[Plan, Trouble | None]:
        """Adds the actions that succeeded to ``done``; returns the plan with what stood in the way of the others, and
        what stands in the way of the route."""
        model = target.model
        wanted = plan(model, target.desired, facts.observed, hold=target.hold)
        job = None if wanted.blocked or wanted.waiting else self._preflights.job(target)
        if job is not None:
            wanted = replace(wanted, actions=(*wanted.actions, Action("create", job, None)))
        # Of a new model the first status shows whether it is still there: one call less for each of many.
        is_new = not (facts.status or key in self._told)
        if not is_new and any(action.verb == "create" for action in wanted.actions):
            apply.check_owner(self._client, model)
        try:
            carried = self._executor.carry_out(model, wanted, done)
            if carried.blocked:  # a Service that is not ours must not be led to
                return carried, None
            return carried, self._routes.keep(facts.model, facts.observed, done, is_new=is_new)
        finally:
            self._outbox.add(facts.obj["metadata"], notices.deeds(done, facts.status, model.generation))

    def _outcome(
        self, facts: Facts, target: Target, carried: Plan, tuned: Condition, routed: Condition | None
    ) -> Outcome:
        """``facts`` are those after the plan's actions."""
        model, observed = target.model, facts.observed
        pod_spec = target.desired["Deployment"]["spec"]["template"]["spec"]
        trouble = None
        if not is_complete(model, target.desired, observed, carried):
            closest = partial(self._vacancies.closest, pod_spec)
            trouble = stuck(observed.pods, facts.now)
            trouble = trouble or find_trouble(model, target.desired, observed, carried, closest)
        elif model.wanted_replicas:
            memory = rollout.after_success(target.memory, target.revision, model.generation, facts.obj["spec"])
            target = replace(target, memory=memory)
        obstacle = partial(self._vacancies.obstacle, pod_spec)
        stranded = eviction.stranded(model, pod_spec, observed, facts.fit, obstacle)
        return Outcome(target, carried, trouble, stranded, tuned, routed)

    def _judge(self, key: Key, model: StrataModel, observed: Observed, version: int) -> Verdict:
        """Once for all models that ask for the same, and each change of the nodes' inventory: with hundreds of nodes it
        takes milliseconds."""
        asked = (version, model.source, model.revision, model.format, model.engine, model.hardware)
        known = self._verdicts.get(key)
        if known is None or known[0] != asked:
            verdict = self._shared.get(asked)
            if verdict is None:
                verdict = self._shared[asked] = judge(model, shape_of(model), observed.nodes)
            known = self._verdicts[key] = asked, verdict
        return known[1]

    def _observe(self, key: Key) -> Observed:
        observed = self._cache.observe(key)
        pods, trials = (tuple(map(self._look, some)) for some in (observed.pods, observed.preflight))
        return replace(
            observed, pods=pods, preflight=trials, nodes=self._nodes.all(), used_gpus=self._cache.used_gpus()
        )

    def _render(self, facts: Facts, model: StrataModel, starts_first: bool) -> Children:
        monitors = self._monitors()
        # The scheduler knows nothing of the fit: a card that is too small must not be one that matches.
        model = replace(model, hardware=with_vram(model.hardware, least_vram_gib(model)))
        render = partial(children, model, engine_image=self._engine_image, monitors=monitors, starts_first=starts_first)
        made = render()
        revision = revision_of(made["Deployment"])
        prefer = cached.preferred(model, revision, facts.observed, facts.status, self._nodes_with)
        return render(prefer=prefer) if prefer else made

    def _nodes_with(self, weights: str) -> list[str]:
        """By the records of all models."""
        told = [status for status in self._cache.statuses() if (status.get("cache") or {}).get("weights") == weights]
        return sorted({node for status in told for node in Cached.of(status, weights).nodes})

    def _evict(self, metadata: Mapping[str, Any], pod: Pod) -> None:
        """Raises UnavailableError where somebody's budget keeps the pod for now."""
        try:
            self._client.evict(pod.namespace, pod.name, pod.uid)
        except MissingError:
            return  # its watch has not told yet
        except RefusedError as error:
            words = f"pod {pod.name} stays on node {pod.node}, which is not healthy: {shorten(error.answer)}"
            self._outbox.add(metadata, [Event("Warning", "EvictionRefused", words)])
            return
        words = f"pod {pod.name} leaves node {pod.node}, which is not healthy, for another has a matching card free"
        self._outbox.add(metadata, [Event("Warning", "Evicted", words)])

    def _look_into_pods(self, observed: Observed) -> Observed:
        """Pods whose containers are not created for some time get the reason from their events."""
        return replace(observed, pods=tuple(self._look_into(pod) if pod.creating else pod for pod in observed.pods))

    def _look_into(self, pod: Pod) -> Pod:
        if age(pod.since, self._clock()) < CREATING_SECONDS:
            return pod
        return replace(pod, trouble=events.warning(self._client, pod.namespace, pod.name, pod.uid))

    def _pause(self, key: Key, new: Mapping[str, Any], previous: Mapping[str, Any]) -> float | None:
        """Seconds for which the status has to wait; None: it does not."""
        if key not in self._told or new == previous or not statuses.is_progress(new, previous):
            return None
        since = (self._clock() - self._told[key]).total_seconds()
        return PACE_SECONDS - since if 0 <= since < PACE_SECONDS else None

    def _tell(self, obj: Mapping[str, Any], new: Mapping[str, Any], made: Sequence[str] = ()) -> bool:
        """Write the status if it differs; whether it was written. ``made``: kinds of the children that are there."""
        metadata, previous = obj["metadata"], obj["status"]
        if new == previous:
            return False
        # Before it is written: should the answer be lost, then the next look finds nothing that has changed.
        self._outbox.add(metadata, notices.changes(new, previous, made))
        key = (metadata["namespace"], metadata["name"])
        self._cache.put_model(apply.apply_status(self._client, key, metadata["uid"], new), own=True)
        self._told[key] = self._clock()
        return True


def _waits(observed: Observed, outcome: Outcome) -> Iterator[float]:
    """Seconds after which to look again at what no watch tells of."""
    if outcome.target.look_again is not None:
        yield outcome.target.look_again
    if any(action.kind == JOB for action in outcome.plan.actions):
        yield BLOCKED_SECONDS if outcome.plan.unfetched else PREFLIGHT_SECONDS
    if any(pod.creating for pod in observed.pods):
        yield CREATING_SECONDS
    if any(pod.deleting for pod in observed.pods):
        yield rollout.STUCK_SECONDS
    if outcome.stranded.waits:
        yield PLACE_SECONDS
    if outcome.trouble is not None and outcome.trouble.reason == UNSCHEDULABLE:
        yield BLOCKED_SECONDS
    if outcome.tuned.reason == APPLY_REFUSED:
        yield BLOCKED_SECONDS
