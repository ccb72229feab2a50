"""The device that is asked for, or an error."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from strata.config import DeviceConfig
from strata.errors import EngineError, HardwareError, OptionError, UnsupportedModelError
from strata.plan.hardware import num_cpus
from strata.runner.device import Device, device_memory, keep_kernels, open_device, out_of_memory, probe, used_bytes
from strata.runner.load import check_supported
from tests.plan.configs import public


@pytest.mark.usefixtures("no_card")
def test_cuda_without_a_card_is_an_error_not_a_cpu() -> None:
    with pytest.raises(HardwareError, match=r"device 'cuda' was asked for, but .* or choose device 'cpu'"):
        open_device(DeviceConfig(device="cuda"))


@pytest.mark.usefixtures("no_card")
def test_auto_without_a_card_says_cpu() -> None:
    assert open_device(DeviceConfig(device="auto")).name == "cpu"


def test_a_card_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(device: torch.device) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", gone)
    with pytest.raises(EngineError, match="the card does not answer: CUDA error: unspecified launch failure"):
        probe(torch.device("cuda"))
    probe(torch.device("cpu"))


def test_auto_with_a_card_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA GeForce RTX 3090")
    device = open_device(DeviceConfig(device="auto"))
    assert (device.name, device.type) == ("cuda (NVIDIA GeForce RTX 3090)", "cuda")


@pytest.mark.parametrize(("free", "expected"), [(95, 90), (60, 70)], ids=["its share", "what others leave"])
def test_capacity_of_a_card(monkeypatch: pytest.MonkeyPatch, free: int, expected: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    config = DeviceConfig(device="cuda")
    assert device_memory(open_device(config), loaded_bytes=10).capacity_bytes(0.9) == expected


@pytest.mark.parametrize(
    ("free", "expected"), [(95, (40, 35)), (50, (40, 0))], ids=["a smaller card", "which others fill"]
)
def test_a_card_that_is_taken_for_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch, free: int, expected: tuple[int, int]
) -> None:
    allowed: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "card")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=100))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, index: allowed.append(share))
    device = open_device(DeviceConfig(device="cuda", vram_bytes=40))
    memory = device_memory(device)
    assert (memory.total_bytes, memory.available_bytes) == expected
    assert (device.name, allowed) == ("cuda (card) with 40 B", [0.4])
    with pytest.raises(OptionError, match="vram_bytes is 101; the card has 100"):
        open_device(DeviceConfig(device="cuda", vram_bytes=101))


def test_a_card_that_fills_up_meanwhile() -> None:
    with (
        pytest.raises(
            HardwareError, match=r"cpu ran out of memory while .* lower gpu_memory_utilization .* \(tried 9\)"
        ),
        out_of_memory(open_device(DeviceConfig(device="cpu"))),
    ):
        raise torch.OutOfMemoryError("tried 9\nmore")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DeviceConfig(device="tpu"), "device is 'tpu'; one of auto, cpu, cuda"),  # type: ignore[arg-type]
        (DeviceConfig(routing_device="dsp"), "routing_device is 'dsp'; one of gpu, cpu, auto"),  # type: ignore[arg-type]
        (DeviceConfig(expert_placement="disk"), "expert_placement is 'disk'; one of auto, vram"),  # type: ignore[arg-type]
        (DeviceConfig(hugepages="4Mi"), "hugepages is '4Mi'; one of off, 2Mi, 1Gi"),  # type: ignore[arg-type]
    ],
    ids=["device", "routing", "placement", "pages"],
)
def test_words_that_are_not_known(config: DeviceConfig, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_device(config)


def test_huge_pages_without_a_card() -> None:
    with pytest.raises(OptionError, match="'2Mi': that is for experts beside a GPU, and the model runs on the CPU"):
        open_device(DeviceConfig(device="cpu", hugepages="2Mi"))


def test_threads() -> None:
    open_device(DeviceConfig(device="cpu", num_threads=1))
    assert torch.get_num_threads() == 1
    open_device(DeviceConfig(device="cpu"))
    assert torch.get_num_threads() == num_cpus()


def test_used_bytes_sees_tensors() -> None:
    device = open_device(DeviceConfig(device="cpu"))
    before = used_bytes(device)
    # Fresh pages: torch's allocator might hand out some that the process has already.
    kept = torch.frombuffer(mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE), dtype=torch.uint8).fill_(1)
    assert used_bytes(device) - before > 0.9 * kept.numel()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DeviceConfig(num_threads=0), "num_threads is 0; 1 or more is needed"),
        (DeviceConfig(gpu_memory_utilization=0), "gpu_memory_utilization is 0; above 0 and at most 1"),
        (DeviceConfig(cpu_routing_threads=0), "cpu_routing_threads is 0; 1 or more is needed"),
        (DeviceConfig(pipeline_depth=65), "pipeline_depth is 65; 1 to 64 is needed"),
        (DeviceConfig(gpu_memory_utilization=1.1), "gpu_memory_utilization is 1.1"),
    ],
)
def test_numbers_out_of_range(config: DeviceConfig, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_device(config)


@pytest.mark.parametrize("named", [None, "/elsewhere"])
def test_compiled_kernels_stay_where_models_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    if named is not None:
        monkeypatch.setenv("TRITON_CACHE_DIR", named)
    keep_kernels(tmp_path / "stores" / "triton")
    assert os.environ["TRITON_CACHE_DIR"] == (named or str(tmp_path / "stores" / "triton"))
    assert (tmp_path / "stores").exists() == (named is None)


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    (tmp_path / "stores").touch()
    keep_kernels(tmp_path / "stores" / "triton")
    assert "TRITON_CACHE_DIR" not in os.environ


def test_what_has_no_steps_on_a_card_is_refused_there() -> None:
    cpu, card = Device(torch.device("cpu"), "cpu"), Device(torch.device("cuda"), "a card")
    check_supported(public("qwen3.8-flash-next"), cpu)
    check_supported(public("qwen3-next-80b-a3b"), card)
    with pytest.raises(UnsupportedModelError, match="Qwen4ExpForConditionalGeneration on a card is not supported yet"):
        check_supported(public("qwen3.8-flash-next"), card)
