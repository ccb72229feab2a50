"""The Service: one address for all replicas of a model."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import child_name
from strata_operator.render.meta import endpoints, manifest


def service(model: StrataModel) -> dict[str, Any]:
    """Port ``spec.service.port`` to the engine's port, which the pods call ``http``."""
    port = {"name": "http", "port": model.port, "protocol": "TCP", "targetPort": "http"}
    return manifest(model, "v1", "Service", spec={"selector": endpoints(model), "ports": [port]})


def url(model: StrataModel) -> str:
    """The OpenAI base URL inside the cluster."""
    return f"http://{child_name(model.name)}.{model.namespace}.svc:{model.port}/v1"
