"""Strata on the test cluster, installed as a user installs it, for the tests of this folder only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.e2e.target import Target

NAMESPACE = "journey"


@pytest.fixture(scope="package")
def target(cluster: Cluster, images: dict[str, str]) -> Iterator[Target]:
    """The test cluster with the chart installed and an empty namespace for models."""
    from tests.e2e import install
    from tests.e2e.target import Target

    target = Target.local(cluster)
    install.install(target, images)
    target.run("kubectl", "create", "namespace", NAMESPACE)
    yield target
    target.run("kubectl", "delete", "namespace", NAMESPACE, "--wait")
    install.uninstall(target)
