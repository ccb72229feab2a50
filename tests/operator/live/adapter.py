"""prometheus-adapter beside the cluster, as its API server for custom metrics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import Cluster
from tests.cluster.build import build
from tests.cluster.parts import binary, part
from tests.operator.live.harness import eventually
from tests.operator.test_main import free_port

NAME, NAMESPACE = "prometheus-adapter", "kube-system"
VERSIONS = ("v1beta1", "v1beta2")
GROUP = "custom.metrics.k8s.io"


@contextmanager
def adapter(cluster: Cluster, prometheus: str, rules: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Path]:
    """One that asks that Prometheus by those rules; its log. The API server passes requests of the group on to it."""
    build([part(NAME)], lambda _: None)
    port, config, log = free_port(), folder / "rules.yaml", folder / "log"
    config.write_text(yaml.safe_dump({"rules": list(rules)}))
    credentials = [
        f"--{whose}-kubeconfig={cluster.kubeconfig}" for whose in ("lister", "authentication", "authorization")
    ]
    options = [f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}", f"--prometheus-url={prometheus}"]
    options += [f"--config={config}", "--metrics-relist-interval=2s", "--metrics-max-age=1m", *credentials]
    with log.open("wb") as output, subprocess.Popen([binary(NAME), *options], stdout=output, stderr=output) as process:
        try:
            cluster.kubectl("apply", "-f", "-", input=json.dumps(_objects(cluster, port)))
            eventually(lambda: _is_available(cluster), 60, lambda: log.read_text())
            yield log
        finally:
            process.terminate()
            cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=json.dumps(_objects(cluster, port)))


def _objects(cluster: Cluster, port: int) -> dict[str, Any]:
    """A Service whose one endpoint is this machine, and the group that it answers for."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"ports": [{"port": 443, "targetPort": port}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "ports": [{"port": port, "protocol": "TCP", "name": ""}],
        "endpoints": [{"addresses": [str(cluster.site.network.host)], "conditions": {"ready": True}}],
    }
    groups = [
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": version,
                "service": {"name": NAME, "namespace": NAMESPACE},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        }
        for version in VERSIONS
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints, *groups]}


def _is_available(cluster: Cluster) -> bool:
    shown = cluster.kubectl("get", "apiservices", *(f"{version}.{GROUP}" for version in VERSIONS), "-o", "json")
    told = [
        condition["status"]
        for item in json.loads(shown)["items"]
        for condition in item.get("status", {}).get("conditions", ())
        if condition["type"] == "Available"
    ]
    return told == ["True"] * len(VERSIONS)
