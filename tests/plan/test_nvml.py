"""The cards, through the fake that the package ships; and the fake against the real library's names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pynvml
import pytest

from strata.errors import HardwareError
from strata.plan import nvml as nvml_module
from strata.plan.fake_nvml import FakeCard, FakeNvml
from strata.plan.nvml import open_nvml


def test_facts_are_translated_to_watts_and_tuples() -> None:
    library = FakeNvml([FakeCard(), FakeCard(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9))])
    with open_nvml(library) as nvml:
        assert (nvml.driver_version, nvml.cuda_version, nvml.num_gpus) == ("580.65.06", (13, 0), 2)
        first, second = nvml.facts(0), nvml.facts(1)
        assert library.num_open == 1
    assert library.num_open == 0
    assert (first.name, second.name) == ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090")
    assert first.compute_capability == (8, 6)
    assert (first.pcie_generation, first.max_pcie_generation, first.pcie_width) == (1, 3, 16)
    assert (first.power_limit_watts, first.power_limit_range_watts) == (350, (100, 350))
    assert first.vram_free_bytes == 23.5 * (1 << 30)
    assert (first.bus_id, second.bus_id) == ("00000000:65:00.0", "00000000:66:00.0")


def test_a_sample_holds_what_moves() -> None:
    card = FakeCard(temperature=71, power=287_500, sm_clock=1695, memory_clock=9501, utilization=97)
    with open_nvml(FakeNvml([card])) as nvml:
        sample = nvml.sample(0)
    assert (sample.temperature_c, sample.power_watts) == (71, 287.5)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.utilization_percent) == (1695, 9501, 97)


def test_what_a_card_does_not_support_is_none() -> None:
    card = FakeCard(power_limit=None, power_limit_range=None, temperature=None, utilization=None)
    with open_nvml(FakeNvml([card])) as nvml:
        facts, sample = nvml.facts(0), nvml.sample(0)
    assert (facts.power_limit_watts, facts.power_limit_range_watts) == (None, None)
    assert (sample.temperature_c, sample.utilization_percent) == (None, None)


def test_a_lost_card_is_an_error() -> None:
    with open_nvml(FakeNvml([FakeCard(lost=True)])) as nvml, pytest.raises(HardwareError, match="GPU is lost"):
        nvml.facts(0)


@pytest.mark.parametrize("code", [FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_the_reason_is_told(code: int) -> None:
    with pytest.raises(HardwareError, match=r"no NVIDIA driver answers \(.*Not"), open_nvml(FakeNvml(init_error=code)):
        pass


def test_the_fake_has_the_real_library_s_names_codes_and_arguments() -> None:
    for name, value in inspect.getmembers(FakeNvml):
        if name.startswith("nvml"):
            real = inspect.signature(getattr(pynvml, name)).parameters.values()
            required = [parameter for parameter in real if parameter.default is parameter.empty]
            arguments = list(inspect.signature(value).parameters)[1:]
            assert len(required) <= len(arguments) <= len(real), name
        elif name.startswith("NVML_"):
            assert getattr(pynvml, name) == value, name


def test_nothing_is_ever_set() -> None:
    called = set(re.findall(r"\.(nvml\w+)", Path(nvml_module.__file__).read_text()))
    assert len(called) > 10
    assert all(name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) for name in called - {"nvmlInit", "nvmlShutdown"})
