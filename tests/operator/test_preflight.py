from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.preflight import Look, brings_nothing, hold, look, node_to_try, retries
from tests.operator.samples import NVIDIA, model, pod

MISSING = Trouble("EngineFailed", "no such model")
NO_IMAGE = Trouble("ImagePullFailed", "image e: no such host")


def on(node: str, **fields: Any) -> Pod:
    return replace(pod(f"on-{node}", revision="old", ready=True), node=node, **fields)


def trial(name: str = "t", **fields: Any) -> Pod:
    return replace(pod(name, revision="new"), role="preflight", **{"meant_for": "a", **fields})


NO_ROOM = trial(failed=True, trouble=Trouble("StorageFailed", "no room"), since="2026-01-01T00:01:00Z")


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], None, id="nothing serves"),
        pytest.param([on("b"), on("a")], "a", id="the first by name, whatever the order"),
        pytest.param([on("a", ready=False), on("b")], "b", id="one that serves"),
        pytest.param([on("a", deleting=True)], None, id="it ends anyhow"),
        pytest.param([on("a", revision="new")], None, id="all are new already"),
    ],
)
def test_where_it_is_tried(pods: list[Pod], expected: str | None) -> None:
    assert node_to_try("new", Observed({}, tuple(pods))) == expected


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        pytest.param([], "a", id="the first"),
        pytest.param([("a", None)], "a", id="it goes on"),
        pytest.param([("a", NO_IMAGE)], "b", id="the first lacks the image"),
        pytest.param([("a", NO_IMAGE), ("b", None)], "b", id="the second goes on"),
        pytest.param([("a", NO_IMAGE), ("b", NO_IMAGE)], "a", id="none can get it"),
    ],
)
def test_another_node_is_tried_where_the_first_has_trouble(
    trials: list[tuple[str, Trouble | None]], expected: str
) -> None:
    preflight = tuple(trial(f"t-{node}", meant_for=node, trouble=trouble) for node, trouble in trials)
    assert node_to_try("new", Observed({}, (on("b"), on("a")), preflight)) == expected


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        pytest.param([NO_ROOM], {"a": 60.0}, id="not yet"),
        pytest.param([replace(NO_ROOM, since="2026-01-01T00:00:00Z")], {"a": 0.0}, id="now"),
        pytest.param(
            [replace(NO_ROOM, since="2026-01-01T00:00:00Z"), NO_ROOM], {"a": 60.0}, id="the newest try counts"
        ),
        pytest.param([NO_ROOM, trial("u", since="2026-01-01T00:04:00Z")], {}, id="it is tried just now"),
        pytest.param([replace(NO_ROOM, trouble=MISSING)], {}, id="it failed for another reason"),
        pytest.param([replace(NO_ROOM, deleting=True)], {}, id="it is going already"),
        pytest.param([replace(NO_ROOM, revision="old")], {}, id="nobody wants it any more"),
    ],
)
def test_what_had_no_room_is_tried_again(trials: list[Pod], expected: dict[str, float]) -> None:
    assert retries(trials, "new", datetime(2026, 1, 1, 0, 5, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, True, id="the same"),
        pytest.param({"engine": {"maxModelLen": 4096}}, True, id="a flag"),
        pytest.param({"quantization": {"format": "int8"}}, False, id="other weights"),
        pytest.param({"model": {"source": "hf://a/c"}}, False, id="another model"),
        pytest.param({"model": {"source": "hf://a/b", "revision": "v2"}}, False, id="another revision"),
        pytest.param({"image": "engine:2"}, False, id="another image"),
        pytest.param({"cache": {"hostPath": "/srv/x"}}, False, id="another cache"),
    ],
)
def test_what_has_to_be_brought(change: dict[str, Any], expected: bool) -> None:
    spec: dict[str, Any] = {"model": {"source": "hf://a/b"}, "hardware": NVIDIA}
    assert brings_nothing(model(**{**spec, **change}), model(**spec)) is expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], Look("absent"), id="none"),
        pytest.param([trial(revision="old", succeeded=True)], Look("absent"), id="that of another revision"),
        pytest.param([trial(meant_for="b", succeeded=True)], Look("absent"), id="that on another node"),
        pytest.param([trial()], Look("running"), id="under way"),
        pytest.param([trial(trouble=MISSING)], Look("running", MISSING), id="meets with trouble"),
        pytest.param([trial("a", failed=True, trouble=MISSING), trial("b")], Look("running"), id="tried again"),
        pytest.param([trial(failed=True, trouble=MISSING)], Look("failed", MISSING), id="given up"),
        pytest.param([trial("a", failed=True), trial("b", succeeded=True)], Look("passed"), id="the second try"),
    ],
)
def test_how_far_it_is(pods: list[Pod], expected: Look) -> None:
    assert look(pods, "new", "a") == expected


def test_what_is_waited_for_is_said() -> None:
    assert hold(Look("running"), "gpu-1").reason == "Preflight"
    failed = hold(Look("failed", MISSING), "gpu-1")
    assert (failed.reason, failed.message) == ("PreflightFailed", "EngineFailed: no such model; what serves goes on")
