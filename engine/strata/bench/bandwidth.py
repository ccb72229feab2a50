"""What a device and its host can do at most: how fast memory is read and experts come over PCIe, the bounds of
decoding; how fast it multiplies, that of prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from strata.errors import OptionError
from strata.plan.cards import find_card
from strata.plan.speed import Rates

BUFFER_BYTES = 1 << 29  # far beyond any cache of a CPU
CARD_BUFFER_BYTES = 1 << 31  # half a millisecond of an H200: what a launch takes is nothing beside it
MATRIX = 8192  # rows and columns of the product, on a card
CPU_MATRIX = 1024
COPY_BYTES = 1 << 28  # over PCIe: from 64 MiB on the rate does not grow
USUAL_HZ = 1.9e9  # of a card that is not in the list
OVERLAPPING = (9, 0)  # compute capability from which on launches overlap
PASSES = 8


class BesideReads:
    """Of a measurement with a ``rate``, and what plain reads of the same memory reach, ``read``: bytes a second."""

    __slots__ = ()
    rate: float
    read: float

    @property
    def share(self) -> float:
        return self.rate / self.read

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(cast("Any", self)), "share": self.share}


def measure_rates(device: Any) -> Rates:
    """Of a torch.device, and of a card's host: with torch's current threads, nothing else running."""
    import torch

    if device.type == "cpu":
        return Rates(read_bandwidth(device), flops=multiply_rate(device))
    properties = torch.cuda.get_device_properties(device)
    host, pcie = read_bandwidth(torch.device("cpu")), copy_bandwidth(device)
    return Rates(
        device=read_bandwidth(device),
        pcie=pcie,
        cpu=host,
        dram=host + pcie,  # threads alone do not use all of it: an H200's host gave them 102 GB/s, with PCIe 129
        flops=multiply_rate(device),
        cycles=properties.multi_processor_count * _hertz(properties.name),
        overlaps=torch.cuda.get_device_capability(device) >= OVERLAPPING,
    )


def _free(device: Any) -> int:
    """Bytes of a card that this process may still allocate, where it is taken to be smaller than it is, too."""
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(int(free), int(allowed) - int(torch.cuda.memory_allocated(device)))


def copy_bandwidth(device: Any) -> float:
    """Bytes a second of the fastest of several copies from pinned memory to a card."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    return COPY_BYTES / _fastest(lambda: target.copy_(source, non_blocking=True), device)


def _hertz(name: str) -> float:
    try:
        return find_card(name.removeprefix("NVIDIA ")).boost_ghz * 1e9
    except OptionError:
        return USUAL_HZ


def read_bandwidth(device: Any) -> float:
    """Bytes a second of the fastest of several whole reads of a large buffer, with torch's current threads.

    ``device``: a torch.device.
    """
    import torch

    num_bytes = BUFFER_BYTES
    if device.type == "cuda":
        num_bytes = min(CARD_BUFFER_BYTES, _free(device) // 2)
    buffer = torch.ones(num_bytes // 8, dtype=torch.int64, device=device)
    return num_bytes / _fastest(buffer.sum, device)


def multiply_rate(device: Any) -> float:
    """Multiplications and additions a second of the fastest of several products of large matrices: in bf16, or in
    float32 on a CPU that multiplies in it."""
    import torch

    from strata.kernels.linear.cpu import multiplies_bf16

    card = device.type == "cuda"
    size, dtype = MATRIX if card else CPU_MATRIX, torch.bfloat16 if card or multiplies_bf16() else torch.float32
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return float(2 * size**3 / _fastest(lambda: left @ right, device))


def _fastest(work: Callable[[], Any], device: Any) -> float:
    """Seconds."""
    from strata.memory.device import wait_for

    best = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        work()
        wait_for(device)
        best = min(best, time.perf_counter() - began)
    return best
