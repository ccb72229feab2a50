from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.reach import Reach
from strata_operator.api.route import PICKER_PORT, Parent
from tests.operator.samples import INGRESS, model

GATEWAY = {"namespace": "infra", "name": "inference"}


def parent(*conditions: tuple[str, str], generation: int = 1, ref: dict[str, Any] = GATEWAY) -> dict[str, Any]:
    """A gateway's word: types and statuses."""
    told = [
        {"type": kind, "status": status, "reason": "Why", "message": "because", "observedGeneration": generation}
        for kind, status in conditions
    ]
    return {"parentRef": ref, "controllerName": "x/y", "conditions": told}


def test_what_is_left_out() -> None:
    assert model().route is None
    route = model(route={}).route
    assert route is not None
    assert (route.kind, route.path, route.timeout_seconds, route.wanted) == ("HTTPRoute", "/", 0, ("HTTPRoute",))
    picked = model(route={"endpointPickerRef": {"name": "p"}}).route
    assert picked is not None
    assert picked.picker is not None
    assert (picked.picker.port, picked.picker.failure_mode) == (PICKER_PORT, None)
    assert picked.wanted == ("InferencePool", "HTTPRoute")


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"kind": "Ingress", "timeoutSeconds": 0}, "timeoutSeconds belongs to kind HTTPRoute, and the kind is Ingress"),
        ({**INGRESS, "kind": "HTTPRoute"}, "ingressClassName belongs to kind Ingress, and the kind is HTTPRoute"),
        ({"kind": "TCPRoute"}, "allowed are HTTPRoute, Ingress"),
        ({"path": "x"}, "must begin with a slash"),
        ({"path": "/a//b"}, "no two of them in a row"),
        ({"parentRefs": [{"namespace": "infra"}]}, r"spec.route.parentRefs\[0\].name is missing"),
        ({"endpointPickerRef": {"name": "p", "failureMode": "Fail"}}, "allowed are FailClose, FailOpen"),
        ({"hostname": "x"}, "spec.route.hostname is not known"),
    ],
)
def test_what_is_refused(route: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        model(route=route)


@pytest.mark.parametrize(("given", "path"), [("/", "/"), ("/a", "/a"), ("/a/", "/a"), ("/a/b/", "/a/b")])
def test_a_path_has_no_slash_at_its_end(given: str, path: str) -> None:
    route = model(route={"path": given}).route
    assert route is not None
    assert route.path == path


def test_a_parent_is_named_for_people() -> None:
    assert str(Parent("g")) == "Gateway g"
    assert str(Parent("g", "n", "https")) == "Gateway n/g (listener https)"


@pytest.mark.parametrize(
    ("kind", "status", "reach"),
    [
        pytest.param("HTTPRoute", {}, Reach(None), id="no gateway has answered"),
        pytest.param("HTTPRoute", {"parents": [parent()]}, Reach(None), id="one that says nothing yet"),
        pytest.param(
            "HTTPRoute",
            {"parents": [parent(("Accepted", "True"), ("ResolvedRefs", "True"))]},
            Reach(True, "accepted by Gateway infra/inference"),
            id="accepted",
        ),
        pytest.param(
            "HTTPRoute",
            {"parents": [parent(("Accepted", "True"), generation=0)]},
            Reach(None),
            id="accepted was what it was before",
        ),
        pytest.param(
            "HTTPRoute",
            {"parents": [parent(("Accepted", "True"), ("ResolvedRefs", "False"))]},
            Reach(False, "Gateway infra/inference: ResolvedRefs is false: Why: because", "Why"),
            id="what it leads to is not found",
        ),
        pytest.param(
            "InferencePool",
            {
                "parents": [
                    parent(("Accepted", "True"), ref={"kind": "Gateway", "name": "a"}),
                    parent(("Accepted", "False")),
                ]
            },
            Reach(False, "Gateway infra/inference: Accepted is false: Why: because", "Why"),
            id="one of two refuses",
        ),
        pytest.param("Ingress", {"loadBalancer": {}}, Reach(None), id="no address"),
        pytest.param(
            "Ingress",
            {"loadBalancer": {"ingress": [{"ip": "10.0.0.2"}, {"hostname": "a.b"}]}},
            Reach(True, "at 10.0.0.2, a.b"),
            id="addresses",
        ),
    ],
)
def test_what_controllers_tell(kind: str, status: dict[str, Any], reach: Reach) -> None:
    assert Reach.of(kind, {"metadata": {"generation": 1}, "status": status}) == reach
