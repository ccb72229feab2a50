"""The PodMonitor: where Prometheus's operator finds a model's metrics."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import endpoints, manifest


def monitor(model: StrataModel) -> dict[str, Any]:
    """Metrics need no API key. The node's name comes along, to be joined with what its agent exports."""
    return manifest(
        model,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        spec={
            "selector": {"matchLabels": endpoints(model)},
            "attachMetadata": {"node": True},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    )
