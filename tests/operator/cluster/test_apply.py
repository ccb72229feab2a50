from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from strata_operator.api.child import Child
from strata_operator.api.errors import ForeignObjectError, LeavingError, MissingError, RefusedError, UnavailableError
from strata_operator.cluster.apply import apply_child, apply_status, check_owner
from strata_operator.cluster.client import Client
from strata_operator.plan import Action
from strata_operator.render import children
from tests.operator.cluster.fake import FakeClient
from tests.operator.samples import child, live, model, model_object

MODEL = model()
SERVICE = children(MODEL, engine_image="e")["Service"]
CREATE = Action("create", SERVICE, None)


def apply(fake: FakeClient, action: Action) -> dict[str, Any]:
    return apply_child(cast("Client", fake), MODEL, action)


def test_the_owner_is_there_and_stays() -> None:
    check_owner(cast("Client", FakeClient(model_object())), MODEL)


@pytest.mark.parametrize(
    ("metadata", "error"),
    [(None, MissingError), ({"uid": "another"}, MissingError), ({"deletionTimestamp": "now"}, LeavingError)],
    ids=["gone", "another of the name", "leaving"],
)
def test_an_owner_that_is_gone_or_about_to_go(metadata: dict[str, str] | None, error: type[RefusedError]) -> None:
    fake = FakeClient()
    if metadata is not None:
        fake.keep({**model_object(), "metadata": model_object()["metadata"] | metadata})
    with pytest.raises(error):
        check_owner(cast("Client", fake), MODEL)


def test_a_name_that_is_free_is_taken_in_one_call() -> None:
    fake = FakeClient()
    assert apply(fake, CREATE)["spec"] == SERVICE["spec"]
    assert fake.calls == ["create Service"]


def test_a_name_that_was_free_a_moment_ago_and_is_again_is_tried_later() -> None:
    fake = FakeClient()
    fake.failing["create Service"] = UnavailableError("already exists", status=409)
    with pytest.raises(UnavailableError, match="once more"):
        apply(fake, CREATE)


def test_an_outage_is_no_name_that_is_taken() -> None:
    fake = FakeClient()
    fake.failing["create Service"] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError, match="503"):
        apply(fake, CREATE)
    assert fake.calls == ["create Service"]


def test_what_was_created_is_made_ours_before_the_first_apply() -> None:
    """Else an apply would leave the fields that it does not name any more."""
    fake = FakeClient()
    made = apply(fake, CREATE)
    known = Child.of("Service", made)
    assert known.owned_fields != "{}"
    fake.calls.clear()
    applied = apply(fake, Action("update", SERVICE, known))
    assert fake.calls == ["get Service", "merge Service", "apply by force Service"]
    assert [entry["operation"] for entry in fake.merged[-1]["metadata"]["managedFields"]] == ["Apply"]
    fake.calls.clear()
    apply(fake, Action("update", SERVICE, Child.of("Service", applied)))
    assert fake.calls == ["apply by force Service"]


def test_a_foreign_object_is_not_touched() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "m", "namespace": "ns", "uid": "x", "resourceVersion": "1"}}
    fake = FakeClient(foreign)
    before = copy.deepcopy(foreign)
    with pytest.raises(ForeignObjectError, match="Service m exists and has no owner reference to this model"):
        apply(fake, CREATE)
    assert fake.objects["Service", "ns", "m"] == before


def test_our_own_object_that_lost_its_label_is_taken_back() -> None:
    fake = FakeClient(live(SERVICE))
    apply(fake, CREATE)
    assert fake.calls == ["create Service", "get Service", "apply by force Service"]


def test_our_own_object_that_is_leaving_is_waited_for() -> None:
    leaving = live(SERVICE)
    leaving["metadata"]["deletionTimestamp"] = "now"
    fake = FakeClient(leaving)
    with pytest.raises(UnavailableError, match="is being deleted"):
        apply(fake, CREATE)
    assert fake.calls == ["create Service", "get Service"]


def test_a_change_goes_only_to_the_object_that_was_seen() -> None:
    fake = FakeClient(live(SERVICE))
    apply(fake, Action("update", SERVICE, child(SERVICE)))
    assert fake.writes() == ["apply by force Service"]
    fake.objects["Service", "ns", "m"]["metadata"]["uid"] = "replaced"
    with pytest.raises(UnavailableError, match="Precondition"):
        apply(fake, Action("update", SERVICE, child(SERVICE)))


def test_the_status_goes_only_to_the_model_that_was_seen() -> None:
    client = cast("Client", FakeClient(model_object()))
    assert apply_status(client, ("ns", "m"), "uid-m", {"url": "u"})["status"] == {"url": "u"}
    with pytest.raises(MissingError):
        apply_status(client, ("ns", "gone"), "uid-gone", {})
    with pytest.raises(UnavailableError):
        apply_status(client, ("ns", "m"), "uid of before", {})
