"""Two operators of whatever installations: one works, and the other takes over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def pair(
    operator: OperatorProcess, kubeconfig: Path, engine_image: str, tmp_path: Path
) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """Two of them, of two installations as their engine images show, in the place of the one that the other tests
    use."""
    operator.stop()
    made = (
        OperatorProcess(kubeconfig, engine_image, tmp_path / "log", lease=None),
        OperatorProcess(kubeconfig, "example.com/another:1", tmp_path / "another-log", lease=None),
    )
    for one in made:
        one.spawn()
    eventually(lambda: all(one.is_ready() for one in made), 60, made[0].tail)
    yield made
    for one in made:
        one.kill()
    operator.start()


def test_another_operator_takes_over_within_20_seconds(
    pair: tuple[OperatorProcess, OperatorProcess], models: Models
) -> None:
    eventually(lambda: any(one.leads() for one in pair), 30, pair[0].tail)
    leader, other = sorted(pair, key=lambda one: not one.leads())
    eventually(lambda: "this one waits" in other.tail(), 30, other.tail)
    tried = other.writes()  # 1 where both wrote the lease at once, and the API server took the leader's
    models.apply("led", replicas=0)
    models.wait_for("led", "Ready", "False", "ScaledToZero")
    assert (other.leads(), other.writes(), other.reconciles()) == (False, tried, 0)
    leader.kill()
    died = time.monotonic()
    models.kubectl("delete", "service", "led")
    eventually(lambda: models.get("service", "led") is not None, 30, other.tail)
    assert time.monotonic() - died < 20
    assert other.leads()


def test_an_orderly_end_hands_over_at_once(pair: tuple[OperatorProcess, OperatorProcess], models: Models) -> None:
    eventually(lambda: any(one.leads() for one in pair), 30, pair[0].tail)
    leader, other = sorted(pair, key=lambda one: not one.leads())
    assert leader.stop() == 0
    eventually(other.leads, 10, other.tail)  # the lease itself would run for 15 s more


def test_an_outage_longer_than_the_lease_is_waited_for_and_over_when_it_is_over(
    pair: tuple[OperatorProcess, OperatorProcess], models: Models, cluster: Cluster
) -> None:
    """Who leads must end, for another may lead; who is started meanwhile waits instead of ending again and again."""
    eventually(lambda: any(one.leads() for one in pair), 30, pair[0].tail)
    leader, other = sorted(pair, key=lambda one: not one.leads())
    models.apply("patient", replicas=0)
    models.wait_for("patient", "Ready", "False", "ScaledToZero")
    cluster.stop("kube-apiserver")
    try:
        eventually(lambda: not leader.is_alive(), 60, leader.tail)
        leader.spawn()  # as the kubelet would
        eventually(lambda: "is waited for" in leader.tail(), 60, leader.tail)
        assert not leader.is_ready()
    finally:
        cluster.start("kube-apiserver")
    eventually(models.answers, 120, lambda: cluster.logs("kube-apiserver"))
    models.kubectl("delete", "service", "patient")
    eventually(lambda: models.get("service", "patient") is not None, 60, lambda: leader.tail() + other.tail())
    eventually(leader.is_ready, 60, leader.tail)
    assert leader.is_alive()
    assert other.is_alive()
