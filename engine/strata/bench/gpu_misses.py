"""What experts that VRAM has not cost a decode step: fetched over PCIe, or computed by the CPU while the card waits.

A few layers of random experts lie as the engine has them (``experts.hybrid``): as tiles in pinned host memory, some in
slots of VRAM as well. Fetching is timed alone, beside one large copy by the card's copy engine. The CPU's answers are
timed as steps ask for them, layer after layer in a CUDA graph, from ``share_out`` to ``add_answer``: with the experts
in slots and the request's way through host memory and back; beside plain reads of host memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.bench.bandwidth import BesideReads, copy_bandwidth, read_bandwidth
from strata.bench.experts import Experts, random_blobs
from strata.bench.gpu_time import REPLAYS, gpu, seconds
from strata.config import DeviceConfig
from strata.errors import OptionError
from strata.plan.hardware import num_cpus, own_memory

if TYPE_CHECKING:
    import torch

    from strata.experts.counts import ExpertStats
    from strata.experts.hybrid import Hybrid
    from strata.experts.trial import Trial
    from strata.kernels.layer import Kernels

MEMORY_BYTES = 3 << 30  # that the layers fill, two at least: far more than the CPU's caches
FETCHED = (1, 2, 4, 8)  # at once, and a whole layer
COMPUTED = (1, 2, 3, 4, 6, 8)
BESIDE = (0, 1, 2, 3)  # others that are fetched at the same time

# Of one of some calls, without arguments.
Timer = Callable[[Sequence[Callable[[], None]]], float]


@dataclass(frozen=True, slots=True)
class Measurement(BesideReads):
    """Of a layer's missing experts. Rates in bytes a second."""

    what: str
    fetched: int
    computed: int  # by the CPU
    seconds: float  # from the layer's choice to the sum
    cpu_seconds: float | None  # of these, from a request's arrival at the threads to their answer
    rate: float  # at which all of them are brought or read
    read: float  # one large copy by the copy engine; where the CPU computes, plain reads of host memory
    prefetch_bytes: int  # that the threads ask for memory ahead, as a trial found
    huge_pages: float | None  # share of the experts' memory; None where the kernel does not tell


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second, with which measurements are compared."""

    copy: float
    read: float


def run(case: Experts) -> Iterator[Measurement]:
    """Measure on the current GPU. Raises HardwareError without one, or with too little host memory, OptionError for
    too few experts."""
    import torch

    from strata.kernels.select import kernels_for

    device = gpu()
    kernels = kernels_for(device, torch.bfloat16)
    rates = Rates(copy_bandwidth(device), read_bandwidth(torch.device("cpu")))
    num_layers = max(2, MEMORY_BYTES // (case.num_experts * case.layout().blob_bytes))
    yield from measure(case, num_layers, kernels, device, rates, lambda calls: seconds(calls, ()))


def measure(
    case: Experts, num_layers: int, kernels: Kernels, device: torch.device, rates: Rates, timer: Timer
) -> Iterator[Measurement]:
    """As ``run`` on ``device``."""
    from strata.experts.times import Bounds
    from strata.experts.trial import open_trial

    num_slots = min(2 * case.top_k, case.num_experts - case.top_k)
    if num_slots < case.top_k:
        raise OptionError(f"{case}: twice as many experts as a token takes are needed, so that all may be missing")
    samples = random_blobs(case.layout())
    before = own_memory()
    tier = _tier(case, num_layers, num_slots, samples, kernels, device)
    try:
        size, huge, prefetch = _stats(tier).expert_bytes, _huge_share(before, own_memory()), tier.cpu.tune()

        def found(fetched: int, computed: int, took: float, cpu: float | None, read: float) -> Measurement:
            rate = (fetched + computed) * size / took
            return Measurement(str(case), fetched, computed, took, cpu, rate, read, prefetch, huge)

        for fetched in sorted({min(count, case.num_experts) for count in (*FETCHED, case.num_experts)}):
            yield found(fetched, 0, timer(tier.buffers.fetching(fetched)), None, rates.copy)
        with open_trial(tier.few, Bounds(case.top_k, num_slots, case.num_experts), 1, num_layers) as trial:
            for computed in COMPUTED:
                for fetched in BESIDE:
                    if computed + fetched <= case.top_k:
                        took, cpu = _answer_seconds(tier, trial, num_layers, fetched, computed)
                        yield found(fetched, computed, took, cpu, rates.read)
    finally:
        tier.close()


def _tier(
    case: Experts,
    num_layers: int,
    num_slots: int,
    samples: Sequence[torch.Tensor],
    kernels: Kernels,
    device: torch.device,
) -> Hybrid:
    """Layers of experts in host memory, copies of ``samples`` in turn; all of them can run."""
    import torch

    from strata.experts.hybrid import Hybrid
    from strata.kernels.matrix import SILU, Matrix, Norm
    from strata.plan.placement import ExpertBytes, ExpertPlacement

    layout = case.layout(num_layers)
    sizes = ExpertBytes(num_layers, case.num_experts, layout.blob_bytes)
    placement, config = ExpertPlacement(sizes, num_slots * num_layers), DeviceConfig(expert_placement="cpu")
    tier = Hybrid(layout, placement, kernels, device, case.top_k, config)
    with ThreadPoolExecutor(num_cpus()) as threads:
        list(threads.map(lambda expert: tier.put(expert, samples[expert[1] % len(samples)]), layout.experts))
    norm = Norm(torch.ones(case.hidden, device=device), 1e-6)
    router = Matrix("bf16", {"weight": torch.randn(case.num_experts, case.hidden, device=device).bfloat16()})
    for layer in layout.layers:
        tier.layer(layer, SILU, kernels.route(norm, router, case.top_k, normalize=True))
    return tier


def _answer_seconds(tier: Hybrid, trial: Trial, num_layers: int, fetched: int, computed: int) -> tuple[float, float]:
    """Of a layer, and of these the threads'."""
    trial.seconds(fetched + computed, fetched)  # not counted: the card is clocked down, and threads sleep
    before = _stats(tier)
    times = [trial.seconds(fetched + computed, fetched) for _ in range(REPLAYS)]
    after, asked = _stats(tier), REPLAYS * num_layers
    counts = after.total.since(before.total)
    assert (counts.fetched, counts.computed) == (fetched * asked, computed * asked), counts
    assert before.cpu is not None
    assert after.cpu is not None
    return statistics.median(times), after.cpu.since(before.cpu).busy_seconds / asked


def _stats(tier: Hybrid) -> ExpertStats:
    stats = tier.stats(wait=True)
    assert stats is not None, "it waits for them"
    return stats


def _huge_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Of the memory that came between the two."""
    if before is None or after is None or after[0] <= before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


HEADER = "experts                  fetched computed        µs   CPU µs   GB/s   read  share  prefetch   huge"


def line(found: Measurement) -> str:
    """A line of the table under ``HEADER``."""
    cpu = "-" if found.cpu_seconds is None else f"{found.cpu_seconds * 1e6:.2f}"
    huge = "-" if found.huge_pages is None else f"{found.huge_pages:.0%}"
    return (
        f"{found.what:<24} {found.fetched:>7} {found.computed:>8} {found.seconds * 1e6:>9.2f} {cpu:>8}"
        f" {found.rate / 1e9:>6.1f} {found.read / 1e9:>6.1f} {found.share:>6.2f} {found.prefetch_bytes:>9} {huge:>6}"
    )
