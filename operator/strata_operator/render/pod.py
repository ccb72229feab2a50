"""What all pods of the engine's image share, whether they serve or only fetch weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import child_name


def pod(model: StrataModel, container: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's spec with that one container: no rights at the API server, few in the container."""
    return {
        "serviceAccountName": child_name(model.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The cache on the node belongs to root, hence the user; without capabilities it may do little more than that.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                **container,
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
