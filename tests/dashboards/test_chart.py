"""What the chart has for Prometheus's operator and Grafana, with the real helm."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dashboards.generate import GENERATED
from dashboards.promql import RULES
from manifests.charts import CHART
from tests.operator.chart.helm import Helm

RULES_ON = ("rules.enabled=true", "agent.enabled=true", "agent.prometheusRule=true")


def test_without_being_asked_for_there_are_no_rules(helm: Helm) -> None:
    assert [kind for kind, _ in helm.objects() if kind == "PrometheusRule"] == []


def test_the_rules_are_those_that_are_tested(helm: Helm) -> None:
    made = helm.objects(*RULES_ON, "rules.labels.release=kps")
    cards, models = (yaml.safe_load(path.read_text("utf-8")) for path in RULES)
    assert made["PrometheusRule", "strata"]["spec"] == models
    assert made["PrometheusRule", "strata-agent"]["spec"] == cards
    assert {made["PrometheusRule", name]["metadata"]["labels"]["release"] for name in ("strata", "strata-agent")} == {
        "kps"
    }


def test_runbooks_are_where_somebody_says(helm: Helm) -> None:
    made = helm.objects(*RULES_ON, "rules.runbookUrl=https://wiki/s/")
    groups = [group for (kind, _), obj in made.items() if kind == "PrometheusRule" for group in obj["spec"]["groups"]]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(rules) == 15
    assert all(rule["annotations"]["runbook_url"] == f"https://wiki/s/{rule['alert']}.md" for rule in rules)


def dashboards(helm: Helm, *options: str) -> list[dict[str, Any]]:
    found = helm.objects("dashboards.enabled=true", *options)
    return [obj for (kind, name), obj in found.items() if kind == "ConfigMap" and "dashboard" in name]


def test_dashboards_are_there_on_request_as_they_are_generated(helm: Helm) -> None:
    assert [name for kind, name in helm.objects() if "dashboard" in name] == []
    found = dashboards(helm)
    assert {name: text for obj in found for name, text in obj["data"].items()} == {
        path.name: path.read_text("utf-8") for path in GENERATED.glob("*.json")
    }
    for obj in found:
        assert obj["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert "annotations" not in obj["metadata"]


def test_dashboards_go_where_a_sidecar_looks(helm: Helm) -> None:
    options = ("dashboards.folder=Models", "dashboards.annotations.a=b", "dashboards.labels.team=x")
    for obj in dashboards(helm, *options):
        assert obj["metadata"]["annotations"] == {"a": "b", "grafana_folder": "Models"}
        assert obj["metadata"]["labels"]["team"] == "x"


@pytest.mark.parametrize(
    ("value", "words"),
    [("rules.runbookUrl=https://wiki", "does not match pattern"), ("rules.enable=true", "'enable' not allowed")],
)
def test_wrong_values_are_refused(helm: Helm, value: str, words: str) -> None:
    done = helm.run("template", "strata", str(CHART), f"--set={value}")
    assert done.returncode != 0
    assert words in done.stderr
