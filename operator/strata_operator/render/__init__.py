"""A model's children as manifests; pure functions of the model and the operator's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import REVISION_ANNOTATION
from strata_operator.render.account import account
from strata_operator.render.arguments import PORT
from strata_operator.render.deployment import deployment
from strata_operator.render.disruption import disruption
from strata_operator.render.monitor import KINDS as MONITOR_KINDS
from strata_operator.render.monitor import MonitorKind, Monitors, monitor
from strata_operator.render.network import network
from strata_operator.render.preflight import JOB, PREFLIGHT_ROLE, WARM_ROLE, expiry, preflight, preflight_name
from strata_operator.render.service import service

__all__ = [
    "JOB",
    "MONITOR_KINDS",
    "PORT",
    "PREFLIGHT_ROLE",
    "WARM_ROLE",
    "MonitorKind",
    "Monitors",
    "children",
    "expiry",
    "preflight",
    "preflight_name",
    "revision_of",
]


def revision_of(deployment: Mapping[str, Any]) -> str:
    """What the pods of a rendered Deployment are made of."""
    return str(deployment["spec"]["template"]["metadata"]["annotations"][REVISION_ANNOTATION])


def children(
    model: StrataModel,
    *,
    engine_image: str,
    monitors: Monitors | None = None,
    starts_first: bool = False,
    prefer: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Every child by its kind, in the order in which they are applied: what a pod needs comes before the pod.

    ``monitors``: None where none is wanted, or the cluster does not know the kind. ``starts_first``, ``prefer``: see
    ``deployment``. Raises InvalidSpecError for a pod template that cannot be merged.
    """
    made = [
        account(model),
        service(model),
        network(model),
        deployment(model, engine_image=engine_image, starts_first=starts_first, prefer=prefer),
    ]
    if model.replicas > 1:
        made.append(disruption(model))
    if monitors is not None:
        made.append(monitor(model, monitors))
    return {child["kind"]: child for child in made}
