"""The HTTPRoute of the Gateway API, and the InferencePool of its inference extension, from which a picker chooses."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import child_name
from strata_operator.api.route import Parent, Picker, Route, RouteDefaults
from strata_operator.render.arguments import PORT
from strata_operator.render.meta import endpoints, manifest

POOL_GROUP = "inference.networking.k8s.io"


def parents(route: Route, defaults: RouteDefaults) -> tuple[Parent, ...]:
    """Gateways that are asked to take it; none where neither the model nor the operator names one."""
    return route.parents or ((defaults.parent,) if defaults.parent is not None else ())


def hostnames(model: StrataModel, route: Route, defaults: RouteDefaults) -> tuple[str, ...]:
    """Under which the model is asked for; none: under any that comes there."""
    own = (f"{child_name(model.name)}.{model.namespace}.{defaults.domain}",) if defaults.domain else ()
    return route.hostnames or own


def http_route(model: StrataModel, route: Route, defaults: RouteDefaults) -> dict[str, Any]:
    """The path's prefix is taken off: the engine's own paths begin with /v1."""
    match: dict[str, Any] = {"path": {"type": "PathPrefix", "value": route.path}}
    if route.headers:
        match["headers"] = [{"name": name, "value": value} for name, value in sorted(route.headers.items())]
    backend: dict[str, Any] = {"name": child_name(model.name), "port": model.endpoint.port}
    if route.picker is not None:
        backend = {"group": POOL_GROUP, "kind": "InferencePool", "name": child_name(model.name)}
    rule: dict[str, Any] = {
        "matches": [match],
        # Gateways' own limit, 15 s in some, would break off long answers.
        "timeouts": {"request": f"{route.timeout_seconds}s"},
        "backendRefs": [backend],
    }
    if route.path != "/":
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    spec: dict[str, Any] = {"parentRefs": [one.dump() for one in parents(route, defaults)], "rules": [rule]}
    if hosts := hostnames(model, route, defaults):
        spec["hostnames"] = list(hosts)
    return manifest(
        model, "gateway.networking.k8s.io/v1", "HTTPRoute", further_annotations=route.annotations, spec=spec
    )


def pool(model: StrataModel, picker: Picker) -> dict[str, Any]:
    """The model's pods, whose metrics the picker reads."""
    reference: dict[str, Any] = {"name": picker.name, "port": {"number": picker.port}}
    if picker.failure_mode is not None:
        reference["failureMode"] = picker.failure_mode
    return manifest(
        model,
        f"{POOL_GROUP}/v1",
        "InferencePool",
        spec={
            "selector": {"matchLabels": endpoints(model)},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": reference,
        },
    )
