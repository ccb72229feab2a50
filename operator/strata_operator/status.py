"""From what is there to the status that tells of it; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strata_operator.api import conditions
from strata_operator.api.child import Rollout
from strata_operator.api.conditions import (
    ACCEPTED,
    CACHED,
    DEGRADED,
    FITS,
    NODE_TUNED,
    PROGRESSING,
    READY,
    ROUTED,
    STORAGE_FAILED,
    Condition,
    Trouble,
)
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.figures import FETCHING
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.cached import Cached, known
from strata_operator.eviction import Stranded
from strata_operator.measured import Measured
from strata_operator.plan import Manifest, Plan
from strata_operator.render import revision_of
from strata_operator.render.meta import endpoints
from strata_operator.rollout import Failure
from strata_operator.start import Start
from strata_operator.target import Facts, Target
from strata_operator.trouble import ailing, current_pods, is_complete, own_deployment
from strata_operator.wording import progress

Status = Mapping[str, Any]
MOST_JOBS = 8  # that a condition tells of
_NONE = Rollout(generation=0, observed_generation=0, replicas=0, updated=0, ready=0, failure=None)


def refused(error: InvalidSpecError, obj: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The status of a model whose spec cannot be served. What runs already is left as it is, and still counted."""
    generation, previous = obj["metadata"]["generation"], obj["status"]
    reason, message = "InvalidSpec", conditions.shorten(str(error))
    verdicts = [
        Condition(ACCEPTED, False, reason, message),
        Condition(PROGRESSING, False, reason, "nothing is done before the spec is accepted"),
        Condition(READY, False, reason, message),
        Condition(DEGRADED, True, reason, message),
        Condition(FITS, None, reason, "nothing is judged before the spec is accepted"),
        Condition(CACHED, None, reason, "nothing is fetched before the spec is accepted"),
        Condition(NODE_TUNED, None, reason, "nodes are left as they are before the spec is accepted"),
    ]
    if conditions.find(previous, ROUTED):
        verdicts.append(Condition(ROUTED, None, reason, "the route is left as it is before the spec is accepted"))
    return {**previous, **_written(verdicts, generation=generation, previous=previous, now=now)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round came to."""

    target: Target
    plan: Plan  # with what stood in the way of its actions
    trouble: Trouble | None  # what stands in the way of the target
    stranded: Stranded
    tuned: Condition
    routed: Condition | None = None  # of a model that wants a route


def status(facts: Facts, outcome: Outcome) -> dict[str, Any]:
    """The whole status. ``facts`` are those after the plan's actions, as far as they are known."""
    observed, previous, fit = facts.observed, facts.status, facts.fit
    target, trouble = outcome.target, outcome.trouble
    model, wanted, failure = target.model, target.desired["Deployment"], target.memory.failure
    pods = current_pods(wanted, observed.pods)
    deployment = own_deployment(model, observed)
    rollout = (deployment.rollout if deployment else None) or _NONE
    complete = is_complete(model, target.desired, observed, outcome.plan)
    there = known(model, target.revision, observed, previous)
    start = Start.of(previous, target.revision).after(pods)
    if failure is not None:
        trouble = _rolled_back(failure, trouble)
    verdicts = [
        Condition(ACCEPTED, True, "Accepted", ". ".join(("the spec is valid", *model.notes))),
        Condition(FITS, fit.fits, fit.reason, fit.message),
        _cached(wanted, observed, outcome.plan, there, trouble),
        outcome.tuned,
        _progressing(target, observed, outcome.plan, complete=complete, trouble=trouble),
        _ready(model, pods, complete=complete, trouble=trouble, cost=start.words(there.nodes)),
        _degraded(trouble, ailing(model, observed), outcome.stranded.stays),
        *([outcome.routed] if outcome.routed is not None else []),
    ]
    return {
        **_written(verdicts, generation=model.generation, previous=previous, now=facts.now),
        "replicas": rollout.replicas,
        "readyReplicas": rollout.ready,
        "selector": ",".join(f"{label}={value}" for label, value in endpoints(model).items()),
        "url": model.endpoint.url,
        "nodes": _nodes(observed.pods),
        **({"plan": fit.plan} if fit.plan else {}),
        **({"measured": told} if (told := _measured(wanted, observed, previous)) else {}),
        **({"lastStart": last} if (last := start.dump()) else {}),
        **({"cache": nodes} if (nodes := there.dump()) else {}),
        **({"rollout": kept} if (kept := target.memory.dump()) else {}),
    }


def _cached(wanted: Manifest, observed: Observed, plan: Plan, there: Cached, trouble: Trouble | None) -> Condition:
    """Where the weights are, as far as pods have shown; of a start, how far it is, or what it has no room for."""
    pods = current_pods(wanted, observed.pods)
    loaded = sorted({pod.node for pod in pods if pod.ready and pod.node is not None})
    starting = [pod for pod in pods if _is_under_way(pod)]
    told = [f"{pod.node}: {progress(pod.loading)}" for pod in starting if pod.loading is not None]
    jobs = _of_jobs(pod for pod in current_pods(wanted, observed.preflight) if pod.meant_for not in there.nodes)
    jobs += [_unfetched(*plan.unfetched)] if plan.unfetched is not None else []
    told += _of_some(jobs)
    if loaded:
        words = f"the converted weights are on {', '.join(there.nodes)}"
        return Condition(CACHED, True, "Loaded", "; ".join((words, *told)))
    if any(pod.loading is not None and pod.loading.phase in FETCHING for pod in starting):
        return Condition(CACHED, False, "Fetching", "; ".join(told))
    if starting:
        return Condition(CACHED, True, "Converted", "; ".join(("the converted weights are there", *told)))
    if trouble is not None and trouble.reason == STORAGE_FAILED:
        return Condition(CACHED, False, trouble.reason, "; ".join((trouble.message, *told)))
    if there.nodes:
        words = f"no pod is ready; the converted weights are on {', '.join(there.nodes)}"
        return Condition(CACHED, True, "Kept", "; ".join((words, *told)))
    if jobs:
        is_fetched = any(reason is None for _, reason in jobs)
        return Condition(CACHED, False, "Fetching" if is_fetched else str(jobs[0][1]), "; ".join(told))
    return Condition(CACHED, None, "NotLoaded", "weights are fetched and converted on a node when a pod starts there")


def _is_under_way(pod: Pod) -> bool:
    """Whether it starts, as far as it tells. One that had no room is so only once it has got further: a loop of such
    ends is one status."""
    if pod.loading is None or pod.ready or not pod.running:
        return False
    had_no_room = pod.trouble is not None and pod.trouble.reason == STORAGE_FAILED
    return not had_no_room or pod.loading.tenths > 0


def _of_jobs(pods: Iterable[Pod]) -> list[tuple[str, str | None]]:
    """What Jobs do that bring weights to nodes, node by node; with the reason of one that does not."""
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(pod.meant_for, []).append(pod)
    told: list[tuple[str, str | None]] = []
    for node, tries in sorted(by_node.items()):
        trouble = next((pod.trouble for pod in reversed(tries) if pod.trouble is not None), None)
        alive = [pod for pod in tries if not (pod.failed or pod.trouble)]
        if alive:
            so_far = [progress(pod.loading) for pod in alive if pod.loading is not None]
            told.append((": ".join([f"{node}: a Job fetches and converts the weights", *so_far[:1]]), None))
        elif trouble is not None:
            told.append(_unfetched(node, trouble))
    return told


def _of_some(jobs: Sequence[tuple[str, str | None]]) -> list[str]:
    """Those under way, and the first that fail: of a whole cluster the words would be more than the CRD takes."""
    words = [words for words, _ in sorted(jobs, key=lambda job: job[1] is not None)]
    rest = [f"and {len(words) - MOST_JOBS} more"] if len(words) > MOST_JOBS else []
    return [*words[:MOST_JOBS], *rest]


def _unfetched(node: str, trouble: Trouble) -> tuple[str, str]:
    return f"{node}: a Job cannot fetch the weights: {trouble.reason}: {trouble.message}", trouble.reason


def _measured(wanted: Manifest, observed: Observed, previous: Status) -> dict[str, Any]:
    """What the ready pods' engines did, or what was told before of pods of the same revision."""
    traffic = [pod.traffic for pod in current_pods(wanted, observed.pods) if pod.traffic is not None]
    return Measured.of(previous, revision_of(wanted)).after(traffic).dump()


def _rolled_back(failure: Failure, trouble: Trouble | None) -> Trouble:
    words = (
        f"the spec of generation {failure.generation} failed ({failure.reason}: {failure.message}); what served before "
        "is put back until the spec changes again"
    )
    return Trouble("RolledBack", words if trouble is None else f"{words}; that has trouble, too: {trouble.message}")


def _nodes(pods: Iterable[Pod]) -> list[dict[str, Any]]:
    """Where pods are, in the order of the nodes' names."""
    there = Counter(pod.node for pod in pods if pod.node is not None and not pod.failed)
    return [{"name": name, "pods": count} for name, count in sorted(there.items())]


def _written(verdicts: Iterable[Condition], *, generation: int, previous: Status, now: datetime) -> dict[str, Any]:
    merged = conditions.merge(verdicts, previous.get("conditions") or (), generation=generation, now=now)
    return {"observedGeneration": generation, "conditions": merged}


def _progressing(
    target: Target, observed: Observed, plan: Plan, *, complete: bool, trouble: Trouble | None
) -> Condition:
    if target.memory.failure is not None:
        words = "what served before serves again" if complete else "what served before is being put back"
        return Condition(PROGRESSING, not complete, "RolledBack" if complete else "RollingBack", words)
    if complete:
        return Condition(PROGRESSING, False, "Complete", "the spec is rolled out")
    if trouble:
        return Condition(PROGRESSING, False, trouble.reason, "held up; the condition Degraded says by what")
    if plan.held:
        return Condition(PROGRESSING, True, plan.held.reason, plan.held.message)
    if plan.waiting:
        return Condition(PROGRESSING, True, "Waiting", f"waits until {', '.join(plan.waiting)} is gone")
    pods = current_pods(target.desired["Deployment"], observed.pods)
    ready = sum(pod.ready for pod in pods)
    so_far = f"{ready} of {target.model.wanted_replicas} pods of this spec are ready"
    if any(pod.running and not pod.ready for pod in pods):
        return Condition(
            PROGRESSING, True, "Loading", f"the engine loads the model; GET /ready tells how far it is; {so_far}"
        )
    if any(pod.creating for pod in pods):
        return Condition(PROGRESSING, True, "Creating", f"the node pulls the image and mounts the volumes; {so_far}")
    if pods and not all(pod.ready for pod in pods):
        return Condition(PROGRESSING, True, "Scheduling", f"the pods wait for a node; {so_far}")
    return Condition(PROGRESSING, True, "Scaling", f"pods are started or stopped; {so_far}")


def _ready(model: StrataModel, pods: Sequence[Pod], *, complete: bool, trouble: Trouble | None, cost: str) -> Condition:
    """``pods``: those of this spec. ``cost``: of the next start."""
    if trouble:
        ready = sum(pod.ready for pod in pods)
        serving = [f"{ready} of {model.wanted_replicas} replicas serve"] if 0 < ready < model.wanted_replicas else []
        return Condition(READY, False, trouble.reason, "; ".join((*serving, trouble.message)))
    if not complete:
        return Condition(READY, False, "Progressing", "not all replicas of this generation are ready yet")
    if model.suspend:
        words = f"spec.suspend is true, so no pod runs; set it to false to serve; {cost}"
        return Condition(READY, False, "Suspended", words)
    if model.replicas == 0:
        start = f"kubectl scale stratamodel/{model.name} -n {model.namespace} --replicas=1 starts one"
        return Condition(READY, False, "ScaledToZero", f"spec.replicas is 0, so no pod runs; {start}; {cost}")
    return Condition(READY, True, "Serving", f"every replica answers at {model.endpoint.url}")


def _degraded(trouble: Trouble | None, ill: Trouble | None, stays: str) -> Condition:
    """``ill``: what is wrong with nodes. It may be why pods fail there, and pods that serve may fail soon."""
    told = [one for one in (trouble, ill) if one is not None]
    if not told:
        return Condition(DEGRADED, False, "AsExpected", "nothing stands in the way")
    words = [*(one.message for one in told), *([stays] if stays else [])]
    return Condition(DEGRADED, True, told[0].reason, "; ".join(words))


def is_progress(new: Status, previous: Status) -> bool:
    """Whether no more differs between two statuses than how far a roll-out is; the first one tells of nothing else
    while nothing stands in its way."""
    if not previous:
        return conditions.find(new, PROGRESSING).get("status") == "True"
    return _without_progress(new) == _without_progress(previous)


def _without_progress(status: Status) -> dict[str, Any]:
    rest = {field: value for field, value in status.items() if field not in ("replicas", "readyReplicas", "nodes")}
    rest["conditions"] = [
        {**one, "reason": "", "message": ""} if one["type"] == PROGRESSING else one
        for one in status.get("conditions") or ()
    ]
    return rest
