"""What Prometheus reads: the right names, the right counts, and a page that explains them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from strata.server.metrics import OUTCOMES
from tests.server.conftest import Serve, Served

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def exposed_names(served: Served) -> set[str]:
    """Names as a user writes them in a query."""
    text = served.client.get("/metrics").text
    return {
        family.name if family.type != "counter" else f"{family.name}_total"
        for family in text_string_to_metric_families(text)
    }


def test_the_page_explains_every_metric_and_no_other(serve: Serve) -> None:
    served = serve()
    served.chat()
    explained = set(re.findall(r"^\| `(strata_\w+)", PAGE.read_text("utf-8"), re.MULTILINE))
    assert explained == exposed_names(served)


def test_the_page_names_every_outcome() -> None:
    page = PAGE.read_text("utf-8")
    assert [outcome for outcome in OUTCOMES if f"`{outcome}`" not in page] == []


def test_tokens_and_latencies_are_counted(serve: Serve) -> None:
    served = serve("hello world")
    usages = [served.chat(stream=False).json()["usage"] for _ in range(3)]
    completion = sum(usage["completion_tokens"] for usage in usages)
    assert served.metric("strata_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert served.metric("strata_generation_tokens_total") == completion
    assert served.metric("strata_time_to_first_token_seconds_count") == 3
    assert served.metric("strata_inter_token_latency_seconds_count") == completion - 3
    assert served.metric("strata_request_duration_seconds_count") == 3


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [({}, "stop"), ({"stop": "llo"}, "stop"), ({"max_tokens": 1}, "length"), ({"max_tokens": 0}, "rejected")],
)
def test_every_request_is_counted_once_by_its_end(serve: Serve, fields: dict[str, object], outcome: str) -> None:
    served = serve("hello world")
    served.chat(**fields)
    counts = {name: served.metric("strata_requests_total", outcome=name) for name in OUTCOMES}
    assert counts == {name: 1.0 if name == outcome else 0.0 for name in OUTCOMES}


def test_the_engine_is_mirrored(serve: Serve) -> None:
    served = serve()
    free, used = (served.metric("strata_kv_blocks", state=state) for state in ("free", "used"))
    assert (free, used) == (64, 0)
    assert served.metric("strata_requests_running") == 0
    assert served.metric("strata_load_bytes", state="total") == 100
    labels = {"version": "0.1.0", "model": "tiny", "dtype": "bf16", "device": "fake"}
    assert served.metric("strata_build_info", **labels) == 1


def test_no_series_tells_creation_times(serve: Serve) -> None:
    assert "_created" not in serve().client.get("/metrics").text
