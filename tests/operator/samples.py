"""Objects as the API server returns them, for tests that need some."""

from __future__ import annotations

import copy
from typing import Any

from strata_operator.api.child import Child, Rollout
from strata_operator.api.conditions import Trouble
from strata_operator.api.model import StrataModel
from strata_operator.api.names import FIELD_MANAGER, HASH_ANNOTATION, MODEL_LABEL, REVISION_ANNOTATION
from strata_operator.api.pod import Pod

CPU = {"accelerator": "cpu", "cpu": 2, "memory": "3Gi"}
NVIDIA = {"accelerator": "nvidia", "cpu": 4, "memory": "24Gi"}

# Every field of the spec with a value that is not its default, or the one that there is.
FULL_SPEC: dict[str, Any] = {
    "model": {
        "source": "hf://Qwen/Qwen3-30B-A3B",
        "revision": "v1",
        "servedName": "qwen",
        "secretRef": {"name": "hub", "key": "hf"},
    },
    "quantization": {"format": "int8", "groupSize": 32},
    "engine": {
        "maxModelLen": 4096,
        "maxNumSeqs": 8,
        "maxNumBatchedTokens": 1024,
        "decodeLatencyMs": 50,
        "prefixCache": False,
        "blockSize": 32,
        "numKvTokens": 65536,
        "gpuMemoryUtilization": "0.85",
        "maxWaiting": 64,
        "expertPlacement": "hybrid",
        "expertVramGiB": 12,
        "loadStallSeconds": 600,
        "toolCallParser": "hermes",
        "reasoningParser": "think",
        "logLevel": "debug",
        "pipelineDepth": 4,
        "cpuExperts": "auto",
        "cpuRoutingThreads": 2,
        "prefetch": {"predictor": "history", "probability": "0.85"},
        "extraArgs": ["--allowed-origins=https://chat.example"],
    },
    "hardware": {
        "accelerator": "nvidia",
        "gpus": ["RTX4090D", "RTX3090Ti"],
        "count": 1,
        "minVramGiB": 24,
        "minPcie": {"generation": 3, "width": 16},
        "cpu": 8,
        "memory": "48Gi",
        "hostMemory": {"pinned": "32Gi", "hugepages": "2Mi"},
    },
    "power": {
        "limitWatts": 280,
        "smClockMHz": {"max": 2100},
        "memoryClockMHz": {"max": 9500},
        "maxTemperatureC": {"core": 83, "memory": 100},
    },
    "cache": {"hostPath": "/srv/strata", "keepDays": 90, "keepWarm": True},
    "replicas": 3,
    "suspend": True,
    "rollout": {"strategy": "rolling"},
    "service": {"port": 80, "apiKeysSecretRef": {"name": "keys", "key": "team"}},
    "route": {
        "hostnames": ["qwen.example.com"],
        "path": "/qwen",
        "annotations": {"external-dns.alpha.kubernetes.io/ttl": "60"},
        "parentRefs": [{"name": "inference", "namespace": "infra", "sectionName": "https", "port": 443}],
        "headers": {"X-Gateway-Model-Name": "qwen"},
        "timeoutSeconds": 600,
        "endpointPickerRef": {"name": "picker", "port": 9003, "failureMode": "FailOpen"},
    },
    "image": "example.com/engine:1",
    "env": [
        {"name": "TZ", "value": "UTC"},
        {"name": "PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url", "optional": True}}},
        {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "region", "optional": False}}},
    ],
    "scheduling": {
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [
            {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60}
        ],
        "priorityClassName": "high",
    },
    "podTemplate": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"dnsPolicy": "Default"},
    },
}


# The other kind of route, whose fields do not go with those above.
INGRESS = {
    "kind": "Ingress",
    "hostnames": ["qwen.example.com"],
    "path": "/qwen",
    "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
    "ingressClassName": "nginx",
    "tlsSecretName": "qwen-tls",
}
FULL_SPECS = (FULL_SPEC, {**FULL_SPEC, "route": INGRESS})

FULL_NODE_SPEC: dict[str, Any] = {
    "suspend": False,
    "powerBudgetWatts": 2000,
    "tuning": {
        "models": [
            {
                "model": "ns/m",
                "gpus": ["GPU-1"],
                "powerLimitWatts": 280,
                "smClockMaxMHz": 1800,
                "memoryClockMaxMHz": 5001,
                "maxCoreTemperatureC": 80,
                "maxMemoryTemperatureC": 95,
                "hugepages": [{"size": "2Mi", "pages": 4}],
            }
        ]
    },
}


def model_object(name: str = "m", **spec: Any) -> dict[str, Any]:
    """A StrataModel; ``spec`` replaces whole fields of a small CPU model's."""
    return {
        "apiVersion": "strata.ai/v1alpha1",
        "kind": "StrataModel",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {"model": {"source": "builtin://smollm2-135m"}, "hardware": CPU, **copy.deepcopy(spec)},
    }


def model(name: str = "m", **spec: Any) -> StrataModel:
    return StrataModel.parse(model_object(name, **spec))


def fields_of(manifest: Any) -> Any:
    """A managedFields entry that owns the manifest wholly, each list as one piece."""
    if isinstance(manifest, dict):
        return {f"f:{key}": fields_of(value) for key, value in manifest.items()}
    return {}


def live(manifest: dict[str, Any], *, version: int = 10, **extra: Any) -> dict[str, Any]:
    """The manifest as the API server keeps it after our apply."""
    obj = copy.deepcopy(manifest)
    owned = fields_of({key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")})
    obj["metadata"] |= {
        "uid": f"uid-{obj['kind']}",
        "resourceVersion": str(version),
        "generation": 1,
        "managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}],
    }
    return {**obj, **extra}


def child(manifest: dict[str, Any], *, version: int = 10, **status: Any) -> Child:
    return Child.of(manifest["kind"], live(manifest, version=version, status=status))


def rollout(
    replicas: int, *, updated: int | None = None, ready: int | None = None, failure: str | None = None
) -> Rollout:
    return Rollout(
        generation=1,
        observed_generation=1,
        replicas=replicas,
        updated=replicas if updated is None else updated,
        ready=replicas if ready is None else ready,
        failure=failure,
    )


def owner(api_version: str, kind: str, name: str) -> dict[str, Any]:
    """The reference to an object's controller."""
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def pod_object(name: str = "m-1", *, revision: str = "r1", version: int = 20, **status: Any) -> dict[str, Any]:
    """A pod on a node whose container is being created; ``status`` replaces fields of its status."""
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {MODEL_LABEL: "m", "pod-template-hash": "5d4f"},
            "ownerReferences": [owner("apps/v1", "ReplicaSet", "m-5d4f")],
            "annotations": {REVISION_ANNOTATION: revision, HASH_ANNOTATION: "unused"},
        },
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "containerStatuses": [
                {
                    "name": "engine",
                    "image": "engine:1",
                    "ready": False,
                    "state": {"waiting": {"reason": "ContainerCreating"}},
                }
            ],
            **status,
        },
    }


def container(*, ready: bool = False, state: dict[str, Any] | None = None, last: dict[str, Any] | None = None) -> Any:
    """``containerStatuses`` of the engine alone."""
    return [{"name": "engine", "image": "engine:1", "ready": ready, "state": state or {}, "lastState": last or {}}]


def pod(
    name: str = "m-1",
    *,
    revision: str | None = "r1",
    ready: bool = False,
    running: bool = False,
    deleting: bool = False,
    failed: bool = False,
    trouble: Trouble | None = None,
    **more: Any,
) -> Pod:
    return Pod(
        namespace="ns",
        name=name,
        uid=f"uid-{name}",
        resource_version=20,
        model="m",
        revision=revision,
        node="node-1",
        since="2026-01-01T00:00:00Z",
        ready=ready,
        running=running or ready,
        deleting=deleting,
        failed=failed,
        trouble=trouble,
        **more,
    )


def gpu(
    product: str = "NVIDIA-GeForce-RTX-4090",
    *,
    vram_gib: float = 24,
    uuid: str = "GPU-1",
    pcie: tuple[int, int] = (4, 16),
    **fields: Any,
) -> dict[str, Any]:
    """A card of a StrataNode's status."""
    vram = int(vram_gib * (1 << 30))
    return {
        "uuid": uuid,
        "index": 0,
        "product": product,
        "vramBytes": vram - (12 << 20),  # what NVML counts of 24 GiB
        "usableVramBytes": vram - (450 << 20),
        "computeCapability": "8.9",
        "pcie": {"maxGeneration": pcie[0], "maxWidth": pcie[1]},
        **fields,
    }


def node_object(
    name: str = "gpu-1",
    *,
    gpus: list[dict[str, Any]] | None = None,
    memory_gib: int = 64,
    version: int = 1,
    **fields: Any,
) -> dict[str, Any]:
    """A StrataNode with one RTX 4090 whose agent has measured; ``fields`` replaces parts of its status."""
    return {
        "apiVersion": "strata.ai/v1alpha1",
        "kind": "StrataNode",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": str(version)},
        "spec": {},
        "status": {
            "gpus": [gpu()] if gpus is None else gpus,
            "host": {"cpu": "x", "cores": 16, "cpuFlags": [], "memoryBytes": memory_gib << 30},
            "calibration": {
                "dramMegabytesPerSecond": 40_000,
                "hostToDevice": [{"uuid": "GPU-1", "megabytesPerSecond": 22_000}],
            },
            **fields,
        },
    }
