"""The PodMonitor: where Prometheus's operator finds a model's metrics."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import endpoints, manifest

_NODE = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node", "action": "replace"}


def monitor(model: StrataModel) -> dict[str, Any]:
    """Metrics need no API key. The node's name comes along, to be joined with what its agent exports, and the model's,
    as the operator's metrics have it."""
    named = {"targetLabel": "model", "replacement": model.name, "action": "replace"}
    return manifest(
        model,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        spec={
            "selector": {"matchLabels": endpoints(model)},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "relabelings": [_NODE, named]}],
        },
    )
