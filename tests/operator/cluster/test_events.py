from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.api.errors import RefusedError, UnavailableError
from strata_operator.api.event import Event
from strata_operator.api.node import NODE_KIND
from strata_operator.cluster.client import Client
from strata_operator.cluster.events import Outbox, post, warning
from tests.operator.cluster.fake import FakeClient
from tests.operator.samples import model_object, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = Event("Normal", "Ready", "it answers")
READY_ELSEWHERE = Event("Normal", "Ready", "elsewhere")
KEY = ("ns", "m")


def posted(fake: FakeClient) -> list[dict[str, Any]]:
    return [obj for (kind, *_), obj in fake.objects.items() if kind == "Event"]


def tell(fake: FakeClient, event: Event, now: datetime = NOW, **metadata: Any) -> None:
    post(cast("Client", fake), {**model_object()["metadata"], **metadata}, event, now=now)


def test_an_event_is_about_the_model() -> None:
    fake = FakeClient()
    tell(fake, READY)
    (event,) = posted(fake)
    assert event["involvedObject"]["uid"] == "uid-m"
    assert event["involvedObject"]["kind"] == "StrataModel"
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Normal", "Ready", "it answers", 1)


def test_an_event_about_what_has_no_namespace_lies_in_default() -> None:
    fake = FakeClient()
    metadata = {"name": "gpu-1", "uid": "u"}
    post(cast("Client", fake), metadata, READY, now=NOW, kind=NODE_KIND, component="strata-agent")
    (event,) = posted(fake)
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "strata.ai/v1alpha1",
        "kind": "StrataNode",
        "name": "gpu-1",
        "uid": "u",
    }
    assert event["source"] == {"component": "strata-agent"}


def test_the_same_again_is_counted() -> None:
    fake = FakeClient()
    for minutes in range(3):
        tell(fake, READY, NOW + timedelta(minutes=minutes))
    (event,) = posted(fake)
    assert event["count"] == 3
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
    assert event["lastTimestamp"] == "2026-01-01T00:02:00Z"


def test_other_words_or_another_model_of_the_name_are_another_event() -> None:
    fake = FakeClient()
    tell(fake, READY)
    tell(fake, Event("Normal", "Ready", "it answers elsewhere"))
    tell(fake, READY, uid="another")
    assert [event["count"] for event in posted(fake)] == [1, 1, 1]


def test_what_the_api_server_would_refuse_is_cut() -> None:
    fake = FakeClient()
    tell(fake, Event("Warning", "Long", "x" * 5000), name="n" * 198 + "-." + "n" * 53)
    (event,) = posted(fake)
    assert len(event["message"]) == 1024
    assert len(event["metadata"]["name"]) <= 253
    assert event["metadata"]["name"].startswith("n" * 198 + "."), "no part of it may end with a dash, or be empty"


def test_an_event_that_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeClient()
    fake.failing["create Event"] = RefusedError("forbidden", status=403)
    with caplog.at_level(logging.WARNING):
        tell(fake, READY)
    assert "event Ready on ns/m could not be posted: forbidden" in caplog.text


def test_what_cannot_be_posted_now_waits() -> None:
    fake = FakeClient()
    outbox = Outbox(cast("Client", fake), lambda: NOW)
    metadata = model_object()["metadata"]
    fake.failing["create Event"] = UnavailableError("503", status=503)
    for _ in range(2):  # the same again is not another one
        outbox.add(metadata, [READY, Event("Warning", "Failed", "why")])
        with pytest.raises(UnavailableError):
            outbox.post(KEY)
    fake.failing.clear()
    outbox.post(KEY)
    outbox.post(KEY)
    assert [(event["reason"], event["count"]) for event in posted(fake)] == [("Ready", 1), ("Failed", 1)]


def test_what_is_posted_is_not_posted_again_after_what_could_not_be() -> None:
    fake = FakeClient()
    outbox = Outbox(cast("Client", fake), lambda: NOW)
    outbox.add(model_object()["metadata"], [READY, READY_ELSEWHERE])
    fake.failing["merge Event"] = UnavailableError("503", status=503)
    tell(fake, READY_ELSEWHERE)  # so the second one has to be counted up, which fails
    for _ in range(2):
        with pytest.raises(UnavailableError):
            outbox.post(KEY)
    fake.failing.clear()
    outbox.post(KEY)
    assert {event["message"]: event["count"] for event in posted(fake)} == {"it answers": 1, "elsewhere": 2}


def test_nothing_is_told_of_a_model_that_is_gone() -> None:
    fake = FakeClient()
    outbox = Outbox(cast("Client", fake), lambda: NOW)
    outbox.add(model_object()["metadata"], [READY])
    outbox.forget(KEY)
    outbox.post(KEY)
    assert posted(fake) == []


def test_the_newest_warning_about_a_pod_tells_why_it_goes_no_further() -> None:
    mine = {
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "ns"},
        "involvedObject": {"uid": pod("m-1").uid},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "no such volume",
    }
    client = cast("Client", FakeClient(mine))
    assert warning(client, "ns", "m-1", pod("m-1").uid) == Trouble("FailedMount", "no such volume")
    assert warning(client, "ns", "m-2", pod("m-2").uid) is None


def test_who_may_not_read_events_knows_no_reason() -> None:
    fake = FakeClient()
    fake.failing["list Event"] = UnavailableError("events is forbidden", status=403)
    assert warning(cast("Client", fake), "ns", "m-1", "uid") is None
    fake.failing["list Event"] = UnavailableError("no answer")
    with pytest.raises(UnavailableError):
        warning(cast("Client", fake), "ns", "m-1", "uid")
