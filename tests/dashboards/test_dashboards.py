"""Each dashboard asks for what there is, says what it shows, and is the file that Grafana gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.every import EVERY
from dashboards.generate import GENERATED
from dashboards.panel import MODEL, NAMESPACE, NODE, Dashboard, Panel, Query, Variable
from dashboards.promql import asked, faults, known_series
from manifests.charts import ROOT

QUERIES = [(one, panel, query) for one in EVERY for panel, query in one.queries()]
IDS = [f"{one.uid} {panel.title} {query.legend}" for one, panel, query in QUERIES]


@pytest.mark.parametrize(("dashboard", "panel", "query"), QUERIES, ids=IDS)
def test_a_query_asks_for_what_there_is(dashboard: Dashboard, panel: Panel, query: Query) -> None:
    assert faults(query.expr, known_series()) == []
    used = {variable.name for variable in dashboard.variables} | {"__rate_interval"}
    for _, matchers in asked(query.expr).selectors:
        assert {value[1:] for _, _, value in matchers if value.startswith("$")} <= used


@pytest.mark.parametrize("variable", [NAMESPACE, MODEL, NODE], ids=lambda one: one.name)
def test_a_variable_has_values_of_a_label_that_there_is(variable: Variable) -> None:
    assert faults(f"count by ({variable.name}) ({variable.metric})", known_series()) == []


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    return dict(json.loads((GENERATED / f"{dashboard.uid}.json").read_text("utf-8")))


@pytest.mark.parametrize("dashboard", EVERY, ids=lambda one: one.uid)
def test_grafana_gets_what_is_written(dashboard: Dashboard) -> None:
    made = grafana(dashboard)
    assert (made["uid"], made["title"], made["tags"]) == (dashboard.uid, dashboard.title, ["strata"])
    (link,) = made["links"]
    assert (link["type"], link["tags"], link["includeVars"]) == ("dashboards", ["strata"], True)
    names = [variable["name"] for variable in made["templating"]["list"]]
    assert names == ["datasource", *(variable.name for variable in dashboard.variables)]
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert [target["expr"] for panel in panels for target in panel["targets"]] == [
        one.expr for _, one in dashboard.queries()
    ]
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    for panel in panels:
        assert len(panel["description"]) > 10
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_no_two_are_alike() -> None:
    assert len({one.uid for one in EVERY}) == len({one.title for one in EVERY}) == len(EVERY)
    assert {path.stem for path in GENERATED.glob("*.json")} == {one.uid for one in EVERY}
    assert (ROOT / "dashboards" / "generated").resolve() == GENERATED


def test_links_between_tables_and_dashboards_lead_somewhere() -> None:
    links = [panel.link for one in EVERY for row in one.rows for panel in row.panels if panel.link]
    by_uid = {one.uid: {f"var-{variable.name}" for variable in one.variables} for one in EVERY}
    assert links
    for link in links:
        place, _, query = link.removeprefix("/d/").partition("?")
        assert {part.split("=")[0] for part in query.split("&")} <= by_uid[place]
