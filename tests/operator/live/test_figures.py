"""What pods tell of themselves, asked by a real operator over the network, in the status and in kubectl's columns."""

from __future__ import annotations

import pytest

from strata_operator.cluster.survey import SERVING_SECONDS, WINDOW_SECONDS
from tests.operator.live.harness import Models, OperatorProcess, eventually

pytestmark = pytest.mark.cluster


def test_a_start_is_told_as_the_engine_tells_it(models: Models, operator: OperatorProcess) -> None:
    models.apply("loads", "hf://stand-in/slow")
    told = models.wait_for("loads", "Cached", "False", "Fetching")
    node = models.get("sm", "loads")["status"]["nodes"][0]["name"]
    assert told["message"] == f"{node}: download, 40 % of 1000.0 MiB"


def test_what_a_model_does_is_told_and_then_the_status_stays(models: Models, operator: OperatorProcess) -> None:
    models.apply("works")
    models.wait_for("works", "Ready", "True")

    def measured() -> dict[str, object]:
        return dict((models.get("sm", "works") or {})["status"].get("measured") or {})

    eventually(lambda: bool(measured()), WINDOW_SECONDS + 3 * SERVING_SECONDS, operator.tail)
    figures = measured()
    revision = figures.pop("revision")
    assert figures.pop("ttftP95Milliseconds") in (190, 200)  # 195 to two digits
    assert figures == {"tokensPerSecond": 100, "ttftP50Milliseconds": 150}
    annotations = models.get("deployment", "works")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["strata.ai/revision"] == revision
    header, row = models.kubectl("get", "sm", "works", "-o", "wide").splitlines()
    assert {"TOK/S", "BOUND", "TTFT-MS"} <= set(header.split())
    assert {"100", "150"} <= set(row.split())
    status = models.get("sm", "works")["status"]
    assert status["cache"]["nodes"] == [one["name"] for one in status["nodes"]]
