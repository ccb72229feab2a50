from __future__ import annotations

from strata_operator.render.meta import digest, manifest
from tests.operator.samples import model, model_object


def test_labels_and_annotations_of_the_model_are_not_copied() -> None:
    obj = model_object()
    obj["metadata"] |= {"labels": {"track": "me"}, "annotations": {"last-applied": "x"}}
    from strata_operator.api.model import StrataModel

    made = manifest(StrataModel.parse(obj), "v1", "Secret", data={})
    assert "track" not in str(made)
    assert "last-applied" not in str(made)


def test_the_owner_is_the_very_model() -> None:
    owner = manifest(model(), "v1", "Secret")["metadata"]["ownerReferences"]
    assert [(o["uid"], o["controller"], o["blockOwnerDeletion"]) for o in owner] == [("uid-m", True, True)]


def test_the_hash_is_of_all_that_is_applied() -> None:
    def hash_of(**data: str) -> str:
        return str(manifest(model(), "v1", "Secret", data=data)["metadata"]["annotations"])

    assert hash_of(a="1", b="2") == hash_of(b="2", a="1")
    assert hash_of(a="1") != hash_of(a="2")
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
