from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.names import HASH_ANNOTATION
from strata_operator.api.route import Parent, RouteDefaults
from strata_operator.routing import children
from tests.operator.samples import FULL_SPEC, INGRESS, model

GATEWAY = RouteDefaults(Parent("inference", "infra"), "models.example.com", "nginx")


def rendered(route: dict[str, Any], defaults: RouteDefaults = GATEWAY, name: str = "m") -> dict[str, dict[str, Any]]:
    made = model(name, route=route)
    assert made.route is not None
    return children(made, made.route, defaults)


def test_a_route_of_defaults_alone() -> None:
    made = rendered({})
    assert list(made) == ["HTTPRoute"]
    assert made["HTTPRoute"]["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert made["HTTPRoute"]["metadata"]["name"] == "m"
    assert made["HTTPRoute"]["spec"] == {
        "parentRefs": [{"name": "inference", "namespace": "infra"}],
        "hostnames": ["m.ns.models.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "timeouts": {"request": "0s"},
                "backendRefs": [{"name": "m", "port": 8000}],
            }
        ],
    }


def test_a_route_that_says_it_all_leads_to_the_pool_of_a_picker() -> None:
    made = model(**FULL_SPEC)
    assert made.route is not None
    found = children(made, made.route, GATEWAY)
    assert list(found) == ["InferencePool", "HTTPRoute"], "what a route leads to is there before it"
    assert found["HTTPRoute"]["spec"] == {
        "parentRefs": [{"name": "inference", "namespace": "infra", "sectionName": "https", "port": 443}],
        "hostnames": ["qwen.example.com"],
        "rules": [
            {
                "matches": [
                    {
                        "path": {"type": "PathPrefix", "value": "/qwen"},
                        "headers": [{"name": "X-Gateway-Model-Name", "value": "qwen"}],
                    }
                ],
                "filters": [
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
                    }
                ],
                "timeouts": {"request": "600s"},
                "backendRefs": [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "m"}],
            }
        ],
    }
    assert found["InferencePool"]["apiVersion"] == "inference.networking.k8s.io/v1"
    assert found["InferencePool"]["spec"] == {
        "selector": {"matchLabels": {"strata.ai/model": "m", "app.kubernetes.io/name": "strata-engine"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9003}, "failureMode": "FailOpen"},
    }


def test_an_ingress() -> None:
    made = rendered(INGRESS)
    assert list(made) == ["Ingress"]
    assert made["Ingress"]["spec"] == {
        "rules": [
            {
                "host": "qwen.example.com",
                "http": {
                    "paths": [
                        {
                            "path": "/qwen",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "m", "port": {"number": 8000}}},
                        }
                    ]
                },
            }
        ],
        "ingressClassName": "nginx",
        "tls": [{"secretName": "qwen-tls", "hosts": ["qwen.example.com"]}],
    }
    annotations = made["Ingress"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "3600"


def test_without_a_domain_and_a_class_there_is_none() -> None:
    nothing = RouteDefaults()
    assert "hostnames" not in rendered({}, RouteDefaults(Parent("g")))["HTTPRoute"]["spec"]
    made = rendered({"kind": "Ingress", "tlsSecretName": "t"}, nothing)["Ingress"]["spec"]
    assert [set(rule) for rule in made["rules"]] == [{"http"}]
    assert made["tls"] == [{"secretName": "t"}]
    assert "ingressClassName" not in made


@pytest.mark.parametrize(("name", "host"), [("a.b", "a-b-"), ("qwen3", "qwen3.ns.models.example.com")])
def test_a_host_name_is_one_label_for_the_model(name: str, host: str) -> None:
    (found,) = rendered({}, name=name)["HTTPRoute"]["spec"]["hostnames"]
    assert found.startswith(host)
    assert found.removesuffix(".ns.models.example.com").count(".") == 0


def test_annotations_change_the_hash_and_cannot_take_its_place() -> None:
    plain, noted = (
        rendered({"annotations": more})["HTTPRoute"]["metadata"]["annotations"] for more in ({}, {"a": "b"})
    )
    assert list(plain) == [HASH_ANNOTATION]
    assert (noted["a"], noted[HASH_ANNOTATION] != plain[HASH_ANNOTATION]) == ("b", True)
    forged = rendered({"annotations": {HASH_ANNOTATION: "x"}})["HTTPRoute"]["metadata"]["annotations"]
    assert forged[HASH_ANNOTATION] != "x"
