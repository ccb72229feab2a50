"""Strata onto a cluster: the chart, and the example model."""

from __future__ import annotations

from pathlib import Path

from images.build import Images
from tests.e2e.models import OPERATOR_NAMESPACE
from tests.e2e.target import Target

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = "strata"
EXAMPLE = ROOT / "manifests" / "examples" / "strata-model.yaml"


def install(target: Target, images: Images) -> None:
    """Install or upgrade the release and wait for the operator. Raises JourneyError."""
    registry, _, operator_tag = images.operator.partition("/strata-operator:")
    values = {
        "image.registry": registry,
        "image.tag": operator_tag,
        "engineImage.tag": images.engine.rpartition(":")[2],
    }
    settings = [part for key, value in values.items() for part in ("--set-string", f"{key}={value}")]
    target.run(
        "helm", "upgrade", RELEASE, str(ROOT / "charts" / "strata"), "--install",
        "--namespace", OPERATOR_NAMESPACE, "--create-namespace", *settings, "--wait", "--timeout", "5m",
    )  # fmt: skip


def uninstall(target: Target) -> None:
    """Take the release away; the custom resources and their definition stay."""
    target.run("helm", "uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--ignore-not-found")
