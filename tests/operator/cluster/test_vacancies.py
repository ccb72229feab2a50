from __future__ import annotations

from typing import Any, cast

import pytest

from strata_operator.api.errors import RefusedError, UnavailableError
from strata_operator.cluster.client import Client
from strata_operator.cluster.vacancies import LOOK_SECONDS, Vacancies
from tests.operator.cluster.fake import FakeClient

LOOK = ["list Node", "list Pod"]


class Place:
    """One node of four CPUs, of which a pod has three."""

    def __init__(self) -> None:
        self.now = 0.0
        self.client = FakeClient()
        self.client.keep({"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}})
        self.put("busy", cpu="3", nodeName="n")
        self.put("waits", cpu="4")
        self.vacancies = Vacancies(cast("Client", self.client), lambda: self.now)

    def put(self, name: str, *, cpu: str, **spec: Any) -> None:
        pod = {"containers": [{"resources": {"requests": {"cpu": cpu}}}], **spec}
        self.client.keep({"kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": pod})

    def closest(self, cpu: str) -> str:
        return self.vacancies.closest({"containers": [{"resources": {"requests": {"cpu": cpu}}}]})


def test_one_look_answers_all_who_ask_within_a_while() -> None:
    place = Place()
    assert place.closest("2") == "node n comes closest: CPUs: 2 needed, 1 of 4 free"
    assert place.closest("3") == "node n comes closest: CPUs: 3 needed, 1 of 4 free"
    assert place.client.calls == LOOK
    place.put("another", cpu="1", nodeName="n")
    place.now = LOOK_SECONDS + 1
    assert place.closest("2") == "node n comes closest: CPUs: 2 needed, 0 of 4 free"
    assert place.client.calls == LOOK * 2


def test_a_node_that_would_take_the_pod_is_not_named() -> None:
    assert Place().closest("1") == ""


def test_without_the_right_to_see_nodes_nothing_is_said_and_nobody_asks_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place()
    place.client.failing["list Node"] = UnavailableError("cannot list nodes", status=403)
    assert (place.closest("2"), place.closest("3")) == ("", "")
    assert place.client.calls == ["list Node"]
    assert "cannot list nodes" in caplog.text


def test_without_the_right_to_see_pods_a_node_counts_as_a_whole() -> None:
    place = Place()
    place.client.failing["list Pod"] = UnavailableError("cannot list pods", status=403)
    assert place.closest("2") == ""
    assert place.closest("5") == "node n comes closest: CPUs: 5 needed, 4 in all"


@pytest.mark.parametrize("call", LOOK)
@pytest.mark.parametrize("error", [UnavailableError("no answer"), RefusedError("the list is too old", status=410)])
def test_what_cannot_be_looked_at_is_looked_for_later(call: str, error: Exception) -> None:
    place = Place()
    place.client.failing[call] = error
    assert place.closest("2") == ""
    place.client.failing.clear()
    assert place.closest("2") == ""
    place.now = LOOK_SECONDS + 1
    assert place.closest("2") == "node n comes closest: CPUs: 2 needed, 1 of 4 free"
