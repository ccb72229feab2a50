"""What stands in the way of a model that is not served as wanted; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from strata_operator import missing, placement
from strata_operator.api.child import Child
from strata_operator.api.conditions import PREFLIGHT, UNSCHEDULABLE, Trouble
from strata_operator.api.model import StrataModel
from strata_operator.api.names import HASH_ANNOTATION
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.plan import Manifest, Plan
from strata_operator.render import revision_of

# What the scheduler says of claims to devices and of making room by preemption, after why each node is unfit.
_AFTERMATH = re.compile(r"[,.]? (no new claims to deallocate|preemption: ).*", re.DOTALL)


def own_deployment(model: StrataModel, observed: Observed) -> Child | None:
    deployment = observed.children.get("Deployment")
    return deployment if deployment is not None and deployment.owner_uid == model.uid else None


def is_complete(model: StrataModel, desired: Mapping[str, Manifest], observed: Observed, plan: Plan) -> bool:
    """All pods are of this spec and ready. Counts of an older generation or revision say nothing."""
    deployment = own_deployment(model, observed)
    if deployment is None or deployment.rollout is None or plan.blocked or plan.held:
        return False
    rollout = deployment.rollout
    return (
        deployment.hash == desired["Deployment"]["metadata"]["annotations"][HASH_ANNOTATION]
        and rollout.observed_generation >= rollout.generation
        and rollout.updated == rollout.replicas == rollout.ready == model.wanted_replicas
    )


def current_pods(wanted: Manifest, pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.revision == revision_of(wanted) and not pod.deleting]


def find_trouble(
    model: StrataModel,
    desired: Mapping[str, Manifest],
    observed: Observed,
    plan: Plan,
    closest: Callable[[], str] = lambda: "",
) -> Trouble | None:
    """Why the model is not served as wanted; None where it is, or while it only takes its time.

    ``closest()``: which node comes closest where a pod finds no room; "" where that is not known.
    """
    if is_complete(model, desired, observed, plan):
        return None
    if plan.blocked:
        return plan.blocked[0]
    if plan.held:
        return None if plan.held.reason == PREFLIGHT else plan.held
    deployment = observed.children.get("Deployment")
    if deployment and deployment.rollout and deployment.rollout.paused:
        resume = f"kubectl rollout resume deployment/{deployment.name} -n {deployment.namespace}"
        return Trouble("Paused", f"somebody has paused the Deployment, so no pod of this spec starts; {resume}")
    if deployment and deployment.rollout and deployment.rollout.failure:
        return Trouble("PodsRefused", deployment.rollout.failure)
    pods = current_pods(desired["Deployment"], observed.pods)
    if sum(not pod.failed for pod in pods) >= model.wanted_replicas:
        pods = [pod for pod in pods if not pod.failed]  # others took the place of those
    troubles = [pod.trouble for pod in pods if pod.trouble]
    stops_first = deployment is not None and deployment.rollout is not None and not deployment.rollout.surge
    surplus = stops_first and sum(not pod.failed for pod in observed.pods) > model.wanted_replicas
    if surplus or any(pod.deleting for pod in observed.pods):
        # The new pod waits for what an old one still holds.
        troubles = [trouble for trouble in troubles if trouble.reason != UNSCHEDULABLE]
    if not troubles:
        return None
    first = min(troubles, key=lambda trouble: (trouble.reason, trouble.message))
    explained = missing.explained(model, first)
    if explained is not None:
        return explained
    return _unschedulable(model, first, closest) if first.reason == UNSCHEDULABLE else first


def ailing(model: StrataModel, observed: Observed) -> Trouble | None:
    """What the agents of nodes that run the model's pods say is wrong there with the cards; None where all are well."""
    if model.hardware.accelerator != "nvidia":
        return None
    there = {pod.node for pod in observed.pods if not pod.failed}
    told = [(node.name, node.ailment) for node in observed.nodes if node.name in there and node.ailment is not None]
    if not told:
        return None
    return Trouble(told[0][1].reason, "; ".join(f"node {name} is not healthy: {ill.message}" for name, ill in told))


def _unschedulable(model: StrataModel, trouble: Trouble, closest: Callable[[], str]) -> Trouble:
    said = _AFTERMATH.sub("", trouble.message)
    told = [f"needs {placement.needs(model.hardware)}", closest(), f"the scheduler says: {said}"]
    return Trouble(trouble.reason, "; ".join(filter(None, told)))
