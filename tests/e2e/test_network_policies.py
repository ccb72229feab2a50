"""NetworkPolicies of the chart and of a model, enforced: what Strata needs passes, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from images.catalogue import GATEWAY
from tests.cluster import Cluster
from tests.e2e import chat, gateway
from tests.e2e.conftest import NAMESPACE
from tests.e2e.install import RELEASE, upgrade
from tests.e2e.load import QUESTION
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import Target
from tests.e2e.test_load import READY_SECONDS, RESOURCES
from tests.operator.live.harness import eventually

pytestmark = pytest.mark.cluster

NAME = "guarded"
MONITORING, ELSEWHERE = "strata-monitoring-tests", "strata-elsewhere-tests"
OTHER_PORT = 6443  # the operator, the agent and the gateway may speak to it, of the API server alone
Sight = dict[str, set[str]]  # who speaks -> whom he reaches

# Whose pods: namespace, label, container.
PODS = {
    "operator": (OPERATOR_NAMESPACE, "app.kubernetes.io/name=strata-operator", "operator"),
    "agent": (OPERATOR_NAMESPACE, "app.kubernetes.io/name=strata-agent", "agent"),
    "gateway": (OPERATOR_NAMESPACE, "app.kubernetes.io/name=strata-gateway", "proxy"),
    "model": (NAMESPACE, f"strata.ai/model={NAME}", "engine"),
    "prometheus": (MONITORING, "app=peer", "peer"),
    "stranger": (ELSEWHERE, "app=peer", "peer"),
}
PORTS = {
    "operator's metrics": ("operator", 8080),
    "agent's metrics": ("agent", 8080),
    "gateway": ("gateway", 4000),
    "model": ("model", 8000),
    "model's other port": ("model", OTHER_PORT),
    "stranger": ("stranger", OTHER_PORT),
}
MEANT: Sight = {
    "operator": {"API server", "model"},
    "agent": {"API server"},
    "gateway": {"API server", "model"},
    "model": {"API server", "registry", "gateway", "stranger"},
    "prometheus": {"API server", "registry", "operator's metrics", "agent's metrics", "gateway", "model", "stranger"},
    "stranger": {"API server", "registry", "gateway", "model"},
}
REACHED = """
import json, socket, sys
for name, address in json.loads(sys.argv[1]).items():
    try:
        socket.create_connection(address, 5).close()
    except OSError:
        continue
    print(name)
"""


def peer(image: str) -> dict[str, Any]:
    """A container that answers on a port that no policy of Strata's names."""
    return {"name": "peer", "image": image, "command": ["python3", "-m", "http.server", str(OTHER_PORT)]}


def policy(name: str, selector: dict[str, str], *egress: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress", "Egress"],
            "egress": list(egress),
        },
    }


@pytest.fixture(scope="module")
def installed(target: Target, cluster: Cluster, images: dict[str, str]) -> Iterator[Target]:
    """All parts with their policies, a model, and a pod each where Prometheus and strangers are."""
    from images.build import build

    image = build([GATEWAY], to=cluster.registry, push=True)[GATEWAY.name]
    beside = peer(images["strata-operator"])
    for namespace in (MONITORING, ELSEWHERE):
        target.run("kubectl", "create", "namespace", namespace)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "peer", "labels": {"app": "peer"}},
            "spec": {"containers": [beside], "terminationGracePeriodSeconds": 0},
        }
        target.run("kubectl", "apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod))
    changes = {"podTemplate": {"spec": {"containers": [{"name": "engine", "resources": RESOURCES}, beside]}}}
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(NAME, changes))
    api_server = {"ipBlock": {"cidr": f"{cluster.network.node}/32"}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": MONITORING}}}
    parts = {
        **gateway.values(image),
        "agent.enabled": True,
        "agent.fake": {"cards": [{"kind": "rtx3090"}]},
        "agent.nodeSelector": {"nvidia.com/gpu.present": None},
        "networkPolicy": {"enabled": True, "apiServerTo": [api_server], "metricsFrom": [monitoring]},
    }
    upgrade(target, parts)
    wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
    yield target
    target.run("kubectl", "delete", "stratamodel", NAME, "-n", NAMESPACE, "--wait")
    off = {"gateway.enabled": False, "agent.enabled": False}
    upgrade(target, off | {"networkPolicy": {"enabled": False, "apiServerTo": [], "metricsFrom": []}})
    target.run("kubectl", "delete", "secret", "-n", OPERATOR_NAMESPACE, "-l", "strata.ai/gateway-key")
    target.run("kubectl", "delete", "stratanode", cluster.node, "--ignore-not-found")
    target.run("kubectl", "delete", "namespace", MONITORING, ELSEWHERE, "--wait=false")


@pytest.fixture
def denied(installed: Target) -> Iterator[None]:
    """What nobody allows is denied in Strata's namespace and in the model's; hooks and test are let out, as
    docs/installation.md says."""
    managed = {"app.kubernetes.io/managed-by": "Helm"}
    policies = {
        OPERATOR_NAMESPACE: [policy("rest", {}), policy("hooks", managed, {})],
        NAMESPACE: [policy("rest", {})],
    }
    for namespace, items in policies.items():
        objects = {"apiVersion": "v1", "kind": "List", "items": items}
        installed.run("kubectl", "apply", "-n", namespace, "-f", "-", stdin=json.dumps(objects))
    yield
    for namespace, items in policies.items():
        names = [one["metadata"]["name"] for one in items]
        installed.run("kubectl", "delete", "networkpolicy", "-n", namespace, *names)


def pod_of(target: Target, who: str) -> dict[str, Any]:
    """One that is not about to end."""
    namespace, selector, _ = PODS[who]
    found = json.loads(target.run("kubectl", "get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
    return next(pod for pod in found if "deletionTimestamp" not in pod["metadata"])


def everything() -> Sight:
    """Each but its own ports, which no network is between."""
    names = {"API server", "registry", *PORTS}
    return {who: {name for name in names if PORTS.get(name, ("",))[0] != who} for who in PODS}


def seen(target: Target, cluster: Cluster) -> Sight:
    """Whom each of these pods reaches now."""
    pods = {who: pod_of(target, who) for who in PODS}
    address, _, port = cluster.registry.partition(":")
    addresses: dict[str, tuple[str, int]] = {
        "API server": ("kubernetes.default.svc", 443),
        "registry": (address, int(port)),
        **{name: (pods[whose]["status"]["podIP"], port) for name, (whose, port) in PORTS.items()},
    }
    found = {}
    for who, names in everything().items():
        namespace, _, container = PODS[who]
        wanted = json.dumps({name: addresses[name] for name in names})
        inside = ("kubectl", "exec", "-n", namespace, pods[who]["metadata"]["name"], "-c", container, "--")
        found[who] = set(target.run(*inside, "python3", "-c", REACHED, wanted).splitlines())
    return found


def wait_for_sight(target: Target, cluster: Cluster, wanted: Sight) -> None:
    def differences() -> str:
        now = seen(target, cluster)
        return "\n".join(
            f"{who}: reaches {sorted(now[who] - wanted[who])} too, not {sorted(wanted[who] - now[who])}"
            for who in wanted
            if now[who] != wanted[who]
        )

    eventually(lambda: not differences(), 90, differences)


def test_each_part_reaches_what_it_needs_and_no_more(installed: Target, cluster: Cluster) -> None:
    assert seen(installed, cluster) == everything()  # so all listen, and nobody else is in the way
    with cluster.enforced_policies():
        wait_for_sight(installed, cluster, MEANT)


@pytest.mark.usefixtures("denied")
def test_all_works_in_namespaces_that_deny_the_rest(installed: Target, cluster: Cluster) -> None:
    """Each of Strata's pods starts anew meanwhile: no connection is older than the policies."""
    target = installed
    with cluster.enforced_policies():
        wait_for_sight(target, cluster, MEANT | {"model": set()})
        target.run("kubectl", "delete", "stratanode", cluster.node)
        again = {"example.com/started": "again"}
        upgrade(target, {f"{part}podAnnotations": again for part in ("", "agent.", "gateway.")})
        change = {"spec": {"engine": {"maxNumSeqs": 3}}}
        target.run("kubectl", "patch", "sm", NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(change))
        wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
        told = target.run("helm", "test", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--logs")
        assert f"{NAMESPACE}/{NAME} was asked" in told
        key = gateway.make_key(target, "guarded", "sk-guarded-0123456789abcdef")
        with target.service(OPERATOR_NAMESPACE, gateway.NAME) as url, chat.openai(url, key) as client:
            cluster.wait_for(lambda: gateway.is_known(client), 30, "the key to be known")
            assert "Paris" in "".join(chat.stream(client, NAME, QUESTION, max_tokens=32))
        cluster.wait_for(
            lambda: cluster.node in target.run("kubectl", "get", "stratanodes", "-o", "name"),
            60,
            "the agent to tell of its node",
        )
