from __future__ import annotations

import threading

import pytest

from strata_operator.agent.errors import GpuLostError, HungError
from strata_operator.agent.fake import FakeDriver, gpus_of, rtx3090
from strata_operator.agent.watchdog import WatchedGpus


def num_threads(uuid: str) -> int:
    return sum(thread.name == f"nvml {uuid}" for thread in threading.enumerate())


def test_a_call_that_hangs_costs_one_thread_and_only_its_card() -> None:
    stuck, well = rtx3090(1, hangs={"nvmlDeviceGetPowerUsage"}), rtx3090(2)
    gpus = WatchedGpus(gpus_of(FakeDriver([stuck, well])), seconds=0.05)
    for _ in range(3):
        with pytest.raises(HungError, match=f"{stuck.uuid}: no answer from the driver within 0.05 s"):
            gpus.read(stuck.uuid)
    assert num_threads(stuck.uuid) == 1
    assert gpus.read(well.uuid).power == 25_000
    assert len(gpus.find().cards) == 2
    stuck.let_go.set()


def test_a_card_whose_call_came_back_is_asked_again() -> None:
    card = rtx3090(hangs={"nvmlDeviceGetPowerUsage"})
    gpus = WatchedGpus(gpus_of(FakeDriver([card])), seconds=0.05)
    with pytest.raises(HungError):
        gpus.read(card.uuid)
    card.hangs.clear()
    card.let_go.set()
    gpus._hung[card.uuid].join(10)
    assert gpus.read(card.uuid).power == 25_000


def test_errors_and_settings_pass_through() -> None:
    card = rtx3090()
    gpus = WatchedGpus(gpus_of(FakeDriver([card])))
    gpus.set_power_limit(card.uuid, 200_000)
    gpus.set_persistence_mode(card.uuid, True)
    gpus.lock_clock(card.uuid, "sm", 1200)
    assert (card.power_limit, card.persistence, card.sm_lock) == (200_000, 1, 1200)
    gpus.unlock_clock(card.uuid, "sm")
    assert card.sm_lock is None
    assert (gpus.driver_version(), gpus.take_xids()) == ("580.65.06", ())
    card.lost = True
    with pytest.raises(GpuLostError):
        gpus.read(card.uuid)
