"""Every query of every dashboard, asked of a real Prometheus that reads real programs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import URLError

import pytest

from dashboards.every import EVERY
from tests.dashboards.scene import Prometheus, scene
from tests.environment import find_prometheus
from tests.operator.live.harness import eventually

pytestmark = pytest.mark.real

QUERIES = {query.expr: query for one in EVERY for _, query in one.queries()}
ANSWERED = [expr for expr, query in QUERIES.items() if not query.needs]
OTHERS = [expr for expr, query in QUERIES.items() if query.needs]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has read enough: what is asked for first has no answer yet."""
    program = find_prometheus("prometheus")
    if program is None:
        pytest.skip("needs prometheus (make prometheus)")
    with scene(program, tmp_path_factory.mktemp("scene")) as found:
        missing = list(ANSWERED)

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
