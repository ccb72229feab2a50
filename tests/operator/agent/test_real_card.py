"""NVML and this machine's own cards, where there are any. Reading only: nothing is ever set on a real card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strata_operator.agent import copies, nvml, sysfs
from strata_operator.agent.errors import DriverMissingError
from strata_operator.agent.hardware import Card, Reading
from strata_operator.agent.nvml import NvmlGpus, load_library
from strata_operator.agent.observe import observe
from strata_operator.agent.sysfs import Sysfs
from strata_operator.agent.watchdog import WatchedGpus


@pytest.fixture(scope="module")
def gpus() -> WatchedGpus:
    made = WatchedGpus(NvmlGpus(load_library(), copies.measure))
    try:
        cards = made.find().cards
    except DriverMissingError as error:
        pytest.skip(f"no NVIDIA driver: {error}")
    if not cards:
        pytest.skip("no card")
    return made


def test_every_card_tells_of_itself(gpus: WatchedGpus) -> None:
    seen = observe(gpus, Sysfs(), ())
    assert (seen.driver, seen.failures, seen.lost) == (None, {}, {})
    for card in seen.cards:
        _is_plausible(card, seen.readings[card.uuid])


def _is_plausible(card: Card, now: Reading) -> None:
    assert re.fullmatch(r"(GPU|MIG)-[0-9a-f-]+", card.uuid)
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", card.product)
    assert 0 < card.usable_vram_bytes <= card.vram_bytes
    assert 0 <= (now.vram_used_bytes or 0) <= card.vram_bytes
    assert now.core_temperature_c is None or 5 < now.core_temperature_c < 110
    if now.power_limit is not None and card.power_limit_range is not None:
        low, high = card.power_limit_range
        assert low <= now.power_limit <= high
    if now.pcie_generation is not None and card.max_pcie_generation is not None:
        assert 1 <= now.pcie_generation <= card.max_pcie_generation


def test_copies_are_as_fast_as_the_link(gpus: WatchedGpus) -> None:
    """It takes 300 MiB of the card for some seconds, and changes no setting."""
    card = gpus.find().cards[0]
    measured = gpus.copy_bandwidth(card.uuid)
    assert 1_000 < measured < 1_000_000
    # 985 * 10^6 bytes a second and lane on generation 3, and twice that with each further one.
    if card.max_pcie_generation is not None and card.max_pcie_width is not None:
        assert measured < 985 * 2 ** (card.max_pcie_generation - 3) * card.max_pcie_width


def test_faults_can_be_asked_for(gpus: WatchedGpus) -> None:
    assert gpus.take_xids() == gpus.take_xids() == ()


def test_setters_are_where_they_belong() -> None:
    """What sets anything stands in the four methods of the interface, and in what asks the kernel for huge pages."""
    text = Path(nvml.__file__).read_text()
    setters = re.findall(r"library\.(nvmlDevice(?:Set|Reset)\w+)", text)
    assert sorted(setters) == [
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceResetMemoryLockedClocks",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceSetMemoryLockedClocks",
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceSetPowerManagementLimit",
    ]
    begin, end = text.index("    def set_power_limit"), text.index("    # -- below here")
    assert not re.search(r"nvmlDevice(Set|Reset)", text[:begin] + text[end:])
    assert Path(sysfs.__file__).read_text().count("write_text") == 1
