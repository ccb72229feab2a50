"""Which pod has to leave a node whose cards are not healthy; pure.

The agent's taint keeps other pods away, and leaves alone those that are there. One that serves all the same goes on;
one that cannot would try in vain for ever. Where the only card is lost, an idle one does not know yet that it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.node import UNHEALTHY_TAINT
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.fit import Verdict
from strata_operator.rollout import has_room


@dataclass(frozen=True, slots=True)
class Stranded:
    """Of pods that cannot serve where they are: the one that has to leave now, or why none does; "" where none is."""

    leaves: Pod | None = None
    stays: str = ""


def stranded(model: StrataModel, pod_spec: Mapping[str, Any], observed: Observed, fit: Verdict) -> Stranded:
    """One leaves only for a place that is free: where there is none, the card may come back before.

    ``pod_spec``: of the pods that would take their places.
    """
    if model.hardware.accelerator != "nvidia":
        return Stranded()
    sick = {node.name for node in observed.nodes if not node.is_healthy}
    bare = {node.name for node in observed.nodes if node.has_lost_its_card}
    alive = [pod for pod in observed.pods if not pod.failed]
    there = [pod for pod in alive if pod.node in bare or (pod.node in sick and pod.trouble is not None)]
    if not there or any(pod.deleting or pod.node is None for pod in alive):
        return Stranded()  # one after the other: the next one's place is free once this one's is taken
    names = ", ".join(pod.name for pod in there)
    if any(_tolerates(one) for one in pod_spec.get("tolerations") or ()):
        return Stranded(stays=f"{names} stays there, for the spec tolerates the taint {UNHEALTHY_TAINT}")
    if not has_room(model, observed, fit):
        return Stranded(stays=f"{names} stays there, for no other node has a matching card free")
    return Stranded(leaves=there[0])


def _tolerates(toleration: Mapping[str, Any]) -> bool:
    """Such a pod may come back to the very node. The taint has no value."""
    is_meant = toleration.get("key") in (None, "", UNHEALTHY_TAINT)
    is_any = toleration.get("operator") == "Exists" or not toleration.get("value")
    return is_meant and is_any and toleration.get("effect") in (None, "", "NoSchedule")
