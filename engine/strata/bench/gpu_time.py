"""Work on a GPU, timed as decode steps run it: replayed as a CUDA graph, over data that no cache holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strata.bench.bandwidth import BesideReads, read_bandwidth
from strata.errors import HardwareError

LAUNCHES = 40  # in a graph, at least
REPLAYS = 9
CACHES = 4  # times the GPU's cache that the copies of what is read fill


@dataclass(frozen=True, slots=True)
class Measurement(BesideReads):
    """Rates in bytes a second."""

    what: str
    tokens: int
    seconds: float  # of one call
    rate: float  # at which what has to be read is read
    flops: float  # multiplications and additions a second
    read: float  # plain reads of the GPU's memory


@dataclass(frozen=True, slots=True)
class Work:
    """Calls that do the same with other data, one after another; each has ``num_bytes`` to read."""

    what: str
    tokens: int
    num_bytes: int
    operations: int  # multiplications and additions
    steps: Sequence[Callable[..., Any]]
    inputs: tuple[Any, ...]


def measure(prepare: Callable[[Any], Iterable[Work]]) -> Iterator[Measurement]:
    """Each that ``prepare`` has for the current GPU, a torch.device. Raises HardwareError without one."""
    device = gpu()
    read = read_bandwidth(device)
    for work in prepare(device):
        time = seconds(work.steps, work.inputs)
        yield Measurement(work.what, work.tokens, time, work.num_bytes / time, work.operations / time, read)


def gpu() -> Any:
    """The current GPU, a torch.device. Raises HardwareError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise HardwareError("no NVIDIA GPU that torch can use; without --device cuda the CPU is measured")
    return torch.device("cuda", torch.cuda.current_device())


def copies(num_bytes: int, device: Any) -> int:
    """Of data of ``num_bytes``: enough to be read from memory every time, one after another."""
    import torch

    return max(2, math.ceil(CACHES * torch.cuda.get_device_properties(device).L2_cache_size / num_bytes))


def seconds(steps: Sequence[Callable[..., Any]], inputs: tuple[Any, ...]) -> float:
    """Of one call of one of the steps on the inputs: the median of several replays."""
    import torch

    rounds = math.ceil(LAUNCHES / len(steps))

    def launch() -> None:
        for _ in range(rounds):
            for step in steps:
                step(*inputs)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times) / rounds / len(steps)


HEADER = "what                                     tokens        µs   GB/s   read  share  TFLOP/s"


def line(found: Measurement) -> str:
    """A line of the table under ``HEADER``."""
    return (
        f"{found.what:<40} {found.tokens:>6} {found.seconds * 1e6:>9.2f} {found.rate / 1e9:>6.0f}"
        f" {found.read / 1e9:>6.0f} {found.share:>6.2f} {found.flops / 1e12:>8.1f}"
    )
