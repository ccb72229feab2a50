"""Sets of values, each with a rendering that is kept in golden/."""

from __future__ import annotations

from typing import Any

import yaml

from manifests.charts import CHART

ENV = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
VOLUMES = {
    "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}],
}
TOLERATIONS = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]
TERM = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "one-replica": {"operator": {"replicas": 1}},
    "operator-options": {"operator": {"workers": 3, "logLevel": "DEBUG"}, "extraArgs": ["--lease=llm/strata"]},
    "images": {"image": {"registry": "r:5000", "tag": "a"}, "engineImage": {"registry": "e/team", "tag": "b"}},
    "pull-secrets": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}], "agent": {"enabled": True}},
    "one-namespace": {"watchNamespaces": ["llm"]},
    "agent": {"agent": {"enabled": True}},
    "agent-fake": {"agent": {"enabled": True, "fake": {"cards": [{"kind": "rtx3090"}], "numa_nodes": 1}}},
    "agent-pods": {
        "agent": {
            "enabled": True,
            "nodeSelector": {"gpu": "yes"},
            "tolerations": [],
            "affinity": {"nodeAffinity": {}},
            "maxUnavailable": 1,
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"a": "b"},
            "extraArgs": ["--listen=0.0.0.0:8080"],
            "extraEnv": ENV,
            "uninstallSeconds": 30,
            "priorityClassName": "gpu-critical",
            "logLevel": "DEBUG",
            "resources": {"limits": {"memory": "1Gi"}},
            **VOLUMES,
        }
    },
    "labels": {"commonLabels": {"team": "ml"}, "podLabels": {"tier": "control"}, "agent": {"enabled": True}},
    "annotations": {"podAnnotations": {"a": "b"}, "serviceAccount": {"annotations": {"c": "d"}}},
    "names": {"nameOverride": "llm", "agent": {"enabled": True}},
    "full-name": {"fullnameOverride": "serving"},
    "account-of-another": {"serviceAccount": {"create": False, "name": "given"}, "rbac": {"create": False}},
    "scheduling": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": TOLERATIONS,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}},
        "priorityClassName": "system-cluster-critical",
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    },
    "zones": {
        "operator": {"replicas": 3},
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    },
    "no-budget": {"podDisruptionBudget": {"enabled": False}},
    "environment": {"extraEnv": ENV, **VOLUMES, "agent": {"enabled": True}},
    "openshift": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None}},
    "monitored": {
        "monitors": {"operator": True, "agent": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "agent": {"enabled": True},
    },
    "monitored-services": {
        "monitors": {"kind": "ServiceMonitor", "operator": True, "agent": True},
        "agent": {"enabled": True},
    },
    "models-without-monitors": {"monitors": {"models": False}},
    "routes": {
        "routes": {
            "enabled": True,
            "domain": "models.example.com",
            "gateway": {"name": "inference", "namespace": "infra", "listener": "https"},
            "ingressClassName": "nginx",
        }
    },
    "rules": {"rules": {"enabled": True, "runbookUrl": "https://runbooks/", "labels": {"release": "prometheus"}}},
    "network-policies": {
        "networkPolicy": {
            "enabled": True,
            "apiServerPorts": [6443],
            "apiServerTo": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
            "metricsFrom": [{"podSelector": {}}],
        },
        "agent": {"enabled": True},
    },
    "gateway": {"gateway": {"enabled": True, "image": {"tag": "c"}}},
    "gateway-pods": {
        "tolerations": TOLERATIONS,
        "networkPolicy": {"enabled": True},
        "gateway": {
            "enabled": True,
            "image": {"registry": "g/team", "repository": "gw", "digest": f"sha256:{'0' * 64}"},
            "replicas": 2,
            "drainSeconds": 60,
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
            "resources": {"limits": {"memory": "2Gi"}},
            "syncResources": {"limits": {"memory": "512Mi"}},
            "podLabels": {"tier": "edge"},
            "podAnnotations": {"c": "d"},
            "extraEnv": ENV,
        },
    },
    "crds-by-hand": {"crds": {"upgrade": False}},
    **{
        f"example-{path.stem}": yaml.safe_load(path.read_text()) for path in sorted((CHART / "examples").glob("*.yaml"))
    },
}
