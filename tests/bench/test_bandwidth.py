"""What a measurement of rates may take of a card, and what is known of its clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from strata.bench import bandwidth
from strata.plan.cards import CARDS


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, 60), (0.3, 10)], ids=["what is free", "what a smaller card would have left"]
)
def test_no_more_is_taken_than_the_card_has(monkeypatch: pytest.MonkeyPatch, share: float, expected: int) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 100))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert bandwidth._free(torch.device("cuda")) == expected


def test_the_clock_is_the_card_s_where_it_is_known() -> None:
    assert bandwidth._hertz("NVIDIA GeForce RTX 4090") == CARDS["rtx4090"].boost_ghz * 1e9
    assert bandwidth._hertz("NVIDIA RTX 9999") == bandwidth.USUAL_HZ


def test_a_card_s_rates_and_its_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda device: {"cuda": 4.35e12, "cpu": 1e11}[device.type])
    monkeypatch.setattr(bandwidth, "copy_bandwidth", lambda device: 5.5e10)
    monkeypatch.setattr(bandwidth, "multiply_rate", lambda device: 7e14)
    rates = bandwidth.measure_rates(torch.device("cuda"))
    assert (rates.device, rates.pcie, rates.cpu, rates.dram, rates.flops) == (4.35e12, 5.5e10, 1e11, 1.55e11, 7e14)
    assert rates.cycles == pytest.approx(132 * 1.98e9)
    assert rates.overlaps


def test_a_cpu_has_no_link_to_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(bandwidth, "CPU_MATRIX", 32)
    rates = bandwidth.measure_rates(torch.device("cpu"))
    assert min(rates.device, rates.flops) > 0
    assert (rates.pcie, rates.cpu) == (0.0, 0.0)
