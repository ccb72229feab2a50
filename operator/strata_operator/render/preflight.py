"""The Job that brings image and weights to a node, while the pod there still serves what was before."""

from __future__ import annotations

from typing import Any

from strata_operator import placement
from strata_operator.api.model import StrataModel
from strata_operator.api.names import ENGINE, NODE_ANNOTATION, REVISION_ANNOTATION, ROLE_LABEL, child_name
from strata_operator.render.arguments import PORT, source_argument
from strata_operator.render.environment import environment
from strata_operator.render.meta import digest, manifest, selector
from strata_operator.render.pod import pod
from strata_operator.render.volumes import volumes

DEADLINE_SECONDS = 6 * 3600  # a slow line and a slow disk; the engine itself ends where nothing moves
KEPT_SECONDS = 3600  # after its end, for those who look for the reason; then it may be tried again
RETRIES = 2
JOB = "Job"
PREFLIGHT_ROLE = "preflight"  # before a pod is stopped for a new spec
WARM_ROLE = "warm"  # ahead of any pod there, as spec.cache.keepWarm wants


def preflight_name(model: StrataModel, revision: str, node: str) -> str:
    """Of the Job that tries that revision on that node."""
    return f"{child_name(model.name)}-{_suffix(revision, node)}"


def expiry(model: StrataModel, revision: str, node: str, uid: str) -> dict[str, Any]:
    """What is applied to a Job that tries what nobody wants any more: it ends, and is deleted with its pods. That needs
    no right to delete."""
    return {
        "apiVersion": "batch/v1",
        "kind": JOB,
        "metadata": {"name": preflight_name(model, revision, node), "namespace": model.namespace, "uid": uid},
        "spec": {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0},
    }


def _suffix(revision: str, node: str) -> str:
    return digest({"revision": revision, "node": node})[:8]


def preflight(
    model: StrataModel, revision: str, node: str, *, engine_image: str, role: str = PREFLIGHT_ROLE
) -> dict[str, Any]:
    """``strata fetch`` on that node: what the engine itself does at a start, without a card.

    It asks for little, since the pod that serves has what the node gives, and is no endpoint of the Service.
    """
    mounted, mounts = volumes(model)
    wanted = {"cache", "tmp", "model"}
    flags = [f"--revision={model.revision}"] if model.revision else []
    container = {
        "name": ENGINE,
        "image": model.image or engine_image,
        "args": ["fetch", source_argument(model.source), *flags, f"--dtype={model.format}"],
        # As the engine's, but that no card is shown; the port is the engine's, where the operator asks how far it is.
        "env": environment(model, NVIDIA_VISIBLE_DEVICES="void", STRATA_PROGRESS_PORT=str(PORT)),
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "volumeMounts": [mount for mount in mounts if mount["name"] in wanted],
    }
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    made = pod(model, container) | {
        "restartPolicy": "Never",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [here]}]}
            }
        },
        "tolerations": placement.tolerations(model.hardware, model.scheduling),
        "volumes": [volume for volume in mounted if volume["name"] in wanted],
    }
    secrets = model.pod_template.spec.get("imagePullSecrets")
    if secrets:
        made["imagePullSecrets"] = secrets
    annotations = {REVISION_ANNOTATION: revision, NODE_ANNOTATION: node}
    labels = {**selector(model), ROLE_LABEL: role, "app.kubernetes.io/name": "strata-preflight"}
    return manifest(
        model,
        "batch/v1",
        JOB,
        suffix=_suffix(revision, node),
        spec={
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": made},
        },
    )
