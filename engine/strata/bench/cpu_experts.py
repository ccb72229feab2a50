"""How fast the CPU computes experts that lie in memory, beside how fast it reads memory at all.

Decoding reads each expert once, so a kernel is as good as the share of the memory's bandwidth that it reaches. The
experts lie in random order in a buffer far larger than the caches; a job is one layer's experts of a few tokens. Which
prefetch distance and how many threads are best is a property of the machine.
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from strata.bench.bandwidth import BesideReads
from strata.bench.experts import SAMPLES, Experts, random_blobs
from strata.errors import HardwareError
from strata.native.layout import TileLayout
from strata.native.pool import ExpertPool, PoolOptions
from strata.native.tiles import tile_expert
from strata.plan.units import format_bytes

READ_BYTES = 1 << 30  # in one pass of plain reads, at most
SECONDS = 0.25  # of one measurement
PASSES = 3  # of each, of which the fastest counts: what else runs on the machine comes and goes
SPIN_SECONDS = 1e-3  # that threads wait for the next job: as long as a decode step goes on, they do not sleep
_HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Measurement(BesideReads):
    """One way to compute. Rates in bytes a second."""

    variant: str
    activations: str
    num_threads: int
    prefetch_bytes: int
    tokens: int  # of a job
    job_seconds: float
    rate: float  # at which weights are read and computed with
    read: float  # plain reads of the same memory by the same threads


@dataclass(frozen=True, slots=True)
class Choices:
    """What is measured: each with each."""

    variants: Sequence[str]
    threads: Sequence[int]
    prefetch_bytes: Sequence[int]
    activations: Sequence[str] = ("int8",)
    tokens: Sequence[int] = (1,)

    def __iter__(self) -> Iterator[tuple[str, int, int, str, int]]:
        return itertools.product(self.variants, self.threads, self.prefetch_bytes, self.activations, self.tokens)


class Buffer:
    """Experts with random weights, on huge pages where the kernel has some."""

    def __init__(self, layout: TileLayout, num_bytes: int) -> None:
        import torch

        self.layout = layout
        stride = -(-layout.num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.num_experts = max(1, num_bytes // stride)
        self.num_bytes = self.num_experts * stride
        try:
            # Private: the kernel has huge pages for shared memory only where it was told so.
            self._memory = mmap.mmap(-1, self.num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise HardwareError(f"no memory for {format_bytes(self.num_bytes)} of experts: {error}") from error
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        begin = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self.address = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
        self.table = torch.arange(self.num_experts) * stride + self.address
        stored = Experts(layout.format, layout.hidden, layout.intermediate, top_k=1, num_experts=SAMPLES).layout()
        samples = random_blobs(stored)

        def fill(i: int) -> None:
            blob = samples[i % SAMPLES].data_ptr()
            parts = {part: blob + stored.parts[part][0] for part in layout.parts}
            tile_expert(layout, parts, self.address + i * stride)

        with ThreadPoolExecutor() as threads:
            list(threads.map(fill, range(self.num_experts)))


def run(layout: TileLayout, choices: Choices, options: PoolOptions, buffer_bytes: int) -> Iterator[Measurement]:
    """Measure every choice, one after another; ``options`` has the rest, and the cores of which the threads take the
    first ones. Raises UsageError where a choice cannot be."""
    if max(choices.threads) > len(options.cores):
        raise HardwareError(
            f"{max(choices.threads)} threads need as many cores; this process may use {len(options.cores)}"
        )
    buffer = Buffer(layout, buffer_bytes)
    for variant, threads, prefetch, activations, tokens in choices:
        one = replace(
            options, variant=variant, cores=options.cores[:threads], prefetch_bytes=prefetch, activations=activations,
            max_tokens=tokens, spin_seconds=SPIN_SECONDS,
        )  # fmt: skip
        yield measure(buffer, one, tokens)


def measure(buffer: Buffer, options: PoolOptions, tokens: int = 1) -> Measurement:
    """One way to compute; every token of a job takes experts of its own."""
    import torch

    top_k, hidden = options.top_k, buffer.layout.hidden
    job_experts = tokens * top_k
    jobs = buffer.num_experts // job_experts
    if jobs == 0:
        raise HardwareError(
            f"{tokens} tokens take {job_experts} experts; the buffer holds {buffer.num_experts}: give it more memory"
        )
    ids = torch.randperm(buffer.num_experts)[: jobs * job_experts].int().view(jobs, job_experts)
    weights = torch.full((tokens, top_k), 1 / top_k)
    x = torch.randn(tokens, hidden).to(getattr(torch, options.number))
    y = torch.empty(tokens, hidden)
    with ExpertPool(buffer.layout, options) as pool:
        pool.set_table(buffer.table.data_ptr(), 1, buffer.num_experts, buffer)
        read = max(_read_rate(pool, buffer) for _ in range(PASSES))
        starts = itertools.cycle([row.data_ptr() for row in ids])
        best = float("inf")
        for _ in range(PASSES):
            count, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < SECONDS / PASSES or not count:
                pool.run(0, tokens, x.data_ptr(), next(starts), weights.data_ptr(), y.data_ptr())
                count += 1
            best = min(best, elapsed / count)
        return Measurement(
            variant=pool.variant,
            activations=options.activations,
            num_threads=len(options.cores),
            prefetch_bytes=options.prefetch_bytes,
            tokens=tokens,
            job_seconds=best,
            rate=job_experts * buffer.layout.num_bytes / best,
            read=read,
        )


def _read_rate(pool: ExpertPool, buffer: Buffer) -> float:
    num_bytes = min(buffer.num_bytes, READ_BYTES)
    began = time.perf_counter()
    pool.read(buffer.address, num_bytes)
    return num_bytes / (time.perf_counter() - began)


HEADER = "variant      activations  threads  prefetch  tokens    job µs   GB/s   read  share"


def line(found: Measurement) -> str:
    """A line of the table under ``HEADER``."""
    return (
        f"{found.variant:<12} {found.activations:<11} {found.num_threads:>8} {found.prefetch_bytes:>9}"
        f" {found.tokens:>7} {found.job_seconds * 1e6:>9.0f} {found.rate / 1e9:>6.1f} {found.read / 1e9:>6.1f}"
        f" {found.share:>6.2f}"
    )
