"""Fit, placement, tuning and roll-out on pretend GPU nodes, against the real API server and scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, eventually
from tests.operator.live.nodes import GpuNodes

pytestmark = pytest.mark.cluster

# 17 GiB, all of it in the card: one of the small cards below is not enough.
QWEN: dict[str, Any] = {
    "source": "hf://Qwen/Qwen3-8B",
    "quantization": {"format": "bf16"},
    "engine": {"maxModelLen": 8192, "maxNumSeqs": 4},
    "hardware": {"accelerator": "nvidia", "gpus": ["RTX4090"], "cpu": 4, "memory": "16Gi"},
}


@pytest.fixture
def gpu_nodes(cluster: Cluster, operator: OperatorProcess) -> Iterator[GpuNodes]:
    made = GpuNodes(cluster)
    yield made
    made.remove()


def pods(models: Models) -> list[dict[str, Any]]:
    """Those that are there to stay: not on their way out, and no job's that has done its work."""
    found = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"]
    return [
        pod
        for pod in found
        if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]


def nodes_of(models: Models) -> list[str | None]:
    return [pod["spec"].get("nodeName") for pod in pods(models)]


def fail(models: Models, pod: dict[str, Any]) -> None:
    """As its kubelet tells of an engine that finds no card."""
    ended = {"exitCode": 2, "reason": "Error", "message": "no CUDA device"}
    engine = {
        **pod["status"]["containerStatuses"][0],
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    others = [one for one in pod["status"]["conditions"] if one["type"] not in ("Ready", "ContainersReady")]
    patch = {"containerStatuses": [engine], "conditions": [*others, {"type": "Ready", "status": "False"}]}
    where = ("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge")
    models.kubectl(*where, "-p", json.dumps({"status": patch}))


def deployed(models: Models, name: str) -> dict[str, Any]:
    return dict(models.get("deployment", name)["spec"])


def test_a_model_runs_where_it_fits_and_nowhere_else(models: Models, gpu_nodes: GpuNodes) -> None:
    gpu_nodes.add(vram_gib=16)
    large = gpu_nodes.add(vram_gib=24)
    models.apply("fitting", **QWEN)
    fits = models.wait_for("fitting", "Fits", "True")
    assert fits["message"] == f"fits on {large}"
    eventually(lambda: nodes_of(models) == [large], 60, lambda: models.describe("fitting"))
    plan = models.get("sm", "fitting")["status"]["plan"]
    assert plan["node"] == large
    assert 16 << 30 < plan["vramBytes"] < 24 << 30
    assert plan["upperBoundTokensPerSecond"] > 0


def test_what_fits_nowhere_waits_for_a_node_that_will_do(models: Models, gpu_nodes: GpuNodes) -> None:
    small = gpu_nodes.add(vram_gib=16)
    models.apply("homeless", **QWEN)
    told = models.wait_for("homeless", "Fits", "False", "NotEnoughVram")
    assert small in told["message"]
    assert "What fits:" in told["message"]
    assert models.wait_for_event("homeless", "NotEnoughVram")["type"] == "Warning"
    assert (models.get("deployment", "homeless"), pods(models)) == (None, [])
    large = gpu_nodes.add(vram_gib=24)
    models.wait_for("homeless", "Fits", "True")
    eventually(lambda: nodes_of(models) == [large], 60, lambda: models.describe("homeless"))


def test_two_models_tune_one_node_and_take_it_back_one_by_one(models: Models, gpu_nodes: GpuNodes) -> None:
    """Server-side apply with a field manager for each model: neither takes the other's entry along."""
    node = gpu_nodes.add(cards=2)
    models.apply("other", power={"limitWatts": 250}, **QWEN)
    other = {"model": f"{models.namespace}/other", "powerLimitWatts": 250}
    eventually(lambda: gpu_nodes.wishes(node) == [other], 60, lambda: models.describe("other"))
    models.apply("tuned", power={"limitWatts": 280, "maxTemperatureC": {"core": 83}}, **QWEN)
    mine = {"model": f"{models.namespace}/tuned", "powerLimitWatts": 280, "maxCoreTemperatureC": 83}
    eventually(lambda: mine in gpu_nodes.wishes(node), 60, lambda: models.describe("tuned"))
    assert other in gpu_nodes.wishes(node)
    assert models.get("sm", "tuned")["metadata"]["finalizers"] == ["strata.ai/node-tuning"]
    models.wait_for("tuned", "NodeTuned", "Unknown", "Applying")
    gpu_nodes.act(node)
    models.wait_for("tuned", "NodeTuned", "True", "Tuned")
    # Somebody edits the list, and writes down a model that does not exist.
    gpu_nodes.edit(node, [{"model": "gone/gone", "powerLimitWatts": 100}, {**mine, "smClockMaxMHz": 900}])

    def is_put_back() -> bool:
        return sorted(gpu_nodes.wishes(node), key=lambda wish: wish["model"]) == [other, mine]

    eventually(is_put_back, 30, lambda: json.dumps(gpu_nodes.wishes(node)))
    models.kubectl("delete", "sm", "tuned", "--wait=false")
    eventually(lambda: gpu_nodes.wishes(node) == [other], 30, lambda: json.dumps(gpu_nodes.wishes(node)))
    assert models.get("sm", "tuned") is not None  # until the agent has put things back
    gpu_nodes.act(node)
    eventually(lambda: models.get("sm", "tuned") is None, 30, lambda: models.describe("tuned"))


def test_the_only_card_is_freed_after_what_follows_is_there(models: Models, gpu_nodes: GpuNodes) -> None:
    node = gpu_nodes.add()
    models.apply("alone", **QWEN)
    models.wait_for("alone", "Ready", "True")
    models.apply("alone", **{**QWEN, "engine": {"maxModelLen": 4096, "maxNumSeqs": 4}})  # nothing to be fetched
    models.wait_for("alone", "Ready", "True")
    assert deployed(models, "alone")["strategy"]["rollingUpdate"]["maxSurge"] == 0
    models.apply("alone", image="other/engine:2", **QWEN)
    assert models.wait_for_event("alone", "Preflight")
    job = json.loads(models.kubectl("get", "jobs", "-o", "json"))["items"][0]
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert required == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    models.wait_for("alone", "Ready", "True", seconds=180)
    assert deployed(models, "alone")["template"]["spec"]["containers"][0]["image"] == "other/engine:2"
    assert nodes_of(models) == [node]
    models.apply("alone", **QWEN)

    def jobs() -> str:
        return models.kubectl("get", "jobs", "-o", "name")

    # A preflight goes with the spec that it was of.
    eventually(lambda: job["metadata"]["name"] not in jobs(), 60, jobs)


def test_a_pod_whose_card_is_lost_goes_where_one_is_free_and_stays_as_long_as_none_is(
    models: Models, gpu_nodes: GpuNodes
) -> None:
    node = gpu_nodes.add()
    models.apply("stranded", **QWEN)
    models.wait_for("stranded", "Ready", "True")
    (pod,) = pods(models)
    gpu_nodes.lose_card(node)
    assert models.wait_for("stranded", "Degraded", "True", "GpuLost")
    assert models.condition("stranded", "Ready")["status"] == "True"  # it answers all the same
    fail(models, pod)
    told = models.wait_for("stranded", "Degraded", "True", "EngineFailed")["message"]
    assert told.endswith(f"{pod['metadata']['name']} stays there, for no other node has a matching card free")
    assert [one["metadata"]["uid"] for one in pods(models)] == [pod["metadata"]["uid"]]
    other = gpu_nodes.add()
    eventually(lambda: nodes_of(models) == [other], 60, lambda: models.describe("stranded"))
    models.wait_for("stranded", "Ready", "True")
    assert models.condition("stranded", "Degraded")["status"] == "False"
    assert f"leaves node {node}" in models.wait_for_event("stranded", "Evicted")["message"]
    assert models.times("stranded", "Evicted") == 1


def test_nodes_get_the_weights_though_no_pod_runs(models: Models, gpu_nodes: GpuNodes) -> None:
    nodes = {gpu_nodes.add(), gpu_nodes.add()}
    cache = {"hostPath": "/tmp/strata-operator-tests/warm", "keepWarm": True}
    models.apply("warm", **{**QWEN, "suspend": True, "cache": cache})

    def warmed() -> set[str]:
        return set(((models.get("sm", "warm").get("status") or {}).get("cache") or {}).get("nodes", ()))

    eventually(lambda: warmed() == nodes, 120, lambda: models.describe("warm"))
    assert models.wait_for("warm", "Cached", "True", "Kept")
    assert models.times("warm", "Warming") == 2
    assert pods(models) == []


def test_a_free_card_is_used_first(models: Models, gpu_nodes: GpuNodes) -> None:
    first, second = gpu_nodes.add(), gpu_nodes.add()
    models.apply("roomy", **QWEN)
    models.wait_for("roomy", "Ready", "True")
    models.apply("roomy", image="other/engine:2", **QWEN)
    models.wait_for("roomy", "Ready", "True")
    eventually(
        lambda: deployed(models, "roomy")["strategy"]["rollingUpdate"]["maxSurge"] == 1,
        30,
        lambda: models.describe("roomy") + str(deployed(models, "roomy")["strategy"]),
    )
    assert set(nodes_of(models)) <= {first, second}
    assert json.loads(models.kubectl("get", "jobs", "-o", "json"))["items"] == []
