"""What leads from outside of the cluster to a model: what is wanted, what is in the way, what is told of it; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata_operator.api.child import Child
from strata_operator.api.conditions import ROUTED, Condition, Trouble
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.reach import ROUTE_KINDS, Reach
from strata_operator.api.route import Route, RouteDefaults
from strata_operator.plan import Action, Manifest
from strata_operator.render.ingress import ingress
from strata_operator.render.route import hostnames, http_route, parents, pool

OFF = Trouble("RoutesOff", "this operator makes no routes; set routes.enabled in the chart, or start it with --routes")
_NEEDED = {
    "HTTPRoute": "the Gateway API (gateway.networking.k8s.io/v1) and a gateway",
    "InferencePool": "the Gateway API Inference Extension (inference.networking.k8s.io/v1) and a gateway with it",
    "Ingress": "networking.k8s.io/v1",
}


def obstacle(route: Route, defaults: RouteDefaults | None, serves: Callable[[str], bool]) -> Trouble | None:
    """Why nothing can be made; ``defaults`` is None where routes are off, ``serves(kind)`` whether the API server knows
    the kind."""
    if defaults is None:
        return OFF
    for kind in route.wanted:
        if not serves(kind):
            words = f"the cluster has no {kind}: install {_NEEDED[kind]}; it is looked for every minute"
            return Trouble("CrdMissing", words)
    if route.kind == "HTTPRoute" and not parents(route, defaults):
        words = "no Gateway is named; set spec.route.parentRefs, or routes.gateway in the chart for all models"
        return Trouble("NoGateway", words)
    return None


def children(model: StrataModel, route: Route, defaults: RouteDefaults) -> dict[str, dict[str, Any]]:
    """By kind, in the order in which they are applied."""
    made: list[dict[str, Any]] = []
    if route.picker is not None:
        made.append(pool(model, route.picker))
    made.append(http_route(model, route, defaults) if route.kind == "HTTPRoute" else ingress(model, route, defaults))
    return {one["kind"]: one for one in made}


def surplus(model: StrataModel, observed: Observed) -> list[Action]:
    """Removals of what is the model's, and what its spec asks for no more."""
    wanted = model.route.wanted if model.route is not None else ()
    there = [observed.children[kind] for kind in ROUTE_KINDS if kind in observed.children and kind not in wanted]
    return [
        Action("delete", _reference(child), child)
        for child in there
        if child.owner_uid == model.uid and not child.deleting
    ]


def verdict(
    model: StrataModel, defaults: RouteDefaults | None, observed: Observed, trouble: Trouble | None
) -> Condition | None:
    """The condition Routed; None for a model that wants no route. ``trouble``: what stands in the way."""
    route = model.route
    if route is None:
        return None
    inside = f"inside the cluster the model answers at {model.endpoint.url}"
    if trouble is not None or defaults is None:
        trouble = trouble or OFF
        return Condition(ROUTED, False, trouble.reason, f"{trouble.message}; {inside}")
    there = [observed.children[kind] for kind in route.wanted if kind in observed.children]
    for child in there:
        if child.reach is not None and child.reach.accepted is False:
            words = f"{child.kind} {child.name} is refused: {child.reach.words}"
            return Condition(ROUTED, False, child.reach.reason, f"{words}; {inside}")
    target = next((child for child in there if child.kind == route.kind), None)
    reach = target.reach if target is not None and target.reach is not None else Reach(None)
    if target is None or reach.accepted is None:
        return Condition(ROUTED, None, "Pending", f"{_awaited(model, route, defaults)}; {inside}")
    asked = [f"{host}{route.path}" for host in hostnames(model, route, defaults)] or [f"any host, {route.path}"]
    words = f"{route.kind} {target.name} leads here from {', '.join(asked)}, {reach.words}"
    if model.endpoint.api_keys is None:
        words += "; who reaches that needs no key, for spec.service.apiKeysSecretRef is not set"
    return Condition(ROUTED, True, "Routed", words)


def _awaited(model: StrataModel, route: Route, defaults: RouteDefaults) -> str:
    if route.kind == "Ingress":
        name = route.ingress_class or defaults.ingress_class
        return (
            f"no ingress controller has taken the Ingress yet ({f'class {name}' if name else 'of the default class'})"
        )
    named = ", ".join(map(str, parents(route, defaults)))
    return f"{named} has not answered yet; it must be there, and allow routes of namespace {model.namespace}"


def _reference(child: Child) -> Manifest:
    metadata: Mapping[str, Any] = {"namespace": child.namespace, "name": child.name}
    return {"kind": child.kind, "metadata": metadata}
