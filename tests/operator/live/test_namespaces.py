"""An operator of some namespaces, with rights in no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, install_rights, remove_rights

pytestmark = pytest.mark.cluster

NARROW = "strata-narrow"


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[Models]:
    name = f"elsewhere-{uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield Models(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def narrow(
    operator: OperatorProcess, cluster: Cluster, models: Models, engine_image: str, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """In the place of the one that the other tests use."""
    operator.stop()
    rights = install_rights(cluster, tmp_path, f"watchNamespaces={{{models.namespace}}}", release=NARROW)
    made = OperatorProcess(rights, engine_image, tmp_path / "log", f"--namespaces={models.namespace}", lease=None)
    made.start()
    yield made
    made.kill()
    remove_rights(cluster, NARROW)
    operator.start()


def test_a_model_of_its_namespace_is_served_and_no_other(
    narrow: OperatorProcess, models: Models, elsewhere: Models
) -> None:
    elsewhere.apply("foreign", replicas=0)
    models.apply("mine")
    models.wait_for("mine", "Ready", "True")
    assert (elsewhere.get("sm", "foreign").get("status"), elsewhere.get("service", "foreign")) == (None, None)
    models.kubectl("delete", "sm", "mine", "--cascade=foreground", "--timeout=120s")
    assert narrow.leads()
    assert models.get("lease", "strata-operator") is not None
    assert narrow.metric(r'strata_operator_api_requests_total\{.*status="403"') == 0
