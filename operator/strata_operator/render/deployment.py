"""The Deployment: pods that run ``strata serve``."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from strata_operator import placement
from strata_operator.api.model import Source, StrataModel
from strata_operator.api.names import ENGINE, REVISION_ANNOTATION, child_name
from strata_operator.render.config import CACHE_MOUNT
from strata_operator.render.meta import digest, labels, manifest, selector

PORT = 8000
MODEL_MOUNT = "/model"

# The startup probe's budget, in seconds: a first start converts the checkpoint and reads the store from a slow disk.
# The engine itself ends, with its reason, when loading fails; this only ends one that hangs.
STARTUP_SECONDS = 3600
STARTUP_PERIOD_SECONDS = 2
# The Deployment's deadline must outlast pulling the image and that budget, or a good slow load is called a failure.
PROGRESS_DEADLINE_SECONDS = 2 * STARTUP_SECONDS
GRACE_SECONDS = 60  # for requests under way when a pod is told to stop


def deployment(model: StrataModel, settings: Mapping[str, Any], *, engine_image: str) -> dict[str, Any]:
    """``settings`` is the rendered ConfigMap; ``engine_image`` is used where the model names none."""
    pod = {
        "metadata": {"labels": labels(model)},
        "spec": _pod(model, image=model.image or engine_image),
    }
    pod["metadata"]["annotations"] = {REVISION_ANNOTATION: digest({"pod": pod, "config": settings["data"]})}
    return manifest(
        model,
        "apps/v1",
        "Deployment",
        spec={
            "replicas": model.replicas,
            "selector": {"matchLabels": selector(model)},
            # Stop first: a new pod beside the old one would wait for ever for the GPU or the memory that the old holds.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "revisionHistoryLimit": 3,
            "template": pod,
        },
    )


def arguments(model: StrataModel) -> list[str]:
    """Arguments of the image's entrypoint, ``strata``; flags that the user left out are left to the engine."""
    engine = model.engine
    flags = {
        "--dtype": model.format,
        "--device": "cuda" if model.hardware.accelerator == "nvidia" else "cpu",
        "--host": "0.0.0.0",
        "--port": PORT,
        "--threads": model.hardware.cpu,  # a kubelet that sets no quota would let the engine count the node's
        "--served-model-name": model.served_name,
        "--max-model-len": engine.max_model_len,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--block-size": engine.block_size,
        "--num-kv-tokens": engine.num_kv_tokens,
        "--gpu-memory-utilization": engine.gpu_memory_utilization,
    }
    given = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return ["serve", _source_argument(model.source), *given, *engine.extra_args]


def _source_argument(source: Source) -> str:
    if source.builtin is not None:
        return source.text
    if source.host_path is not None:
        # The last part of the path stays: the engine tells a GGUF file by its name.
        return posixpath.join(MODEL_MOUNT, posixpath.basename(source.host_path))
    return posixpath.join(MODEL_MOUNT, source.path_in_claim).rstrip("/")


def _pod(model: StrataModel, *, image: str) -> dict[str, Any]:
    hardware = model.hardware
    volumes, mounts = _volumes(model)
    pod: dict[str, Any] = {
        "serviceAccountName": child_name(model.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "affinity": placement.affinity(hardware),
        # The cache on the node belongs to root, hence the user; without capabilities it may do little more than that.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": volumes,
        "containers": [
            {
                "name": ENGINE,
                "image": image,
                "args": arguments(model),
                "envFrom": [{"configMapRef": {"name": child_name(model.name)}}],
                "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
                "resources": _resources(model),
                "volumeMounts": mounts,
                "startupProbe": {
                    **_probe("/ready", period=STARTUP_PERIOD_SECONDS),
                    "failureThreshold": STARTUP_SECONDS // STARTUP_PERIOD_SECONDS,
                },
                "readinessProbe": {**_probe("/ready", period=5), "failureThreshold": 2},
                "livenessProbe": {**_probe("/health", period=10), "failureThreshold": 6},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    tolerations = placement.tolerations(hardware, model.scheduling)
    if tolerations:
        pod["tolerations"] = tolerations
    if model.scheduling.node_selector:
        pod["nodeSelector"] = dict(model.scheduling.node_selector)
    if model.scheduling.priority_class_name:
        pod["priorityClassName"] = model.scheduling.priority_class_name
    return pod


def _probe(path: str, *, period: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5}


def _resources(model: StrataModel) -> dict[str, Any]:
    wanted = {"cpu": str(model.hardware.cpu), "memory": model.hardware.memory}
    if model.hardware.count:
        wanted[placement.GPU_RESOURCE] = str(model.hardware.count)
    return {"requests": dict(wanted), "limits": wanted}


def _volumes(model: StrataModel) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The node's cache, a /tmp, and the checkpoint where it is not in the image; the checkpoint is read-only."""
    volumes: list[dict[str, Any]] = [
        {"name": "cache", "hostPath": {"path": model.cache_host_path, "type": "DirectoryOrCreate"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_MOUNT},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    source = model.source
    if source.host_path is not None:
        # With a type that is checked, a path that is not there is an error; without, the runtime would create it.
        kind = "File" if source.host_path.endswith(".gguf") else "Directory"
        volumes.append({"name": "model", "hostPath": {"path": source.host_path, "type": kind}})
        mounts.append({"name": "model", "mountPath": _source_argument(source), "readOnly": True})
    elif source.claim is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}})
        mounts.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    return volumes, mounts
