"""The operator runs as a process against the real API server; model pods run a small stand-in for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import (
    NAMESPACE,
    Models,
    OperatorProcess,
    build_engine,
    install_rights,
    remove_rights,
    stopped_operators,
)


@pytest.fixture(scope="package")
def only_operator(cluster: Cluster) -> Iterator[None]:
    with stopped_operators(cluster):
        yield


@pytest.fixture(scope="package")
def engine_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_engine(cluster, tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="package")
def kubeconfig(cluster: Cluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield install_rights(cluster, tmp_path_factory.mktemp("rights"))
    remove_rights(cluster)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="package")
def operator(
    kubeconfig: Path, engine_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    process = OperatorProcess(kubeconfig, engine_image, tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    code = process.stop()
    assert code == 0, f"the operator ended with {code} after SIGTERM:\n{process.tail()}"
    assert "Traceback (most recent call last)" not in process.log.read_text(), process.tail(80)


@pytest.fixture
def quiet(cluster: Cluster) -> None:
    """Nothing of an earlier test is on its way out: what the operator does now, it does for this test."""

    def gone() -> bool:
        return "Terminating" not in cluster.kubectl("get", "namespaces", "--no-headers")

    cluster.wait_for(gone, 120, "the namespaces of earlier tests to be gone")


@pytest.fixture
def models(cluster: Cluster, kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[Models]:
    """A namespace of the test's own; it and all in it is gone afterwards."""
    test = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].rstrip("-")
    name = f"{test}-{uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield Models(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")
