"""What all measurements of a model's speed say: where it ran, what the planner makes of that, what was moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.bandwidth import measure_rates
from strata.bench.loaded import Loaded
from strata.plan.expect import Place
from strata.plan.speed import Rates, StepTime
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.experts.counts import ExpertStats

# What the experts of a step or prompt go through.
VRAM, PCIE, CPU = "VRAM", "PCIe", "CPU"
RAM = "RAM"  # all of them, where there is no card
_ON_CPU = {"device memory": "reading RAM"}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a model ran. ``place`` None: it has no experts, or a CPU computes all. ``placement`` in it: as
    ``DeviceConfig.expert_placement``. Rates were measured in the same run."""

    model: str
    dtype: str
    device: str
    num_threads: int
    rates: Rates
    place: Place | None
    num_experts: int

    @classmethod
    def of(cls, loaded: Loaded) -> Setting:
        """Measures the rates."""
        import torch

        store, runner, placement = loaded.store, loaded.runner, loaded.runner.placement
        place, num_experts, layout = None, 0, store.manifest.contents.experts
        if runner.device.type == "cuda" and placement is not None and layout is not None:
            num_experts = placement.experts.num_blobs
            place = Place(placement.num_resident / num_experts, loaded.config.device.expert_placement)
        return cls(
            loaded.config.model,
            store.dtype,
            runner.device_name,
            torch.get_num_threads(),
            measure_rates(runner.device),
            place,
            num_experts,
        )

    @property
    def is_card(self) -> bool:
        return self.device != "cpu"

    @property
    def vram(self) -> float:
        """Share of the experts that are where the model is computed."""
        return 1.0 if self.place is None else self.place.vram

    def rows(self) -> dict[str, str]:
        """For a table."""
        rates = self.rates
        memory = f"{rates.device / 1e9:.1f} GB/s read"
        if self.is_card:
            memory += f", PCIe {rates.pcie / 1e9:.1f}, host {rates.cpu / 1e9:.1f}"
        rows = {
            "model": f"{self.model} {self.dtype}",
            "device": f"{self.device}, {self.num_threads} threads",
            "memory": memory,
            "products": f"{rates.flops / 1e12:.1f} TFLOP/s" if self.is_card else f"{rates.flops / 1e9:.0f} GFLOP/s",
        }
        if self.vram < 1 and self.place is not None:
            rows["placement"] = f"{self.vram:.1%} of {self.num_experts} experts in VRAM, others {self.place.placement}"
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "device": self.device,
            "num_threads": self.num_threads,
            "rates": asdict(self.rates),
            "bandwidth": self.rates.device,
            "experts_in_vram": self.vram,
            "expert_placement": None if self.place is None else self.place.placement,
        }


@dataclass(frozen=True, slots=True)
class Speed:
    """tok/s. ``expected``: the planner's; None on a CPU. ``bound``: what bytes and products allow at most."""

    measured: float
    bound: StepTime
    expected: StepTime | None

    @property
    def ratio(self) -> float:
        return self.measured / self.bound.tokens_per_second

    @property
    def expected_ratio(self) -> float | None:
        return None if self.expected is None else self.expected.tokens_per_second / self.measured

    def rows(self, what: str) -> dict[str, str]:
        """For a table; ``what``: was measured."""
        limit = self.bound.limit
        if self.expected is None:
            limit = _ON_CPU.get(limit, limit)
        rows = {
            "bound": f"{self.bound.tokens_per_second:.1f} tok/s, by {limit}",
            f"{what} / bound": f"{self.ratio:.2f}",
        }
        if self.expected is not None:
            longest = sorted(self.expected.seconds.items(), key=lambda item: -item[1])[:3]
            parts = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in longest)
            rows["predicted"] = f"{self.expected.tokens_per_second:.1f} tok/s ({parts})"
            rows["predicted / it"] = f"{self.expected_ratio:.2f}"
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        expected = self.expected
        return {
            "tokens_per_second": self.measured,
            "bound_tokens_per_second": self.bound.tokens_per_second,
            "bound_by": self.bound.limit,
            "ratio": self.ratio,
            "expected_tokens_per_second": None if expected is None else expected.tokens_per_second,
            "expected_seconds": None if expected is None else expected.seconds,
            "expected_ratio": self.expected_ratio,
        }


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a step or a prompt by the way that they take, and where experts were found. ``hit_ratio`` None: all
    are always in one place. ``ahead``: experts that guesses brought for each that was needed."""

    num_bytes: dict[str, float]
    hit_ratio: float | None = None
    shares: dict[str, float] | None = None
    ahead: float = 0.0

    @classmethod
    def of(cls, weights: float, experts: float, *, setting: Setting) -> Moved:
        """By the plan, where nothing is counted: of ``experts`` those that VRAM has not come over PCIe."""
        if not setting.is_card:
            return cls({RAM: weights + experts})
        return cls({VRAM: weights + experts, PCIE: (1 - setting.vram) * experts, CPU: 0.0})

    @classmethod
    def counted(cls, weights: float, before: ExpertStats, after: ExpertStats, times: int) -> Moved:
        """A step or prompt of ``times`` alike ones between two counts; ``weights``: all but routed experts, and KV."""
        counts = after.total.since(before.total)
        over_pcie = counts.fetched + counts.prefetched + counts.streamed
        read = counts.needed - counts.computed + counts.streamed

        def each(experts: int) -> float:
            return after.num_bytes(experts) / times

        return cls(
            {VRAM: weights + each(read), PCIE: each(over_pcie), CPU: each(counts.computed)},
            counts.hit_ratio,
            counts.shares() if counts.needed else None,
            counts.prefetched / max(counts.needed, 1),
        )

    def rows(self, unit: str) -> dict[str, str]:
        """For a table; ``unit``: what each is of."""
        ways = ", ".join(f"{way} {format_bytes(round(size))}" for way, size in self.num_bytes.items() if size)
        rows = {f"moved a {unit}": ways}
        if self.hit_ratio is not None and self.shares is not None:
            shares = ", ".join(f"{share:.1%} {where}" for where, share in self.shares.items())
            rows["experts"] = f"hit ratio {self.hit_ratio:.3f}: {shares}"
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"moved_bytes": self.num_bytes, "hit_ratio": self.hit_ratio, "experts": self.shares}
