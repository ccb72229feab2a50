"""The PodMonitor or ServiceMonitor: where Prometheus's operator finds a model's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import endpoints, manifest

MonitorKind = Literal["PodMonitor", "ServiceMonitor"]
_ENDPOINTS: dict[MonitorKind, str] = {"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"}
KINDS = tuple(_ENDPOINTS)
_NODE = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node", "action": "replace"}


@dataclass(frozen=True, slots=True)
class Monitors:
    """Which Prometheus's operator is to find: what its Prometheus selects monitors by."""

    kind: MonitorKind = "PodMonitor"
    labels: Mapping[str, str] = field(default_factory=dict)
    interval: str | None = None  # between two scrapes, such as 15s; None: Prometheus's own


def monitor(model: StrataModel, monitors: Monitors) -> dict[str, Any]:
    """Metrics need no API key. The node's name comes along, to be joined with what its agent exports, and the model's,
    as the operator's metrics have it. Both kinds find the same pods: one by their labels, one by their Service's."""
    named = {"targetLabel": "model", "replacement": model.name, "action": "replace"}
    endpoint: dict[str, Any] = {"port": "http", "path": "/metrics", "relabelings": [_NODE, named]}
    if monitors.interval is not None:
        endpoint["interval"] = monitors.interval
    return manifest(
        model,
        "monitoring.coreos.com/v1",
        monitors.kind,
        further_labels=monitors.labels,
        spec={"selector": {"matchLabels": endpoints(model)}, _ENDPOINTS[monitors.kind]: [endpoint]},
    )
