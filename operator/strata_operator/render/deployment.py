"""The Deployment: pods that run ``strata serve``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata_operator import placement
from strata_operator.api.model import StrataModel
from strata_operator.api.names import ENGINE, GPU_RESOURCE, REVISION_ANNOTATION
from strata_operator.api.quantity import format_quantity
from strata_operator.render.arguments import PORT, arguments
from strata_operator.render.environment import environment
from strata_operator.render.merge import merge
from strata_operator.render.meta import digest, labels, manifest, selector
from strata_operator.render.pod import pod
from strata_operator.render.volumes import volumes

# The startup probe's budget, in seconds: it ends no load that moves, however slow the line or the disk. One that does
# not move is ended by the engine itself, with its reason (--load-stall-seconds).
STARTUP_SECONDS = 24 * 3600
STARTUP_PERIOD_SECONDS = 2
# The Deployment's deadline must outlast pulling the image and that budget, or a good slow load is called a failure.
PROGRESS_DEADLINE_SECONDS = 2 * STARTUP_SECONDS
# Of a pod that is told to stop: first it goes on serving until every node knows that it is no endpoint any more, then
# requests under way have their time, and the engine ends those that are left itself.
GRACE_SECONDS = 60
ENDPOINT_SECONDS = 5
REQUEST_SECONDS = GRACE_SECONDS - ENDPOINT_SECONDS - 5


_START_FIRST = {"maxSurge": 1, "maxUnavailable": 0}
# A new pod beside the old one would wait for ever for the GPU or the memory that the old one holds.
_STOP_FIRST = {"maxSurge": 0, "maxUnavailable": 1}


def deployment(
    model: StrataModel,
    *,
    engine_image: str,
    starts_first: bool,
    prefer: Sequence[str] = (),
) -> dict[str, Any]:
    """``engine_image`` is used where the model names none. ``starts_first``: a new pod is started before an old one is
    stopped. ``prefer``: nodes for the pods; they make no other revision.

    Raises InvalidSpecError for a pod template that cannot be merged.
    """
    override = model.pod_template
    plain = _pod(model, image=model.image or engine_image)
    template: dict[str, Any] = {
        "metadata": {"labels": {**override.labels, **labels(model)}, "annotations": dict(override.annotations)},
        "spec": merge(plain, override.spec, "spec.podTemplate.spec"),
    }
    template["metadata"]["annotations"] |= {REVISION_ANNOTATION: digest(template)}
    if prefer:
        plain["affinity"] = placement.affinity(model.hardware, prefer)
        template["spec"] = merge(plain, override.spec, "spec.podTemplate.spec")
    return manifest(
        model,
        "apps/v1",
        "Deployment",
        spec={
            "replicas": model.wanted_replicas,
            "selector": {"matchLabels": selector(model)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _START_FIRST if starts_first else _STOP_FIRST},
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "revisionHistoryLimit": 3,
            "template": template,
        },
    )


def _pod(model: StrataModel, *, image: str) -> dict[str, Any]:
    mounted, mounts = volumes(model)
    container = {
        "name": ENGINE,
        "image": image,
        "args": arguments(model, grace_seconds=REQUEST_SECONDS),
        "env": environment(model),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(model),
        "volumeMounts": mounts,
        "startupProbe": {
            **_probe("/ready", period=STARTUP_PERIOD_SECONDS),
            "failureThreshold": STARTUP_SECONDS // STARTUP_PERIOD_SECONDS,
        },
        "readinessProbe": {**_probe("/ready", period=5), "failureThreshold": 2},
        "livenessProbe": {**_probe("/health", period=10), "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": ENDPOINT_SECONDS}}},
    }
    made = pod(model, container) | {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "affinity": placement.affinity(model.hardware),
        "volumes": mounted,
    }
    tolerations = placement.tolerations(model.hardware, model.scheduling)
    if tolerations:
        made["tolerations"] = tolerations
    if model.scheduling.node_selector:
        made["nodeSelector"] = dict(model.scheduling.node_selector)
    if model.scheduling.priority_class_name:
        made["priorityClassName"] = model.scheduling.priority_class_name
    return made


def _probe(path: str, *, period: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5}


def _resources(model: StrataModel) -> dict[str, Any]:
    hardware = model.hardware
    wanted = {"cpu": str(hardware.cpu), "memory": hardware.memory}
    if hardware.count:
        wanted[GPU_RESOURCE] = str(hardware.count)
    if hardware.hugepages is not None:
        wanted[f"hugepages-{hardware.hugepages}"] = format_quantity(hardware.hugepages_bytes)
    return {"requests": dict(wanted), "limits": wanted}
