"""How a new spec takes the old one's place: start first or stop first, and back to what served when it fails; pure.

    new revision ──► under way ──► served (it becomes what is gone back to)
                         │ trouble that lasts
                         ▼
                      failed ──► what served before is put back, until the spec makes another revision

A revision is what pods are made of; another number of replicas is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from strata_operator.api.conditions import DEGRADED, UNSCHEDULABLE, Trouble, find
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.fit import Verdict
from strata_operator.inventory import candidates

# Seconds for which a trouble must last before the revision counts as failed. What may pass by itself gets longer.
_PATIENCE = {"EngineFailed": 60.0, "OutOfMemory": 60.0, "ImagePullFailed": 120.0, "ContainerRefused": 120.0}
_LONG_PATIENCE = 300.0
REFUSALS = 5  # pods that nodes refused, before none is tried for a while
RESPITE_SECONDS = 300.0
STUCK_SECONDS = 60.0  # after the end of a pod's grace period

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """The last revision of which all replicas answered."""

    revision: str
    generation: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A revision that failed, and why."""

    revision: str
    generation: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What a roll-out has to know of what was before; kept in the status."""

    served: Served | None = None
    failure: Failure | None = None
    passed: str | None = None  # the revision whose preflight went well

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Memory:
        """What cannot be read, edited by hand perhaps, counts as absent."""
        kept = status.get("rollout") or {}
        passed = kept.get("passed")
        return cls(
            _load(Served, kept.get("served")),
            _load(Failure, kept.get("failed")),
            passed if isinstance(passed, str) else None,
        )

    def dump(self) -> dict[str, Any]:
        """For the status."""
        made: dict[str, Any] = {}
        for name, value in (("served", self.served), ("failed", self.failure)):
            if value is not None:
                made[name] = {field.name: getattr(value, field.name) for field in fields(value)}
        if self.passed is not None:
            made["passed"] = self.passed
        return made


def _load(kind: type[T], table: Any) -> T | None:
    """None where the table lacks a field."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(table, Mapping) or any(name not in table for name in names):
        return None
    return kind(**{name: table[name] for name in names})


def after_look(
    memory: Memory, wanted: str, generation: int, trouble: Trouble | None, status: Mapping[str, Any], now: datetime
) -> tuple[Memory, float | None]:
    """The memory once ``wanted`` and its pods' trouble have been looked at, and after how many seconds to look again.

    ``trouble``: of pods of that revision. ``status``: the one before, whose condition Degraded tells since when.
    """
    failure = memory.failure
    if failure is not None and failure.revision != wanted:
        failure = None  # another spec: it wins, whatever was under way
    memory = replace(memory, failure=failure, passed=memory.passed if memory.passed == wanted else None)
    if failure is not None or trouble is None or memory.served is None or memory.served.revision == wanted:
        return memory, None
    degraded = find(status, DEGRADED)
    patience = _PATIENCE.get(trouble.reason, _LONG_PATIENCE)
    if (degraded.get("status"), degraded.get("reason")) != ("True", trouble.reason):
        return memory, patience
    left = patience - (now - datetime.fromisoformat(degraded["lastTransitionTime"])).total_seconds()
    if left > 0:
        return memory, left
    # Which node came closest, the status alone has been told.
    words = (degraded.get("message") if trouble.reason == UNSCHEDULABLE else None) or trouble.message
    return replace(memory, failure=Failure(wanted, generation, trouble.reason, words)), None


def after_success(memory: Memory, revision: str, generation: int, spec: Mapping[str, Any]) -> Memory:
    """The memory once every replica of that revision answers."""
    if memory.failure is not None or (memory.served is not None and memory.served.revision == revision):
        return memory
    return Memory(Served(revision, generation, spec))


def starts_first(model: StrataModel, revision: str, observed: Observed, fit: Verdict) -> bool:
    """Whether a new pod is started before an old one is stopped; False: stopped first.

    Decided when a roll-out begins. Afterwards it stays, unless the new pod turns out to have no room: it would wait for
    ever for what the old one holds.
    """
    if model.strategy != "auto":
        return model.strategy == "rolling"
    deployment = observed.children.get("Deployment")
    live = deployment.rollout if deployment is not None else None
    if live is None:
        return False
    old = [pod for pod in observed.pods if pod.revision != revision and pod.ready and not pod.deleting]
    if live.revision != revision:
        return bool(old) and has_room(model, observed, fit)
    return live.surge and not (old and any(_waits_for_room(pod, revision) for pod in observed.pods))


def has_room(model: StrataModel, observed: Observed, fit: Verdict) -> bool:
    """Whether a matching card is free, as far as is known. What else a pod needs, the scheduler says."""
    return model.hardware.accelerator == "cpu" or bool(places(model, observed, fit))


def places(model: StrataModel, observed: Observed, fit: Verdict) -> list[str]:
    """Nodes where a matching card is free, as far as models' pods tell."""
    return [
        one.node.name
        for one in candidates(model.hardware, observed.nodes)
        if (fit.fits is not True or one.node.name in fit.nodes)
        and len(one.node.status.gpus) - observed.used_gpus.get(one.node.name, 0) >= model.hardware.count
    ]


def _waits_for_room(pod: Pod, revision: str) -> bool:
    return pod.revision == revision and pod.trouble is not None and pod.trouble.reason == UNSCHEDULABLE


def respite(pods: Sequence[Pod], revision: str, now: datetime) -> float | None:
    """Seconds for which no pod should be tried, since nodes refuse one after the other; None: go on.

    A ReplicaSet puts another pod in the place of one that a kubelet refused at once, and without end.
    """
    refused = [pod for pod in pods if pod.failed and pod.revision == revision and pod.since]
    if len(refused) < REFUSALS or any(pod.ready for pod in pods if pod.revision == revision):
        return None
    newest = max(datetime.fromisoformat(pod.since) for pod in refused)
    left = RESPITE_SECONDS - (now - newest).total_seconds()
    return left if left > 0 else None


def stuck(pods: Sequence[Pod], now: datetime) -> Trouble | None:
    """A pod that should long have ended. It holds what the next one needs, and on a dead node does so for ever."""
    for pod in pods:
        if pod.ends_by and (now - datetime.fromisoformat(pod.ends_by)).total_seconds() > STUCK_SECONDS:
            return Trouble(
                "PodStuck",
                f"pod {pod.name} on node {pod.node} should have ended by {pod.ends_by}; its node may be down: start it "
                f"anew, or if it is gone for good, kubectl delete pod {pod.name} -n {pod.namespace} --force",
            )
    return None
