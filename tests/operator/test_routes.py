"""Routes of models through whole reconciles: made, told of, put back, taken away."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from strata_operator.api.errors import RefusedError, UnavailableError
from strata_operator.api.route import Parent, RouteDefaults
from strata_operator.cluster.executor import UNTAKEN_SECONDS
from strata_operator.reconcile import BLOCKED_SECONDS, PACE_SECONDS
from strata_operator.workers import Result
from tests.operator.samples import INGRESS
from tests.operator.test_reconcile import ALL, KEY, World

GATEWAY = RouteDefaults(Parent("inference", "infra"), "example.com")
EVERY = {"HTTPRoute", "InferencePool", "Ingress"}
PICKED = {"endpointPickerRef": {"name": "p"}}


def routed(
    route: dict[str, Any] | None = None, served: set[str] = EVERY, defaults: RouteDefaults | None = GATEWAY
) -> World:
    """A model that serves, with a route."""
    world = World(routes=defaults, route=route or {})
    world.served = set(served)
    world.run()
    world.serve()
    world.run()
    return world


def respec(world: World, **route: Any) -> None:
    """Another route; none for none."""
    world.model["spec"].pop("route")
    if route:
        world.model["spec"]["route"] = route
    world.change(generation=world.model["metadata"]["generation"] + 1)


def answer(world: World, status: str, kind: str = "HTTPRoute") -> None:
    """Of the gateway's controller."""
    route = world.client.objects[kind, *KEY]
    world.client.version += 1
    route["metadata"]["resourceVersion"] = str(world.client.version)
    told = {
        "type": "Accepted",
        "status": status,
        "reason": "NotAllowedByListeners",
        "message": "no",
        "observedGeneration": 1,
    }
    route["status"] = {"parents": [{"parentRef": {"namespace": "infra", "name": "inference"}, "conditions": [told]}]}
    world.cache.put(kind, route)
    world.run()


def kinds(world: World) -> set[str]:
    return {kind for kind, *_ in world.client.objects} & EVERY


def test_a_model_without_a_route_costs_nothing_more() -> None:
    world = World(routes=GATEWAY)
    world.served = set(EVERY)
    assert world.reconcile(KEY) == Result("changed", again_in=PACE_SECONDS)
    assert world.client.calls == [f"create {kind}" for kind in ALL]
    world.run()
    assert world.condition("Routed") == {}


def test_a_route_is_one_call_more_of_a_new_model() -> None:
    world = World(routes=GATEWAY, route={})
    world.served = set(EVERY)
    world.reconcile(KEY)
    assert world.client.calls == [f"create {kind}" for kind in (*ALL, "HTTPRoute")]


@pytest.mark.parametrize(
    ("route", "made"), [({}, {"HTTPRoute"}), (PICKED, {"HTTPRoute", "InferencePool"}), (INGRESS, {"Ingress"})]
)
def test_it_is_made_and_then_quiet(route: dict[str, Any], made: set[str]) -> None:
    world = routed(route)
    assert kinds(world) == made
    assert (world.condition("Routed")["status"], world.condition("Routed")["reason"]) == ("Unknown", "Pending")
    assert world.condition("Ready")["status"] == "True", "the model serves, whatever leads to it"
    world.client.calls.clear()
    assert world.run() == Result("unchanged")
    assert world.client.calls == []


def test_what_the_gateway_says_is_told() -> None:
    world = routed()
    answer(world, "True")
    found = world.condition("Routed")
    assert (found["status"], found["reason"]) == ("True", "Routed")
    assert found["message"].startswith(
        "HTTPRoute m leads here from m.ns.example.com/, accepted by Gateway infra/inference; who reaches that needs no"
    )
    answer(world, "False")
    found = world.condition("Routed")
    assert (found["status"], found["reason"]) == ("False", "NotAllowedByListeners")
    assert found["message"].endswith("inside the cluster the model answers at http://m.ns.svc:8000/v1")
    assert world.client.events()[-2:] == ["Routed", "NotAllowedByListeners"]
    assert world.condition("Ready")["status"] == "True"


def test_a_pool_that_is_refused_counts_though_the_route_is_accepted() -> None:
    world = routed(PICKED)
    answer(world, "True")
    answer(world, "False", "InferencePool")
    assert world.condition("Routed")["reason"] == "NotAllowedByListeners"
    assert "InferencePool m is refused" in world.condition("Routed")["message"]


@pytest.mark.parametrize(
    ("served", "defaults", "route", "reason", "words"),
    [
        pytest.param(set(), GATEWAY, {}, "CrdMissing", "the cluster has no HTTPRoute: install", id="no Gateway API"),
        pytest.param({"HTTPRoute"}, GATEWAY, PICKED, "CrdMissing", "no InferencePool: install", id="no extension"),
        pytest.param(EVERY, None, {}, "RoutesOff", "set routes.enabled in the chart", id="routes are off"),
        pytest.param(EVERY, RouteDefaults(), {}, "NoGateway", "set spec.route.parentRefs", id="no gateway is named"),
    ],
)
def test_what_is_in_the_way_is_told_and_the_model_serves(
    served: set[str], defaults: RouteDefaults | None, route: dict[str, Any], reason: str, words: str
) -> None:
    world = routed(route, served, defaults)
    assert kinds(world) == set()
    found = world.condition("Routed")
    assert (found["status"], found["reason"], words in found["message"]) == ("False", reason, True)
    assert world.condition("Ready")["status"] == "True"
    assert world.client.events() == [reason, "Created", "Ready"]


def test_a_definition_that_comes_later_is_used() -> None:
    world = routed(served=set())
    world.served = {"HTTPRoute"}
    world.run()
    assert kinds(world) == {"HTTPRoute"}
    assert world.condition("Routed")["reason"] == "Pending"
    assert ("Created", "created HTTPRoute") in world.client.told()


def test_what_the_spec_asks_for_no_more_is_taken_away() -> None:
    world = routed(PICKED)
    respec(world)
    world.run()
    assert kinds(world) == set()
    assert world.condition("Routed") == {}
    assert ("Removed", "removed InferencePool, HTTPRoute, which the spec asks for no more") in world.client.told()
    world.client.calls.clear()
    assert world.run() == Result("unchanged")
    assert world.client.calls == []


def test_another_kind_takes_the_place_of_the_first() -> None:
    world = routed()
    respec(world, **INGRESS)
    world.run()
    assert kinds(world) == {"Ingress"}


def test_a_route_stays_where_it_could_not_be_made_anew() -> None:
    """A default that went is no wish to take routes away."""
    world = routed()
    respec(world, parentRefs=[], hostnames=["a.b"])
    world.served = set()
    world.run()
    assert kinds(world) == {"HTTPRoute"}
    assert world.condition("Routed")["reason"] == "CrdMissing"


def test_an_object_of_somebody_else_is_neither_changed_nor_removed() -> None:
    world = World(routes=GATEWAY, route={})
    world.served = set(EVERY)
    theirs = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "spec": {"parentRefs": []}}
    metadata = {"namespace": "ns", "name": "m", "uid": "theirs", "resourceVersion": "5"}
    world.client.keep({**theirs, "metadata": metadata})
    world.run()
    world.serve()
    assert world.run().again_in == BLOCKED_SECONDS
    assert world.condition("Routed")["reason"] == "NameConflict"
    assert world.condition("Ready")["status"] == "True"
    respec(world)
    world.run()
    assert world.client.objects["HTTPRoute", *KEY]["spec"] == theirs["spec"]
    assert "delete HTTPRoute" not in world.client.calls


def test_one_that_the_api_server_refuses_is_told_of() -> None:
    world = World(routes=GATEWAY, route={})
    world.served = set(EVERY)
    world.client.failing["create HTTPRoute"] = RefusedError("no", status=422, answer="hostnames[0]: Invalid value")
    world.run()
    world.serve()
    world.run()
    found = world.condition("Routed")
    assert (found["reason"], "hostnames[0]: Invalid value" in found["message"]) == ("ApplyRefused", True)
    assert world.condition("Ready")["status"] == "True"


def test_a_right_that_is_missing_is_told_of_after_a_while() -> None:
    world = World(routes=GATEWAY, route={})
    world.served = set(EVERY)
    world.client.failing["create HTTPRoute"] = UnavailableError("no", status=403, answer="cannot create httproutes")
    with pytest.raises(UnavailableError):
        world.reconcile(KEY)
    world.now += timedelta(seconds=UNTAKEN_SECONDS)
    world.serve()
    world.run()
    assert "cannot create httproutes" in world.condition("Routed")["message"]
    assert world.condition("Ready")["status"] == "True"


def test_one_that_was_edited_is_put_back() -> None:
    world = routed()
    route = world.client.objects["HTTPRoute", *KEY]
    world.client.version += 1
    route["metadata"] |= {"resourceVersion": str(world.client.version), "managedFields": []}
    world.cache.put("HTTPRoute", route)
    world.run()
    assert any(reason == "Restored" for reason, _ in world.client.told())


def test_a_refused_spec_leaves_the_route_as_it_is() -> None:
    world = routed()
    world.model["spec"]["unheardOf"] = 1
    world.change(generation=2)
    world.run()
    assert kinds(world) == {"HTTPRoute"}
    assert (world.condition("Routed")["status"], world.condition("Routed")["reason"]) == ("Unknown", "InvalidSpec")
