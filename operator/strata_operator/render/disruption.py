"""The PodDisruptionBudget: how many replicas a drain of nodes may take at a time."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import endpoints, manifest


def disruption(model: StrataModel) -> dict[str, Any]:
    """One, of several. A budget that kept the last replica would hold up the drain of its node for ever; a pod that is
    not ready holds up none."""
    return manifest(
        model,
        "policy/v1",
        "PodDisruptionBudget",
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": endpoints(model)},
        },
    )
