"""The cards through the library's fake, and the fake against the real library's names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest

from strata_operator.agent import fake, nvml
from strata_operator.agent.errors import (
    DriverMismatchError,
    DriverMissingError,
    GpuLostError,
    HardwareError,
    NoPermissionError,
    OutOfRangeError,
    UnsupportedError,
)
from strata_operator.agent.fake import FakeDriver, gpus_of, h200, rtx3090, rtx4090, rtx4090_48g
from strata_operator.agent.hardware import Xid
from strata_operator.agent.nvml import product

GIB = 1 << 30


def test_a_3090_is_told_as_it_is() -> None:
    driver = FakeDriver([rtx3090()])
    gpus = gpus_of(driver)
    (card,) = gpus.find().cards
    assert card.product == "NVIDIA-GeForce-RTX-3090"
    assert (card.vram_bytes, card.usable_vram_bytes) == (24 * GIB, 24 * GIB - (400 << 20))
    assert (card.default_power_limit, card.power_limit_range) == (350_000, (100_000, 400_000))
    assert (card.compute_capability, card.max_pcie_generation, card.max_pcie_width) == ("8.6", 4, 16)
    at_rest = gpus.read(card.uuid)
    assert (at_rest.pcie_generation, at_rest.memory_temperature_c, at_rest.persistence_mode) == (1, None, False)
    assert at_rest.throttle_reasons == frozenset({"idle"})
    driver.cards[0].load = 1.0
    driver.advance(300)
    busy = gpus.read(card.uuid)
    assert (busy.pcie_generation, busy.power, busy.throttle_reasons) == (4, 350_000, frozenset({"power_cap"}))
    assert busy.core_temperature_c == 80
    assert busy.energy == pytest.approx(350_000 * 300, rel=0.01)
    assert busy.pcie_rx_bytes_per_second == 1_000_000_000  # NVML tells KB/s


def test_cards_of_one_name_and_different_memory_stay_apart() -> None:
    small, large = gpus_of(FakeDriver([rtx4090(), rtx4090_48g()])).find().cards
    assert small.product == large.product == "NVIDIA-GeForce-RTX-4090"
    assert (small.vram_bytes, large.vram_bytes) == (24564 << 20, 49140 << 20)


def test_a_data_centre_card_tells_memory_temperature_and_ecc() -> None:
    card = h200(memory_temperature=61, ecc_errors=2)
    reading = gpus_of(FakeDriver([card])).read(card.uuid)
    assert (reading.memory_temperature_c, reading.uncorrected_ecc_errors) == (61, 2)


def test_what_is_set_reaches_the_very_card() -> None:
    first, second = rtx3090(1), rtx3090(2)
    gpus = gpus_of(FakeDriver([first, second]))
    gpus.set_persistence_mode(second.uuid, True)
    gpus.set_power_limit(second.uuid, 280_000)
    gpus.lock_clock(second.uuid, "sm", 1500)
    gpus.lock_clock(second.uuid, "memory", 5001)
    assert (second.persistence, second.power_limit, second.sm_lock, second.memory_lock) == (1, 280_000, 1500, 5001)
    assert (first.persistence, first.power_limit, first.sm_lock, first.memory_lock) == (0, 350_000, None, None)
    gpus.unlock_clock(second.uuid, "sm")
    gpus.unlock_clock(second.uuid, "memory")
    assert (second.sm_lock, second.memory_lock) == (None, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DriverMissingError),
        (2, OutOfRangeError),
        (3, UnsupportedError),
        (4, NoPermissionError),
        (6, GpuLostError),
        (9, DriverMissingError),
        (12, DriverMissingError),
        (15, GpuLostError),
        (16, GpuLostError),
        (18, DriverMismatchError),
        (999, HardwareError),
    ],
)
def test_every_code_is_an_error_of_ours_that_says_what_to_do(code: int, kind: type[HardwareError]) -> None:
    card = rtx3090(errors={"nvmlDeviceSetPowerManagementLimit": code})
    with pytest.raises(HardwareError, match=rf"card {card.uuid}: NVML says .*; \w+") as raised:
        gpus_of(FakeDriver([card])).set_power_limit(card.uuid, 200_000)
    assert type(raised.value) is kind


def test_a_lost_card_leaves_the_others() -> None:
    lost, well = rtx3090(1, lost=True), rtx3090(2)
    gpus = gpus_of(FakeDriver([lost, well]))
    found = gpus.find()
    assert [card.uuid for card in found.cards] == [well.uuid]
    assert len(found.lost) == 1
    assert "GPU is lost" in found.lost[0]
    with pytest.raises(GpuLostError):
        gpus.read(lost.uuid)


def test_the_library_is_opened_again_after_the_driver_came_back() -> None:
    driver = FakeDriver([rtx3090()])
    gpus = gpus_of(driver)
    assert len(gpus.find().cards) == 1
    driver.fail(FakeDriver.NVML_ERROR_DRIVER_NOT_LOADED)
    for _ in range(2):
        with pytest.raises(DriverMissingError, match="Driver Not Loaded"):
            gpus.find()
    driver.fail(None)
    assert len(gpus.find().cards) == 1


def test_faults_are_taken_once_with_their_card() -> None:
    first, second = rtx3090(1), rtx3090(2)
    driver = FakeDriver([first, second])
    gpus = gpus_of(driver)
    assert gpus.take_xids() == ()
    driver.send_xid(second, 79)
    driver.send_xid(first, 31)
    assert gpus.take_xids() == (Xid(second.uuid, 79), Xid(first.uuid, 31))
    assert gpus.take_xids() == ()


def test_after_a_lost_card_faults_are_told_of_a_new_set() -> None:
    card = rtx3090()
    driver = FakeDriver([card])
    gpus = gpus_of(driver)
    assert gpus.take_xids() == ()
    driver.errors["nvmlEventSetWait_v2"] = FakeDriver.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(GpuLostError):
        gpus.take_xids()
    driver.errors.clear()
    driver.send_xid(card, 31)
    sets = driver.num_event_sets
    assert gpus.take_xids() == (Xid(card.uuid, 31),)
    assert driver.num_event_sets == sets + 1


def test_a_card_that_fails_leaves_the_others() -> None:
    bad, well = rtx3090(1, errors={"nvmlDeviceGetName": 999}), rtx3090(2)
    found = gpus_of(FakeDriver([bad, well])).find()
    assert [card.uuid for card in found.cards] == [well.uuid]
    assert (found.lost, len(found.failing)) == ((), 1)


def test_a_setting_that_a_card_lacks_is_none_and_not_an_error() -> None:
    errors = dict.fromkeys(("nvmlDeviceGetFanSpeed", "nvmlDeviceGetTotalEnergyConsumption"), 3)
    card = rtx3090(errors={**errors, "nvmlDeviceGetPersistenceMode": 4})
    reading = gpus_of(FakeDriver([card])).read(card.uuid)
    assert (reading.fan_percent, reading.energy, reading.persistence_mode) == (None, None, None)
    assert reading.power is not None


def test_a_product_is_a_label_value() -> None:
    assert product("NVIDIA GeForce RTX 4090 D") == "NVIDIA-GeForce-RTX-4090-D"
    assert product("x" * 70 + "-") == "x" * 63


def test_the_fake_has_the_real_library_s_names_codes_and_arguments() -> None:
    for name, value in inspect.getmembers(FakeDriver):
        if name.startswith("nvml") and callable(value):
            real = inspect.signature(getattr(pynvml, name)).parameters.values()
            required = [parameter for parameter in real if parameter.default is parameter.empty]
            arguments = list(inspect.signature(value).parameters)[1:]
            assert len(required) <= len(arguments) <= len(real), name
        elif name.startswith(("NVML_", "nvml")):
            assert getattr(pynvml, name) == value, name
    bits = {name: getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in ("GpuIdle", "SwPowerCap")}
    assert bits == {"GpuIdle": nvml.THROTTLE_REASONS["idle"], "SwPowerCap": nvml.THROTTLE_REASONS["power_cap"]}
    assert nvml.THROTTLE_REASONS["hardware_thermal"] == pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    assert pynvml.NVML_FI_DEV_MEMORY_TEMP == nvml._MEMORY_TEMPERATURE_FIELD


def test_the_fake_has_every_function_that_is_called() -> None:
    called = set(re.findall(r"library\.(nvml\w+)", Path(nvml.__file__).read_text()))
    assert len(called) > 25
    missing: list[Any] = [name for name in called if not hasattr(fake.FakeDriver, name)]
    assert missing == []
