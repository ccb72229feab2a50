"""The queries of the examples that scale models, as KEDA and prometheus-adapter ask them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from manifests.charts import ROOT

EXAMPLES = ROOT / "manifests" / "examples" / "autoscaling"
ADAPTER = ROOT / "manifests" / "helm-values" / "prometheus-adapter.yaml"
NAMESPACE, MODEL = "default", "qwen3-8b"  # of which the examples are


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of one model, or of each of its pods. ``series``: what the adapter looks for before it shows it."""

    name: str
    query: str
    series: str | None = None


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def queries(namespace: str, model: str, pod: str) -> Iterator[Asked]:
    """All of them, of that model and pod in the examples' place."""
    (scaled,) = documents(EXAMPLES / "keda.yaml")
    for trigger in scaled["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        assert f'{{namespace="{NAMESPACE}",model="{MODEL}"}}' in query
        of_model = f'{{namespace="{namespace}",model="{model}"}}'
        yield Asked(f"keda {trigger['name']}", query.replace(f'{{namespace="{NAMESPACE}",model="{MODEL}"}}', of_model))
    (values,) = documents(ADAPTER)
    for rule in values["rules"]["custom"]:
        (label,) = rule["resources"]["overrides"].keys() - {"namespace"}
        matchers = f'namespace="{namespace}",{label}="{ {"pod": pod, "model": model}[label] }"'
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers).replace("<<.GroupBy>>", label)
        assert "<<" not in query
        yield Asked(f"adapter {rule['name']['as']}", query, rule["seriesQuery"])
