"""A HorizontalPodAutoscaler over a model, by the example's own rules: Kubernetes' controller, prometheus-adapter, and a
Prometheus that reads a real engine under load. The engine stands in for the one in the model's pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.dashboards.autoscaling import ADAPTER, EXAMPLES, MODEL, documents
from tests.dashboards.scene import asked, engine, reading, target
from tests.environment import find_prometheus
from tests.operator.live.adapter import GROUP, adapter
from tests.operator.live.harness import (
    Models,
    OperatorProcess,
    eventually,
    install_definitions,
    remove_definitions,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def engine_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with engine(tmp_path_factory.mktemp("engine")) as port:
        yield port


def hpa() -> dict[str, Any]:
    """The example, for a tiny engine, and with no patience."""
    (made,) = documents(EXAMPLES / "hpa.yaml")
    made["spec"] |= {"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}
    by_pod, by_model = made["spec"]["metrics"]
    by_pod["pods"]["target"]["averageValue"] = "500m"
    by_model["object"]["target"]["value"] = "1000"
    return dict(made)


def replicas(models: Models) -> tuple[int, int]:
    """As the model's spec and its Deployment have them."""
    return (
        models.get("sm", MODEL)["spec"]["replicas"],
        models.get("deployment", MODEL)["spec"]["replicas"],
    )


def test_a_model_follows_its_load_and_the_operator_lets_it(
    operator: OperatorProcess, models: Models, cluster: Cluster, engine_port: int, tmp_path: Path
) -> None:
    program = find_prometheus("prometheus")
    if program is None:
        pytest.skip("needs prometheus (make prometheus)")
    models.apply(MODEL)
    models.wait_for(MODEL, "Ready", "True")
    selector = models.get("sm", MODEL)["status"]["selector"]
    (pod,) = json.loads(models.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
    labels = {"namespace": models.namespace, "model": MODEL, "pod": pod["metadata"]["name"]}
    jobs = [{"job_name": "engine", "static_configs": [target(engine_port, **labels)]}]
    (values,) = documents(ADAPTER)
    rules = values["rules"]["custom"]
    with (
        reading(program, tmp_path, jobs) as prometheus,
        adapter(cluster, prometheus.url, rules, tmp_path) as log,
    ):

        def shown() -> str:
            told = models.kubectl("get", "hpa", MODEL, "--ignore-not-found", "-o", "jsonpath={.status}")
            return f"{replicas(models)}\n{told}\n{log.read_text()[-2000:]}"

        with asked(engine_port, clients=4, seconds=0.001):
            models.kubectl("apply", "-f", "-", input=json.dumps(hpa()))
            eventually(lambda: replicas(models) == (2, 2), 180, shown)
            told = models.get("hpa", MODEL)["status"]
            assert {one["type"] for one in told["currentMetrics"]} == {"Pods", "Object"}
            time_to_first_token = f"stratamodels.strata.ai/{MODEL}/strata_time_to_first_token_p95_seconds"
            path = f"/apis/{GROUP}/v1beta2/namespaces/{models.namespace}/{time_to_first_token}"
            assert json.loads(cluster.kubectl("get", "--raw", path))["items"][0]["value"] != "0"
        eventually(lambda: replicas(models) == (1, 1), 180, shown)
        models.wait_for(MODEL, "Ready", "True")
        # At zero nothing counts requests, and Kubernetes leaves it so.
        models.kubectl("scale", f"sm/{MODEL}", "--replicas=0")
        zero = models.wait_for(MODEL, "Ready", "False", "ScaledToZero")["message"]
        assert "the last start took" in zero
        eventually(lambda: _disabled(models), 60, shown)
        assert replicas(models) == (0, 0)
    writers = {
        entry["manager"]
        for entry in json.loads(models.kubectl("get", "sm", MODEL, "-o", "json", "--show-managed-fields"))["metadata"][
            "managedFields"
        ]
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    }
    assert "strata-operator" not in writers


def _disabled(models: Models) -> bool:
    conditions = models.get("hpa", MODEL)["status"]["conditions"]
    return any((one["type"], one["reason"]) == ("ScalingActive", "ScalingDisabled") for one in conditions)


def test_keda_accepts_what_is_shown_of_it(cluster: Cluster, kubeconfig: Path) -> None:
    """The real definition of its ScaledObject; KEDA itself does not run, nor is there one of the HTTP add-on's kind."""
    scaled = [
        one
        for name in ("keda.yaml", "keda-http.yaml")
        for one in documents(EXAMPLES / name)
        if one["kind"] == "ScaledObject"
    ]
    assert len(scaled) == 2
    install_definitions(cluster, "keda")
    for one in scaled:
        assert "created" in cluster.kubectl(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(one)
        )
    remove_definitions(cluster, "keda")
