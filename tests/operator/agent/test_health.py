from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from strata_operator.agent import health as rooms
from strata_operator.agent.fake import FakeDriver, gpus_of, h200, rtx3090
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.hardware import Reading, Xid
from strata_operator.agent.health import RECOVERY_SECONDS, TURNS, CardHealth, Health, is_below, lost, step
from strata_operator.agent.observe import Observation, observe
from strata_operator.agent.watchdog import WatchedGpus
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import Fault, Pcie

WALL = datetime(2026, 1, 1, tzinfo=UTC)
A = rtx3090(1)
CARDS = gpus_of(FakeDriver([A])).find().cards


def seen(**fields: Any) -> Observation:
    return Observation(cards=CARDS, **{"readings": {A.uuid: Reading()}, **fields})


def after(*observations: Observation, start: Health | None = None, every: float = 5.0) -> Health:
    health = start or Health()
    for number, one in enumerate(observations):
        health = step(health, one, now=number * every, wall=WALL)
    return health


def link(generation: int, width: int = 16, load: int = 90) -> Observation:
    return seen(readings={A.uuid: Reading(pcie_generation=generation, pcie_width=width, utilization_percent=load)})


def test_a_link_at_rest_says_nothing() -> None:
    held = after(*[link(1, load=0)] * 10).cards[A.uuid]
    assert held.pcie == Pcie(max_generation=4, max_width=16)


def is_slow(*observations: Observation) -> bool:
    return is_below(after(*observations).cards[A.uuid].pcie)


def test_a_link_that_stays_slow_under_load_is_degraded() -> None:
    assert not is_slow(*[link(3)] * (TURNS - 1))
    assert is_slow(*[link(3)] * TURNS)
    assert after(*[link(3)] * TURNS).cards[A.uuid].pcie == Pcie(3, 16, 4, 16)
    assert is_slow(*[link(3)] * TURNS, *[link(1, load=0)] * 9)  # a rest neither mends it nor is recorded
    assert not is_slow(*[link(3)] * TURNS, *[link(4)] * TURNS)


def test_fewer_lanes_are_degraded_too() -> None:
    assert is_slow(*[link(4, width=8)] * TURNS)


def test_a_link_that_flickers_changes_nothing() -> None:
    assert after(*[link(3), link(3), link(4)] * 5).cards[A.uuid].pcie.generation is None


def test_throttling_by_heat_counts_and_by_power_does_not() -> None:
    def throttled(reason: str) -> Observation:
        return seen(readings={A.uuid: Reading(throttle_reasons=frozenset({reason}))})

    assert after(*[throttled("hardware_thermal")] * TURNS).cards[A.uuid].is_throttled.value is True
    assert after(*[throttled("power_cap")] * TURNS).cards[A.uuid].is_throttled.value is False


@pytest.mark.parametrize("code", sorted(rooms.APPLICATION_XIDS | {8, 109}))
def test_an_application_s_fault_is_not_the_card_s(code: int) -> None:
    health = after(seen(xids=(Xid(A.uuid, code),)))
    assert (health.trouble, health.faults) == (None, ())


@pytest.mark.parametrize("code", sorted(rooms.FAULT_XIDS))
def test_a_fault_of_the_card_stays(code: int) -> None:
    health = after(seen(xids=(Xid(A.uuid, code),)), *[seen()] * 1000, every=60)
    assert health.faults == (Fault(A.uuid, code, "2026-01-01T00:00:00Z"),)
    assert health.trouble is not None
    assert health.trouble.reason == "GpuFault"
    assert f"XID {code} on card {A.uuid}" in health.trouble.message


def test_the_same_fault_again_is_no_other() -> None:
    one = seen(xids=(Xid(A.uuid, 48), Xid(A.uuid, 48)))
    assert len(after(one, one).faults) == 1


def test_xid_79_is_a_lost_card_and_comes_first() -> None:
    health = after(seen(xids=(Xid(A.uuid, 79), Xid(A.uuid, 48))))
    assert health.trouble is not None
    assert health.trouble.reason == "GpuLost"
    assert lost(seen(), health.faults) == {A.uuid: "XID 79"}


def test_a_driver_that_fails_once_is_no_trouble_and_twice_is() -> None:
    failing = seen(driver=Trouble("DriverMissing", "gone"))
    assert after(failing, seen(), failing, seen()).trouble is None
    assert after(failing, failing).trouble == Trouble("DriverMissing", "gone")


def test_health_comes_back_after_a_quiet_while() -> None:
    failing = seen(failures={A.uuid: Trouble("GpuFails", "no")})
    bad = after(failing, failing)
    assert bad.trouble is not None
    turns = int(RECOVERY_SECONDS / 5)
    assert after(*[seen()] * turns, start=bad).trouble == bad.trouble
    assert after(*[seen()] * (turns + 1), start=bad).trouble is None
    # One failure in between starts the wait anew.
    assert after(*[seen()] * turns, failing, *[seen()] * turns, start=bad).trouble is not None


def test_memory_errors_are_told_without_a_number_that_ticks() -> None:
    first, later = (seen(readings={A.uuid: Reading(uncorrected_ecc_errors=n)}) for n in (1, 7))
    assert after(first).trouble == after(later).trouble
    assert after(seen(readings={A.uuid: Reading(uncorrected_ecc_errors=0)})).trouble is None


def test_observing_a_node(tmp_path: Path) -> None:
    well, failing = h200(1), rtx3090(2, errors={"nvmlDeviceGetPowerUsage": 999})
    stuck, away = rtx3090(3, hangs={"nvmlDeviceGetPowerUsage"}), rtx3090(4, lost=True)
    driver = FakeDriver([well, failing, stuck, away])
    driver.send_xid(well, 31)
    host = FakeSysfs(tmp_path)
    host.put_card("00000000:65:00.0", 1)
    known = {card.uuid for card in driver.cards}
    one = observe(WatchedGpus(gpus_of(driver), seconds=0.1), host, known)
    stuck.let_go.set()
    assert set(one.readings) == {well.uuid}
    assert one.failures[failing.uuid].reason == "GpuFails"
    assert one.failures[stuck.uuid].reason == "DriverHangs"
    assert set(one.lost) == {away.uuid}
    assert "GPU is lost" in one.lost[away.uuid]
    assert one.xids == (Xid(well.uuid, 31),)
    assert one.numa == {well.uuid: 1}
    assert (one.driver_version, one.troubles) == ("580.65.06", ())
    assert one.host is not None
    assert len(one.pages) == 4


def test_a_card_that_is_not_listed_any_more_is_lost(tmp_path: Path) -> None:
    one = observe(gpus_of(FakeDriver([A])), FakeSysfs(tmp_path), {A.uuid, "GPU-gone"})
    assert one.lost == {"GPU-gone": "the driver does not list it any more"}


def test_a_card_that_fails_is_not_a_card_that_is_gone(tmp_path: Path) -> None:
    """The driver does not tell its UUID, and it may be over at the next look."""
    bad = rtx3090(2, errors={"nvmlDeviceGetName": 999})
    one = observe(gpus_of(FakeDriver([A, bad])), FakeSysfs(tmp_path), {A.uuid, bad.uuid})
    assert (one.lost, [trouble.reason for trouble in one.failures.values()]) == ({}, ["GpuFails"])
    assert set(one.readings) == {A.uuid}


def test_faults_that_are_not_told_hide_nothing_else(tmp_path: Path) -> None:
    driver = FakeDriver([A])
    driver.errors["nvmlEventSetWait_v2"] = 15
    one = observe(gpus_of(driver), FakeSysfs(tmp_path), {A.uuid})
    assert (one.driver, one.xids, set(one.readings)) == (None, (), {A.uuid})


def test_a_lost_card_that_nobody_knew_is_told(tmp_path: Path) -> None:
    """The agent came after the fall: the driver counts the card and does not tell its UUID."""
    one = observe(gpus_of(FakeDriver([A, rtx3090(2, lost=True)])), FakeSysfs(tmp_path), ())
    assert list(one.lost) == ["unknown"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "DriverMissing"), (12, "DriverMissing"), (18, "DriverMismatch"), (4, "NoPermission"), (999, "DriverFails")],
)
def test_without_a_driver_the_host_is_still_seen(tmp_path: Path, code: int, reason: str) -> None:
    one = observe(gpus_of(FakeDriver(init_error=code)), FakeSysfs(tmp_path), {A.uuid})
    assert one.driver is not None
    assert one.driver.reason == reason
    assert one.lost == {}  # who cannot look cannot say that a card is gone
    assert one.host is not None


def test_a_host_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    (tmp_path / "proc/sys/kernel/random/boot_id").unlink()
    one = observe(gpus_of(FakeDriver([A])), host, ())
    assert [trouble.reason for trouble in one.troubles] == ["HostUnreadable"]
    assert (one.boot_id, len(one.readings)) == (None, 1)


def test_held_values_start_as_unknown() -> None:
    assert CardHealth().pcie == Pcie()
