from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_operator.render.meta import child_name, digest, manifest
from tests.operator.samples import model, model_object

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", fullmatch=True)
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@given(NAMES.filter(lambda name: len(name) <= 253))
def test_every_name_of_a_model_becomes_one_of_a_service(name: str) -> None:
    made = child_name(name)
    assert SERVICE.fullmatch(made)
    assert len(made) <= 52


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    assert child_name(names[0]) != child_name(names[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.b", "a-b"), ("a..b", "a.b"), ("x" * 60, "x" * 61), ("1a", "m-1a")],
    ids=["dot and dash", "two dots", "longer than the limit", "digit first"],
)
def test_names_that_shorten_to_the_same_stay_apart(one: str, other: str) -> None:
    assert child_name(one) != child_name(other)


def test_a_plain_name_stays() -> None:
    assert child_name("qwen3-30b") == "qwen3-30b"


def test_labels_and_annotations_of_the_model_are_not_copied() -> None:
    obj = model_object()
    obj["metadata"] |= {"labels": {"track": "me"}, "annotations": {"last-applied": "x"}}
    from strata_operator.api.model import StrataModel

    made = manifest(StrataModel.parse(obj), "v1", "ConfigMap", data={})
    assert "track" not in str(made)
    assert "last-applied" not in str(made)


def test_the_owner_is_the_very_model() -> None:
    owner = manifest(model(), "v1", "ConfigMap")["metadata"]["ownerReferences"]
    assert [(o["uid"], o["controller"], o["blockOwnerDeletion"]) for o in owner] == [("uid-m", True, True)]


def test_the_hash_is_of_all_that_is_applied() -> None:
    def hash_of(**data: str) -> str:
        return str(manifest(model(), "v1", "ConfigMap", data=data)["metadata"]["annotations"])

    assert hash_of(a="1", b="2") == hash_of(b="2", a="1")
    assert hash_of(a="1") != hash_of(a="2")
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
