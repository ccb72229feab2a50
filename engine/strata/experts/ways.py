"""What decode steps do about experts that VRAM has not, as values: to be compared, kept and told."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from strata.config.engine import PREFETCH

# Of 0, 1, 2 ... of a layer's experts that a step misses, how many are fetched; the CPU computes the others.
Split: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How missing experts are split, who guesses what the next layer needs so that it is fetched ahead ("off": nobody),
    and where steps of few tokens have their experts chosen, on the "gpu" or the "cpu"."""

    split: Split
    predictor: str = "off"
    routed_on: str = "gpu"

    @property
    def placement(self) -> str:
        """As ``DeviceConfig.expert_placement`` has it."""
        if self.leaves_all:
            return "cpu"
        return "fetch" if self.split == tuple(range(len(self.split))) else "hybrid"

    @property
    def leaves_all(self) -> bool:
        """Whether the CPU computes all missing experts that nobody has guessed."""
        return not any(self.split)

    @property
    def captured(self) -> Hashable:
        """Alike for ways that one CUDA graph serves: the split is read at every step, all else is kept."""
        return self.predictor, self.routed_on, self.routed_on == "cpu" and self.leaves_all

    def __str__(self) -> str:
        guesses = "" if self.predictor == "off" else f", prefetch {self.predictor}"
        return self.placement + guesses + (", routed on the CPU" if self.routed_on == "cpu" else "")


def all_ways(splits: Iterable[Split], prefetch: str, routing_device: str) -> tuple[Way, ...]:
    """Those that the settings leave, the one that needs no comparison first. With "auto" experts are chosen on the CPU
    as well where it computes all that are missing; elsewhere that adds a wait, and takes none away."""
    predictors = [each for each in PREFETCH if each != "auto"] if prefetch == "auto" else [prefetch]
    devices = ["gpu", "cpu"] if routing_device == "auto" else [routing_device]
    ways = [Way(split, predictor, device) for split in splits for predictor in predictors for device in devices]
    if routing_device != "auto":
        return tuple(ways)
    return tuple(way for way in ways if way.routed_on == "gpu" or (way.leaves_all and way.predictor == "off"))
