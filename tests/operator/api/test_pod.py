from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.api.pod import Pod, warned
from tests.operator.samples import container, owner, pod_object

TERMINATED = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such model\n"}}
NO_ROOM = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no room"}}
NO_CACHE = Trouble("StorageFailed", "no room. Once the cache has room, the next try goes on by itself")
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}


def trouble(**status: Any) -> Trouble | None:
    return Pod.of(pod_object(**status)).trouble


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param(container(state=TERMINATED), Trouble("EngineFailed", "no such model"), id="ended just now"),
        pytest.param(container(state=BACK_OFF, last=TERMINATED), Trouble("EngineFailed", "no such model"), id="waits"),
        pytest.param(
            container(state={"running": {}}, last=TERMINATED), Trouble("EngineFailed", "no such model"), id="runs again"
        ),
        pytest.param(container(ready=True, state={"running": {}}, last=TERMINATED), None, id="recovered"),
        pytest.param(container(state=NO_ROOM), NO_CACHE, id="the disk is at fault"),
        pytest.param(container(state={"running": {}}), None, id="loads"),
        pytest.param(container(state={"waiting": {"reason": "ContainerCreating"}}), None, id="is created"),
    ],
)
def test_the_reason_stays_while_the_container_turns_in_its_loop(statuses: Any, expected: Trouble | None) -> None:
    assert trouble(containerStatuses=statuses) == expected


def test_an_end_without_words_says_the_exit_code() -> None:
    found = trouble(containerStatuses=container(state={"terminated": {"exitCode": 139, "reason": "Error"}}))
    assert found is not None
    assert "exit code 139" in found.message


def test_out_of_memory_says_what_to_raise() -> None:
    found = trouble(containerStatuses=container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    assert found is not None
    assert found.reason == "OutOfMemory"
    assert "spec.hardware.memory" in found.message


def test_a_pull_that_fails_reads_the_same_in_both_of_its_states() -> None:
    detail = "rpc error: not found"
    first = {"waiting": {"reason": "ErrImagePull", "message": detail}}
    then = {
        "waiting": {
            "reason": "ImagePullBackOff",
            "message": f'Back-off pulling image "engine:1": ErrImagePull: {detail}',
        }
    }
    found = [trouble(containerStatuses=container(state=state)) for state in (first, then)]
    assert found == [Trouble("ImagePullFailed", f"image engine:1: {detail}")] * 2


def test_what_a_container_refers_to_is_told_without_its_image() -> None:
    said = 'secret "nohub" not found'
    refused = {"waiting": {"reason": "CreateContainerConfigError", "message": said}}
    assert trouble(containerStatuses=container(state=refused)) == Trouble("ContainerRefused", said)
    unmade = {"waiting": {"reason": "CreateContainerError", "message": "no such executable"}}
    found = trouble(containerStatuses=container(state=unmade))
    assert found == Trouble("ContainerRefused", "image engine:1: no such executable")


def test_no_node() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    obj = pod_object(conditions=[condition], containerStatuses=[])
    obj["spec"] = {}
    read = Pod.of(obj)
    assert read.trouble == Trouble("Unschedulable", "0/1 nodes")
    assert not read.creating


@pytest.mark.parametrize("statuses", [[], container(state=TERMINATED)], ids=["refused", "evicted"])
def test_a_pod_that_the_node_does_not_keep(statuses: Any) -> None:
    found = trouble(phase="Failed", reason="Evicted", message="low on memory", containerStatuses=statuses)
    assert found == Trouble("PodFailed", "the node refused or evicted a pod: Evicted: low on memory")


def test_creating() -> None:
    read = Pod.of(pod_object())
    assert read.creating
    assert read.since == "2026-01-01T00:00:00Z"
    leaving = pod_object()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not Pod.of(leaving).creating


MOUNT = {
    "type": "Warning",
    "reason": "FailedMount",
    "message": 'MountVolume.SetUp failed for volume "model" : hostPath type check failed: /x is not a directory',
    "lastTimestamp": "2026-01-01T00:00:05Z",
}
PULLING = {"type": "Normal", "reason": "Pulling", "message": "pulling", "lastTimestamp": "2026-01-01T00:00:09Z"}


def test_only_the_newest_event_counts() -> None:
    found = warned([MOUNT])
    assert found is not None
    assert found.reason == "SourceNotFound"
    assert "/x is not a directory" in found.message
    assert warned([MOUNT, PULLING]) is None
    assert warned([]) is None


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [("Multi-Attach", "MultiAttach"), ("volume is busy", "VolumeIsBusy"), ("!", "PodFailed"), (None, "PodFailed")],
)
def test_a_reason_of_somebody_else_is_made_one_that_a_condition_may_bear(foreign: str | None, ours: str) -> None:
    event = {"type": "Warning", "reason": foreign, "message": "why", "eventTime": "2026"}
    assert warned([event]) == Trouble(ours, "why")


def test_other_warnings_keep_their_reason() -> None:
    event = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": "no address left", "eventTime": "2026"}
    assert warned([event]) == Trouble("FailedCreatePodSandBox", "no address left")


def test_cards_that_a_pod_holds() -> None:
    obj = pod_object()
    obj["spec"]["containers"] = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}}]
    assert Pod.of(obj).gpus == 1
    assert Pod.of(pod_object()).gpus == 0


RS, JOB = owner("apps/v1", "ReplicaSet", "m-5d4f"), owner("batch/v1", "Job", "m-0123abcd")
HASHED, ROLE = {"pod-template-hash": "5d4f"}, {"strata.ai/role": "preflight"}


@pytest.mark.parametrize(
    ("labels", "owners", "model"),
    [
        pytest.param(HASHED, [RS], "m", id="of the Deployment's ReplicaSet"),
        pytest.param(ROLE, [JOB], "m", id="of a preflight"),
        pytest.param(HASHED, [], "", id="somebody's, made by hand"),
        pytest.param(HASHED, [{**RS, "controller": False}], "", id="its owner does not control it"),
        pytest.param(HASHED, [owner("example.com/v1", "ReplicaSet", "m-5d4f")], "", id="of another kind of that name"),
        pytest.param(HASHED, [owner("apps/v1", "ReplicaSet", "m-b-5d4f")], "", id="of a Deployment of another name"),
        pytest.param({}, [owner("apps/v1", "ReplicaSet", "m-mine")], "", id="of a ReplicaSet without Deployment"),
        pytest.param(HASHED, [JOB], "", id="of a Job, and to serve"),
        pytest.param(ROLE, [owner("batch/v1", "Job", "m-backup")], "", id="of somebody's Job"),
        pytest.param(ROLE, [RS], "", id="of the ReplicaSet, and not to serve"),
    ],
)
def test_only_what_a_model_s_own_children_made_is_its_pod(labels: Any, owners: Any, model: str) -> None:
    obj = pod_object()
    obj["metadata"] |= {"labels": {"strata.ai/model": "m", **labels}, "ownerReferences": owners}
    assert Pod.of(obj).model == model


def test_when_a_pod_that_is_told_to_end_should_have() -> None:
    obj = pod_object()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert (Pod.of(obj).deleting, Pod.of(obj).ends_by) == (True, "2026-01-01T00:01:00Z")
    assert Pod.of(pod_object()).ends_by == ""


@pytest.mark.parametrize(
    ("phase", "code", "trouble"),
    [
        pytest.param("Succeeded", 0, None, id="all went well"),
        pytest.param("Failed", 2, "EngineFailed", id="its container failed, and the pod with it"),
    ],
)
def test_a_pod_that_is_to_end_by_itself(phase: str, code: int, trouble: str | None) -> None:
    obj = pod_object(phase=phase, containerStatuses=container(state={"terminated": {"exitCode": code}}))
    obj["metadata"]["labels"] |= {"strata.ai/role": "preflight"}
    found = Pod.of(obj)
    assert (found.role, found.succeeded, found.creating) == ("preflight", phase == "Succeeded", False)
    assert (found.trouble.reason if found.trouble else None) == trouble


@pytest.mark.parametrize(("asked", "cards"), [("2", 2), ("1k", 1000), (1, 1)])
def test_cards_are_a_quantity(asked: Any, cards: int) -> None:
    obj = pod_object()
    obj["spec"]["containers"] = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": asked}}}]
    assert Pod.of(obj).gpus == cards
