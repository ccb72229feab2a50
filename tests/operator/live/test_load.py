"""Roll-out, scaling and the operator's own restart while requests come in: none of them fails."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, eventually

pytestmark = pytest.mark.cluster

# Two pods beside each other on a node of two CPUs: the user's word is the last on what a pod asks for.
LITTLE = {"cpu": "100m", "memory": "64Mi"}
SMALL: dict[str, Any] = {
    "podTemplate": {"spec": {"containers": [{"name": "engine", "resources": {"requests": LITTLE, "limits": LITTLE}}]}}
}


class Load:
    """One request after the other, each over a connection of its own."""

    def __init__(self, url: str) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._url = url
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    answer.read()
                self.answers += 1
            except OSError as error:
                self.failures.append(repr(error))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._end.set()
        self._thread.join(15)

    def more(self, number: int) -> None:
        """Wait for so many answers more."""
        enough = self.answers + number
        eventually(lambda: self.answers >= enough, 60, lambda: f"{self.answers} answers, {self.failures[:3]}")


def test_no_request_fails_whatever_happens_to_the_pods(
    models: Models, cluster: Cluster, operator: OperatorProcess
) -> None:
    models.apply("busy", **SMALL)
    models.wait_for("busy", "Ready", "True")
    address = models.get("service", "busy")["spec"]["clusterIP"]
    load = Load(f"http://{address}:8000/v1/models")
    with load.running():
        load.more(20)
        models.apply("busy", engine={"maxModelLen": 1024}, **SMALL)
        models.wait_for("busy", "Ready", "True")
        assert models.get("deployment", "busy")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
        load.more(20)
        models.kubectl("scale", "sm/busy", "--replicas=2")
        models.wait_for("busy", "Ready", "True")
        load.more(20)
        models.kubectl("scale", "sm/busy", "--replicas=1")
        models.wait_for("busy", "Ready", "True")
        load.more(20)
        assert operator.stop() == 0
        operator.start()
        load.more(20)
    assert load.failures == []
