"""The Service: one address for all replicas of a model."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import endpoints, manifest


def service(model: StrataModel) -> dict[str, Any]:
    """Port ``spec.service.port`` to the engine's port, which the pods call ``http``."""
    port = {"name": "http", "port": model.endpoint.port, "protocol": "TCP", "targetPort": "http"}
    return manifest(model, "v1", "Service", spec={"selector": endpoints(model), "ports": [port]})
