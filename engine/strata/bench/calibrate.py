"""What PCIe and the CPU reach with experts in host memory on this machine, alone and at once, for one shape of them.

Kept where the engine looks at its start (``experts.saved``), so that the next one need not try.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from strata.bench.loaded import open_model, table
from strata.config import DeviceConfig, ExpertsConfig, ModelConfig
from strata.errors import OptionError, UnfetchedError
from strata.experts.splits import most_of_one
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.experts.times import Times
    from strata.experts.ways import Split
    from strata.store.progress import Phases
    from strata.store.reader import Store

MAX_MODEL_LEN = 64  # tokens; decode steps of the comparison are fewer


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Times in seconds, sizes in bytes, rates per second."""

    model: str
    facts: Mapping[str, str | int]  # of the machine and the experts, under which the times are kept
    file: str | None  # where they are kept; None: they could not be written
    num_layers: int  # with experts
    num_slots: int  # of a layer
    expert_bytes: int
    fetch_seconds: float  # one expert over PCIe, while the CPU does nothing
    seconds_a_layer: Times
    split: Split
    step_seconds: Mapping[str, float]  # of a decoded token, by the way to missing experts

    @property
    def missing(self) -> int:
        """Experts of a token, where none that may be missing is in VRAM."""
        return most_of_one(self.seconds_a_layer, int(self.facts["top_k"]))

    @property
    def rates(self) -> dict[str, float]:
        """Bytes a second of experts."""
        found, best = self.seconds_a_layer[self.missing], self.split[self.missing]
        return {
            "PCIe alone": self.expert_bytes / self.fetch_seconds,
            "CPU alone": self.missing * self.expert_bytes / found[0],
            "both at once": self.missing * self.expert_bytes / found[best],
        }

    @property
    def experts_tokens_per_second(self) -> float:
        """Were nothing but the experts of a token computed, and those that may be missing all missing."""
        return 1 / (self.num_layers * self.seconds_a_layer[self.missing][self.split[self.missing]])

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **asdict(self),
            "bytes_per_second": self.rates,
            "experts_tokens_per_second": self.experts_tokens_per_second,
            "tokens_per_second": {way: 1 / seconds for way, seconds in self.step_seconds.items()},
        }

    def lines(self) -> tuple[str, ...]:
        """Tables for people."""
        facts, best = self.facts, self.split[self.missing]
        rates = {name: f"{rate / 1e9:.1f} GB/s" for name, rate in self.rates.items()}
        rates["both at once"] += f", {best} of {self.missing} fetched"
        rows = {
            "model": self.model,
            "experts": f"{facts['num_experts']} in each of {self.num_layers} layers, {self.num_slots} of them in VRAM; "
            f"a token takes {facts['top_k']} of {format_bytes(self.expert_bytes)} in {facts['format']}",
            "machine": f"{facts['card']}, driver {facts['driver']}; {facts['cpu']}, {facts['cpu_threads']} threads",
            **rates,
            "experts alone": f"{self.experts_tokens_per_second:.1f} tok/s with {self.missing} missing in every layer",
            "kept in": self.file or "no file: see the log",
        }
        return (*table(rows), "", *self._shares(), "", *self._ways())

    def _shares(self) -> tuple[str, ...]:
        """One line for each number of missing experts: what is best, and what all tried ones took."""
        head = f"{'missing':>7}  {'fetched':>7}  us a layer when so many are fetched"
        rows = [head]
        for missing, found in self.seconds_a_layer.items():
            took = ", ".join(f"{fetched}: {1e6 * seconds:.0f}" for fetched, seconds in sorted(found.items()))
            rows.append(f"{missing:>7}  {self.split[missing]:>7}  {took}")
        return tuple(rows)

    def _ways(self) -> tuple[str, ...]:
        """One line for each way that decode steps went, the fastest first."""
        fastest = sorted(self.step_seconds.items(), key=lambda way: way[1])
        return (f"{'tok/s':>7}  decoding", *(f"{1 / seconds:>7.1f}  {way}" for way, seconds in fastest))


def run(
    source: str,
    dtype: str = "int4",
    *,
    expert_vram_bytes: int | None = None,
    hugepages: Literal["off", "2Mi", "1Gi"] = "off",
    progress: Phases,
) -> CalibrationReport:
    """Load the model with ``expert_vram_bytes`` for its experts (None: so many that all that can happen can be tried),
    and take all times anew. ``source``: what ``strata serve`` takes. ``hugepages``: see ``DeviceConfig``; servers that
    have another value find nothing of it. ``progress``: called with (phase, done, total).

    Raises UsageError where there is nothing to share, or when an argument is at fault.
    """
    from strata.runner.device import check_device
    from strata.store.locate import resolve
    from strata.store.reader import Store

    device = DeviceConfig(expert_vram_bytes=expert_vram_bytes, hugepages=hugepages, calibrate_anew=True)
    _check_shape(source)
    check_device(device)
    store = Store.open(resolve(source, dtype, progress=progress))
    least = _check(store, source, device)
    if expert_vram_bytes is None:
        device = replace(device, expert_vram_bytes=least)
    loaded = open_model(source, dtype, device=device, max_model_len=MAX_MODEL_LEN, progress=progress)

    from strata.experts.saved import times_of_this_machine

    runner = loaded.runner
    found, stats = runner.calibration, runner.expert_stats(wait=True)
    if runner.model.tier is None or found is None or stats is None:
        raise OptionError(
            f"no experts of {source!r} are in host memory alone; give less VRAM: --expert-vram-gib 0, for a start"
        )
    try:
        path = times_of_this_machine().path(found.facts)
        return CalibrationReport(
            model=source,
            facts=found.facts,
            file=str(path) if path.exists() else None,
            num_layers=len(stats.layers),
            num_slots=stats.num_vram // len(stats.layers),
            expert_bytes=stats.expert_bytes,
            fetch_seconds=found.fetch_seconds(),
            seconds_a_layer=found.times,
            split=found.split,
            step_seconds={str(way): seconds for way, seconds in runner.way_seconds.items()},
        )
    finally:
        runner.model.tier.close()


def _check_shape(source: str) -> None:
    """Raises OptionError where the model is known to have no routed experts before it is fetched and converted."""
    from strata.store.peek import peek

    try:
        _experts(peek(source).model, source)
    except UnfetchedError:
        return


def _experts(model: ModelConfig, source: str) -> ExpertsConfig:
    """Raises OptionError where no layer has any."""
    if model.experts is None or not any(model.expert_layers):
        raise OptionError(f"{source!r} has no routed experts: there is nothing to calibrate")
    return model.experts


def _check(store: Store, source: str, device: DeviceConfig) -> int:
    """Raises OptionError where there is nothing to share; the VRAM with which every number of a token's experts may be
    missing, and fetched."""
    import torch

    from strata.experts.place import reads_blobs
    from strata.kernels.select import kernels_for
    from strata.runner.device import open_device

    layout, experts = store.manifest.contents.experts, _experts(store.model_config, source)
    assert layout is not None, "a store has its model's experts"
    opened = open_device(device)
    if not reads_blobs(layout, kernels_for(opened.torch_device, torch.bfloat16)):
        raise OptionError(
            f"experts in {store.dtype} on {opened.name} are not split between PCIe and CPU: there is nothing to "
            "calibrate; a GPU is needed"
        )
    return experts.num_experts_per_tok * len(layout.layers) * layout.blob_bytes
