from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from strata_operator import reconcile
from strata_operator.api import conditions
from strata_operator.api.conditions import find
from strata_operator.api.errors import ApiError, LeavingError, MissingError, RefusedError, UnavailableError
from strata_operator.api.figures import Loading, Traffic
from strata_operator.api.model import StrataModel
from strata_operator.api.names import REVISION_ANNOTATION
from strata_operator.api.route import RouteDefaults
from strata_operator.cached import weights_of
from strata_operator.cluster.cache import Cache
from strata_operator.cluster.client import Client
from strata_operator.cluster.executor import PREFLIGHT_SECONDS, UNTAKEN_SECONDS
from strata_operator.cluster.leaving import RESTORE_LOOK_SECONDS, RESTORE_SECONDS
from strata_operator.cluster.nodes import Nodes
from strata_operator.fit import Verdict, judge
from strata_operator.preflight import RETRY_SECONDS
from strata_operator.reconcile import (
    BLOCKED_SECONDS,
    CREATING_SECONDS,
    PACE_SECONDS,
    PLACE_SECONDS,
    Reconciler,
)
from strata_operator.render import MONITOR_KINDS, MonitorKind, Monitors
from strata_operator.render.monitor import monitor
from strata_operator.workers import Result
from tests.operator.cluster.fake import FakeClient
from tests.operator.samples import CPU, NVIDIA, container, gpu, model_object, node_object, owner, pod_object

KEY = ("ns", "m")
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
ALL = ["ServiceAccount", "Service", "NetworkPolicy", "Deployment"]


class World:
    """A cluster with one model, and a reconciler whose cache has seen it."""

    def __init__(self, *, routes: RouteDefaults | None = None, **spec: Any) -> None:
        self.client = FakeClient(model_object(**spec))
        self.woken: list[tuple[str, str]] = []  # by a card that became free
        self.cache = Cache(lambda key: None, on_free=lambda: self.woken.extend(self.reconcile.waiting()))
        self.now = CREATED
        self.client.now = lambda: self.now
        self.monitors: Monitors | None = None
        self.served: set[str] = set()  # kinds of routes that the API server knows
        self.told: dict[str, Any] = {}  # by the engines, into fields of their pods
        self.cache.put_model(self.model)
        client = cast("Client", self.client)
        self.nodes = Nodes(lambda: None, lambda key: None)
        self.reconcile = Reconciler(
            client,
            self.cache,
            self.nodes,
            engine_image="engine:1",
            monitors=lambda: self.monitors,
            routes=routes,
            serves=lambda kind: kind in self.served,
            look=lambda pod: replace(pod, **self.told),
        )

    @property
    def model(self) -> dict[str, Any]:
        return self.client.objects["StrataModel", *KEY]

    def change(self, **metadata: Any) -> None:
        """The model's watch brings a newer version."""
        version = int(self.model["metadata"]["resourceVersion"]) + 1
        self.model["metadata"] |= {"resourceVersion": str(version), **metadata}
        self.cache.put_model(self.model)

    def serve(self) -> None:
        """The Deployment's controller and the kubelet do their part."""
        deployment = self.client.objects["Deployment", *KEY]
        self.client.version += 500
        deployment["metadata"] |= {"resourceVersion": str(self.client.version), "generation": 1}
        deployment["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
        self.cache.put("Deployment", deployment)

    def put_pod(self, *, name: str = "m-1", version: int = 20, **status: Any) -> None:
        """A pod of what the Deployment holds now."""
        template = self.client.objects["Deployment", *KEY]["spec"]["template"]
        revision = template["metadata"]["annotations"][REVISION_ANNOTATION]
        obj = pod_object(name, revision=revision, version=version, **status)
        obj["spec"] |= {part: template["spec"][part] for part in ("containers", "volumes")}
        self.cache.put("Pod", obj)

    def condition(self, kind: str) -> Any:
        return find(self.model["status"], kind)

    def run(self) -> Result:
        """One reconcile; of a new model, whose first status waits, another one when it does not any more."""
        result = self.reconcile(KEY)
        there = self.client.objects.get(("StrataModel", *KEY))
        if there is None or there.get("status") or result.again_in is None or result.again_in > PACE_SECONDS:
            return result
        self.now += timedelta(seconds=PACE_SECONDS)
        return self.reconcile(KEY)


def test_from_nothing_to_ready_and_then_quiet() -> None:
    world = World()
    made = [f"create {kind}" for kind in ALL]
    assert world.reconcile(KEY) == Result("changed", again_in=PACE_SECONDS)
    assert world.client.calls == made
    world.serve()
    assert world.reconcile(KEY) == Result("changed")
    assert world.client.calls == [*made, "apply status by force StrataModel", "create Event"], "8, and none reads"
    assert world.condition("Ready")["status"] == "True"
    world.client.calls.clear()
    world.now += timedelta(days=1)
    assert world.run() == Result("unchanged")
    assert world.client.calls == []
    assert world.client.events() == ["Ready"]


@pytest.mark.parametrize("field", ["observedGeneration", "conditions", "replicas", "plan", "rollout", "cache"])
def test_a_field_of_the_status_that_somebody_takes_away_is_written_again(field: str) -> None:
    world = World(**GPU)
    world.nodes.put("StrataNode", node_object("node-1"))
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    told = world.model["status"]
    world.model["status"] = {name: value for name, value in told.items() if name != field}
    world.change()
    world.now += timedelta(minutes=1)
    world.run()
    assert set(world.model["status"]) == set(told)
    assert world.condition("Ready")["status"] == "True"


def test_a_model_that_is_not_ready_at_once_is_told_of_meanwhile() -> None:
    world = World()
    world.reconcile(KEY)
    world.now += timedelta(seconds=PACE_SECONDS)
    assert world.reconcile(KEY) == Result("changed")
    assert world.condition("Ready")["status"] == "False"
    world.serve()
    assert world.run() == Result("changed")
    assert world.client.told()[0] == ("Created", f"created {', '.join(ALL)}")
    assert world.client.events() == ["Created", "Ready"]


def test_what_is_measured_is_told_once_and_outlives_the_operator() -> None:
    world = World()
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    assert "measured" not in world.model["status"]
    world.told = {"traffic": Traffic(620, 1.0, ((0.2, 10.0), (float("inf"), 10.0)))}
    world.client.writes()
    world.run()
    measured = world.model["status"]["measured"]
    assert (measured["tokensPerSecond"], measured["ttftP50Milliseconds"]) == (620, 100)
    assert world.client.writes() == ["apply status by force StrataModel"]
    world.told = {"traffic": Traffic(650, 1.0, ((0.2, 10.0), (float("inf"), 10.0)))}
    assert world.run() == Result("unchanged")
    world.told = {}  # as after a restart of the operator
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    world.model["spec"]["engine"] = {"maxModelLen": 1024}
    world.change(generation=2)
    world.run()
    assert "measured" not in world.model["status"], "it was of other pods"


def test_a_start_is_told_as_it_goes() -> None:
    world = World()
    world.run()
    world.put_pod(containerStatuses=container(state={"running": {}}))
    world.told = {"loading": Loading("download", 4, 20 << 30, 1 << 30)}
    world.run()
    assert (world.condition("Cached")["status"], world.condition("Cached")["reason"]) == ("False", "Fetching")
    assert world.condition("Cached")["message"] == ("node-1: download, 40 % of 20.0 GiB at 1.0 GiB/s, about 12 s left")
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    world.told = {"loading": Loading("load", 0, 9 << 30)}
    world.run()
    assert (world.condition("Cached")["status"], world.condition("Cached")["reason"]) == ("True", "Converted")
    assert world.condition("Cached")["message"] == "the converted weights are there; node-1: load, 0 % of 9.0 GiB"


def preferred_nodes(world: World) -> Any:
    affinity = world.client.objects["Deployment", *KEY]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    return [field["values"] for term in terms for field in term["preference"].get("matchFields", ())]


def test_a_new_pod_prefers_the_node_that_has_the_weights_and_no_pod_is_stopped_for_it() -> None:
    world = World()
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    assert world.model["status"]["cache"]["nodes"] == ["node-1"]
    assert preferred_nodes(world) == []
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    world.model["spec"]["engine"] = {"maxModelLen": 1024}
    world.change(generation=2)
    world.run()
    assert preferred_nodes(world) == [["node-1"]]
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    world.model["spec"]["quantization"] = {"format": "int8"}
    world.change(generation=3)
    world.run()
    assert preferred_nodes(world) == []
    assert "cache" not in world.model["status"]


def test_progress_is_told_now_and_then_and_what_matters_at_once() -> None:
    world = World()
    world.run()
    world.client.writes()
    world.put_pod()
    assert world.run() == Result("unchanged", again_in=PACE_SECONDS)
    assert world.client.writes() == []
    world.now += timedelta(seconds=PACE_SECONDS)
    assert world.run() == Result("changed", again_in=CREATING_SECONDS)
    assert world.condition("Progressing")["reason"] == "Creating"
    world.serve()
    world.put_pod(version=21, containerStatuses=container(ready=True, state={"running": {}}))
    assert world.run() == Result("changed")
    assert world.condition("Ready")["status"] == "True"


def test_a_new_model_prefers_nodes_where_another_model_has_the_weights() -> None:
    world = World()
    for name, source, node in (("other", "builtin://smollm2-135m", "node-9"), ("far", "hf://a/b", "node-8")):
        obj = model_object(name, model={"source": source})
        weights = weights_of(StrataModel.parse(obj))
        world.cache.put_model({**obj, "status": {"cache": {"weights": weights, "nodes": [node]}}})
    world.run()
    assert preferred_nodes(world) == [["node-9"]]
    assert "cache" not in world.model["status"], "this model's own record is of its own pods"
    assert world.run() == Result("unchanged")


def test_idle_reads_nothing() -> None:
    world = World()
    world.run()
    world.client.calls.clear()
    world.run()
    assert world.client.calls == []


# 17 GiB, all of it in the card.
QWEN: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "quantization": {"format": "bf16"},
    "engine": {"maxModelLen": 8192, "maxNumSeqs": 4},
    "hardware": {**NVIDIA, "gpus": ["RTX4090"]},
}


def test_what_fits_nowhere_starts_no_pod_until_a_node_changes() -> None:
    world = World(**QWEN)
    world.nodes.put("StrataNode", node_object("small", gpus=[gpu(vram_gib=16)]))
    assert world.run() == Result("changed")
    assert ("Deployment", *KEY) not in world.client.objects
    assert (world.condition("Fits")["status"], world.condition("Fits")["reason"]) == ("False", "NotEnoughVram")
    assert world.condition("Ready")["reason"] == "NotEnoughVram"
    assert "NotEnoughVram" in world.client.events()
    world.nodes.put("StrataNode", node_object("large"))
    assert world.run() == Result("changed")
    assert ("Deployment", *KEY) in world.client.objects
    assert world.condition("Fits")["status"] == "True"
    assert world.model["status"]["plan"]["node"] == "large"
    assert ("Created", "created Deployment") in world.client.told()
    assert "Restored" not in world.client.events()
    assert world.run() == Result("unchanged")


def test_a_card_that_is_too_small_matches_no_pod() -> None:
    world = World(**QWEN)
    world.run()
    affinity = world.client.objects["Deployment", *KEY]["spec"]["template"]["spec"]["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    asked = [one for term in required for one in term["matchExpressions"] if one["operator"] == "Gt"]
    least = {one["key"]: int(one["values"][0]) for one in asked}
    assert 16 < least["strata.ai/vram-gib"] < 24
    assert 16 * 1024 < least["nvidia.com/gpu.memory"] < 24564


def test_a_spec_is_judged_once_until_a_node_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(*args: Any) -> Verdict:
        asked.append(1)
        return judge(*args)

    monkeypatch.setattr(reconcile, "judge", counted)
    world = World(**QWEN)
    world.nodes.put("StrataNode", node_object("large"))
    world.run()
    world.run()
    assert len(asked) == 1
    other = model_object("other", **QWEN)
    world.client.keep(other)
    world.cache.put_model(other)
    world.reconcile(("ns", "other"))
    assert len(asked) == 1, "another model asks for the same"
    world.nodes.put("StrataNode", node_object("larger", gpus=[gpu(vram_gib=48)]))
    world.run()
    assert len(asked) == 2
    assert "larger" in world.condition("Fits")["message"]
    world.model["spec"]["engine"] = {"maxModelLen": 2048}
    world.change(generation=2)
    world.run()
    assert len(asked) == 3


def test_what_runs_goes_on_when_a_new_spec_fits_nowhere() -> None:
    world = World(**QWEN)
    world.nodes.put("StrataNode", node_object("large"))
    world.run()
    before = world.client.objects["Deployment", *KEY]["spec"]
    world.model["spec"]["engine"] = {"numKvTokens": 400_000}
    world.change(generation=2)
    world.run()
    assert world.client.objects["Deployment", *KEY]["spec"] == before
    assert world.condition("Degraded")["reason"] == "NotEnoughVram"
    world.model["spec"]["replicas"] = 0
    world.change(generation=3)
    world.run()
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 0  # to stop needs no room


@pytest.mark.parametrize("kind", MONITOR_KINDS)
def test_a_monitor_is_made_where_the_cluster_knows_the_kind(kind: MonitorKind) -> None:
    world = World()
    world.run()
    assert (kind, *KEY) not in world.client.objects
    world.monitors = Monitors(kind)
    assert world.run() == Result("changed")
    assert (kind, *KEY) in world.client.objects
    assert world.run() == Result("unchanged")
    world.monitors = Monitors(kind, interval="30s")
    assert world.run() == Result("changed")
    assert world.client.objects[kind, *KEY]["spec"] == monitor(StrataModel.parse(world.model), world.monitors)["spec"]


TUNED: dict[str, Any] = {
    "model": {"source": "builtin://smollm2-135m"},
    "hardware": {**NVIDIA, "gpus": ["RTX4090"]},
    "power": {"limitWatts": 280},
}


def tuned_world() -> World:
    """A model that wants 280 W, with its pod on a node."""
    world = World(**TUNED)
    world.client.keep(node_object("node-1"))
    world.nodes.put("StrataNode", world.client.objects["StrataNode", "", "node-1"])
    world.run()
    world.put_pod()
    world.run()
    return world


def agent_acts(world: World) -> None:
    """The agent of node-1 applies what the StrataNode asks for, and says so."""
    node = world.client.objects["StrataNode", "", "node-1"]
    world.client.version += 1
    node["metadata"]["resourceVersion"] = str(world.client.version)
    node["status"] |= {
        "observedGeneration": node["metadata"]["generation"],
        "conditions": [{"type": "Tuned", "status": "True", "reason": "InForce", "message": "all"}],
    }
    world.nodes.put("StrataNode", node)


def test_a_node_is_tuned_where_the_pod_is_and_then_it_is_quiet() -> None:
    world = tuned_world()
    node = world.client.objects["StrataNode", "", "node-1"]
    assert node["spec"]["tuning"]["models"] == [{"model": "ns/m", "powerLimitWatts": 280}]
    assert world.model["metadata"]["finalizers"] == ["strata.ai/node-tuning"]
    assert world.condition("NodeTuned")["reason"] == "Applying"
    agent_acts(world)
    assert world.run().outcome == "changed"
    assert world.condition("NodeTuned")["reason"] == "Tuned"
    assert "NodeTuned" in world.client.events()
    world.client.writes()
    assert world.run().outcome == "unchanged"
    assert world.client.writes() == []


def test_a_wish_that_the_api_server_refuses_is_told_and_all_else_goes_on() -> None:
    world = tuned_world()
    node = world.client.objects["StrataNode", "", "node-1"]
    world.nodes.put("StrataNode", node | {"metadata": node["metadata"] | {"resourceVersion": "999"}, "spec": {}})
    world.serve()
    world.put_pod(version=30, containerStatuses=container(ready=True, state={"running": {}}))
    world.client.failing["apply StrataNode"] = RefusedError("no", answer="field not declared in schema")
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    assert (world.condition("NodeTuned")["status"], world.condition("NodeTuned")["reason"]) == ("False", "ApplyRefused")
    assert "field not declared in schema" in world.condition("NodeTuned")["message"]
    assert world.condition("Ready")["status"] == "True"
    world.client.failing.clear()
    world.run()
    assert world.condition("NodeTuned")["reason"] == "Applying"


def test_a_wish_that_the_spec_gives_up_is_withdrawn_with_its_finalizer() -> None:
    world = tuned_world()
    del world.model["spec"]["power"]
    world.change(generation=2)
    world.run()
    assert world.client.objects["StrataNode", "", "node-1"]["spec"]["tuning"]["models"] == []
    assert world.model["metadata"]["finalizers"] == []
    assert world.condition("NodeTuned")["reason"] == "NothingWanted"


def fall_ill(world: World, reason: str = "GpuLost", **metadata: Any) -> None:
    """The agent of node-1 says what is wrong with its cards."""
    node = world.client.objects["StrataNode", "", "node-1"]
    ill = {"type": "Healthy", "status": "False", "reason": reason, "message": "card GPU-1: XID 79"}
    node["status"]["conditions"] = [*(node["status"].get("conditions") or ()), ill]
    world.client.version += 1
    node["metadata"] |= {"resourceVersion": str(world.client.version)}
    world.nodes.put("StrataNode", node)


def test_a_model_says_what_happened_to_the_card_of_a_pod() -> None:
    world = tuned_world()
    agent_acts(world)
    world.serve()
    world.run()
    assert world.condition("Degraded")["status"] == "False"
    fall_ill(world)
    world.run()
    degraded = world.condition("Degraded")
    words = "node node-1 is not healthy: card GPU-1: XID 79"
    assert (degraded["status"], degraded["reason"], degraded["message"]) == ("True", "GpuLost", words)
    assert world.condition("Ready")["status"] == "True"  # as long as it answers
    assert "GpuLost" in world.client.events()


def test_an_engine_that_fails_beside_a_lost_card_says_both() -> None:
    world = tuned_world()
    fall_ill(world)
    ended = {"terminated": {"exitCode": 2, "message": "no CUDA device"}}
    world.put_pod(version=30, containerStatuses=container(state=ended))
    world.run()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "EngineFailed"
    assert degraded["message"].startswith("no CUDA device")
    words = (
        "; node node-1 is not healthy: card GPU-1: XID 79; m-1 stays there, for no other node has a matching card free"
    )
    assert degraded["message"].endswith(words)
    assert world.condition("Ready")["reason"] == degraded["reason"]
    world.client.writes()
    assert world.run().outcome == "unchanged"
    assert world.client.writes() == []


def stranded_world() -> World:
    """A pod fails where the card is lost, and another node has a card free."""
    world = tuned_world()
    fall_ill(world)
    world.nodes.put("StrataNode", node_object("node-2"))
    node = {
        "kind": "Node",
        "metadata": {
            "name": "node-2",
            "labels": {"strata.ai/gpu-product": "NVIDIA-GeForce-RTX-4090", "strata.ai/vram-gib": "24"},
        },
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": "1"}},
    }
    world.client.keep(node)
    ended = {"terminated": {"exitCode": 2, "message": "no CUDA device"}}
    world.put_pod(version=30, containerStatuses=container(state=ended))
    return world


def roomless_world() -> World:
    """A pod that no node takes, of which there is one."""
    world = World()
    world.run()
    node = {"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}
    busy = {"nodeName": "node-1", "containers": [{"resources": {"requests": {"cpu": "2500m"}}}]}
    world.client.keep({"kind": "Node", **node})
    world.client.keep({"kind": "Pod", "metadata": {"name": "x", "namespace": "y"}, "spec": busy})
    said = "0/1 nodes are available: 1 Insufficient cpu."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    world.put_pod(conditions=[refused], containerStatuses=[])
    return world


def test_the_node_that_comes_closest_is_named_and_looked_for_once_for_all_models() -> None:
    world = roomless_world()
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    words = (
        "needs a node with cpu 2 and memory 3Gi free; node node-1 comes closest: CPUs: 2 needed, 1.5 of 4 free; the "
        "scheduler says: 0/1 nodes are available: 1 Insufficient cpu."
    )
    assert [world.condition(kind)["message"] for kind in ("Ready", "Degraded")] == [words, words]
    assert ("Unschedulable", words) in world.client.told()
    world.client.calls.clear()
    assert world.run() == Result("unchanged", again_in=BLOCKED_SECONDS)
    assert world.client.calls == []


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        pytest.param("list Node", "free; the scheduler says", id="who may not see nodes tells the scheduler's words"),
        pytest.param("list Pod", "free; the scheduler says", id="who may not see pods takes nodes for empty"),
    ],
)
def test_who_may_not_look_is_told_what_the_scheduler_says(denied: str, words: str) -> None:
    world = roomless_world()
    world.client.failing[denied] = UnavailableError("no right", status=403)
    world.run()
    assert words in world.condition("Degraded")["message"]


def test_a_pod_that_waits_for_a_card_is_looked_at_once_one_is_free() -> None:
    world = stranded_world()
    other = pod_object("other")
    other["metadata"]["labels"]["strata.ai/model"] = "other"
    other["spec"] = {
        "nodeName": "node-2",
        "containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
    world.cache.put("Pod", other)
    assert world.run().again_in == PLACE_SECONDS
    assert (world.client.evicted, world.woken) == ([], [])
    world.cache.remove("Pod", other)
    assert world.woken == [KEY]
    world.run()
    assert world.client.evicted == ["m-1"]
    world.cache.put("Pod", other)
    world.cache.remove("Pod", other)
    assert world.woken == [KEY], "it waits no more"


def hold_card(world: World) -> None:
    """Of node-2, by a pod that is no model's."""
    card = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.client.keep({"kind": "Pod", "metadata": {"name": "x", "namespace": "y"}, "spec": {"containers": [card]}})


def deny(world: World) -> None:
    world.client.failing["list Pod"] = UnavailableError('cannot list resource "pods"', status=403)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda world: node_of(world)["spec"].update(unschedulable=True), "is cordoned", id="a cordon"),
        pytest.param(hold_card, "is short of cards: 1 needed, 0 of 1 free", id="a foreign pod"),
        pytest.param(lambda world: world.client.objects.pop(("Node", "", "node-2")), "is gone", id="it is gone"),
        pytest.param(deny, "", id="who may not see others' pods knows no obstacle"),
    ],
)
def test_a_pod_stays_where_the_scheduler_would_not_put_it_elsewhere(change: Any, why: str) -> None:
    world = stranded_world()
    change(world)
    assert world.run().again_in == (PLACE_SECONDS if why else None)
    assert world.client.evicted == ([] if why else ["m-1"])
    assert f"card free: node-2 {why}" in world.condition("Degraded")["message"] or not why


def node_of(world: World) -> dict[str, Any]:
    return world.client.objects["Node", "", "node-2"]


def test_a_pod_leaves_a_lost_card_for_one_that_is_free_and_once() -> None:
    world = stranded_world()
    world.run()
    assert world.client.evicted == ["m-1"]
    assert ("Evicted", "pod m-1 leaves node node-1, which is not healthy, for another has a matching card free") in (
        world.client.told()
    )
    leaving = pod_object("m-1", version=40)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.cache.put("Pod", leaving)
    world.run()
    world.cache.remove("Pod", leaving)
    world.run()
    assert world.client.evicted == ["m-1"]
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        pytest.param(MissingError("gone", status=404), None, id="it has gone meanwhile"),
        pytest.param(RefusedError("no", status=403, answer="a webhook says no"), "EvictionRefused", id="refused"),
    ],
)
def test_an_eviction_that_comes_to_nothing_leaves_the_status_as_true(error: ApiError, event: str | None) -> None:
    world = stranded_world()
    world.client.failing["evict Pod"] = error
    world.run()
    assert world.condition("Degraded")["reason"] == "EngineFailed"
    assert [reason for reason in world.client.events() if reason.startswith("Evict")] == ([event] if event else [])


def test_somebody_s_budget_that_keeps_the_pod_is_asked_again_after_the_status_is_told() -> None:
    world = stranded_world()
    world.client.failing["evict Pod"] = UnavailableError("the disruption budget needs 1 healthy pod", status=429)
    with pytest.raises(UnavailableError):
        world.run()
    assert world.condition("Degraded")["reason"] == "EngineFailed"


def test_a_cache_without_room_is_told_with_its_place_and_goes_on_by_itself() -> None:
    world = World(cache={"hostPath": "/srv/strata"})
    world.run()
    ended = {"terminated": {"exitCode": 3, "message": "/var/lib/strata/stores has 1 GB free; the store needs 2 GB"}}
    world.put_pod(containerStatuses=container(state=ended))
    world.run()
    words = (
        "/var/lib/strata/stores has 1 GB free; the store needs 2 GB. The cache is /srv/strata of node node-1; once it "
        "has room, the next try goes on by itself"
    )
    for kind, status in (("Degraded", "True"), ("Cached", "False"), ("Ready", "False")):
        condition = world.condition(kind)
        assert (condition["status"], condition["reason"], condition["message"]) == (status, "StorageFailed", words)
    world.client.writes()
    world.put_pod(version=30, containerStatuses=container(state={"running": {}}, last=ended))
    world.told = {"loading": Loading("download", 0, 2 << 30)}  # it has not looked for room yet
    assert world.run() == Result("unchanged")
    assert world.client.writes() == [], "each try to start is no news"
    world.told = {"loading": Loading("download", 4, 2 << 30)}
    world.run()
    assert (world.condition("Cached")["reason"], world.condition("Cached")["message"]) == (
        "Fetching",
        "node-1: download, 40 % of 2.0 GiB",
    )


def test_another_node_s_trouble_is_none_of_the_model_s() -> None:
    world = tuned_world()
    agent_acts(world)
    world.serve()
    fall_ill(world)
    elsewhere = node_object("node-2")
    world.nodes.put("StrataNode", elsewhere)
    world.cache.remove("Pod", pod_object("m-1"))
    world.run()
    assert world.condition("Degraded")["status"] == "False"


def leave(world: World) -> None:
    world.change(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=world.model["metadata"]["finalizers"])


def test_a_model_goes_once_its_node_has_put_things_back() -> None:
    world = tuned_world()
    agent_acts(world)
    leave(world)
    world.client.writes()
    assert world.run() == Result("leaving", again_in=RESTORE_LOOK_SECONDS)
    assert world.client.writes() == ["apply by force StrataNode"]  # and nothing of the children
    assert world.client.objects["StrataNode", "", "node-1"]["spec"]["tuning"]["models"] == []
    agent_acts(world)
    assert world.run() == Result("gone")
    assert ("StrataModel", *KEY) not in world.client.objects


def test_a_dead_node_does_not_hold_a_model_for_ever() -> None:
    world = tuned_world()
    leave(world)
    world.now = CREATED + timedelta(seconds=RESTORE_SECONDS - 1)
    assert world.run().outcome == "leaving"
    world.now = CREATED + timedelta(seconds=RESTORE_SECONDS)
    assert world.run() == Result("gone")
    assert ("StrataModel", *KEY) not in world.client.objects
    assert "NodeNotRestored" in world.client.events()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RefusedError("no", status=422, answer="field not declared in schema"), id="refused"),
        pytest.param(UnavailableError("no", status=500, answer="failed calling webhook"), id="its webhook is away"),
    ],
)
def test_a_wish_that_cannot_be_taken_back_does_not_hold_a_model_for_ever(error: ApiError) -> None:
    world = tuned_world()
    agent_acts(world)
    leave(world)
    world.client.failing["apply StrataNode"] = error
    world.now = CREATED + timedelta(seconds=RESTORE_SECONDS - 1)
    assert world.run() == Result("leaving", again_in=RESTORE_LOOK_SECONDS)
    world.now = CREATED + timedelta(seconds=RESTORE_SECONDS)
    assert world.run() == Result("gone")
    ((_, words),) = [one for one in world.client.told() if one[0] == "NodeNotRestored"]
    assert words.endswith(f"it cannot be taken back: node-1: {error.answer}")
    world.cache.remove_model(world.cache.model(KEY) or {})
    assert world.run() == Result("gone", again_in=BLOCKED_SECONDS)
    world.client.failing.clear()
    assert world.run() == Result("gone")
    assert node_wishes(world) == []


def test_a_finalizer_that_cannot_be_removed_is_told() -> None:
    world = tuned_world()
    agent_acts(world)
    leave(world)
    world.run()
    agent_acts(world)
    world.client.failing["apply StrataModel"] = RefusedError("no", answer="denied by a policy")
    assert world.run() == Result("leaving", again_in=BLOCKED_SECONDS)
    words = "the model stays, for the finalizer strata.ai/node-tuning cannot be removed: denied by a policy"
    assert world.client.told()[-1] == ("FinalizerRefused", words)
    assert "StatusRefused" not in world.client.events()


def test_a_finalizer_that_cannot_be_set_is_told() -> None:
    world = World(**TUNED)
    node = node_object("node-1")
    world.client.keep(node)
    world.run()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    world.nodes.put("StrataNode", node)
    apply = world.client.apply

    def refuse(kind: str, manifest: Mapping[str, Any], **options: Any) -> Any:
        if "finalizers" in manifest["metadata"]:
            raise RefusedError("no", answer="denied by a policy")
        return apply(kind, manifest, **options)

    world.client.apply = refuse  # type: ignore[method-assign]
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    assert world.condition("NodeTuned")["reason"] == "ApplyRefused"
    assert "the finalizer strata.ai/node-tuning cannot be set: denied" in world.condition("NodeTuned")["message"]


def test_a_node_that_is_gone_holds_nothing_up() -> None:
    world = tuned_world()
    leave(world)
    world.nodes.remove("StrataNode", world.client.objects.pop(("StrataNode", "", "node-1")))
    assert world.run() == Result("gone")
    assert ("StrataModel", *KEY) not in world.client.objects


def test_without_agents_no_finalizer_holds_a_model() -> None:
    """Nobody would have to put anything back; and once the operator is gone nobody would take it off."""
    world = World(**TUNED)
    world.run()
    world.put_pod()
    world.run()
    assert "finalizers" not in world.model["metadata"]
    assert world.condition("NodeTuned")["reason"] == "NoAgent"


def test_agents_that_are_suspended_hold_no_model() -> None:
    world = tuned_world()
    world.client.objects["StrataNode", "", "node-1"]["spec"]["suspend"] = True
    agent_acts(world)
    world.run()
    assert world.model["metadata"]["finalizers"] == []
    assert world.client.objects["StrataNode", "", "node-1"]["spec"]["tuning"]["models"] != []


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param([], id="taken out"),
        pytest.param([{"model": "ns/m", "powerLimitWatts": 100}], id="another limit"),
        pytest.param([{"model": "ns/m", "powerLimitWatts": 280, "smClockMaxMHz": 900}], id="a limit more"),
    ],
)
def test_a_wish_that_somebody_edits_is_put_back_and_then_it_is_quiet(edited: list[dict[str, Any]]) -> None:
    world = tuned_world()
    node = world.client.objects["StrataNode", "", "node-1"]
    world.client.wishes["node-1"] = {"kubectl-edit": edited}
    node["spec"]["tuning"]["models"] = edited
    agent_acts(world)
    world.run()
    assert node_wishes(world) == [{"model": "ns/m", "powerLimitWatts": 280}]
    world.client.writes()
    assert world.run().outcome == "unchanged"
    assert world.client.writes() == []


def test_a_node_that_goes_while_its_wish_is_put_back_is_no_model_that_is_gone() -> None:
    world = tuned_world()
    node = world.client.objects["StrataNode", "", "node-1"]
    edited = [{"model": "ns/m", "powerLimitWatts": 280, "smClockMaxMHz": 1500}]
    world.client.wishes["node-1"] = {"kubectl-edit": edited}
    node["spec"]["tuning"]["models"] = edited
    agent_acts(world)
    world.client.failing["merge StrataNode"] = MissingError("gone", status=404)
    with pytest.raises(UnavailableError, match="node-1 was there a moment ago"):
        world.run()
    assert world.cache.model(KEY) is not None


def node_wishes(world: World) -> list[dict[str, Any]]:
    return list(world.client.objects["StrataNode", "", "node-1"]["spec"]["tuning"]["models"])


def test_what_a_model_wished_for_goes_with_it_however_it_went() -> None:
    world = tuned_world()
    other = {"model": "ns/other", "powerLimitWatts": 250}
    world.client.wishes["node-1"]["another"] = [other]
    world.client.version += 1
    node = world.client.objects["StrataNode", "", "node-1"]
    node["metadata"]["resourceVersion"] = str(world.client.version)
    node["spec"]["tuning"]["models"].append(other)
    world.nodes.put("StrataNode", node)
    gone = world.client.objects.pop(("StrataModel", *KEY))  # its finalizer was taken off by hand
    world.cache.remove_model(gone)
    world.run()
    assert node_wishes(world) == [other]


def test_a_wish_stays_while_the_cache_is_behind() -> None:
    world = tuned_world()
    world.cache.remove_model(world.model)
    world.run()
    assert node_wishes(world) == [{"model": "ns/m", "powerLimitWatts": 280}]


def test_no_finalizer_is_added_to_a_model_that_is_leaving() -> None:
    world = World(**TUNED)
    world.nodes.put("StrataNode", node_object("node-1"))
    world.client.failing["apply StrataModel"] = LeavingError("no new finalizers can be added", status=422)
    assert world.run() == Result("gone")


SPEC: dict[str, Any] = {"model": {"source": "builtin://smollm2-135m"}, "hardware": CPU}


def deployed(world: World) -> str:
    """The source that the Deployment's pods are told to serve."""
    container = world.client.objects["Deployment", *KEY]["spec"]["template"]["spec"]["containers"][0]
    return str(container["args"][1])


def test_an_unknown_built_in_model_is_a_bad_spec_that_leaves_alone_what_serves() -> None:
    world = World(**SPEC)
    world.run()
    world.model["spec"] = {**SPEC, "model": {"source": "builtin://smollm3"}}
    world.change(generation=2)
    assert world.run() == Result("refused")
    assert world.condition("Accepted")["reason"] == "InvalidSpec"
    assert "builtin://smollm2-135m" in world.condition("Ready")["message"]
    assert deployed(world) == "builtin://smollm2-135m"


def serving_world() -> World:
    """A model that has served, and whose spec was then changed to one that cannot."""
    world = World(**SPEC)
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    assert world.condition("Ready")["status"] == "True"
    world.model["spec"] = {**SPEC, "model": {"source": "hf://org/absent"}}
    world.change(generation=2)
    world.run()
    assert deployed(world) == "org/absent"
    ended = {"terminated": {"exitCode": 2, "message": "there is no model 'absent'"}}
    world.put_pod(name="m-2", version=21, containerStatuses=container(state=ended))
    world.run()
    assert world.condition("Degraded")["reason"] == "EngineFailed"
    return world


def test_a_spec_that_fails_is_rolled_back_and_says_why() -> None:
    world = serving_world()
    world.now += timedelta(seconds=59)
    assert world.run().again_in == 1
    assert deployed(world) == "org/absent"
    world.now += timedelta(seconds=1)
    world.run()
    assert deployed(world) == "builtin://smollm2-135m"
    assert world.condition("Progressing")["reason"] == "RollingBack"
    assert "there is no model 'absent'" in world.condition("Degraded")["message"]
    assert "RolledBack" in world.client.events()
    world.serve()
    world.run()
    assert (world.condition("Ready")["status"], world.condition("Ready")["reason"]) == ("False", "RolledBack")
    assert world.condition("Progressing")["status"] == "False"
    world.client.writes()
    world.now += timedelta(hours=1)
    world.run()
    assert world.client.writes() == []


def test_a_repaired_spec_wins_over_a_roll_back() -> None:
    world = serving_world()
    world.now += timedelta(seconds=60)
    world.run()
    world.model["spec"] = {**SPEC, "engine": {"maxModelLen": 1024}}
    world.change(generation=3)
    world.run()
    args = world.client.objects["Deployment", *KEY]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-model-len=1024" in args
    assert "failed" not in world.model["status"]["rollout"]
    assert world.condition("Degraded")["status"] == "False"


def test_more_replicas_do_not_try_a_failed_spec_again() -> None:
    world = serving_world()
    world.now += timedelta(seconds=60)
    world.run()
    world.model["spec"] = {**world.model["spec"], "replicas": 2}
    world.change(generation=3)
    world.run()
    assert deployed(world) == "builtin://smollm2-135m"
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 2


def test_a_pod_on_a_dead_node_is_named() -> None:
    world = World()
    world.run()
    world.put_pod()
    pod = pod_object(revision="old", version=30)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.cache.put("Pod", pod)
    world.now = CREATED + timedelta(seconds=90)
    assert world.run().again_in is not None
    assert world.condition("Degraded")["status"] == "False"
    world.now = CREATED + timedelta(seconds=121)
    world.run()
    assert world.condition("Degraded")["reason"] == "PodStuck"


GPU: dict[str, Any] = {"model": {"source": "builtin://smollm2-135m"}, "hardware": {**NVIDIA, "gpus": ["RTX4090"]}}


def one_card_world() -> World:
    """A model that serves from the only card, and whose spec then asks for other weights."""
    world = World(**GPU)
    world.nodes.put("StrataNode", node_object("node-1"))
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    world.model["spec"] = {**GPU, "quantization": {"format": "int8"}}
    world.change(generation=2)
    return world


def upgrade(world: World, engine_image: str) -> None:
    """Another operator takes over, whose models run another image."""
    world.reconcile = Reconciler(
        cast("Client", world.client),
        world.cache,
        world.nodes,
        engine_image=engine_image,
        monitors=lambda: None,
        look=lambda pod: pod,
    )


def test_an_image_that_comes_with_another_operator_is_pulled_before_a_pod_stops() -> None:
    world = World(**GPU)
    world.nodes.put("StrataNode", node_object("node-1"))
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    before = world.client.objects["Deployment", *KEY]["spec"]
    upgrade(world, "engine:2")
    assert world.run() == Result("changed", again_in=PREFLIGHT_SECONDS)
    assert world.client.objects["Deployment", *KEY]["spec"] == before
    assert world.condition("Progressing")["reason"] == "Preflight"
    (job,) = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"
    trial(world, 30, "Succeeded")
    world.run()
    after = world.client.objects["Deployment", *KEY]["spec"]
    assert after["template"]["spec"]["containers"][0]["image"] == "engine:2"


def test_nothing_is_put_back_of_an_image_that_came_with_another_operator() -> None:
    world = World()
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.run()
    upgrade(world, "engine:2")
    world.run()
    ended = {"terminated": {"exitCode": 2, "message": "no such option"}}
    for turn in range(3):
        world.put_pod(name="m-2", version=100 + turn, containerStatuses=container(state=ended))
        world.run()
        degraded = world.condition("Degraded")
        assert (degraded["reason"], degraded["message"]) == ("EngineFailed", "no such option")
        assert (world.condition("Progressing")["status"], world.condition("Progressing")["reason"]) == (
            "False",
            "EngineFailed",
        )
        world.now += timedelta(seconds=61)
    assert "RolledBack" not in world.client.events()


def trial(world: World, version: int, phase: str, **status: Any) -> None:
    """The pod of the newest Job."""
    *_, job = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    obj = pod_object(f"{job['metadata']['name']}-x", version=version, phase=phase, **status)
    obj["metadata"] |= job["spec"]["template"]["metadata"]
    obj["metadata"]["ownerReferences"] = [owner("batch/v1", "Job", job["metadata"]["name"])]
    obj["spec"]["volumes"] = job["spec"]["template"]["spec"]["volumes"]
    obj["spec"]["nodeName"] = obj["metadata"]["annotations"]["strata.ai/node"]
    world.cache.put("Pod", obj)


def test_a_pod_that_serves_is_not_stopped_before_what_follows_is_there() -> None:
    world = one_card_world()
    before = world.client.objects["Deployment", *KEY]["spec"]
    assert world.run() == Result("changed", again_in=PREFLIGHT_SECONDS)
    assert world.client.objects["Deployment", *KEY]["spec"] == before
    assert (world.condition("Progressing")["status"], world.condition("Progressing")["reason"]) == ("True", "Preflight")
    assert world.condition("Degraded")["status"] == "False"
    assert "Preflight" in world.client.events()
    trial(world, 30, "Running")
    assert world.run().outcome == "changed"
    assert world.condition("Cached")["reason"] == "Fetching"
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    trial(world, 31, "Succeeded")
    world.run()
    after = world.client.objects["Deployment", *KEY]["spec"]
    assert "--dtype=int8" in after["template"]["spec"]["containers"][0]["args"]
    assert after["strategy"]["rollingUpdate"]["maxSurge"] == 0
    assert "Restored" not in world.client.events()


def refuse_pods(world: World, *, tells: bool = True) -> None:
    """The Job was made just now, and the controller may make no pod of it."""
    (job,) = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    job["metadata"]["creationTimestamp"] = conditions.timestamp(world.now)
    if tells:
        world.client.keep(
            {
                "kind": "Event",
                "metadata": {"name": "e", "namespace": "ns"},
                "involvedObject": {"uid": job["metadata"]["uid"]},
                "type": "Warning",
                "reason": "FailedCreate",
                "message": 'Error creating: pods "m-1-x7k2p" is forbidden: exceeded quota',
            }
        )


def test_a_preflight_of_which_the_pod_is_refused_says_so_and_is_started_once() -> None:
    world = one_card_world()
    world.run()
    refuse_pods(world)
    world.now += timedelta(seconds=PREFLIGHT_SECONDS)
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    assert world.condition("Degraded")["reason"] == "PreflightFailed"
    assert 'pods "m-1-…" is forbidden: exceeded quota' in world.condition("Degraded")["message"]
    (started,) = [obj for obj in world.client.objects.values() if obj.get("reason") == "Preflight"]
    assert started["count"] == 1


def test_what_keeps_weights_from_another_node_is_not_why_a_preflight_failed() -> None:
    spec = {**GPU, "rollout": {"strategy": "recreate"}, "cache": {"keepWarm": True}}
    world = one_card_world()
    world.model["spec"] = {**spec, "quantization": {"format": "int8"}}
    world.change(generation=3)
    world.run()
    ended = {"terminated": {"exitCode": 2, "message": "the Hub has no such model"}}
    trial(world, 30, "Failed", containerStatuses=container(state=ended))
    world.nodes.put("StrataNode", node_object("node-2"))
    world.run()
    assert fetches(world) == ["node-1", "node-2"]
    world.client.objects = {  # the first one is kept, and bothers nobody
        key: obj
        for key, obj in world.client.objects.items()
        if key[0] != "Job" or obj["spec"]["template"]["metadata"]["annotations"]["strata.ai/node"] == "node-2"
    }
    refuse_pods(world)
    world.now += timedelta(seconds=PREFLIGHT_SECONDS)
    world.run()
    assert "exceeded quota" in world.condition("Cached")["message"]
    degraded = world.condition("Degraded")
    assert (degraded["reason"], "the Hub has no such model" in degraded["message"]) == ("PreflightFailed", True)


def test_a_preflight_tells_of_a_secret_that_is_missing_as_a_model_does() -> None:
    world = one_card_world()
    proxy = {"name": "PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}
    world.model["spec"] = {**world.model["spec"], "env": [proxy]}
    world.change(generation=3)
    world.run()
    refused = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "proxy" not found'}}
    trial(world, 30, "Pending", containerStatuses=container(state=refused))
    world.run()
    degraded = world.condition("Degraded")
    words = 'ContainerRefused: Secret "proxy" not found in namespace ns; create it, or name another in spec.env'
    assert (degraded["reason"], degraded["message"]) == ("PreflightFailed", f"{words}; what serves goes on")


def test_a_preflight_that_fails_leaves_alone_what_serves() -> None:
    world = one_card_world()
    before = world.client.objects["Deployment", *KEY]["spec"]
    world.run()
    ended = {"terminated": {"exitCode": 2, "message": "the Hub has no such model"}}
    trial(world, 30, "Failed", containerStatuses=container(state=ended))
    world.run()
    assert world.condition("Degraded")["reason"] == "PreflightFailed"
    assert "the Hub has no such model" in world.condition("Degraded")["message"]
    assert world.client.objects["Deployment", *KEY]["spec"] == before
    world.now += timedelta(hours=1)
    world.run()
    assert world.condition("Degraded")["reason"] == "PreflightFailed"  # nothing to go back to: it never left
    world.model["spec"] = {**GPU, "replicas": 1}
    world.change(generation=3)
    world.run()
    assert world.condition("Degraded")["status"] == "False"


def test_a_preflight_of_what_nobody_wants_any_more_goes() -> None:
    world = one_card_world()
    world.run()
    ended = {"terminated": {"exitCode": 2, "message": "the Hub has no such model"}}
    trial(world, 30, "Failed", containerStatuses=container(state=ended))
    world.run()
    (job,) = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    assert job["spec"]["ttlSecondsAfterFinished"] > 0, "its reason can be looked for while the spec wants it"
    world.model["spec"] = {**GPU}
    world.change(generation=3)
    world.client.writes()
    world.run()
    assert (job["spec"]["ttlSecondsAfterFinished"], job["spec"]["activeDeadlineSeconds"]) == (0, 1)
    assert "apply by force Job" in world.client.writes()
    world.run()
    assert world.client.writes() == [], "once is enough"


def test_a_job_that_cannot_be_ended_is_told_and_holds_nothing_up() -> None:
    world = one_card_world()
    world.run()
    trial(world, 30, "Running")
    world.model["spec"] = {**GPU}
    world.change(generation=3)
    world.client.failing["apply Job"] = RefusedError("no", answer="denied by a policy")
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    assert world.condition("Ready")["observedGeneration"] == 3
    ((reason, words),) = [one for one in world.client.told() if one[0].endswith("Refused")]
    assert (reason, words.rpartition(" on ")[2]) == ("ExpiryRefused", "node-1 cannot be ended: denied by a policy")


def test_another_model_s_job_of_that_name_is_left_alone() -> None:
    world = one_card_world()
    world.run()
    trial(world, 30, "Running")
    (job,) = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    job["metadata"]["ownerReferences"][0]["uid"] = "of-another"
    world.model["spec"] = {**GPU}
    world.change(generation=3)
    world.run()
    assert job["spec"]["ttlSecondsAfterFinished"] > 0


def test_a_flag_alone_needs_no_preflight() -> None:
    world = one_card_world()
    world.model["spec"] = {**GPU, "engine": {"maxModelLen": 1024}}
    world.change(generation=3)
    world.run()
    args = world.client.objects["Deployment", *KEY]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-model-len=1024" in args


def test_where_a_card_is_free_the_new_pod_is_its_own_preflight() -> None:
    world = one_card_world()
    world.nodes.put("StrataNode", node_object("node-2"))
    world.run()
    after = world.client.objects["Deployment", *KEY]["spec"]
    assert "--dtype=int8" in after["template"]["spec"]["containers"][0]["args"]
    assert after["strategy"]["rollingUpdate"]["maxSurge"] == 1


def fetches(world: World) -> list[str]:
    """Nodes for which a Job fetches the weights, in the order of their creation."""
    jobs = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    return [job["spec"]["template"]["metadata"]["annotations"]["strata.ai/node"] for job in jobs]


def test_nodes_are_kept_warm_one_after_the_other_though_no_pod_runs() -> None:
    world = World(**GPU, suspend=True, cache={"keepWarm": True})
    assert world.run() == Result("changed")
    assert fetches(world) == [], "no agent tells of a node"
    for name in ("node-2", "node-1", "node-3"):
        world.nodes.put("StrataNode", node_object(name))
    world.nodes.put("StrataNode", node_object("other", gpus=[gpu("NVIDIA-GeForce-RTX-3090")]))
    assert world.run() == Result("changed", again_in=PREFLIGHT_SECONDS)
    assert fetches(world) == ["node-1"]
    trial(world, 30, "Running")
    world.run()
    assert (world.condition("Cached")["status"], world.condition("Cached")["reason"]) == ("False", "Fetching")
    assert world.condition("Cached")["message"] == "node-1: a Job fetches and converts the weights"
    world.told = {"loading": Loading("download", 4, 20 << 30, 1 << 30)}
    world.run()
    assert world.condition("Cached")["message"] == (
        "node-1: a Job fetches and converts the weights: download, 40 % of 20.0 GiB at 1.0 GiB/s, about 12 s left"
    )
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    trial(world, 31, "Succeeded")
    world.run()
    assert fetches(world) == ["node-1", "node-2"]
    assert world.model["status"]["cache"]["nodes"] == ["node-1"]
    ended = {"terminated": {"exitCode": 2, "message": "the disk is full"}}
    trial(world, 32, "Failed", containerStatuses=container(state=ended))
    world.run()
    assert fetches(world) == ["node-1", "node-2", "node-3"]
    assert (
        "node-2: a Job cannot fetch the weights: EngineFailed: the disk is full" in world.condition("Cached")["message"]
    )
    trial(world, 33, "Succeeded")
    world.run()
    assert world.condition("Cached")["reason"] == "Kept"
    assert world.model["status"]["cache"]["nodes"] == ["node-1", "node-3"]
    world.client.writes()
    assert world.run() == Result("unchanged")
    assert world.client.writes() == []
    assert [message for reason, message in world.client.told() if reason == "Warming"] == [
        f"fetches and converts the weights on node-{number} ahead of any pod there" for number in (1, 2, 3)
    ]


def test_what_fails_on_each_node_of_a_large_cluster_is_told_in_as_many_words_as_the_crd_takes() -> None:
    world = World(**GPU, suspend=True, cache={"keepWarm": True})
    for number in range(100, 160):
        world.nodes.put("StrataNode", node_object(f"node-{number}"))
    ended = {"terminated": {"exitCode": 2, "message": "x" * 1000}}
    for number in range(59):
        world.run()
        assert len(fetches(world)) == number + 1, "one after the other"
        trial(world, 30 + number, "Failed", containerStatuses=container(state=ended))
    world.run()
    trial(world, 100, "Running")
    world.run()
    told = world.condition("Cached")["message"]
    assert len(told) <= 32768, "maxLength of a condition's message"
    assert told.startswith("node-159: a Job fetches and converts the weights; node-100: a Job cannot fetch the weights")
    assert told.endswith("; and 52 more")


@pytest.mark.parametrize("suspend", [True, False], ids=["no pod runs", "a pod loads"])
def test_a_job_that_never_gets_a_pod_tells_why(suspend: bool) -> None:
    world = World(**GPU, suspend=suspend, cache={"keepWarm": True})
    world.nodes.put("StrataNode", node_object("node-1"))
    world.nodes.put("StrataNode", node_object("node-2"))
    world.run()
    if not suspend:
        world.put_pod(containerStatuses=container(state={"running": {}}))
        world.told = {"loading": Loading("load", 0, 9 << 30)}
    refuse_pods(world)
    world.run()
    assert "a Job cannot fetch" not in world.condition("Cached")["message"], "the pod may come yet"
    world.now += timedelta(seconds=PREFLIGHT_SECONDS)
    assert world.run() == Result("changed", again_in=BLOCKED_SECONDS)
    cached = world.condition("Cached")
    words = 'node-1: a Job cannot fetch the weights: FailedCreate: Error creating: pods "m-1-…" is forbidden: exceeded'
    assert words in cached["message"]
    assert (cached["status"], cached["reason"]) == (("False", "FailedCreate") if suspend else ("True", "Converted"))
    assert world.condition("Degraded")["status"] == "False", "it holds nothing up"
    world.client.writes()
    assert world.run() == Result("unchanged", again_in=BLOCKED_SECONDS)
    assert world.client.writes() == ["create Job", "apply by force Job"]
    trial(world, 30, "Running")
    world.run()
    assert "node-1: a Job fetches and converts the weights" in world.condition("Cached")["message"]


def test_a_job_without_a_pod_of_which_nobody_tells_is_named() -> None:
    world = World(**GPU, suspend=True, cache={"keepWarm": True})
    world.nodes.put("StrataNode", node_object("node-1"))
    world.run()
    refuse_pods(world, tells=False)
    world.now += timedelta(seconds=PREFLIGHT_SECONDS)
    assert world.run() == Result("unchanged", again_in=PREFLIGHT_SECONDS)
    world.now += timedelta(seconds=BLOCKED_SECONDS)
    world.run()
    assert world.condition("Cached")["reason"] == "NoPod"
    (job,) = [obj["metadata"]["name"] for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    assert f"Job {job} has no pod; kubectl describe job/{job} -n ns" in world.condition("Cached")["message"]


def test_what_a_job_has_no_room_for_is_told_as_of_any_pod() -> None:
    world = World(**GPU, suspend=True, cache={"keepWarm": True})
    world.nodes.put("StrataNode", node_object("node-1"))
    world.run()
    ended = {"terminated": {"exitCode": 3, "message": "1 GB free; 2 GB more are needed"}}
    trial(world, 30, "Failed", containerStatuses=container(state=ended))
    world.run()
    cached = world.condition("Cached")
    assert (cached["status"], cached["reason"]) == ("False", "StorageFailed")
    assert cached["message"].startswith("node-1: a Job cannot fetch the weights: StorageFailed: 1 GB free; 2 GB more")
    assert "The cache is /var/lib/strata of node node-1" in cached["message"]
    (job,) = [obj for (kind, *_), obj in world.client.objects.items() if kind == "Job"]
    world.now = CREATED + timedelta(seconds=RETRY_SECONDS - 1)
    assert world.run().again_in == 1
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
    world.now += timedelta(seconds=1)
    world.run()
    assert job["spec"]["ttlSecondsAfterFinished"] == 0
    world.client.objects = {key: obj for key, obj in world.client.objects.items() if obj is not job}
    world.cache.remove("Pod", {"metadata": {"namespace": "ns", "name": f"{job['metadata']['name']}-x"}})
    world.run()
    assert fetches(world) == ["node-1"], "once more"


def test_what_fits_nowhere_is_kept_warm_nowhere() -> None:
    world = World(**QWEN, cache={"keepWarm": True})
    world.nodes.put("StrataNode", node_object("small", gpus=[gpu(vram_gib=16)]))
    world.run()
    assert fetches(world) == []


def test_no_weights_are_brought_with_a_service_account_that_is_not_ours() -> None:
    world = World(**GPU, cache={"keepWarm": True})
    world.nodes.put("StrataNode", node_object("node-1"))
    foreign = {"name": "m", "namespace": "ns", "uid": "x", "resourceVersion": "1"}
    world.client.keep({"kind": "ServiceAccount", "metadata": foreign})
    world.run()
    assert fetches(world) == []


def test_a_flood_of_refused_pods_is_stopped_and_tried_again_later() -> None:
    world = World()
    world.run()
    for number in range(5):
        world.put_pod(name=f"m-{number}", phase="Failed", reason="UnexpectedAdmissionError", message="no card is left")
    world.now = CREATED + timedelta(seconds=60)
    assert world.run() == Result("changed", again_in=240)
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 0
    assert world.condition("Degraded")["reason"] == "PodFailed"
    assert "no card is left" in world.condition("Ready")["message"]
    world.client.writes()
    assert world.run().outcome == "unchanged"
    assert world.client.writes() == []
    world.now = CREATED + timedelta(seconds=300)
    world.run()
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 1


def test_to_stop_needs_no_preflight() -> None:
    world = one_card_world()
    world.model["spec"] = {**GPU, "quantization": {"format": "int8"}, "replicas": 0}
    world.change(generation=3)
    world.run()
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 0


def test_what_runs_may_be_scaled_though_it_would_not_fit_any_more() -> None:
    world = World(**{**QWEN, "replicas": 2})
    world.nodes.put("StrataNode", node_object("large"))
    world.run()
    world.nodes.put("StrataNode", node_object("large", gpus=[], version=2))
    world.model["spec"] = {**QWEN, "replicas": 1}
    world.change(generation=2)
    world.run()
    assert world.condition("Fits")["status"] == "False"
    assert world.client.objects["Deployment", *KEY]["spec"]["replicas"] == 1


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    world = World()
    world.run()
    world.cache.remove_model(world.model)
    del world.client.objects["StrataModel", *KEY]
    assert world.run() == Result("gone")
    assert [name for name, table in vars(world.reconcile).items() if isinstance(table, dict) and table] == []


def test_an_unknown_model_is_gone() -> None:
    assert World().reconcile(("ns", "other")) == Result("gone")


def test_nothing_is_applied_to_a_model_that_is_leaving() -> None:
    world = World()
    world.change(deletionTimestamp="2026-01-01T00:00:00Z")
    assert world.run() == Result("gone")
    assert world.client.calls == []


def orphaned_world() -> World:
    """A model of before, whose Service is gone."""
    world = World()
    world.run()
    world.cache.remove("Service", world.client.objects.pop(("Service", *KEY)))
    world.client.calls.clear()
    return world


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_nothing_is_created_for_an_owner_that_is_gone(change: str) -> None:
    world = orphaned_world()
    if change == "deleted":
        del world.client.objects["StrataModel", *KEY]
    else:
        world.model["metadata"]["uid"] = "another"
    assert world.run() == Result("gone")
    assert world.client.writes() == []
    assert world.cache.model(KEY) is None  # whatever its watch tells


def test_nothing_is_created_for_an_owner_that_is_leaving() -> None:
    world = orphaned_world()
    world.model["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.run() == Result("gone")
    assert world.client.writes() == []
    assert world.cache.model(KEY) is not None


def test_children_of_a_new_model_that_went_are_made_once_at_most() -> None:
    """The garbage collector takes them, and the watch of the children tells; that of the models may be behind."""
    world = World()
    del world.client.objects["StrataModel", *KEY]
    assert world.run().outcome == "changed"
    for kind in ALL:
        world.cache.remove(kind, world.client.objects.pop((kind, *KEY)))
    world.client.writes()
    assert world.run() == Result("gone")
    assert world.client.writes() == []


def test_nothing_is_told_in_a_namespace_that_is_leaving() -> None:
    world = World()
    world.client.failing["create ServiceAccount"] = LeavingError("being terminated", status=403)
    assert world.run() == Result("gone")
    assert "status" not in world.model


def test_a_spec_that_cannot_be_served_is_told_once() -> None:
    world = World(speculation={"tokens": 4})
    assert world.run() == Result("refused")
    assert world.condition("Accepted")["reason"] == "InvalidSpec"
    assert "spec.speculation is not known" in world.condition("Accepted")["message"]
    assert world.client.events() == ["InvalidSpec"]
    world.client.writes()
    assert world.run() == Result("refused")
    assert world.client.writes() == []


def test_a_pod_template_that_cannot_be_merged_is_told() -> None:
    world = World(podTemplate={"spec": {"containers": [{"image": "x"}]}})
    assert world.run() == Result("refused")
    assert "spec.podTemplate.spec.containers[0] has no name" in world.condition("Accepted")["message"]


def test_a_refused_child_is_told_in_the_server_s_words_and_holds_up_what_follows() -> None:
    world = World()
    world.client.failing["create Service"] = RefusedError("PATCH /x: 422: bad port", status=422, answer="bad port")
    assert world.run() == Result("blocked", again_in=BLOCKED_SECONDS)
    assert world.condition("Degraded")["reason"] == "ApplyRefused"
    assert world.condition("Degraded")["message"] == "the API server refuses the Service: bad port"
    assert ("Deployment", *KEY) not in world.client.objects
    world.client.failing.clear()
    world.run()
    assert world.condition("Degraded")["status"] == "False"
    assert "Restored" not in world.client.events()


def test_a_foreign_object_is_told_and_the_rest_waits() -> None:
    world = World()
    foreign = {
        "kind": "ServiceAccount",
        "metadata": {"name": "m", "namespace": "ns", "uid": "x", "resourceVersion": "1"},
    }
    world.client.keep(foreign)
    assert world.run() == Result("blocked", again_in=BLOCKED_SECONDS)
    assert world.condition("Ready")["reason"] == "NameConflict"
    assert world.client.objects["ServiceAccount", *KEY] == foreign
    assert ("Deployment", *KEY) not in world.client.objects


@pytest.mark.parametrize(
    ("status", "is_told"), [(500, True), (403, True), (0, False)], ids=["a webhook is away", "a right lacks", "outage"]
)
def test_a_child_that_is_not_taken_for_some_time_is_told_where_the_api_server_answers(
    status: int, is_told: bool
) -> None:
    world = World()
    world.client.failing["create Deployment"] = UnavailableError("it fails", status=status)
    with pytest.raises(UnavailableError):
        world.run()
    world.now += timedelta(seconds=UNTAKEN_SECONDS)
    if not is_told:
        with pytest.raises(UnavailableError):
            world.run()
        return
    assert world.run() == Result("blocked", again_in=BLOCKED_SECONDS)
    assert world.condition("Degraded")["reason"] == "ApplyRefused"
    assert "the Deployment, and is asked again: it fails" in world.condition("Degraded")["message"]
    world.client.failing.clear()
    world.run()
    assert world.condition("Degraded")["status"] == "False"
    world.client.failing["create Deployment"] = UnavailableError("it fails", status=status)
    world.cache.remove("Deployment", world.client.objects.pop(("Deployment", *KEY)))
    with pytest.raises(UnavailableError):  # once more from the start
        world.run()


def test_a_deployment_that_somebody_paused_is_told_and_the_spec_is_not_blamed() -> None:
    world = World()
    world.run()
    world.serve()
    world.run()
    world.model["spec"]["engine"] = {"maxModelLen": 1024}
    world.change(generation=2)
    world.run()
    deployment = world.client.objects["Deployment", *KEY]
    deployment["spec"]["paused"] = True
    deployment["metadata"] |= {"generation": 3, "resourceVersion": str(world.client.version + 1)}
    deployment["status"] = {"observedGeneration": 3, "replicas": 1, "readyReplicas": 1}
    world.cache.put("Deployment", deployment)
    world.run()
    assert world.condition("Degraded")["reason"] == "Paused"
    assert "kubectl rollout resume deployment/m -n ns" in world.condition("Degraded")["message"]
    world.now += timedelta(hours=1)
    world.run()
    assert "failed" not in world.model["status"]["rollout"]


def test_without_the_right_to_post_events_all_else_goes_on() -> None:
    world = World()
    world.client.failing["create Event"] = UnavailableError("cannot", status=403)
    assert world.run() == Result("changed")


def test_an_outage_is_the_queue_s_business() -> None:
    world = World()
    world.client.failing["create Service"] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError):
        world.run()
    world.client.failing.clear()
    assert world.run() == Result("changed")
    assert all((kind, *KEY) in world.client.objects for kind in ALL)


@pytest.mark.parametrize("failing", ["create Service", "apply StrataModel", "create Event"])
def test_what_was_done_is_told_although_something_later_failed(failing: str) -> None:
    world = World()
    world.client.failing[failing] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError):
        world.run()
    world.client.failing.clear()
    world.run()
    assert world.client.told() == [("Created", f"created {', '.join(ALL)}")]


def test_what_was_put_back_is_told_although_the_status_failed() -> None:
    world = World()
    world.run()
    world.serve()
    world.cache.remove("Service", world.client.objects.pop(("Service", *KEY)))
    world.client.failing["apply StrataModel"] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError):
        world.run()
    assert "Restored" in world.client.events()


def test_a_change_is_told_although_the_answer_to_its_status_was_lost() -> None:
    world = World()
    world.run()
    world.serve()
    world.client.failing["create Event"] = UnavailableError("503", status=503)
    world.client.losing.add("apply status by force StrataModel")
    with pytest.raises(UnavailableError):
        world.run()
    world.client.failing.clear()
    world.client.losing.clear()
    world.cache.put_model(world.model)
    assert world.condition("Ready")["status"] == "True"
    assert world.run() == Result("unchanged")
    assert world.client.events() == ["Created", "Ready"]


def test_a_refused_status_is_logged_and_told_and_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.client.failing["apply StrataModel"] = RefusedError("PATCH /x: 422: bad", status=422, answer="bad reason")
    with caplog.at_level(logging.ERROR):
        assert world.run() == Result("untold", again_in=BLOCKED_SECONDS)
    assert "ns/m: the conditions are of before, for they cannot be written: bad reason" in caplog.text
    assert "StatusRefused" in world.client.events()
    assert all((kind, *KEY) in world.client.objects for kind in ALL)
    world.client.failing.clear()
    world.run()
    assert world.condition("Accepted")["status"] == "True"


def test_a_child_that_somebody_deleted_comes_back() -> None:
    world = World()
    world.run()
    world.client.writes()
    world.cache.remove("Service", world.client.objects.pop(("Service", *KEY)))
    world.run()
    assert world.client.writes() == ["create Service", "create Event"]
    assert world.client.events() == ["Created", "Restored"]


def test_a_container_that_is_not_created_gets_its_reason_from_the_pod_s_events() -> None:
    world = World()
    world.run()
    world.put_pod()
    world.now = CREATED + timedelta(seconds=CREATING_SECONDS / 2)
    assert world.run() == Result("changed", again_in=CREATING_SECONDS)
    assert world.condition("Progressing")["reason"] == "Creating"
    assert "list Event" not in world.client.calls
    world.client.keep(
        {
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "ns"},
            "involvedObject": {"uid": "uid-m-1"},
            "type": "Warning",
            "reason": "FailedMount",
            "message": "no such secret",
            "lastTimestamp": "2026-01-01T00:00:05Z",
        }
    )
    world.now = CREATED + timedelta(seconds=CREATING_SECONDS * 2)
    assert world.run() == Result("changed", again_in=CREATING_SECONDS)
    assert (world.condition("Degraded")["reason"], world.condition("Degraded")["message"]) == (
        "FailedMount",
        "no such secret",
    )


def test_without_the_right_to_read_events_the_status_is_written_all_the_same() -> None:
    world = World()
    world.run()
    world.put_pod()
    world.now = CREATED + timedelta(seconds=CREATING_SECONDS * 2)
    world.client.failing["list Event"] = UnavailableError('cannot list resource "events"', status=403)
    assert world.run() == Result("changed", again_in=CREATING_SECONDS)
    assert world.condition("Progressing")["reason"] == "Creating"
    world.client.failing["list Event"] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError):  # a moment's silence is no reason to take a reason back
        world.run()


def test_an_engine_s_last_words_reach_the_condition() -> None:
    world = World()
    world.run()
    ended = {"terminated": {"exitCode": 2, "message": "there is no model 'x'"}}
    world.put_pod(containerStatuses=container(state=ended))
    world.run()
    assert world.condition("Ready")["message"] == "there is no model 'x'"
    assert world.client.events() == ["Created", "EngineFailed"]


def test_a_model_that_went_while_its_status_was_written() -> None:
    world = World()
    world.run()
    world.serve()
    del world.client.objects["StrataModel", *KEY]
    assert world.run() == Result("gone")
    assert world.client.events() == ["Created"]
    assert world.cache.model(KEY) is None
