"""Whole turns of the agent: what it does to fake cards, and what it tells a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strata_operator.agent.errors import HardwareError
from strata_operator.agent.fake import h200, rtx3090, rtx4090
from strata_operator.agent.health import RECOVERY_SECONDS
from strata_operator.api.node import FORGET_FAULTS_ANNOTATION, NODE_KIND, UNHEALTHY_TAINT, NodeStatus, StrataNode
from tests.operator.agent.conftest import World

Make = Callable[..., World]
LOWER = {"model": "llm/a", "powerLimitWatts": 280}


def writes(world: World) -> list[str]:
    return [call for call in world.client.writes() if not call.startswith("merge Event")]


def test_the_first_turn_makes_the_strata_node_and_says_what_is_there(world: Make) -> None:
    here = world(rtx3090(1), rtx3090(2))
    here.turn()
    (owner,) = here.strata_node["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "uid-node")
    node = StrataNode.parse(here.strata_node)
    first, second = node.status.gpus
    assert (first.uuid, second.index, first.product) == (here.cards[0].uuid, 1, "NVIDIA-GeForce-RTX-3090")
    assert first.power is not None
    assert (first.power.limit_watts, first.power.min_watts, first.power.max_watts) == (350, 100, 400)
    assert node.status.driver_version == "580.65.06"
    assert node.status.host is not None
    assert node.status.host.cores == 16
    assert here.condition("Healthy")[:2] == ("True", "AllWell")
    assert here.condition("Tuned")[:2] == ("True", "NothingAsked")
    assert here.node["metadata"]["labels"] == {
        "strata.ai/gpu-product": "NVIDIA-GeForce-RTX-3090",
        "strata.ai/vram-gib": "24",
        "strata.ai/pcie-generation": "4",
        "strata.ai/pcie-width": "16",
    }
    assert here.client.events() == []


@pytest.mark.parametrize("used", [{"load": 1.0}, {"vram_used_bytes": 20 << 30}], ids=["computes", "holds memory"])
def test_bandwidths_are_measured_once_and_never_beside_a_model(world: Make, used: dict[str, Any]) -> None:
    here = world(rtx3090(**used))
    here.turn(3)
    assert (here.host.num_measurements, here.driver.num_copies) == (0, 0)
    here.cards[0].load, here.cards[0].vram_used_bytes = 0.0, 512 << 20
    here.turn(3)
    here.restart()
    here.turn(3)
    assert (here.host.num_measurements, here.driver.num_copies) == (1, 1)  # by the process before
    assert here.status["calibration"] == {
        "dramMegabytesPerSecond": 60_000,
        "hostToDevice": [{"uuid": here.cards[0].uuid, "megabytesPerSecond": 24_600}],
    }


def test_a_card_that_comes_later_is_measured_too(world: Make) -> None:
    here = world(rtx3090(1))
    here.turn()
    here.cards.append(rtx3090(2))
    here.driver.cards.append(here.cards[1])
    here.turn()
    assert [one["uuid"] for one in here.status["calibration"]["hostToDevice"]] == [card.uuid for card in here.cards]
    assert (here.host.num_measurements, here.driver.num_copies) == (1, 2)


def test_one_card_a_turn_is_measured_for_meanwhile_no_temperature_is_governed(world: Make) -> None:
    here = world(rtx3090(1), rtx3090(2))
    counts = []
    for _ in range(3):
        here.turn()
        counts.append(here.driver.num_copies)
    assert counts == [1, 2, 2]


def test_a_measurement_that_fails_is_not_tried_all_the_time(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here, tries = world(rtx3090()), []

    def fail() -> int:
        tries.append(1)
        raise HardwareError("no memory")

    monkeypatch.setattr(here.host, "dram_bandwidth", fail)
    here.turn(5)
    assert len(tries) == 1
    assert "dramMegabytesPerSecond" not in here.status["calibration"]  # of the links it is told nevertheless


def test_nothing_is_written_while_nothing_changes(world: Make) -> None:
    """Load, temperature and the link's rest go up and down; none of that is in the status."""
    here = world(rtx3090())
    here.turn()
    here.cards[0].load = 0.7
    here.turn(5)
    here.want(LOWER)
    here.turn(3)
    writes(here)
    for load in (0.0, 0.3, 1.0, 0.0, 0.6) * 3:
        here.cards[0].load = load
        here.turn(3)
    assert writes(here) == []
    here.restart()
    here.turn(3)
    assert writes(here) == []


def test_the_original_is_written_down_before_the_first_change(world: Make) -> None:
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want(LOWER)
    seen: list[Any] = []
    apply = here.client.apply

    def watched(kind: str, manifest: Any, **options: Any) -> Any:
        seen.append((manifest["status"].get("originals"), here.cards[0].power_limit))
        return apply(kind, manifest, **options)

    here.client.apply = watched  # type: ignore[method-assign]
    here.turn()
    original = {"uuid": here.cards[0].uuid, "powerLimitMilliwatts": 300_000, "persistenceMode": False}
    assert seen[0] == ({"gpus": [original]}, 300_000)
    assert seen[-1] == ({"gpus": [original]}, 280_000)
    assert here.condition("Tuned")[:2] == ("True", "InForce")


def test_without_the_api_server_nothing_new_is_changed_and_what_was_is_kept(world: Make) -> None:
    here = world(rtx3090(1, power_limit=300_000), rtx3090(2))
    here.turn()
    here.want({**LOWER, "gpus": [here.cards[0].uuid]})
    here.turn()
    here.want(LOWER)
    here.mirror.refresh()
    here.outage(is_down=True)
    here.cards[0].reset()  # something loads the driver anew meanwhile
    for _ in range(3):
        here.agent.turn()
    assert here.cards[0].power_limit == 280_000  # its original is on record
    assert here.cards[1].power_limit == 350_000
    here.outage(is_down=False)
    here.turn()
    assert here.cards[1].power_limit == 280_000


def test_an_agent_that_never_saw_its_strata_node_changes_nothing(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.outage(is_down=True)
    here.restart()
    for _ in range(3):
        here.agent.turn()
    assert here.driver.sets == []
    assert here.agent.snapshot.turn is not None  # metrics are served nevertheless


def test_the_last_model_leaves_and_the_administrator_s_values_come_back(world: Make) -> None:
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want({**LOWER, "smClockMaxMHz": 1500, "hugepages": [{"size": "2Mi", "pages": 64}]})
    here.turn(2)
    card = here.cards[0]
    assert (card.power_limit, card.sm_lock, card.persistence) == (280_000, 1500, 1)
    assert here.condition("Tuned")[1] == "KubeletRestartNeeded"
    here.node["status"]["allocatable"]["hugepages-2Mi"] = "128Mi"
    here.client._written(("Node", "", "gpu-1"), here.node)
    here.turn()
    assert here.condition("Tuned")[:2] == ("True", "InForce")
    assert here.status["enforced"]["hugepages"] == [{"size": "2Mi", "requested": 64, "enforced": 64, "allocatable": 64}]
    here.want()
    here.turn(2)
    assert (card.power_limit, card.sm_lock, card.persistence) == (300_000, None, 0)
    assert sum(one.total for one in here.host.hugepages()) == 0
    assert "originals" not in here.status
    assert here.condition("Tuned")[:2] == ("True", "NothingAsked")
    assert here.client.events() == ["KubeletRestartNeeded", "Tuned", "Restored"]


def test_suspend_gives_back_and_keeps_off(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.turn()
    here.want(LOWER, suspend=True)
    here.turn(2)
    assert (here.cards[0].power_limit, here.cards[0].persistence) == (350_000, 0)
    assert "originals" not in here.status
    assert here.condition("Tuned")[:2] == ("False", "Suspended")


def test_two_models_the_lowest_wins_and_the_status_says_so(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER, {"model": "llm/b", "powerLimitWatts": 250})
    here.turn()
    assert here.cards[0].power_limit == 250_000
    (tuned,) = here.status["enforced"]["gpus"]
    assert tuned["settings"] == [{"name": "powerLimitWatts", "requested": 250, "model": "llm/b", "enforced": 250}]
    assert here.condition("Tuned")[2] == (
        "all that models want is in force; of several wishes for the power limit the lowest counts: 250 of llm/b"
    )


def test_a_budget_is_told(world: Make) -> None:
    here = world(rtx3090(1), rtx3090(2))
    here.turn()
    here.want(LOWER, powerBudgetWatts=500)
    here.turn()
    assert [card.power_limit for card in here.cards] == [250_000, 250_000]
    settings = [gpu["settings"][0] for gpu in here.status["enforced"]["gpus"]]
    assert [(one["requested"], one["enforced"]) for one in settings] == [(280, 250), (280, 250)]
    assert "lowered to stay within powerBudgetWatts 500" in here.condition("Tuned")[2]


def test_a_card_that_cannot_be_read_still_counts_in_the_budget(world: Make) -> None:
    here = world(rtx3090(1), rtx3090(2))
    here.turn()
    here.cards[1].errors["nvmlDeviceGetPowerUsage"] = 999
    here.want(powerBudgetWatts=500)
    here.turn(2)
    assert [card.power_limit for card in here.cards] == [250_000, 350_000]
    assert here.condition("Tuned")[:2] == ("False", "GpuFails")


def test_out_of_range_is_refused_with_the_range(world: Make) -> None:
    here = world(rtx3090(), rtx4090())
    here.turn()
    here.want({"model": "llm/a", "powerLimitWatts": 120})
    here.turn()
    assert (here.cards[0].power_limit, here.cards[1].power_limit) == (120_000, 450_000)
    status, reason, message = here.condition("Tuned")
    assert (status, reason) == ("False", "Refused")
    assert "llm/a wants 120 W" in message
    assert "allowed are 150 to 600 W" in message
    assert ("Refused", message) in here.client.told()


@pytest.mark.parametrize("code", [9, 999])
def test_one_bad_look_is_no_news(world: Make, code: int) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.turn(2)
    told = here.client.told()
    writes(here)
    for _ in range(3):
        here.driver.errors["nvmlSystemGetDriverVersion"] = code
        here.driver.send_xid(here.cards[0], 31)
        here.turn()
        here.driver.errors.clear()
        here.turn()
    assert [call for call in writes(here) if not call.endswith("Event")] == []
    ((reason, _),) = [one for one in here.client.told() if one not in told]
    assert reason == "Xid31"  # which is not lost with it


def test_a_limit_that_something_else_reset_comes_again(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.turn()
    here.cards[0].power_limit = 350_000
    here.turn()
    assert here.cards[0].power_limit == 280_000


def test_a_strata_node_that_somebody_deletes_comes_again_with_its_originals(world: Make) -> None:
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want(LOWER)
    here.turn()
    del here.client.objects[NODE_KIND, "", "gpu-1"]
    here.turn(3)  # no model wants anything in the new one
    assert here.cards[0].power_limit == 300_000


def test_originals_that_somebody_edits_are_put_right(world: Make) -> None:
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want(LOWER)
    here.turn()
    edited = here.strata_node
    edited["status"]["originals"]["gpus"][0]["powerLimitMilliwatts"] = 123_000
    here.client._written((NODE_KIND, "", "gpu-1"), edited)
    here.turn()
    assert here.status["originals"]["gpus"][0]["powerLimitMilliwatts"] == 300_000


def test_a_spec_of_a_newer_version_is_told_and_leaves_all_as_it_is(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.turn()
    here.want({**LOWER, "fanPercent": 100})
    here.turn()
    assert here.condition("Tuned")[:2] == ("False", "InvalidSpec")
    assert "fanPercent is not known here" in here.condition("Tuned")[2]
    assert here.cards[0].power_limit == 280_000


def test_a_lost_card_taints_the_node_until_the_machine_is_started_anew(world: Make) -> None:
    here = world(rtx3090(1), rtx3090(2))
    here.node["spec"]["taints"] = [{"key": "other", "effect": "NoSchedule"}]
    here.turn()
    here.cards[1].lost = True
    here.turn()
    assert here.condition("Healthy")[:2] == ("False", "GpuLost")
    assert here.condition("GpuLost")[:2] == ("True", "OffTheBus")
    assert here.cards[1].uuid in here.condition("GpuLost")[2]
    assert [taint["key"] for taint in here.node["spec"]["taints"]] == ["other", UNHEALTHY_TAINT]
    assert {reason for reason, _ in here.client.told()} == {"GpuLost", "OffTheBus"}
    here.restart()  # another process knows it from the status
    here.turn()
    assert here.condition("GpuLost")[0] == "True"
    here.cards[1].lost = False
    here.host.restart("another")
    here.restart()
    here.turn()
    assert here.condition("GpuLost")[0] == "False"
    assert [taint["key"] for taint in here.node["spec"]["taints"]] == ["other"]


def test_a_card_that_is_back_untaints_after_a_quiet_while(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.cards[0].lost = True
    here.turn()
    here.cards[0].lost = False
    here.turn(2)
    assert here.node["spec"]["taints"]
    here.turn(int(RECOVERY_SECONDS / 5))
    assert here.node["spec"]["taints"] == []
    assert here.client.events() == ["OffTheBus", "GpuLost", "GpuFound", "Healthy"]


def test_a_fault_outlives_the_process_and_is_forgotten_on_request(world: Make) -> None:
    here = world(h200())
    here.turn()
    here.driver.send_xid(here.cards[0], 48)
    here.turn()
    assert here.condition("Healthy")[:2] == ("False", "GpuFault")
    here.restart()
    here.turn(100)
    assert here.condition("Healthy")[:2] == ("False", "GpuFault")
    here.client.merge(NODE_KIND, None, "gpu-1", {"metadata": {"annotations": {FORGET_FAULTS_ANNOTATION: "true"}}})
    here.turn()
    assert here.condition("Healthy")[:2] == ("True", "AllWell")
    assert FORGET_FAULTS_ANNOTATION not in here.strata_node["metadata"]["annotations"]
    assert "faults" not in here.status


def test_an_application_s_xid_is_an_event_and_no_more(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.driver.send_xid(here.cards[0], 31)
    here.turn()
    assert here.condition("Healthy")[0] == "True"
    ((reason, message),) = here.client.told()
    assert reason == "Xid31"
    assert "its container is started anew" in message


def test_a_hot_card_is_held_down_and_the_status_says_so(world: Make) -> None:
    here = world(rtx3090(load=1.0, ambient=45.0))
    here.turn()
    here.want({"model": "llm/a", "maxCoreTemperatureC": 80})
    here.turn(400)
    card = here.cards[0]
    assert card.heat < 81
    assert card.power_limit is not None
    assert card.power_limit < 240_000
    status, reason, message = here.condition("ThermallyLimited")
    assert (status, reason) == ("True", "Governed")
    assert "core at most 80 °C as llm/a wants" in message
    writes(here)
    here.turn(50)
    assert writes(here) == []
    here.want()
    here.turn(2)
    assert (card.power_limit, card.persistence) == (350_000, 0)
    assert here.condition("ThermallyLimited")[0] == "False"


def test_a_slow_link_is_told_under_load_only(world: Make) -> None:
    here = world(rtx3090())
    here.turn(5)
    assert here.condition("PcieDegraded")[0] == "False"
    here.cards[0].load, here.cards[0].pcie_width = 0.9, 8
    here.turn(5)
    assert here.condition("PcieDegraded")[:2] == ("True", "LinkSlow")
    assert "has 4.0 x8 under load, card and slot can do 4.0 x16" in here.condition("PcieDegraded")[2]
    assert here.status["gpus"][0]["pcie"] == {"generation": 4, "width": 8, "maxGeneration": 4, "maxWidth": 16}
    here.cards[0].load = 0.0
    writes(here)
    here.restart()
    here.agent.turn()  # before the watches have told anything
    here.turn(3)
    assert writes(here) == []
    assert here.condition("PcieDegraded")[0] == "True"  # as long as no load shows otherwise


@pytest.mark.parametrize(("code", "reason"), [(12, "DriverMissing"), (18, "DriverMismatch"), (4, "NoPermission")])
def test_a_node_without_a_driver_says_so_and_is_not_tainted(world: Make, code: int, reason: str) -> None:
    """No model with a card runs there anyway, and others may."""
    here = world()
    here.driver.fail(code)
    here.turn(3)
    assert here.condition("Healthy")[:2] == ("False", reason)
    assert here.node["spec"].get("taints") in (None, [])
    assert here.status["host"]["cores"] == 16


def test_a_missing_driver_is_no_obstacle_to_huge_pages_and_one_to_a_power_limit(world: Make) -> None:
    here = world()
    here.driver.fail(12)
    here.turn(3)
    here.want({"model": "a/b", "hugepages": [{"size": "2Mi", "pages": 4}]})
    here.turn(3)
    assert here.condition("Tuned")[:2] == ("False", "KubeletRestartNeeded")
    here.want({"model": "a/b", "powerLimitWatts": 280})
    here.turn(3)
    assert here.condition("Tuned")[:2] == ("False", "DriverMissing")


def test_a_driver_that_goes_away_taints_and_keeps_labels_and_originals(world: Make) -> None:
    here = world(rtx3090(power_limit=300_000))
    here.turn()
    here.want(LOWER)
    here.turn()
    here.driver.fail(9)
    here.turn(2)
    assert here.condition("Healthy")[:2] == ("False", "DriverMissing")
    assert [taint["key"] for taint in here.node["spec"]["taints"]] == [UNHEALTHY_TAINT]
    assert here.node["metadata"]["labels"]["strata.ai/vram-gib"] == "24"
    assert here.status["originals"]["gpus"]
    here.driver.fail(None)
    here.cards[0].reset()
    here.turn()
    assert here.cards[0].power_limit == 280_000
    here.want()
    here.turn()
    assert here.cards[0].power_limit == 300_000


def test_a_machine_that_comes_up_without_its_driver_says_so(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.host.restart("another")
    here.driver.fail(9)
    here.restart()
    here.turn(3)
    assert here.condition("Healthy")[:2] == ("False", "DriverMissing")


def test_a_node_without_cards_is_no_trouble(world: Make) -> None:
    here = world()
    here.turn(3)
    assert here.condition("Healthy")[:2] == ("False", "NoGpus")
    assert here.node["spec"].get("taints") in (None, [])
    assert not {label for label in here.node["metadata"].get("labels", {}) if label.startswith("strata.ai/")}


def test_mixed_cards_get_a_label_of_all_and_the_least_of_the_others(world: Make) -> None:
    here = world(rtx3090(), h200())
    here.turn()
    labels = here.node["metadata"]["labels"]
    assert labels["strata.ai/gpu-product"] == "NVIDIA-GeForce-RTX-3090_NVIDIA-H200"
    assert (labels["strata.ai/vram-gib"], labels["strata.ai/pcie-generation"]) == ("24", "4")


def test_a_card_that_refuses_is_named_with_the_driver_s_words(world: Make) -> None:
    here = world(rtx3090(errors={"nvmlDeviceSetPowerManagementLimit": 4}))
    here.turn()
    here.want(LOWER)
    here.turn()
    status, reason, message = here.condition("Tuned")
    assert (status, reason) == ("False", "HardwareFailed")
    assert "Insufficient Permissions" in message
    assert here.status["enforced"]["gpus"][0]["settings"] == [
        {"name": "powerLimitWatts", "requested": 280, "model": "llm/a"}
    ]


def test_a_node_that_is_being_deleted_is_left_alone(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want(LOWER)
    here.strata_node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    here.client._written((NODE_KIND, "", "gpu-1"), here.strata_node)
    writes(here)
    here.turn(2)
    assert writes(here) == []
    assert here.driver.sets == []


def test_a_clock_that_jumps_back_moves_no_transition(world: Make) -> None:
    here = world(rtx3090())
    here.turn(3)
    before = here.status["conditions"]
    here.agent._wall = lambda: here.wall().replace(year=2020)
    writes(here)
    here.turn(3)
    assert writes(here) == []
    assert here.status["conditions"] == before


def test_what_is_written_is_what_the_resource_knows(world: Make) -> None:
    here = world(rtx3090(), h200())
    here.driver.send_xid(here.cards[1], 63)
    here.turn()
    here.want({**LOWER, "memoryClockMaxMHz": 5001, "hugepages": [{"size": "1Gi", "pages": 1}]}, powerBudgetWatts=600)
    here.turn(2)
    status = StrataNode.parse(here.strata_node).status
    from strata_operator.api import wire

    assert status != NodeStatus()
    assert {**wire.dump(status), "conditions": here.status["conditions"]} == here.status
