"""What models know of the places in which their routed experts lie: nothing but this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from strata.config import DeviceConfig
from strata.experts.counts import ExpertStats
from strata.experts.hybrid import Hybrid
from strata.experts.layout import blob_layout
from strata.experts.resident import Resident
from strata.experts.saved import SavedTimes
from strata.kernels.layer import Kernels, Router
from strata.kernels.matrix import Activation
from strata.plan.placement import ExpertPlacement
from strata.store.layout import ExpertLayout


class Tier(Protocol):
    """The routed experts of one model on one device."""

    @property
    def can_capture(self) -> bool:
        """Whether a CUDA graph can hold what ``layer`` gives: the host is asked for nothing on the way."""

    @property
    def max_captured(self) -> int | None:
        """Tokens that such a step may have; None: any number."""

    @property
    def predictors(self) -> tuple[str, ...]:
        """Who may guess the next layer's experts, so that they are fetched ahead; none where nothing is fetched."""

    @property
    def routers(self) -> tuple[str, ...]:
        """Where experts may be chosen: "gpu" is the device itself, "cpu" the threads that compute missing ones."""

    def calibrate(self, saved: SavedTimes, *, anew: bool = False) -> None:
        """Measure what is faster on this machine, once all experts are there and before steps are captured. ``saved``:
        of earlier starts, which are taken where they still hold, unless all shall be measured ``anew``."""

    def plans(self) -> Mapping[str, Sequence[int]]:
        """Ways to share missing experts that are left to compare, by name, each as how many of 0, 1 ... missing ones
        are fetched; the one that ``calibrate`` found comes first. Empty where there is nothing to choose."""

    def share_out(self, plan: Sequence[int]) -> None:
        """Go on as one of ``plans`` says, with VRAM as if no step had been."""

    def prefetch(self, predictor: str) -> None:
        """From the next step on let one of ``predictors`` guess, or none: "off", as at first. VRAM is as if no step had
        been. A graph keeps who guessed as it was captured."""

    def computes_all(self, plan: Sequence[int] | None) -> bool:
        """Whether the CPU computes all missing experts by one of ``plans``; None: as it is shared now."""

    def route_on(self, where: str) -> None:
        """From the next step on let one of ``routers`` choose, "gpu" as at first. A graph keeps who chose as it was
        captured, and with "cpu" whether the CPU computed all that was missing."""

    def announce_replay(self) -> None:
        """A captured step is about to run again."""

    def check(self) -> None:
        """Raise EngineError if a step that has ended had not all of its experts."""

    def start_counting(self) -> None:
        """Forget what was counted so far: trials, and steps that only built kernels."""

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """Where steps found their experts so far. Without ``wait`` about once a second, and None at all other calls,
        none of which waits for the device. None always where all experts are in one place."""

    def close(self) -> None:
        """End what the tier has started, where the process goes on; its end does so as well."""

    def layer(self, layer: int, activation: Activation, router: Router) -> Callable[[Tensor], Tensor]:
        """The step x -> x + the experts that ``router`` chooses for it, of layer number ``layer``; it reads memory that
        the tier owns. Layers are asked for in the order in which they run. ``router``: may be called beside the layer
        before it, on another stream."""


class BlobTier(Tier, Protocol):
    """A tier that keeps the store's blobs as they are."""

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """Take the blob, uint8 on the CPU, of (layer, expert); its memory is used again afterwards. Threads that load
        call it at the same time, for different experts."""


def reads_blobs(layout: ExpertLayout | None, kernels: Kernels) -> bool:
    """Whether there are experts, and the kernels read their blobs; else they want each one's matrices in an order of
    their own (``prepared``)."""
    return layout is not None and kernels.reads_blobs(blob_layout(layout))


def blob_tier(
    layout: ExpertLayout,
    placement: ExpertPlacement,
    kernels: Kernels,
    device: torch.device,
    top_k: int,
    config: DeviceConfig,
) -> BlobTier:
    """Where the experts of a store go, as ``placement`` says. ``top_k``: experts of a token. Raises HardwareError when
    host memory is too small, or the native library is not there."""
    if placement.is_resident:
        return Resident(layout, kernels, device)
    return Hybrid(layout, placement, kernels, device, top_k, config)
