"""The gateway as the chart installs it: OpenAI's client, two models at one URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from images.catalogue import GATEWAY
from tests.cluster import Cluster
from tests.e2e import chat, gateway
from tests.e2e.conftest import NAMESPACE
from tests.e2e.gateway import HERE, NAME, is_known, make_key
from tests.e2e.install import upgrade
from tests.e2e.load import QUESTION, Load
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import Target

pytestmark = pytest.mark.cluster

TEAM = "sk-team-0123456789abcdef"
READY_SECONDS = 600
RESOURCES = {"requests": {"cpu": "200m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
POD = {"spec": {"containers": [{"name": "engine", "resources": RESOURCES}]}}
MODELS: dict[str, dict[str, Any]] = {
    "open": {"podTemplate": POD},
    "keyed": {"podTemplate": POD, "model.servedName": "smol", "service.apiKeysSecretRef": {"name": "engine-keys"}},
}
Client = Callable[[str], openai.OpenAI]


@pytest.fixture(scope="module", autouse=True)
def installed(target: Target, cluster: Cluster) -> Iterator[None]:
    from images.build import build

    image = build([GATEWAY], to=cluster.registry, push=True)[GATEWAY.name]
    target.run("kubectl", "create", "secret", "generic", "engine-keys", "-n", NAMESPACE, "--from-literal=keys=of-smol")
    for name, changes in MODELS.items():
        target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(name, changes))
    upgrade(target, gateway.values(image))
    for name in MODELS:
        wait_ready(target, NAMESPACE, name, seconds=READY_SECONDS)
    yield
    upgrade(target, {"gateway.enabled": False})
    target.run("kubectl", "delete", "secret", *HERE, "-l", "strata.ai/gateway-key")
    target.run("kubectl", "delete", "stratamodels", *MODELS, "-n", NAMESPACE, "--wait", "--ignore-not-found")


@pytest.fixture(scope="module")
def client(target: Target) -> Iterator[Client]:
    """OpenAI's client of the gateway's Service with a key."""
    with ExitStack() as stack:
        url = stack.enter_context(target.service(OPERATOR_NAMESPACE, NAME))
        yield lambda key: stack.enter_context(chat.openai(url, key))


def pods(target: Target) -> list[tuple[str, int]]:
    """Those of the gateway, each with the restarts of its containers."""
    found = json.loads(
        target.run("kubectl", "get", "pods", *HERE, "-l", f"app.kubernetes.io/name={NAME}", "-o", "json")
    )
    return [
        (
            pod["metadata"]["name"],
            sum(
                one["restartCount"]
                for kind in ("containerStatuses", "initContainerStatuses")
                for one in pod["status"][kind]
            ),
        )
        for pod in found["items"]
    ]


def test_two_models_answer_at_one_url_and_what_changes_counts_at_once(
    target: Target, cluster: Cluster, client: Client
) -> None:
    before = pods(target)
    opened = client(make_key(target, "team", TEAM))
    cluster.wait_for(lambda: is_known(opened), 30, "the key to be known")
    assert sorted(one.id for one in opened.models.list()) == ["open", "smol"]
    for name in ("open", "smol", f"{NAMESPACE}/open"):
        assert "Paris" in "".join(chat.stream(opened, name, QUESTION, max_tokens=32))
    with pytest.raises(openai.AuthenticationError):
        client("sk-of-nobody-0123456789abcdef").models.list()
    # A key for one model alone, then a model that goes.
    narrow = client(make_key(target, "narrow", "sk-narrow-0123456789abcdef", models=f"{NAMESPACE}/open"))
    cluster.wait_for(lambda: is_known(narrow), 30, "the second key to be known")
    with pytest.raises(openai.PermissionDeniedError):
        list(chat.stream(narrow, "smol", QUESTION, max_tokens=1))
    target.run("kubectl", "delete", "stratamodel", "keyed", "-n", NAMESPACE, "--wait")
    cluster.wait_for(lambda: [one.id for one in opened.models.list()] == ["open"], 30, "the model to be gone")
    assert pods(target) == before  # nothing was started anew for any of it
    logs = target.run("kubectl", "logs", *HERE, f"deployment/{NAME}", "--all-containers")
    assert "the gateway has" in logs
    assert not [word for word in ("0123456789abcdef", "of-smol", "capital") if word in logs]


def test_no_stream_is_lost_while_the_gateway_is_rolled_out(target: Target, cluster: Cluster) -> None:
    [(old, _)] = pods(target)
    with target.service(OPERATOR_NAMESPACE, NAME) as url:
        load = Load(url, "open", api_key=TEAM)

        def more(number: int, when: str) -> None:
            enough = load.answers + number
            cluster.wait_for(lambda: bool(load.failures) or load.answers >= enough, 120, f"answers {when}")
            assert load.failures == []

        with load.running():
            more(2, "before")
            target.run("kubectl", "rollout", "restart", f"deployment/{NAME}", *HERE)
            target.run("kubectl", "rollout", "status", f"deployment/{NAME}", *HERE, "--timeout=300s")
            cluster.wait_for(lambda: old not in dict(pods(target)), 300, "the old pod to end")
            more(2, "after it")
        assert load.failures == []
    assert len(pods(target)) == 1
