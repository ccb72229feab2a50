from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from strata_operator.agent.fake import rtx3090
from strata_operator.agent.restore import left, restore_everywhere, restore_here, uninstall
from strata_operator.api.errors import UnavailableError
from strata_operator.api.names import TUNING_FINALIZER
from strata_operator.api.node import NODE_KIND, UNHEALTHY_TAINT
from strata_operator.cluster.client import Client
from tests.operator.agent.conftest import NODE, World
from tests.operator.samples import model_object

Make = Callable[..., World]
LOWER = {"model": "llm/a", "powerLimitWatts": 280, "hugepages": [{"size": "2Mi", "pages": 64}]}


@pytest.fixture
def tuned(world: Make) -> World:
    """A node whose administrator had 300 W, under a model that wants 280 W and some huge pages."""
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want(LOWER)
    here.turn()
    assert here.cards[0].power_limit == 280_000
    return here


def client(world: World) -> Client:
    return cast("Client", world.client)


def no_pause() -> None: ...


def test_this_node_is_given_back_and_stays_so(tuned: World) -> None:
    running = tuned.agent
    tuned.restart()  # the command is a process of its own
    assert restore_here(tuned.mirror, tuned.agent, no_pause) == []
    assert (tuned.cards[0].power_limit, tuned.cards[0].persistence) == (300_000, 0)
    assert sum(one.total for one in tuned.host.hugepages()) == 0
    running._mirror.refresh()
    running.turn()  # an agent that still runs sees that it is suspended
    assert tuned.cards[0].power_limit == 300_000


def test_what_cannot_be_given_back_is_told(tuned: World) -> None:
    tuned.cards[0].errors["nvmlDeviceSetPowerManagementLimit"] = 999
    tuned.restart()
    assert restore_here(tuned.mirror, tuned.agent, no_pause) == [f"card {tuned.cards[0].uuid}"]


def test_a_node_without_a_strata_node_has_nothing_to_give_back(world: Make) -> None:
    here = world(rtx3090())
    assert restore_here(here.mirror, here.agent, no_pause) == []
    assert here.driver.sets == []


def test_without_the_api_server_it_says_so(tuned: World) -> None:
    tuned.outage(is_down=True)
    with pytest.raises(UnavailableError):
        restore_here(tuned.mirror, tuned.agent, no_pause)


def ready(world: World, status: str) -> None:
    world.node["status"]["conditions"] = [{"type": "Ready", "status": status}]


def test_everywhere_waits_for_the_agents(tuned: World) -> None:
    ready(tuned, "True")
    assert restore_everywhere(client(tuned), has_time=lambda: True, pause=tuned.turn) == {}
    assert tuned.cards[0].power_limit == 300_000


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_dead_node_is_not_waited_for(tuned: World, status: str) -> None:
    ready(tuned, status)

    def never() -> None:
        raise AssertionError("it waits")

    waiting = restore_everywhere(client(tuned), has_time=lambda: True, pause=never)
    assert list(waiting) == [NODE]
    assert left(tuned.strata_node) == waiting[NODE]


def test_an_agent_that_does_not_answer_is_waited_for_no_longer_than_there_is_time(tuned: World) -> None:
    ready(tuned, "True")
    times = iter([True, True, False])
    pauses: list[int] = []
    waiting = restore_everywhere(client(tuned), has_time=lambda: next(times), pause=lambda: pauses.append(1))
    assert (list(waiting), len(pauses)) == ([NODE], 2)


def daemon_set(world: World, events: list[str]) -> Callable[[], None]:
    """Agents that end some time after their DaemonSet is gone."""
    world.client.keep(
        {
            "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}},
        }
    )
    pods: list[dict[str, Any]] = [{"metadata": {"name": "agent-1"}}]

    def list_pods(kind: str, namespace: str | None = None, **query: str) -> dict[str, Any]:
        events.append(f"list {kind} {namespace} {query['labelSelector']}")
        return {"items": pods or None}

    def pause() -> None:
        if ("DaemonSet", "ns", "agent") in world.client.objects:
            world.turn()
        else:
            pods.clear()

    world.client.list = list_pods  # type: ignore[method-assign]
    return pause


def test_uninstalling_restores_ends_the_agents_and_deletes_the_strata_nodes_in_that_order(tuned: World) -> None:
    ready(tuned, "True")
    tuned.cards[0].errors["nvmlDeviceGetPowerUsage"] = 999
    tuned.turn(2)
    tuned.cards[0].errors.clear()
    tuned.turn()
    assert [taint["key"] for taint in tuned.node["spec"]["taints"]] == [UNHEALTHY_TAINT]
    events: list[str] = []
    pause = daemon_set(tuned, events)
    tuned.client.calls.clear()
    assert uninstall(client(tuned), "ns", "agent", has_time=lambda: True, pause=pause) == {}
    assert tuned.cards[0].power_limit == 300_000
    assert events == ["list Pod ns a=b"] * 2
    assert tuned.node["spec"]["taints"] == []
    assert not any(label.startswith("strata.ai/") for label in tuned.node["metadata"]["labels"])
    deletes = [call for call in tuned.client.calls if call.startswith("delete")]
    assert deletes == ["delete DaemonSet", f"delete {NODE_KIND}"]
    assert (NODE_KIND, "", NODE) not in tuned.client.objects


def test_uninstalling_lets_models_go_that_would_wait_for_an_operator(tuned: World) -> None:
    ready(tuned, "Unknown")
    for name, held in (("a", [TUNING_FINALIZER, "somebody/else"]), ("b", ["somebody/else"]), ("c", [])):
        made = model_object(name)
        made["metadata"] |= {"finalizers": held} if held else {}
        tuned.client.keep(made)
    uninstall(client(tuned), "ns", "agent", has_time=lambda: True, pause=daemon_set(tuned, []))
    left_over = {
        name: obj["metadata"].get("finalizers")
        for (kind, _, name), obj in tuned.client.objects.items()
        if kind == "StrataModel"
    }
    assert left_over == {"a": ["somebody/else"], "b": ["somebody/else"], "c": None}
    assert [call for call in tuned.client.calls if call.endswith(" StrataModel")] == [
        "list StrataModel",
        "merge StrataModel",
    ]


def test_uninstalling_keeps_the_strata_node_of_a_dead_node(tuned: World) -> None:
    """It has the original values, without which the node cannot be put right later."""
    ready(tuned, "Unknown")
    pause = daemon_set(tuned, [])
    assert list(uninstall(client(tuned), "ns", "agent", has_time=lambda: True, pause=pause)) == [NODE]
    assert left(tuned.strata_node)


def test_uninstalling_twice_is_no_error(tuned: World) -> None:
    ready(tuned, "True")
    pause = daemon_set(tuned, [])
    uninstall(client(tuned), "ns", "agent", has_time=lambda: True, pause=pause)
    assert uninstall(client(tuned), "ns", "agent", has_time=lambda: True, pause=pause) == {}
