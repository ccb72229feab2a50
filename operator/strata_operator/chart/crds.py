"""The definitions of the custom resources, brought up to date: helm installs them once and never changes them again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import yaml

from strata_operator.api.conditions import having
from strata_operator.api.errors import InvalidSpecError, UnavailableError
from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

KIND = "CustomResourceDefinition"
# Helm 4 applies them too, at an installation, and gives up where their fields are another manager's.
MANAGER = "helm"


def apply(client: Client, folder: Path, *, has_time: Callable[[], bool], pause: Callable[[], None]) -> None:
    """Apply each file of the folder; returns once the API server serves all. Raises OperatorError.

    By force: whoever has applied a definition by hand owns its fields.
    """
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    if not definitions:
        raise InvalidSpecError(f"{folder} holds no .yaml file; the chart mounts its definitions there")
    for definition in definitions:
        applied = client.apply(KIND, definition, manager=MANAGER, force=True)
        log.info("%s is as the chart has it, generation %s", definition["metadata"]["name"], _generation(applied))
    for name in (definition["metadata"]["name"] for definition in definitions):
        while not having(client.get(KIND, None, name).get("status", {}).get("conditions"), "Established", "True"):
            if not has_time():
                raise UnavailableError(f"{name} is applied, and the API server does not serve it yet")
            pause()


def _generation(applied: object) -> object:
    return applied["metadata"].get("generation") if isinstance(applied, dict) else None
