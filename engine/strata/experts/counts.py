"""Where steps found the experts that they needed, and what it cost to bring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

from strata.experts.ways import Way
from strata.native.pool import CpuWork


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """Experts of one layer, or of several, in all steps so far; in the order of ``kernels.misses.table.Counter``.

    A step of few tokens needs an expert once, for however many of them, and for what fills it up as well. ``in_vram``
    counts what had been prefetched too.
    """

    needed: int = 0
    in_vram: int = 0
    fetched: int = 0  # over PCIe, once their layer had asked for them; the CPU computed the others
    prefetched: int = 0  # over PCIe, before their layer asked
    prefetch_used: int = 0  # that their layer then needed; each once
    prefetch_wasted: int = 0  # that it did not need, or had no slot for
    streamed: int = 0  # over PCIe, for steps of many tokens, which count nowhere else
    waited_ns: int = 0  # nanoseconds that the device waited for the CPU's answers

    @property
    def computed(self) -> int:
        """By the CPU."""
        return self.needed - self.in_vram - self.fetched

    @property
    def waited_seconds(self) -> float:
        """``waited_ns`` in seconds."""
        return self.waited_ns / 1e9

    @property
    def hit_ratio(self) -> float | None:
        """Of those that were needed, the share that was in VRAM; None before the first step."""
        return self.in_vram / self.needed if self.needed else None

    def __add__(self, other: ExpertCounts) -> ExpertCounts:
        return ExpertCounts(*map(add, _values(self), _values(other)))

    def __reduce__(self) -> tuple[type[ExpertCounts], tuple[int, ...]]:
        # All layers are sent together: 48 of them like this in 44 us, else in 113 (a Zen core, 2026-11-30).
        return ExpertCounts, _values(self)

    def since(self, before: ExpertCounts) -> ExpertCounts:
        """What came after ``before``."""
        return ExpertCounts(*map(sub, _values(self), _values(before)))

    def shares(self) -> dict[str, float]:
        """Of those that were needed."""
        total = max(1, self.needed)
        return {"in VRAM": self.in_vram / total, "fetched": self.fetched / total, "on the CPU": self.computed / total}


# ``dataclasses.astuple`` copies each field: 50 times as slow, and the server adds up layers while it streams.
_values: Callable[[ExpertCounts], tuple[int, ...]] = attrgetter(*(field.name for field in fields(ExpertCounts)))


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """What experts beyond VRAM cost since the model was loaded. ``layers``: of each layer with experts, by its
    number."""

    layers: Mapping[int, ExpertCounts]
    num_vram: int  # experts that VRAM has at a time, of all layers
    num_host: int  # experts that host memory has; one may be in both
    expert_bytes: int  # of one in host memory: what is moved over PCIe, or read by the CPU
    cpu: CpuWork | None = None  # None where the CPU computes none, and no expert changes its place
    way: Way | None = None  # that steps go now, its split as far as one token's experts go; likewise
    num_disk: int = 0  # experts that are neither in host memory nor ever in VRAM
    # That were read for these, past the page cache; None where there are none, or the kernel does not tell.
    disk_bytes: int | None = None

    @property
    def total(self) -> ExpertCounts:
        """Of all layers."""
        return sum(self.layers.values(), ExpertCounts())

    def num_bytes(self, experts: int) -> int:
        """Of so many experts in host memory."""
        return experts * self.expert_bytes
