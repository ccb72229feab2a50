from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.names import child_name
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.scope import Scope
from strata_operator.render import children
from tests.operator.samples import child, live, model, model_object, owner, pod_object


class Seen:
    """A cache with the keys that it called out."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.cache = Cache(self.keys.append)

    def take(self) -> list[Key]:
        taken, self.keys[:] = list(self.keys), []
        return taken


@pytest.fixture
def seen() -> Seen:
    return Seen()


KEY = ("ns", "m")
SERVICE = children(model(), engine_image="e")["Service"]


def versioned(version: int, **metadata: Any) -> dict[str, Any]:
    obj = model_object()
    obj["metadata"] |= {"resourceVersion": str(version), **metadata}
    return obj


def test_a_model_is_kept_slim(seen: Seen) -> None:
    obj = versioned(5, managedFields=[1], annotations={"big": "x"}, labels={})
    seen.cache.put_model(obj)
    kept = seen.cache.model(KEY)
    assert kept is not None
    assert sorted(kept["metadata"]) == ["generation", "name", "namespace", "resourceVersion", "uid"]
    assert kept["spec"] == obj["spec"]
    assert seen.take() == [KEY]


@pytest.mark.parametrize("version", [4, 5])
def test_an_older_or_the_same_version_is_ignored(seen: Seen, version: int) -> None:
    seen.cache.put_model(versioned(5, generation=2))
    seen.take()
    seen.cache.put_model(versioned(version, generation=1))
    kept = seen.cache.model(KEY)
    assert kept is not None
    assert kept["metadata"]["generation"] == 2
    assert seen.take() == []


def test_versions_are_numbers(seen: Seen) -> None:
    seen.cache.put_model(versioned(9))
    seen.cache.put_model(versioned(10))
    kept = seen.cache.model(KEY)
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "10"


def test_our_own_write_calls_nobody_unless_the_spec_is_new(seen: Seen) -> None:
    seen.cache.put_model(versioned(5))
    seen.take()
    seen.cache.put_model(versioned(6), own=True)
    assert seen.take() == []
    seen.cache.put_model(versioned(7, generation=2), own=True)
    assert seen.take() == [KEY]


def test_the_news_of_an_old_deletion_does_not_take_the_new_model(seen: Seen) -> None:
    seen.cache.put_model(versioned(5, uid="new"))
    seen.cache.remove_model(versioned(4, uid="old"))
    assert seen.cache.model(KEY) is not None
    seen.take()
    seen.cache.remove_model(versioned(6, uid="new"))
    assert seen.cache.model(KEY) is None
    seen.cache.remove_model(versioned(6, uid="new"))
    assert seen.take() == [KEY]  # for what is kept of it elsewhere


def test_children_and_pods_call_their_model(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    seen.take()
    seen.cache.put("Service", live(SERVICE))
    seen.cache.put("Pod", pod_object())
    assert seen.take() == [KEY, KEY]
    observed = seen.cache.observe(KEY)
    assert list(observed.children) == ["Service"]
    assert [pod.name for pod in observed.pods] == ["m-1"]


def test_a_child_calls_the_model_of_a_shortened_name(seen: Seen) -> None:
    obj = model_object("a.b")
    seen.cache.put_model(obj)
    seen.take()
    seen.cache.put("Service", live(children(model("a.b"), engine_image="e")["Service"]))
    assert seen.take() == [("ns", "a.b")]
    assert seen.cache.observe(("ns", "a.b")).children["Service"].name == child_name("a.b")


def test_what_we_have_seen_already_calls_nobody(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    seen.cache.put("Service", live(SERVICE, version=10))
    seen.take()
    seen.cache.put("Service", live(SERVICE, version=10))
    seen.cache.put("Service", live(SERVICE, version=9))
    assert seen.take() == []
    seen.cache.put("Service", live(SERVICE, version=11))
    assert seen.take() == [], "nothing of it that anybody looks at is another"
    seen.cache.put("Service", live({**SERVICE, "metadata": {**SERVICE["metadata"], "annotations": {}}}, version=12))
    assert seen.take() == [KEY]


def test_our_own_child_calls_nobody(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    seen.take()
    seen.cache.put("Service", live(SERVICE), own=True)
    assert seen.take() == []
    assert list(seen.cache.observe(KEY).children) == ["Service"]


def test_a_child_with_another_label_is_still_the_child_of_that_name(seen: Seen) -> None:
    seen.cache.put("Service", live(SERVICE, version=10))
    relabelled = live(SERVICE, version=11)
    relabelled["metadata"]["labels"]["strata.ai/model"] = "other"
    seen.cache.put("Service", relabelled)
    assert seen.cache.observe(KEY).children["Service"].resource_version == 11


@pytest.mark.parametrize(("kind", "obj"), [("Service", live(SERVICE)), ("Pod", pod_object())])
def test_what_is_gone_is_gone(seen: Seen, kind: str, obj: dict[str, Any]) -> None:
    seen.cache.put_model(versioned(1))
    seen.cache.put(kind, obj)
    seen.take()
    seen.cache.remove(kind, obj)
    assert seen.take() == [KEY]
    observed = seen.cache.observe(KEY)
    assert (dict(observed.children), observed.pods) == ({}, ())
    seen.cache.remove(kind, obj)
    assert seen.take() == []


@pytest.mark.parametrize("by", ["an event", "a list"])
def test_a_pod_of_another_label_is_no_longer_this_model_s(seen: Seen, by: str) -> None:
    seen.cache.put_model(versioned(1))
    seen.cache.put_model(model_object("other"))
    seen.cache.put("Pod", pod_object(version=20))
    seen.take()
    relabelled = pod_object(version=21)
    relabelled["metadata"]["labels"]["strata.ai/model"] = "other"
    relabelled["metadata"]["ownerReferences"] = [owner("apps/v1", "ReplicaSet", "other-5d4f")]
    if by == "an event":
        seen.cache.put("Pod", relabelled)
    else:
        seen.cache.replace("Pod", [relabelled])
    assert seen.cache.observe(KEY).pods == ()
    assert [pod.name for pod in seen.cache.observe(("ns", "other")).pods] == ["m-1"]
    assert sorted(seen.take()) == [KEY, ("ns", "other")]
    seen.cache.put("Pod", pod_object(version=20))  # old news
    assert seen.cache.observe(KEY).pods == ()
    seen.cache.remove("Pod", relabelled)
    assert seen.cache.observe(("ns", "other")).pods == ()
    assert seen.take() == [("ns", "other")]


def test_a_list_tells_what_is_gone(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    for name in ("m-1", "m-2"):
        seen.cache.put("Pod", pod_object(name))
    seen.cache.put("Service", live(SERVICE))
    seen.take()
    seen.cache.replace("Pod", [pod_object("m-2"), pod_object("m-3")])
    assert [pod.name for pod in seen.cache.observe(KEY).pods] == ["m-2", "m-3"]
    assert seen.take() == [KEY, KEY]  # for m-3 and for m-1
    seen.cache.replace("Service", [])
    assert seen.cache.observe(KEY).children == {}
    assert len(seen.cache.observe(KEY).pods) == 2


def test_the_fields_of_our_last_apply_belong_to_that_very_object(seen: Seen) -> None:
    seen.cache.put("Service", live(SERVICE))
    seen.cache.note_applied(child(SERVICE))
    assert seen.cache.observe(KEY).applied_fields == {"Service": hash(child(SERVICE).owned_fields)}
    seen.cache.remove("Service", live(SERVICE))
    another = live(SERVICE, version=12)
    another["metadata"]["uid"] = "another"
    seen.cache.put("Service", another)
    assert seen.cache.observe(KEY).applied_fields == {}


def test_nothing_is_kept_of_what_is_gone(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    seen.cache.put("Service", live(SERVICE))
    seen.cache.put("Pod", pod_object())
    seen.cache.note_applied(child(SERVICE))
    seen.cache.remove("Service", live(SERVICE))
    seen.cache.remove("Pod", pod_object())
    seen.cache.remove_model(versioned(1))
    tables = {name: table for name, table in vars(seen.cache).items() if isinstance(table, dict)}
    assert len(tables) == 7
    assert [name for name, table in tables.items() if table] == []


def test_pods_that_do_not_serve_are_kept_apart_and_cards_are_counted(seen: Seen) -> None:
    card = {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    for name, role, phase in (("a", None, "Running"), ("b", None, "Failed"), ("t", "preflight", "Running")):
        obj = pod_object(name, phase=phase)
        obj["spec"] |= card
        if role:
            obj["metadata"]["labels"] |= {"strata.ai/role": role}
            obj["metadata"]["ownerReferences"] = [owner("batch/v1", "Job", "m-0123abcd")]
        seen.cache.put("Pod", obj)
    observed = seen.cache.observe(KEY)
    assert [[pod.name for pod in pods] for pods in (observed.pods, observed.preflight)] == [["a", "b"], ["t"]]
    assert seen.cache.used_gpus() == {"node-1": 2}  # what the node refused holds none


def test_a_pod_of_nobody_here_is_no_model_s_and_holds_its_card_all_the_same(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    seen.cache.put("Pod", pod_object())
    seen.take()
    orphan = pod_object(version=21)
    orphan["metadata"]["ownerReferences"] = []
    orphan["spec"]["containers"] = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    seen.cache.put("Pod", orphan)
    assert seen.take() == [KEY]
    assert (seen.cache.observe(KEY).pods, seen.cache.pods()) == ((), [])
    assert seen.cache.used_gpus() == {"node-1": 1}


def test_a_foreign_deployment_of_the_model_s_name_has_foreign_pods(seen: Seen) -> None:
    seen.cache.put_model(versioned(1))
    foreign = live(children(model(), engine_image="e")["Deployment"])
    foreign["metadata"]["ownerReferences"][0]["uid"] = "another"
    seen.cache.put("Deployment", foreign)
    seen.cache.put("Pod", pod_object())
    assert seen.cache.observe(KEY).pods == ()


def test_models_by_whether_it_counts_for_them_what_nodes_have(seen: Seen) -> None:
    pages = {"accelerator": "cpu", "hostMemory": {"hugepages": "2Mi"}}
    for name, hardware in (("a", {"accelerator": "cpu"}), ("b", {"accelerator": "nvidia"}), ("c", pages)):
        seen.cache.put_model(model_object(name, hardware=hardware))
    assert seen.cache.models() == [("ns", "a"), ("ns", "b"), ("ns", "c")]
    assert seen.cache.models_of_nodes() == [("ns", "b"), ("ns", "c")]


def in_namespace(namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace, "uid": f"{namespace}-{obj['kind']}"}}


def test_a_list_of_one_namespace_says_nothing_of_another(seen: Seen) -> None:
    for namespace in ("a", "b"):
        seen.cache.put_model(in_namespace(namespace, model_object()))
        seen.cache.put("Service", in_namespace(namespace, live(SERVICE)))
    Scope(seen.cache, "a").replace("Service", [])
    seen.cache.replace_models([], 99, namespace="a")
    assert [namespace for namespace in ("a", "b") if seen.cache.observe((namespace, "m")).children] == ["b"]
    assert seen.cache.models() == [("b", "m")]


def test_a_pod_that_cannot_be_read_is_absent_and_keeps_no_other_from_being_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = Cache(lambda key: None)
    strange = pod_object("strange")
    cache.replace("Pod", [strange, pod_object("m-1")])
    strange["metadata"]["resourceVersion"] = "99"
    strange["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": "one"}}}]
    cache.replace("Pod", [strange, pod_object("m-2")])
    assert [pod.name for pod in cache.pods()] == ["m-2"]
    assert "Pod ns/strange cannot be read" in caplog.text
