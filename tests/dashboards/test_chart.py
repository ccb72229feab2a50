"""What the chart has for Prometheus's operator and Grafana, with the real helm."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from dashboards.generate import GENERATED
from dashboards.promql import RULES
from manifests.generate import CHART, find_helm

pytestmark = pytest.mark.cluster  # helm is one of the local cluster's parts


RULES_ON = ("--set=rules.enabled=true,agent.enabled=true,agent.prometheusRule=true",)


def template(*options: str) -> subprocess.CompletedProcess[str]:
    command = [find_helm(), "template", "strata", str(CHART), "-n", "ns", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects(*options: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What is rendered, by kind and name."""
    done = template(*options)
    assert done.returncode == 0, done.stderr
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(done.stdout) if obj}


def test_without_being_asked_for_there_are_no_rules() -> None:
    assert [kind for kind, _ in objects() if kind == "PrometheusRule"] == []


def test_the_rules_are_those_that_are_tested() -> None:
    made = objects(*RULES_ON, "--set=rules.labels.release=kps")
    cards, models = (yaml.safe_load(path.read_text("utf-8")) for path in RULES)
    assert made["PrometheusRule", "strata"]["spec"] == models
    assert made["PrometheusRule", "strata-agent"]["spec"] == cards
    assert {made["PrometheusRule", name]["metadata"]["labels"]["release"] for name in ("strata", "strata-agent")} == {
        "kps"
    }


def test_runbooks_are_where_somebody_says() -> None:
    made = objects(*RULES_ON, "--set=rules.runbookUrl=https://wiki/s/")
    groups = [group for (kind, _), obj in made.items() if kind == "PrometheusRule" for group in obj["spec"]["groups"]]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(rules) == 15
    assert all(rule["annotations"]["runbook_url"] == f"https://wiki/s/{rule['alert']}.md" for rule in rules)


def dashboards(*options: str) -> list[dict[str, Any]]:
    found = objects("--set=dashboards.enabled=true", *options)
    return [obj for (kind, name), obj in found.items() if kind == "ConfigMap" and "dashboard" in name]


def test_dashboards_are_there_on_request_as_they_are_generated() -> None:
    assert [name for kind, name in objects() if "dashboard" in name] == []
    found = dashboards()
    assert {name: text for obj in found for name, text in obj["data"].items()} == {
        path.name: path.read_text("utf-8") for path in GENERATED.glob("*.json")
    }
    for obj in found:
        assert obj["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert "annotations" not in obj["metadata"]


def test_dashboards_go_where_a_sidecar_looks() -> None:
    options = ("--set=dashboards.folder=Models", "--set=dashboards.annotations.a=b", "--set=dashboards.labels.team=x")
    for obj in dashboards(*options):
        assert obj["metadata"]["annotations"] == {"a": "b", "grafana_folder": "Models"}
        assert obj["metadata"]["labels"]["team"] == "x"


@pytest.mark.parametrize(
    ("value", "words"),
    [("rules.runbookUrl=https://wiki", "does not match pattern"), ("rules.enable=true", "'enable' not allowed")],
)
def test_wrong_values_are_refused(value: str, words: str) -> None:
    done = template(f"--set={value}")
    assert done.returncode != 0
    assert words in done.stderr
