"""What models and runners know of the places in which their routed experts lie: nothing but this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from strata.experts.calibration import Calibration
from strata.experts.counts import ExpertStats
from strata.experts.ways import Way
from strata.kernels.layer import ExpertsFn, Router
from strata.kernels.matrix import Activation
from strata.plan.rank import ALONE

TierStep = Callable[[Tensor, Tensor], Tensor]


class Tier:
    """The routed experts of one model on one device.

    As it is here the device finds all of them in one place, and a step asks nobody else.
    """

    rank = ALONE  # whose experts these are

    # Tokens that a step may have which is a CUDA graph, where the host is asked for nothing on the way; None: any
    # number.
    max_captured: int | None = None

    def layer(self, layer: int, activation: Activation, router: Router) -> TierStep:
        """The step (x, onto) -> onto + the experts that ``router`` chooses for x, of layer number ``layer``; it reads
        memory that the tier owns. Layers are asked for in the order in which they run. ``router``: may be called
        beside the layer before it, on another stream.

        Where several ranks share the experts each adds its own ones, the first to ``onto`` and the others to zeros:
        the layer's result is the sum over the ranks."""
        raise NotImplementedError

    def calibrate(self) -> Calibration | None:
        """Measure what is faster on this machine, once all experts are there and before steps are captured; None where
        nothing is."""
        return None

    def choices(self) -> Sequence[Way]:
        """Ways that decode steps may go about missing experts, as far as settings and ``calibrate`` leave any; the one
        that needs no comparison comes first. Empty where none is ever missing."""
        return ()

    def begin(self, way: Way) -> None:
        """From the next step on go one of the ``choices``, with VRAM as if no step had been. A graph keeps what
        ``Way.captured`` says of the way for which it was captured."""

    def announce_replay(self) -> None:
        """A captured step is about to run again."""

    def check(self) -> None:
        """Raise EngineError if a step that has ended had not all of its experts."""

    def start_counting(self) -> None:
        """Forget what was counted so far: trials, and steps that only built kernels."""

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """Where steps found their experts so far. Without ``wait`` about once a second, and None at all other calls,
        none of which waits for the device. None always where all experts are in one place."""
        return None

    def close(self) -> None:
        """End what the tier has started, where the process goes on; its end does so as well."""


class BlobTier(Tier):
    """A tier that keeps the store's blobs as they are."""

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """Take the blob, uint8 on the CPU, of (layer, expert), unless it is another rank's; its memory is used again
        afterwards. Threads that load call it at the same time, for different experts."""
        raise NotImplementedError


def step_of(router: Router, experts: ExpertsFn) -> TierStep:
    """(x, onto) -> onto + the experts that the device chooses for x."""
    return lambda x, onto: experts(router(x), onto)
