"""From a StrataModel to pods and back, against the real API server, scheduler and kubelet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, eventually

pytestmark = pytest.mark.cluster

CHILDREN = ("serviceaccount", "service", "networkpolicy", "deployment")
BUDGET = "poddisruptionbudget"  # where there are several replicas
EDITED_HOME = {"name": "engine", "env": [{"name": "HOME", "value": "/elsewhere"}]}


def container(models: Models, name: str) -> dict[str, Any]:
    return dict(models.get("deployment", name)["spec"]["template"]["spec"]["containers"][0])


def versions(models: Models, name: str) -> dict[str, str]:
    return {kind: models.get(kind, name)["metadata"]["resourceVersion"] for kind in (*CHILDREN, "sm")}


def test_a_model_gets_ready(models: Models, operator: OperatorProcess) -> None:
    models.apply("one")
    ready = models.wait_for("one", "Ready", "True", "Serving")
    model = models.get("sm", "one")
    status = model["status"]
    assert status["url"] == f"http://one.{models.namespace}.svc:8000/v1"
    assert status["url"] in ready["message"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["observedGeneration"] == model["metadata"]["generation"]
    assert models.condition("one", "Accepted")["status"] == "True"
    assert models.condition("one", "Degraded")["status"] == "False"
    assert models.condition("one", "Progressing")["reason"] == "Complete"
    for kind in CHILDREN:
        owner = models.get(kind, "one")["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"]) == ("StrataModel", model["metadata"]["uid"])
    told = models.wait_for_event("one", "Ready")
    assert (told["type"], status["url"] in told["message"]) == ("Normal", True)
    row = models.kubectl("get", "sm", "one", "-o", "wide", "--no-headers").split()
    assert row[:6] == ["one", "True", "Serving", "builtin://smollm2-135m", "int4", "cpu"]
    assert status["url"] in row


def test_the_models_own_metadata_stays_its_own(models: Models, operator: OperatorProcess) -> None:
    models.apply("tracked")
    models.kubectl("label", "sm", "tracked", "argocd.argoproj.io/instance=apps")
    models.kubectl("annotate", "sm", "tracked", "argocd.argoproj.io/tracking-id=apps")
    models.wait_for("tracked", "Ready", "True")
    pods = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"]
    for metadata in [*(models.get(kind, "tracked")["metadata"] for kind in CHILDREN), *(p["metadata"] for p in pods)]:
        assert "argocd" not in json.dumps([metadata.get("labels"), metadata.get("annotations")])
        assert "last-applied" not in json.dumps(metadata.get("annotations"))


@pytest.mark.parametrize(
    ("kind", "patch", "taken"),
    [
        ("deployment", {"spec": {"replicas": 1}}, "spec.replicas"),
        ("deployment", {"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "x"}]}}}}, "image"),
        ("deployment", {"spec": {"template": {"spec": {"containers": [{"name": "engine", "args": []}]}}}}, "args"),
        ("service", {"spec": {"ports": [{"port": 8000, "targetPort": 81}]}}, "targetPort"),
        ("deployment", {"spec": {"template": {"spec": {"containers": [EDITED_HOME]}}}}, "env["),
        ("serviceaccount", {"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ("networkpolicy", {"spec": {"ingress": []}}, "ingress"),
        ("networkpolicy", {"spec": {"ingress": None}}, "ingress"),
        (BUDGET, {"spec": {"maxUnavailable": 0}}, "maxUnavailable"),
        ("service", {"metadata": {"labels": {"strata.ai/model": "other"}}}, "strata.ai/model"),
        ("deployment", {"metadata": {"labels": {"strata.ai/model": None}}}, None),
    ],
    ids=["replicas", "image", "args", "port", "env", "token", "ingress", "all rules", "budget", "label", "label gone"],
)
def test_an_edited_child_is_put_back(
    models: Models, operator: OperatorProcess, kind: str, patch: dict[str, Any], taken: str | None
) -> None:
    models.apply("edited", replicas=2, suspend=True)
    models.wait_for("edited", "Ready", "False", "Suspended")

    def wanted() -> Any:
        obj = models.get(kind, "edited")
        content = {key: obj.get(key) for key in ("spec", "automountServiceAccountToken")}
        metadata = {key: obj["metadata"].get(key) for key in ("labels", "ownerReferences")}
        return json.dumps([content, metadata], sort_keys=True)

    before = wanted()
    models.kubectl("patch", kind, "edited", "--type=strategic", "-p", json.dumps(patch))
    eventually(lambda: wanted() == before, 30, lambda: f"still changed:\n{before}\n{wanted()}\n{operator.tail()}")
    if taken:
        assert taken in models.wait_for_event("edited", "Restored")["message"]


def test_foreign_fields_stay(models: Models, operator: OperatorProcess) -> None:
    models.apply("shared", replicas=0)
    models.wait_for("shared", "Ready", "False", "ScaledToZero")
    models.kubectl("annotate", "service", "shared", "example.com/mine=yes")
    mine = {"name": "MINE", "value": "yes"}
    edit = {"spec": {"template": {"spec": {"containers": [{"name": "engine", "env": [mine]}]}}}}
    models.kubectl("patch", "deployment", "shared", "-p", json.dumps(edit))
    models.kubectl("patch", "service", "shared", "-p", '{"spec": {"ports": [{"port": 8000, "targetPort": 81}]}}')
    models.wait_for_event("shared", "Restored")
    eventually(
        lambda: models.get("service", "shared")["spec"]["ports"][0]["targetPort"] == "http", 30, lambda: operator.tail()
    )
    assert models.get("service", "shared")["metadata"]["annotations"]["example.com/mine"] == "yes"
    assert mine in container(models, "shared")["env"]


def test_what_a_new_spec_gives_up_goes_from_a_child_that_was_created(models: Models, operator: OperatorProcess) -> None:
    models.apply("fewer", replicas=0, podTemplate={"metadata": {"annotations": {"example.com/note": "x"}}})
    models.wait_for("fewer", "Ready", "False", "ScaledToZero")

    def annotations() -> Any:
        return models.get("deployment", "fewer")["spec"]["template"]["metadata"]["annotations"]

    assert annotations()["example.com/note"] == "x"
    models.apply("fewer", replicas=0)
    eventually(lambda: "example.com/note" not in annotations(), 30, operator.tail)


@pytest.mark.parametrize("kind", [*CHILDREN, BUDGET])
def test_a_deleted_child_is_put_back(models: Models, operator: OperatorProcess, kind: str) -> None:
    models.apply("bereft", replicas=2, suspend=True)
    models.wait_for("bereft", "Ready", "False", "Suspended")
    uid = models.get(kind, "bereft")["metadata"]["uid"]
    models.kubectl("delete", kind, "bereft")
    eventually(
        lambda: (models.get(kind, "bereft") or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
        30,
        lambda: f"{kind} is not back:\n{operator.tail()}",
    )
    assert "again" in models.wait_for_event("bereft", "Restored")["message"]


def test_nothing_is_written_while_nothing_changes(quiet: None, models: Models, operator: OperatorProcess) -> None:
    models.apply("idle", replicas=0)
    models.wait_for("idle", "Ready", "False", "ScaledToZero")
    models.wait_for_event("idle", "Created")
    before, reconciles, writes = versions(models, "idle"), operator.reconciles(), operator.writes()
    models.kubectl("annotate", "sm", "idle", "example.com/touch=1")
    eventually(lambda: operator.reconciles() > reconciles, 30, operator.tail)
    assert operator.writes() == writes
    after = versions(models, "idle")
    assert {kind: version for kind, version in after.items() if kind != "sm"} == {
        kind: version for kind, version in before.items() if kind != "sm"
    }


def test_a_killed_operator_goes_on_where_it_was(models: Models, operator: OperatorProcess) -> None:
    models.apply("first", replicas=0)
    models.wait_for("first", "Ready", "False", "ScaledToZero")
    operator.kill()
    models.apply("second", replicas=0)  # made, edited and deleted while nobody looks
    models.kubectl("delete", "service", "first")
    edit = {"spec": {"template": {"spec": {"containers": [EDITED_HOME]}}}}
    models.kubectl("patch", "deployment", "first", "-p", json.dumps(edit))
    operator.start()
    models.wait_for("second", "Ready", "False", "ScaledToZero")
    eventually(lambda: models.get("service", "first") is not None, 30, operator.tail)
    eventually(lambda: EDITED_HOME["env"][0] not in container(models, "first")["env"], 30, operator.tail)


def test_no_right_is_missing(quiet: None, models: Models, operator: OperatorProcess) -> None:
    """The chart's ClusterRole allows all that a model's life asks for."""
    denied = operator.metric(r'strata_operator_api_requests_total\{status="403"')
    models.apply("allowed", source="hostpath:///nowhere")  # creating, reading a pod's events, posting
    models.wait_for("allowed", "Degraded", "True", "SourceNotFound")
    models.apply("allowed")
    models.wait_for("allowed", "Ready", "True")
    assert operator.metric(r'strata_operator_api_requests_total\{status="403"') == denied


def test_a_restart_writes_nothing(quiet: None, models: Models, operator: OperatorProcess) -> None:
    models.apply("steady", replicas=0)
    models.wait_for("steady", "Ready", "False", "ScaledToZero")
    models.wait_for_event("steady", "Created")
    before = versions(models, "steady")
    assert operator.stop() == 0
    operator.start()
    eventually(lambda: operator.reconciles() >= 1, 30, operator.tail)
    eventually(lambda: operator.metric("strata_operator_queue_depth") == 0, 30, operator.tail)
    assert operator.writes() == 0
    assert versions(models, "steady") == before


def test_an_outage_of_the_api_server_is_sat_out(models: Models, cluster: Cluster, operator: OperatorProcess) -> None:
    models.apply("patient", replicas=0)
    models.wait_for("patient", "Ready", "False", "ScaledToZero")
    cluster.stop("kube-apiserver")
    cluster.start("kube-apiserver")
    eventually(lambda: models.answers(), 120, lambda: cluster.logs("kube-apiserver"))
    models.kubectl("delete", "service", "patient")  # seen by the operator's own watches
    eventually(lambda: models.get("service", "patient") is not None, 60, operator.tail)
    models.apply("later", replicas=0)  # seen by kopf's
    models.wait_for("later", "Ready", "False", "ScaledToZero")


def test_scaling(models: Models, operator: OperatorProcess) -> None:
    models.apply("scaled", replicas=0)
    models.wait_for("scaled", "Ready", "False", "ScaledToZero")
    models.kubectl("scale", "sm/scaled", "--replicas=1")
    models.wait_for("scaled", "Ready", "True")
    selector = models.get("sm", "scaled")["status"]["selector"]
    assert len(json.loads(models.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]) == 1
    models.kubectl("scale", "sm/scaled", "--replicas=0")
    models.wait_for("scaled", "Ready", "False", "ScaledToZero")
    assert models.get("sm", "scaled")["status"]["replicas"] == 0


def test_a_new_spec_is_rolled_out(models: Models, operator: OperatorProcess) -> None:
    models.apply("changing")
    models.wait_for("changing", "Ready", "True")
    models.apply("changing", engine={"maxModelLen": 4096}, service={"port": 80})
    models.wait_for("changing", "Ready", "True")
    assert "--max-model-len=4096" in container(models, "changing")["args"]
    pods = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"]
    serving = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert ["--max-model-len=4096" in pod["spec"]["containers"][0]["args"] for pod in serving] == [True]
    assert models.get("service", "changing")["spec"]["ports"][0]["port"] == 80
    assert models.wait_for_event("changing", "Updated")


def test_a_repaired_spec_wins_over_a_failing_one(models: Models, operator: OperatorProcess) -> None:
    models.apply("fixed", source="hf://stand-in/absent")
    models.wait_for("fixed", "Degraded", "True", "EngineFailed")
    models.apply("fixed")
    models.wait_for("fixed", "Ready", "True")
    assert models.condition("fixed", "Degraded")["status"] == "False"


def test_a_new_spec_that_fails_is_rolled_back(models: Models, operator: OperatorProcess) -> None:
    models.apply("steady")
    models.wait_for("steady", "Ready", "True")
    models.apply("steady", source="hf://stand-in/absent")
    told = models.wait_for("steady", "Degraded", "True", "RolledBack", seconds=240)
    assert "there is no built-in model 'absent'" in told["message"]
    models.wait_for("steady", "Progressing", "False", "RolledBack")
    assert container(models, "steady")["args"][1] == "builtin://smollm2-135m"
    assert models.get("sm", "steady")["status"]["readyReplicas"] == 1
    models.apply("steady", engine={"maxModelLen": 1024})
    models.wait_for("steady", "Ready", "True")
    assert models.condition("steady", "Degraded")["status"] == "False"


def test_a_suspended_model_stops_and_comes_back(models: Models, operator: OperatorProcess) -> None:
    models.apply("paused", replicas=1, suspend=True)
    models.wait_for("paused", "Ready", "False", "Suspended")
    models.kubectl("patch", "sm", "paused", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    models.wait_for("paused", "Ready", "True")


def test_a_pod_template_is_merged_and_what_is_wrong_in_it_is_told(models: Models, operator: OperatorProcess) -> None:
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"dnsPolicy": "Default"}}
    models.apply("merged", podTemplate=template, env=[{"name": "TZ", "value": "UTC"}])
    models.wait_for("merged", "Ready", "True")
    pods = json.loads(models.kubectl("get", "pods", "-l", "team=a", "-o", "json"))["items"]
    assert [pod["spec"]["dnsPolicy"] for pod in pods] == ["Default"]
    models.apply("merged", podTemplate={"spec": {"hostNetworkk": True}})
    assert "hostNetworkk" in models.wait_for("merged", "Degraded", "True", "ApplyRefused")["message"]


def test_names_that_shorten_to_the_same_stay_apart(models: Models, operator: OperatorProcess) -> None:
    long = "a-name-that-is-longer-than-any-service-may-be-called-" + "x" * 60
    names = ["a.b", "a-b", long, long + "y"]
    for name in names:
        models.apply(name, replicas=0)
    urls = set()
    for name in names:
        models.wait_for(name, "Ready", "False", "ScaledToZero")
        urls.add(models.get("sm", name)["status"]["url"])
    assert len(urls) == len(names)
    assert len(json.loads(models.kubectl("get", "deployments", "-o", "json"))["items"]) == len(names)


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deleting_a_model_takes_its_children(models: Models, operator: OperatorProcess, cascade: str) -> None:
    models.apply("leaving")
    models.wait_for("leaving", "Ready", "True")
    models.kubectl("delete", "sm", "leaving", f"--cascade={cascade}", "--timeout=120s")
    eventually(
        lambda: not any(models.get(kind, "leaving") for kind in CHILDREN),
        60,
        lambda: f"children are left:\n{models.kubectl('get', 'all')}",
    )
    # Whatever is made again says so in an event; against foreground deletion it would be made for ever.
    assert models.times("leaving", "Created") <= 1
    assert models.times("leaving", "Restored") == 0


def test_a_model_of_the_same_name_follows_at_once(models: Models, operator: OperatorProcess) -> None:
    models.apply("again")
    models.wait_for("again", "Ready", "True")
    uid = models.get("sm", "again")["metadata"]["uid"]
    models.kubectl("delete", "sm", "again", "--wait=false")
    eventually(lambda: models.get("sm", "again") is None, 30, operator.tail)
    models.apply("again")
    models.wait_for("again", "Ready", "True")
    assert models.get("deployment", "again")["metadata"]["ownerReferences"][0]["uid"] != uid
    assert "NameConflict" not in [event["reason"] for event in models.events("again")]
