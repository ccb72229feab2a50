"""The NetworkPolicy: what may reach a model's pods."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.arguments import PORT
from strata_operator.render.meta import endpoints, manifest


def network(model: StrataModel) -> dict[str, Any]:
    """The API's port from anywhere, and no other. Outwards all is open: a model may have to be fetched."""
    return manifest(
        model,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        spec={
            "podSelector": {"matchLabels": endpoints(model)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": PORT, "protocol": "TCP"}]}],
        },
    )
