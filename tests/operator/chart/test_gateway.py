"""The gateway's part of the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_operator.api.names import GATEWAY_KEY_LABEL, MODEL_LABEL
from strata_operator.gateway.main import parser
from tests.operator.chart.helm import Helm, Objects

NAME = "strata-gateway"


def pod(objects: Objects) -> dict[str, Any]:
    return dict(objects["Deployment", NAME]["spec"]["template"]["spec"])


def test_off_nothing_of_it_is_there(helm: Helm) -> None:
    assert NAME not in helm.text({})


def test_sidecar_and_proxy_share_a_file_in_memory(helm: Helm) -> None:
    objects = helm.objects("gateway.enabled=true", "watchNamespaces={a,b}")
    (sidecar,), (proxy,) = pod(objects)["initContainers"], pod(objects)["containers"]
    assert sidecar["restartPolicy"] == "Always"  # beside the proxy, not before it
    assert sidecar["command"] == ["strata-gateway-sync"]
    options = parser().parse_args(sidecar["args"])
    assert (options.keys, options.namespaces) == ("ns", "a,b")
    assert {"name": "STRATA_GATEWAY_FILE", "value": str(options.file)} in proxy["env"]
    (state,) = (volume for volume in pod(objects)["volumes"] if volume["name"] == "state")
    assert state["emptyDir"]["medium"] == "Memory"
    for container in (sidecar, proxy):
        (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "state")
        assert Path(mount["mountPath"]) == options.file.parent
        assert bool(mount.get("readOnly")) == (container is proxy)


def test_the_proxy_has_no_token(helm: Helm) -> None:
    objects = helm.objects("gateway.enabled=true")
    assert pod(objects)["automountServiceAccountToken"] is False
    assert objects["ServiceAccount", NAME]["automountServiceAccountToken"] is False
    holders = [
        container["name"]
        for container in [*pod(objects)["initContainers"], *pod(objects)["containers"]]
        if any(mount["name"] == "token" for mount in container["volumeMounts"])
    ]
    assert holders == ["sync"]


def test_a_pod_has_the_time_to_end_its_answers(helm: Helm) -> None:
    objects = helm.objects("gateway.enabled=true", "gateway.drainSeconds=100")
    (proxy,) = pod(objects)["containers"]
    assert {"name": "GRACEFUL_SHUTDOWN_TIMEOUT", "value": "100"} in proxy["env"]
    assert pod(objects)["terminationGracePeriodSeconds"] > 100 + proxy["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert objects["Deployment", NAME]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize(
    ("sets", "where"),
    [
        ((), [("ClusterRole", "", ["stratamodels", "secrets"]), ("Role", "ns", ["secrets"])]),
        (
            ("watchNamespaces={a,b}",),
            [
                ("Role", "a", ["stratamodels", "secrets"]),
                ("Role", "b", ["stratamodels", "secrets"]),
                ("Role", "ns", ["secrets"]),
            ],
        ),
        (("rbac.create=false",), []),
    ],
    ids=["everywhere", "in some namespaces", "by somebody else"],
)
def test_its_rights_are_its_own(helm: Helm, sets: tuple[str, ...], where: list[tuple[str, str, list[str]]]) -> None:
    objects = helm.every("gateway.enabled=true", *sets)
    found, bound = [], []
    for obj in objects:
        place = (obj["kind"], obj["metadata"].get("namespace", ""))
        if obj["metadata"]["name"].startswith(NAME) and "rules" in obj:
            found.append((*place, [rule["resources"][0] for rule in obj["rules"]]))
        if "roleRef" in obj and any(one["name"] == NAME for one in obj["subjects"]):
            assert obj["roleRef"]["name"] == obj["metadata"]["name"]
            bound.append((obj["roleRef"]["kind"], place[1]))
    assert sorted(found) == where
    assert sorted(bound) == [(kind, namespace) for kind, namespace, _ in where]


def test_nobody_else_reads_secrets(helm: Helm) -> None:
    readers = [
        obj["metadata"]["name"]
        for obj in helm.every("gateway.enabled=true", "agent.enabled=true")
        if any("secrets" in rule["resources"] for rule in obj.get("rules", ()))
    ]
    assert sorted(readers) == [NAME, f"{NAME}-keys"]


def test_the_network_policy_leaves_models_alone_to_speak_to(helm: Helm) -> None:
    objects = helm.objects("gateway.enabled=true", "networkPolicy.enabled=true")
    policy = objects["NetworkPolicy", NAME]["spec"]
    assert policy["podSelector"] == objects["Deployment", NAME]["spec"]["selector"]
    (ingress,), (proxy,) = policy["ingress"], pod(objects)["containers"]
    assert [one["port"] for one in ingress["ports"]] == [one["containerPort"] for one in proxy["ports"]]
    _dns, _api_server, models = policy["egress"]
    assert models["to"][0]["podSelector"]["matchExpressions"] == [{"key": MODEL_LABEL, "operator": "Exists"}]


def test_the_service_finds_the_pods(helm: Helm) -> None:
    objects = helm.objects("gateway.enabled=true", "gateway.replicas=2")
    selector = objects["Service", NAME]["spec"]["selector"]
    assert selector.items() <= objects["Deployment", NAME]["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= objects["Deployment", "strata"]["spec"]["template"]["metadata"]["labels"].items()
    assert objects["PodDisruptionBudget", NAME]["spec"]["selector"]["matchLabels"] == selector
    assert ("PodDisruptionBudget", NAME) not in helm.objects("gateway.enabled=true")


def test_the_label_of_keys_is_the_one_that_notes_and_pages_name() -> None:
    root = Path(__file__).parents[3]
    for path in ("charts/strata/templates/NOTES.txt", "docs/gateway.md"):
        assert f"{GATEWAY_KEY_LABEL}=" in (root / path).read_text()
