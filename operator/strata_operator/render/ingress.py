"""The Ingress, for clusters without a Gateway."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import child_name
from strata_operator.api.route import Route, RouteDefaults
from strata_operator.render.meta import manifest
from strata_operator.render.route import hostnames


def ingress(model: StrataModel, route: Route, defaults: RouteDefaults) -> dict[str, Any]:
    """The path stays as it is: an Ingress can take nothing off, but by annotations of its controller."""
    service = {"name": child_name(model.name), "port": {"number": model.endpoint.port}}
    http = {"paths": [{"path": route.path, "pathType": "Prefix", "backend": {"service": service}}]}
    hosts = hostnames(model, route, defaults)
    spec: dict[str, Any] = {"rules": [{"host": host, "http": http} for host in hosts] or [{"http": http}]}
    if name := route.ingress_class or defaults.ingress_class:
        spec["ingressClassName"] = name
    if route.tls_secret is not None:
        spec["tls"] = [{"secretName": route.tls_secret, **({"hosts": list(hosts)} if hosts else {})}]
    return manifest(model, "networking.k8s.io/v1", "Ingress", further_annotations=route.annotations, spec=spec)
