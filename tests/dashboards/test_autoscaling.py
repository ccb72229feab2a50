"""The examples that scale models by load fit together: with each other, with the metrics, with the custom resource."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.promql import faults, known_series
from strata_operator.api.model import API_VERSION, KIND
from tests.dashboards.autoscaling import ADAPTER, EXAMPLES, MODEL, NAMESPACE, Asked, documents, queries

OBJECTS = [one for path in sorted(EXAMPLES.glob("*.yaml")) for one in documents(path)]
SCALERS = [one for one in OBJECTS if "scaleTargetRef" in one["spec"]]


@pytest.mark.parametrize("one", list(queries(NAMESPACE, MODEL, "p")), ids=lambda one: one.name)
def test_a_query_asks_for_what_there_is(one: Asked) -> None:
    assert faults(one.query, known_series()) == []
    if one.series is not None:
        assert faults(one.series, known_series()) == []


@pytest.mark.parametrize("one", SCALERS, ids=lambda one: one["kind"])
def test_what_scales_has_the_model_as_its_target(one: dict[str, Any]) -> None:
    assert one["spec"]["scaleTargetRef"] == {"apiVersion": API_VERSION, "kind": KIND, "name": MODEL}


def test_the_adapter_has_each_figure_that_the_hpa_asks_for() -> None:
    (hpa,) = documents(EXAMPLES / "hpa.yaml")
    (values,) = documents(ADAPTER)
    asked = {metric[metric["type"].lower()]["metric"]["name"] for metric in hpa["spec"]["metrics"]}
    assert asked == {rule["name"]["as"] for rule in values["rules"]["custom"]}
