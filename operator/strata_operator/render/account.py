"""The ServiceAccount of a model's pods: an identity of its own, without any right or token."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import manifest


def account(model: StrataModel) -> dict[str, Any]:
    """No token is mounted: the engine never talks to the API server."""
    return manifest(model, "v1", "ServiceAccount", automountServiceAccountToken=False)
