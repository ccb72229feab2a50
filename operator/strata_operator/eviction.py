"""Which pod has to leave a node whose cards are not healthy; pure.

The agent's taint keeps other pods away, and leaves alone those that are there. One that serves all the same goes on;
one that cannot would try in vain for ever. Where the only card is lost, an idle one does not know yet that it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.node import UNHEALTHY_TAINT
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.fit import Verdict
from strata_operator.rollout import places
from strata_operator.room import tolerates
from strata_operator.shortage import listed


@dataclass(frozen=True, slots=True)
class Stranded:
    """Of pods that cannot serve where they are: the one that has to leave now, or why none does; "" where none is.

    ``waits``: for a card that becomes free.
    """

    leaves: Pod | None = None
    stays: str = ""
    waits: bool = False


_TAINT = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}


def stranded(
    model: StrataModel,
    pod_spec: Mapping[str, Any],
    observed: Observed,
    fit: Verdict,
    obstacle: Callable[[str], str] = lambda node: "",
) -> Stranded:
    """One leaves only for a place that is free: where there is none, the card may come back before.

    ``pod_spec``: of the pods that would take their places. ``obstacle(node)``: what keeps such a pod from a node
    that has a matching card; "" for nothing.
    """
    if model.hardware.accelerator != "nvidia":
        return Stranded()
    alive = [pod for pod in observed.pods if not pod.failed]
    homes = {pod.node for pod in alive}
    nodes = [node for node in observed.nodes if node.name in homes]
    sick = {node.name for node in nodes if not node.is_healthy}
    bare = {node.name for node in nodes if node.has_lost_its_card}
    there = [pod for pod in alive if pod.node in bare or (pod.node in sick and pod.trouble is not None)]
    if not there or any(pod.deleting or pod.node is None for pod in alive):
        return Stranded()  # one after the other: the next one's place is free once this one's is taken
    names = ", ".join(pod.name for pod in there)
    if any(tolerates(one, _TAINT) for one in pod_spec.get("tolerations") or ()):  # it may come back to the very node
        return Stranded(stays=f"{names} stays there, for the spec tolerates the taint {UNHEALTHY_TAINT}")
    met = []
    for node in places(model, observed, fit):
        what = obstacle(node)
        if not what:
            return Stranded(leaves=there[0])
        met.append(f"{node} {what}")
    why = f": {listed(met)}" if met else ""
    return Stranded(stays=f"{names} stays there, for no other node has a matching card free{why}", waits=True)
