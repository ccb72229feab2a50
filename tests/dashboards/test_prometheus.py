"""Every query of every dashboard and of what scales by load, asked of a real Prometheus that reads real programs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import URLError

import pytest

from dashboards.every import EVERY
from tests.dashboards.autoscaling import Asked, queries
from tests.dashboards.scene import VARIABLES, Prometheus, scene
from tests.environment import find_prometheus
from tests.operator.live.harness import eventually

pytestmark = pytest.mark.real

QUERIES = {query.expr: query for one in EVERY for _, query in one.queries()}
ANSWERED = [expr for expr, query in QUERIES.items() if not query.needs]
OTHERS = [expr for expr, query in QUERIES.items() if query.needs]
SCALING = list(queries(VARIABLES["namespace"], VARIABLES["model"], "m-1"))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has read enough: what is asked for first has no answer yet."""
    program = find_prometheus("prometheus")
    if program is None:
        pytest.skip("needs prometheus (make prometheus)")
    with scene(program, tmp_path_factory.mktemp("scene")) as found:
        # Those that scale are 0 while nobody asks the engine, whatever they are made of.
        missing = [*ANSWERED, *(f"({one.query}) > 0" for one in SCALING)]

        def is_complete() -> bool:
            try:
                missing[:] = [expr for expr in missing if not found.has(expr)]
            except URLError:  # it starts
                return False
            return not missing

        eventually(is_complete, 60, lambda: "no answer to\n" + "\n".join(missing))
        yield found


def test_each_query_has_an_answer_or_a_reason_to_have_none(prometheus: Prometheus) -> None:
    assert [expr for expr in OTHERS if prometheus.has(expr)] == [], "these need nothing more: take their reason away"


def test_prometheus_can_evaluate_every_rule(prometheus: Prometheus) -> None:
    groups = prometheus.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


@pytest.mark.parametrize("one", [one for one in SCALING if one.series], ids=lambda one: one.name)
def test_the_adapter_finds_what_its_rules_show(prometheus: Prometheus, one: Asked) -> None:
    assert prometheus.get("/api/v1/series", **{"match[]": one.series or ""})
