from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.pod import Pod
from strata_operator.start import Start
from tests.operator.samples import container, pod, pod_object

STARTED = Start("r1", "2026-01-01T00:00:00Z", 14)


def ready(created: int, since: int, **more: Any) -> Pod:
    """Minutes after midnight."""
    times = {"created": f"2026-01-01T00:{created:02}:00Z", "ready_since": f"2026-01-01T00:{since:02}:00Z"}
    return pod(**{"ready": True, **times, **more})


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([ready(0, 2)], 120, id="the first one"),
        pytest.param([ready(5, 6), ready(0, 2)], 60, id="the youngest of several"),
        pytest.param([], None, id="none there"),
        pytest.param([ready(0, 2, ready=False)], None, id="not ready, or not any more"),
        pytest.param([ready(0, 2, restarted=True)], None, id="its container was started again"),
        pytest.param([ready(5, 2)], None, id="ready before it was there"),
        pytest.param([pod(ready=True, created="x", ready_since="y")], None, id="no times"),
        pytest.param([pod(ready=True, created="2026-01-01", ready_since="2026-01-01T00:00:00Z")], None, id="no zone"),
    ],
)
def test_what_the_youngest_ready_pod_took(pods: list[Pod], expected: int | None) -> None:
    assert Start("r1").after(pods).seconds == expected


def test_a_pod_that_was_unready_for_a_while_is_no_new_start() -> None:
    assert STARTED.after([ready(0, 30)]) == STARTED
    assert STARTED.after([ready(1, 2)]).seconds == 60


def test_it_is_kept_in_the_status_until_the_revision_changes() -> None:
    status = {"lastStart": STARTED.dump()}
    assert Start.of(status, "r1") == STARTED
    assert Start.of(status, "r2") == Start("r2")
    assert Start.of({"lastStart": {"revision": 1}}, "r1") == Start("r1")
    assert Start("r1").dump() == {}


def test_a_pod_tells_when_it_was_ready() -> None:
    obj = pod_object(
        conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:14Z"}],
        containerStatuses=[{**container(ready=True)[0], "restartCount": 1}],
    )
    obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    seen = Pod.of(obj)
    assert (seen.created, seen.ready_since, seen.restarted) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:14Z", True)
