"""The journey of the README: apply a model, see it Ready, chat with it; and what must not break it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e import chat
from tests.e2e.conftest import NAMESPACE
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR, OPERATOR_NAMESPACE, Object, conditions, is_true, states, wait_ready
from tests.e2e.target import Target

pytestmark = pytest.mark.cluster

NAME = "smollm2"
READY_SECONDS = 600
# A model this small wavers on shorter questions: how its answer begins is then decided by the last bit of a weight.
QUESTION = "What is the capital of France, and what is it known for?"


@pytest.fixture(scope="module")
def served(target: Target) -> Iterator[Object]:
    """The example model, Ready."""
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(NAME))
    yield wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
    target.run("kubectl", "delete", "stratamodel", NAME, "-n", NAMESPACE, "--wait", "--ignore-not-found")


@pytest.fixture
def url(target: Target, served: Object) -> Iterator[str]:
    """Where this machine reaches the model's Service."""
    with target.service(NAMESPACE, NAME) as url:
        yield url


def child(target: Target, kind: str) -> Any:
    return json.loads(target.run("kubectl", "get", kind, NAME, "-n", NAMESPACE, "-o", "json"))


def again_ready(target: Target) -> Object:
    return wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)


def test_the_model_is_ready_and_tells_its_address(target: Target, served: Object) -> None:
    assert served["status"]["observedGeneration"] == served["metadata"]["generation"]
    assert served["status"]["url"] == f"http://{NAME}.{NAMESPACE}.svc:8000/v1"
    shown = target.run("kubectl", "get", "sm", "-n", NAMESPACE)
    assert "True" in shown
    assert served["status"]["url"] in shown


def test_the_address_answers_inside_the_cluster(target: Target, served: Object) -> None:
    script = (
        f"import urllib.request as u; print(u.urlopen('{served['status']['url']}/models', timeout=30).read().decode())"
    )
    inside = ("kubectl", "exec", "-n", NAMESPACE, f"deployment/{NAME}", "--", "python3", "-c", script)
    assert json.loads(target.run(*inside))["data"][0]["id"] == NAME


def test_helm_asks_it_a_question(target: Target, served: Object) -> None:
    said = target.run("helm", "test", OPERATOR, "--namespace", OPERATOR_NAMESPACE, "--logs")
    assert f"{NAMESPACE}/{NAME} was asked" in said


def test_a_chat_answer_makes_sense(url: str) -> None:
    with chat.openai(url) as client:
        answer = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": QUESTION}], max_tokens=32, temperature=0
        )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_streaming_gives_the_same_answer_in_pieces(url: str) -> None:
    with chat.openai(url) as client:
        whole = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": QUESTION}], max_tokens=32, temperature=0
        )
        pieces = list(chat.stream(client, NAME, QUESTION, max_tokens=32))
    assert len(pieces) > 3
    assert "".join(pieces) == whole.choices[0].message.content


def test_metrics_count_what_was_answered(url: str) -> None:
    before = chat.metrics(url)
    with chat.openai(url) as client:
        answer = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": QUESTION}], max_tokens=8, temperature=0
        )
    after = chat.metrics(url)
    assert answer.usage is not None
    grown = {name: after[name] - before[name] for name in after}
    assert grown["strata_generation_tokens_total"] == answer.usage.completion_tokens
    assert grown["strata_prompt_tokens_total"] == answer.usage.prompt_tokens
    assert grown[f"{chat.TTFT}_count"] == 1
    assert grown[f"strata_requests_total{{outcome={answer.choices[0].finish_reason}}}"] == 1


def test_a_cpu_model_asks_for_no_gpu(target: Target, served: Object) -> None:
    [container] = child(target, "deployment")["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert "--device=cpu" in container["args"]


def test_a_child_edited_by_hand_is_put_back(target: Target, served: Object, cluster: Cluster) -> None:
    before = child(target, "service")["spec"]["ports"]
    edit = json.dumps({"spec": {"ports": [{"port": before[0]["port"], "targetPort": 1234}]}})
    target.run("kubectl", "patch", "service", NAME, "-n", NAMESPACE, "-p", edit)
    put_back = lambda: child(target, "service")["spec"]["ports"][0]["targetPort"] == before[0]["targetPort"]  # noqa: E731
    cluster.wait_for(put_back, 30, "the Service's port to be put back")


def test_a_deployment_deleted_by_hand_comes_back_and_serves(target: Target, served: Object, cluster: Cluster) -> None:
    old = child(target, "deployment")["metadata"]["uid"]
    target.run("kubectl", "delete", "deployment", NAME, "-n", NAMESPACE, "--wait")

    def is_back() -> bool:
        uid = target.run(
            "kubectl", "get", "deployment", NAME, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}", check=False
        )
        return uid not in ("", old)

    cluster.wait_for(is_back, 60, "the Deployment to be created again")
    again_ready(target)
    with target.service(NAMESPACE, NAME) as url, chat.openai(url) as client:
        assert "Paris" in "".join(chat.stream(client, NAME, QUESTION, max_tokens=32))


def test_a_change_survives_the_operators_restart_in_the_middle(target: Target, served: Object) -> None:
    edit = json.dumps({"spec": {"engine": {"maxNumSeqs": 3}}})
    target.run("kubectl", "patch", "stratamodel", NAME, "-n", NAMESPACE, "--type=merge", "-p", edit)
    # Killed without a chance to finish, as by a node's failure.
    pods = ("kubectl", "delete", "pods", "-n", OPERATOR_NAMESPACE, "--all", "--grace-period=0", "--force")
    target.run(*pods)
    state = again_ready(target)
    assert state["status"]["observedGeneration"] == state["metadata"]["generation"]
    [container] = child(target, "deployment")["spec"]["template"]["spec"]["containers"]
    assert "--max-num-seqs=3" in container["args"]
    target.run("kubectl", "rollout", "status", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE, "--timeout=120s")
    assert is_true(state, "Ready")


def test_a_source_that_is_not_there_leaves_alone_what_serves(target: Target, served: Object, url: str) -> None:
    """A preflight finds it out where there is no room for a second pod, else the new pod itself."""

    # Of an image that the spec names, the operator does not know which models come along.
    container = "{.spec.template.spec.containers[0].image}"
    own = target.run("kubectl", "get", "deployment", NAME, "-n", NAMESPACE, "-o", f"jsonpath={container}").strip()

    def set_source(source: str, image: str | None) -> None:
        edit = json.dumps({"spec": {"model": {"source": source}, "image": image}})
        target.run("kubectl", "patch", "stratamodel", NAME, "-n", NAMESPACE, "--type=merge", "-p", edit)

    set_source("builtin://nonesuch", own)
    told = ""
    for state in states(target.kubeconfig, NAMESPACE, NAME, seconds=READY_SECONDS):
        degraded = conditions(state).get("Degraded", {})
        if degraded.get("reason") in ("PreflightFailed", "RolledBack"):
            told = degraded["message"]
            break
    assert "nonesuch" in told
    with chat.openai(url) as client:
        assert "Paris" in "".join(chat.stream(client, NAME, QUESTION, max_tokens=32))
    set_source("builtin://smollm2-135m", None)
    again_ready(target)


def test_deleting_the_model_takes_its_children_along(target: Target, served: Object, cluster: Cluster) -> None:
    """The last test of the model: nothing of it may stay."""
    target.run("kubectl", "delete", "stratamodel", NAME, "-n", NAMESPACE, "--wait")
    kinds = "deployments,services,configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets,jobs,pods"
    mine = ("kubectl", "get", kinds, "-n", NAMESPACE, "-l", f"strata.ai/model={NAME}", "-o", "name")
    cluster.wait_for(lambda: not target.run(*mine).strip(), 120, "the model's children to be gone")
