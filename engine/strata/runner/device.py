"""The device that was asked for, or a clear error; never another one in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from strata.config import DeviceConfig
from strata.config.engine import DEVICES, EXPERT_PLACEMENTS, HUGEPAGES, PIPELINE_DEPTHS, PREFETCH, ROUTING_DEVICES
from strata.errors import EngineError, HardwareError, OptionError
from strata.plan.hardware import available_memory, num_cpus
from strata.plan.memory import DeviceMemory
from strata.plan.units import format_bytes
from strata.store.directories import default_cache_dir


@dataclass(frozen=True, slots=True)
class Device:
    """A device that is there. ``name`` is for people: "cpu", or "cuda (NVIDIA GeForce RTX 3090)". ``vram_bytes``: that
    a card is taken to have; None: all that it has."""

    torch_device: torch.device
    name: str
    vram_bytes: int | None = None

    @property
    def type(self) -> str:
        """ "cpu" or "cuda"."""
        return str(self.torch_device.type)


def probe(device: torch.device) -> None:
    """Raise EngineError if a card does not answer any more: one that fell off the bus is silent until it is asked."""
    if device.type == "cuda":
        try:
            torch.cuda.mem_get_info(device)
        except RuntimeError as error:
            raise EngineError(f"the card does not answer: {error}") from error


def check_device(config: DeviceConfig) -> None:
    """Raise HardwareError when a card is asked for and there is none, OptionError for a number out of range. Nothing is
    opened: that may be long before a model is there to run."""
    for name, value, allowed in (
        ("device", config.device, DEVICES),
        ("expert_placement", config.expert_placement, EXPERT_PLACEMENTS),
        ("prefetch", config.prefetch, PREFETCH),
        ("routing_device", config.routing_device, ROUTING_DEVICES),
        ("hugepages", config.hugepages, HUGEPAGES),
    ):
        if value not in allowed:
            raise OptionError(f"{name} is {value!r}; one of {', '.join(allowed)} is needed")
    if not 0 < config.gpu_memory_utilization <= 1:
        raise OptionError(f"gpu_memory_utilization is {config.gpu_memory_utilization}; above 0 and at most 1 is needed")
    if config.num_threads is not None and config.num_threads < 1:
        raise OptionError(f"num_threads is {config.num_threads}; 1 or more is needed")
    if config.cpu_routing_threads < 1:
        raise OptionError(f"cpu_routing_threads is {config.cpu_routing_threads}; 1 or more is needed")
    if config.pipeline_depth not in PIPELINE_DEPTHS:
        raise OptionError(
            f"pipeline_depth is {config.pipeline_depth}; {PIPELINE_DEPTHS[0]} to {PIPELINE_DEPTHS[-1]} is needed"
        )
    if _is_cpu(config):
        if config.hugepages != "off":
            raise OptionError(
                f"hugepages is {config.hugepages!r}: that is for experts beside a GPU, and the model runs on the CPU, "
                "whose weights lie in ordinary memory; leave it off"
            )
        if config.vram_bytes is not None:
            raise OptionError("vram_bytes is given, and the model runs on the CPU; leave it out, or choose a card")
    elif not torch.cuda.is_available():
        built = f"torch {torch.__version__} sees none"
        if torch.version.cuda is None:
            built = f"torch {torch.__version__} is built without CUDA"
        raise HardwareError(
            f"device 'cuda' was asked for, but {built}: check nvidia-smi and that the container has a card, "
            "or choose device 'cpu'"
        )


def open_device(config: DeviceConfig) -> Device:
    """The device that ``config`` asks for ("auto": the first card, else the CPU), with its threads set. Raises what
    ``check_device`` does, and OptionError for more memory than the card has."""
    check_device(config)
    torch.set_num_threads(config.num_threads or num_cpus())
    if _is_cpu(config):
        return Device(torch.device("cpu"), "cpu")
    keep_kernels(default_cache_dir() / "triton")
    name, asked = f"cuda ({torch.cuda.get_device_name(0)})", config.vram_bytes
    if asked is None:
        return Device(torch.device("cuda", 0), name)
    total = torch.cuda.get_device_properties(0).total_memory
    if not 0 < asked <= total:
        raise OptionError(f"vram_bytes is {asked}; the card has {total}: give as much or less, or leave it out")
    torch.cuda.set_per_process_memory_fraction(asked / total, 0)  # what the plan got wrong shows, as it would there
    return Device(torch.device("cuda", 0), f"{name} with {format_bytes(asked)}", asked)


def _is_cpu(config: DeviceConfig) -> bool:
    return config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())


def keep_kernels(directory: Path) -> None:
    """Let compiled kernels stay in ``directory``, so that the next start finds them: compiling all of Qwen3-8B's took
    31 s (H200 host, 2026-11-30). Triton's own place where that cannot be written, or where the user has named one."""
    if "TRITON_CACHE_DIR" in os.environ:
        return
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            os.environ["TRITON_CACHE_DIR"] = str(directory)


def device_memory(device: Device, *, loaded_bytes: int = 0) -> DeviceMemory:
    """The memory of ``device``, ``loaded_bytes`` of which Strata has filled already. A CPU's is what host and control
    group leave. A card that is taken to have less than it has is as full as it is."""
    if device.type == "cpu":
        available = available_memory() + loaded_bytes
        return DeviceMemory("cpu", available, available)
    free, total = torch.cuda.mem_get_info(device.torch_device)
    available = free + loaded_bytes
    if device.vram_bytes is not None:
        total, available = device.vram_bytes, max(0, available - (total - device.vram_bytes))
    return DeviceMemory("cuda", total, available)


@contextmanager
def out_of_memory(device: Device) -> Iterator[None]:
    """Translate torch's error for a card that is fuller than it was when the plan was made."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise HardwareError(
            f"{device.name} ran out of memory while the model was loaded: another process may have taken some since; "
            f"free it, or lower gpu_memory_utilization or max_model_len ({str(error).splitlines()[0]})"
        ) from error


def used_bytes(device: Device) -> int:
    """Bytes that this process's tensors (on a CPU: all of its own memory) take on ``device``."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_allocated(device.torch_device))
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
