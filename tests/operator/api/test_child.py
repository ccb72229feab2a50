from __future__ import annotations

from typing import Any

from strata_operator.api.child import Child
from tests.operator.samples import live


def deployment(**status: Any) -> Child:
    manifest = {"kind": "Deployment", "metadata": {"name": "m", "namespace": "ns"}}
    return Child.of("Deployment", live(manifest, status=status))


def test_a_child_without_controller_is_nobody_s() -> None:
    obj = {"metadata": {"name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "3"}}
    read = Child.of("Service", obj)
    assert read.owner_uid is None
    assert read.hash is None
    assert read.owned_fields == "{}"


def test_only_what_we_applied_ourselves_is_ours() -> None:
    ours: dict[str, Any] = {"f:spec": {}}
    managed = [
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:data": {}}},
        {"manager": "strata-operator", "operation": "Update", "fieldsV1": {"f:status": {}}},
        {"manager": "strata-operator", "operation": "Apply", "fieldsV1": ours},
    ]
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "3", "managedFields": managed}
    assert Child.of("Service", {"metadata": metadata}).owned_fields == '{"f:spec":{}}'


def test_why_no_pods_are_made_is_quoted_no_longer_than_a_condition_may_be() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "x" * 40_000 + " exceeded quota"}
    rollout = deployment(conditions=[failure]).rollout
    assert rollout is not None
    assert rollout.failure is not None
    assert len(rollout.failure) == 1000
    assert rollout.failure.endswith("exceeded quota")
