"""Routes on the real API server, with the definitions of the Gateway API and its inference extension."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import (
    ROOT,
    Models,
    OperatorProcess,
    eventually,
    install_definitions,
    install_rights,
    remove_definitions,
    remove_rights,
)
from tests.operator.samples import FULL_SPEC, INGRESS

pytestmark = pytest.mark.cluster

RELEASE = "strata-routes"
DEFINITIONS = ("gateway-api", "inference-extension")
KINDS = ("httproute", "inferencepool", "ingress")
PICKED = FULL_SPEC["route"]
LOOK_SECONDS = 120  # the operator looks for definitions once a minute


@pytest.fixture(scope="module")
def routing(
    operator: OperatorProcess, cluster: Cluster, engine_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """With routes, in the place of the one that the other tests use; no definition is there yet."""
    operator.stop()
    remove_definitions(cluster, *DEFINITIONS)
    folder = tmp_path_factory.mktemp("routes")
    rights = install_rights(cluster, folder, "routes.enabled=true", release=RELEASE)
    options = ("--routes", "--route-gateway=infra/inference", "--route-domain=models.example.com")
    made = OperatorProcess(rights, engine_image, folder / "log", *options)
    made.start()
    yield made
    code = made.stop()
    remove_rights(cluster, RELEASE)
    remove_definitions(cluster, *DEFINITIONS)
    operator.start()
    assert code == 0, made.tail()
    assert "Traceback (most recent call last)" not in made.log.read_text(), made.tail(80)


@pytest.fixture(scope="module")
def defined(routing: OperatorProcess, cluster: Cluster) -> OperatorProcess:
    """With all definitions, as the operator has seen by then."""
    install_definitions(cluster, *DEFINITIONS)
    return routing


def apply(models: Models, name: str, route: dict[str, Any] | None) -> None:
    """Without a pod: what leads to it is there all the same."""
    more: dict[str, Any] = {} if route is None else {"route": route}
    models.apply(name, replicas=0, **more)


def spec(models: Models, kind: str, name: str) -> Any:
    return (models.get(kind, name) or {}).get("spec")


def answer(models: Models, kind: str, name: str, status: str) -> None:
    """What a gateway's controller writes."""
    generation = models.get(kind, name)["metadata"]["generation"]
    told = {
        "type": "Accepted",
        "status": status,
        "reason": "Accepted" if status == "True" else "NotAllowedByListeners",
        "message": "of the test",
        "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    parent = {"namespace": "infra", "name": "inference"}
    parents = [{"parentRef": parent, "controllerName": "example.com/test", "conditions": [told]}]
    patch = json.dumps({"status": {"parents": parents}})
    models.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


def test_definitions_that_come_later_are_noticed_and_those_that_go(
    routing: OperatorProcess, cluster: Cluster, models: Models
) -> None:
    models.apply("early", route={})
    told = models.wait_for("early", "Routed", "False", "CrdMissing")["message"]
    assert "the cluster has no HTTPRoute: install the Gateway API" in told
    models.wait_for("early", "Ready", "True")
    install_definitions(cluster, *DEFINITIONS)
    models.wait_for("early", "Routed", "Unknown", "Pending", seconds=LOOK_SECONDS)
    assert spec(models, "httproute", "early")["hostnames"] == [f"early.{models.namespace}.models.example.com"]
    answer(models, "httproute", "early", "True")
    told = models.wait_for("early", "Routed", "True", "Routed")["message"]
    assert "accepted by Gateway infra/inference" in told
    answer(models, "httproute", "early", "False")
    models.wait_for("early", "Routed", "False", "NotAllowedByListeners")
    models.wait_for("early", "Ready", "True")
    remove_definitions(cluster, *DEFINITIONS)
    models.wait_for("early", "Routed", "False", "CrdMissing", seconds=LOOK_SECONDS)
    models.wait_for("early", "Ready", "True")


def test_what_is_rendered_is_accepted_kept_and_left_alone(
    quiet: None, defined: OperatorProcess, models: Models
) -> None:
    apply(models, "picked", PICKED)
    models.wait_for("picked", "Routed", "Unknown", "Pending", seconds=LOOK_SECONDS)
    route = spec(models, "httproute", "picked")
    assert route["rules"][0]["backendRefs"][0]["kind"] == "InferencePool"
    assert route["rules"][0]["timeouts"] == {"request": "600s"}
    pool = spec(models, "inferencepool", "picked")
    assert (pool["endpointPickerRef"]["name"], pool["targetPorts"]) == ("picker", [{"number": 8000}])
    models.wait_for("picked", "Ready", "False", "ScaledToZero")
    models.wait_for_event("picked", "Created")
    reconciles, writes = defined.reconciles(), defined.writes()
    models.kubectl("annotate", "sm", "picked", "example.com/touch=1")
    eventually(lambda: defined.reconciles() > reconciles, 30, defined.tail)
    assert defined.writes() == writes, "what the API server defaults is no change"


@pytest.mark.parametrize(
    ("kind", "route", "patch"),
    [
        ("httproute", PICKED, {"spec": {"hostnames": ["evil.example.com"]}}),
        ("inferencepool", PICKED, {"spec": {"targetPorts": [{"number": 81}]}}),
        ("ingress", INGRESS, {"spec": {"ingressClassName": "other"}}),
    ],
)
def test_an_edited_one_is_put_back(
    defined: OperatorProcess, models: Models, kind: str, route: dict[str, Any], patch: dict[str, Any]
) -> None:
    apply(models, "edited", route)
    eventually(lambda: spec(models, kind, "edited") is not None, LOOK_SECONDS, defined.tail)
    before = spec(models, kind, "edited")
    models.kubectl("patch", kind, "edited", "--type=merge", "-p", json.dumps(patch))
    eventually(lambda: spec(models, kind, "edited") == before, 30, defined.tail)
    assert kind in models.wait_for_event("edited", "Restored")["message"].lower()


def test_what_the_spec_asks_for_no_more_is_removed_and_no_right_is_missing(
    quiet: None, defined: OperatorProcess, models: Models
) -> None:
    denied = defined.metric(r'strata_operator_api_requests_total\{status="403"')
    apply(models, "changing", PICKED)
    eventually(lambda: spec(models, "httproute", "changing") is not None, LOOK_SECONDS, defined.tail)
    apply(models, "changing", INGRESS)
    eventually(lambda: spec(models, "ingress", "changing") is not None, 30, defined.tail)
    eventually(lambda: not any(spec(models, kind, "changing") for kind in KINDS[:2]), 30, defined.tail)
    balanced = json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}})
    models.kubectl("patch", "ingress", "changing", "--subresource=status", "--type=merge", "-p", balanced)
    assert "at 192.0.2.7" in models.wait_for("changing", "Routed", "True", "Routed")["message"]
    apply(models, "changing", None)
    eventually(lambda: not any(spec(models, kind, "changing") for kind in KINDS), 30, defined.tail)
    eventually(lambda: models.condition("changing", "Routed") == {}, 30, defined.tail)
    assert models.wait_for_event("changing", "Removed")
    assert defined.metric(r'strata_operator_api_requests_total\{status="403"') == denied


def test_a_route_of_somebody_else_is_left_alone_and_the_model_serves(defined: OperatorProcess, models: Models) -> None:
    theirs: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "taken"},
        "spec": {"defaultBackend": {"service": {"name": "other", "port": {"number": 80}}}},
    }
    models.kubectl("create", "-f", "-", input=json.dumps(theirs))
    models.apply("taken", route=INGRESS)
    models.wait_for("taken", "Routed", "False", "NameConflict")
    models.wait_for("taken", "Ready", "True")
    models.kubectl("delete", "sm", "taken", "--wait")
    assert spec(models, "ingress", "taken")["defaultBackend"] == theirs["spec"]["defaultBackend"]


def test_a_deleted_model_takes_its_routes_along(defined: OperatorProcess, models: Models) -> None:
    apply(models, "leaving", PICKED)
    eventually(lambda: spec(models, "httproute", "leaving") is not None, LOOK_SECONDS, defined.tail)
    models.kubectl("delete", "sm", "leaving", "--cascade=foreground", "--timeout=120s")
    assert not any(spec(models, kind, "leaving") for kind in KINDS)


@pytest.mark.parametrize("name", ["http-route", "ingress", "inference-pool"])
def test_examples_are_accepted(cluster: Cluster, kubeconfig: Path, name: str) -> None:
    example = ROOT / "manifests" / "examples" / "routes" / f"{name}.yaml"
    assert "created" in cluster.kubectl("apply", "--dry-run=server", "-f", str(example))
