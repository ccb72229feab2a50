"""Experts beyond VRAM in several places and ways: decode speed of each, and which is best.

Each share of the experts in VRAM is loaded in a process of its own, since memory that was locked for a card goes with
the process; the ways to the other experts are tried on one load. Steps are those of ``bench.decode``.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.bench import decode
from strata.bench.loaded import AUTO, Loaded, check_positive
from strata.bench.report import CPU, PCIE, Setting
from strata.config import DeviceConfig
from strata.errors import EngineError, HardwareError, OptionError
from strata.store.progress import silent

if TYPE_CHECKING:
    from strata.bench.decode import DecodeReport
    from strata.store.progress import Phases

SHARES = (0.0, 0.25, 0.5, 0.75)
WAYS = ("auto", "fetch", "cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured; ``ways`` of ``WAYS``."""

    source: str
    dtype: str
    device: DeviceConfig
    ways: tuple[str, ...]
    batch_size: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Placed:
    """One share of the experts in VRAM with one way to the others. ``way``: "auto" with what it came to in brackets."""

    share: float
    way: str
    report: DecodeReport

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"vram_share": self.share, "way": self.way, **self.report.as_dict()}


HEADER = (
    "in VRAM  way                               tok/s  predicted  of the limit  hit ratio    GB/s: VRAM    PCIe     CPU"
)


def line(found: Placed) -> str:
    """A line of the table under ``HEADER``."""
    speed, moved = found.report.speed, found.report.moved
    steps = speed.measured / found.report.batch_size  # a second
    rates = [moved.num_bytes.get(way, 0.0) * steps / 1e9 for way in ("VRAM", PCIE, CPU)]
    predicted = "-" if speed.expected is None else f"{speed.expected.tokens_per_second:.1f}"
    hits = "-" if moved.hit_ratio is None else f"{moved.hit_ratio:.3f}"
    return (
        f"{found.share:>6.0%}   {found.way:<30} {speed.measured:>8.1f}  {predicted:>9}  {speed.ratio:>12.2f}"
        f"  {hits:>9}  {rates[0]:>12.1f}  {rates[1]:>6.1f}  {rates[2]:>6.1f}"
    )


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: DeviceConfig = AUTO,
    shares: Sequence[float] = SHARES,
    ways: Sequence[str] = WAYS,
    batch_size: int = 1,
    prompt_tokens: int = 64,
    output_tokens: int = 64,
    progress: Phases,
) -> Iterator[Placed]:
    """Measure each way at each share, one after another.

    ``shares``: of the routed experts in VRAM, 0 to 1. ``progress``: called with the shares that are done, and all.
    Raises UsageError when an argument is at fault, and for a model without experts or a device that is no card.
    """
    check_positive(batch_size=batch_size, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    if wrong := [way for way in ways if way not in WAYS]:
        raise OptionError(f"way {wrong[0]!r} is unknown; {', '.join(WAYS)} are measured")
    if device.routing_device != "gpu":
        raise OptionError(
            f"routing_device is {device.routing_device!r}; 'gpu' is needed: a load's CUDA graphs keep whether the CPU "
            "computes all that is missing, and here one load goes several ways. Measure each by itself, with decode"
        )
    num_bytes = _expert_bytes(source, dtype, device, progress)
    options = Options(source, dtype, device, tuple(ways), batch_size, prompt_tokens, output_tokens)
    for number, share in enumerate(shares):
        progress("placements", number, len(shares))
        yield from _in_a_process(_measure, share, round(share * num_bytes), options)
    progress("placements", len(shares), len(shares))


def verdict(found: Sequence[Placed]) -> list[str]:
    """Which is best, and why."""
    best = max(found, key=lambda one: one.report.speed.measured)
    speed = best.report.speed
    lines = [f"best: {best.share:.0%} of the experts in VRAM, {best.way}: {speed.measured:.1f} tok/s"]
    lines += [
        f"- {one.way} reaches {one.report.speed.measured:.1f} there: missing experts come at "
        f"{_missed_rate(one):.1f} GB/s, against {_missed_rate(best):.1f}"
        for one in found
        if one.share == best.share and one is not best
    ]
    less = [one for one in found if one.share < best.share]
    if less:
        other = max(less, key=lambda one: one.report.speed.measured)
        lines.append(
            f"- with {other.share:.0%} in VRAM {other.way} is fastest, {other.report.speed.measured:.1f} tok/s: a step "
            f"misses {_missed(other) / 2**20:.0f} MiB of experts, against {_missed(best) / 2**20:.0f}"
        )
    return lines


# --- inside


def _missed(found: Placed) -> float:
    """Bytes of a step's experts that VRAM had not."""
    return found.report.moved.num_bytes.get(PCIE, 0.0) + found.report.moved.num_bytes.get(CPU, 0.0)


def _missed_rate(found: Placed) -> float:
    """10^9 bytes a second."""
    return _missed(found) * found.report.speed.measured / found.report.batch_size / 1e9


def _expert_bytes(source: str, dtype: str, device: DeviceConfig, progress: Phases) -> int:
    from strata.runner.device import open_device
    from strata.store.locate import resolve
    from strata.store.reader import Store

    if open_device(device).type == "cpu":
        raise HardwareError("no GPU: on a CPU all experts lie in its memory; there is nothing to place")
    experts = Store.open(resolve(source, dtype, progress=progress)).manifest.contents.experts
    if experts is None:
        raise OptionError(f"{source} has no routed experts; there is nothing to place")
    return experts.num_bytes


def _in_a_process(work: Callable[..., list[Placed]], *arguments: Any) -> list[Placed]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(work, *arguments).result()
        except BrokenProcessPool as error:
            raise EngineError("the process that measured a placement has ended; is there memory enough?") from error


def _measure(share: float, vram_bytes: int, options: Options) -> list[Placed]:
    device = replace(options.device, expert_vram_bytes=vram_bytes)
    loaded = decode.load(
        options.source,
        options.dtype,
        device,
        options.batch_size,
        options.prompt_tokens,
        options.output_tokens,
        silent,
    )
    return measure_ways(loaded, Setting.of(loaded), share, options)


def measure_ways(loaded: Loaded, setting: Setting, share: float, options: Options) -> list[Placed]:
    """Each way of ``options`` on one load, which was made for "auto"."""

    def measure(way: str, name: str) -> Placed:
        here = setting if setting.place is None else replace(setting, place=replace(setting.place, placement=way))
        sizes = options.batch_size, options.prompt_tokens, options.output_tokens
        return Placed(share, name, decode.measure(loaded, here, *sizes, silent))

    tier, chosen = loaded.runner.model.tier, loaded.runner.way
    if tier is None or chosen is None:
        return [measure("auto", "all in VRAM")]
    # As the start chose, which is undone afterwards; who guesses the next layer's experts stays.
    placed = [measure("auto", f"auto ({chosen})")] if "auto" in options.ways else []
    for way in tier.choices():
        if way.placement in options.ways and way.predictor == chosen.predictor:
            tier.begin(way)
            placed.append(measure(way.placement, str(way)))
    return placed
