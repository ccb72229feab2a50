"""Strata onto a cluster: the chart, and the example model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from images.catalogue import IMAGES
from tests.e2e.models import OPERATOR_NAMESPACE
from tests.e2e.target import Target

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = "strata"
EXAMPLE = ROOT / "manifests" / "examples" / "strata-model.yaml"


def install(target: Target, images: dict[str, str], further: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Install or upgrade the release and wait for what it runs. ``further``: values. Raises JourneyError."""
    values = {}
    for image in IMAGES:
        values["image.registry"], _, values[f"{image.values}.tag"] = images[image.name].partition(f"/{image.name}:")
    settings = [part for key, value in values.items() for part in ("--set-string", f"{key}={value}")]
    settings += [part for key, value in further.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    target.run(
        "helm", "upgrade", RELEASE, str(ROOT / "charts" / "strata"), "--install",
        "--namespace", OPERATOR_NAMESPACE, "--create-namespace", *settings, "--wait", "--timeout", "10m",
    )  # fmt: skip


def upgrade(target: Target, values: Mapping[str, Any]) -> None:
    """Set these values beside those that the release has, and wait for what it runs. Raises JourneyError."""
    settings = [part for key, value in values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    target.run(
        "helm", "upgrade", RELEASE, str(ROOT / "charts" / "strata"), "--namespace", OPERATOR_NAMESPACE,
        "--reset-then-reuse-values", *settings, "--wait", "--timeout", "10m",
    )  # fmt: skip


def uninstall(target: Target) -> None:
    """Take the release away; the custom resources and their definition stay."""
    target.run("helm", "uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--ignore-not-found")
