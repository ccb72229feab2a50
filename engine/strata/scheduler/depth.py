"""How many tokens of drafts a step runs: as many as make output come fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from strata.config.engine import MAX_DRAFT

Name = TypeVar("Name")

FIRST_ACCEPTANCE = 0.5  # of a sequence of which nothing is known yet
ACCEPTANCE_SMOOTHING = 0.15  # share of the newest token in what is known of a sequence's drafts
SECONDS_SMOOTHING = 0.2  # share of the newest step in the mean time of steps of its size
LEAST_GAIN = 1.05  # of tokens a second, below which a step without drafts is as good
FORGOTTEN_STEPS = 512  # after which a size is tried again


class DepthController:
    """Weighs the tokens that drafts are expected to add against the time that they add.

    A draft's k-th token counts where it and all before it are accepted: a ** k, a being the share of first tokens of
    the sequence's drafts that turned out right, whether they were run or not. What a step takes is known by its size,
    in powers of two; of a size that never ran, or long ago, it is taken to be that of the next smaller one, so that it
    is tried. Slow steps of many tokens (experts that come over PCIe for each) are thereby avoided where they do not
    pay. It decides from what it is told alone, and has no clock.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[float, int]] = {}  # by size: mean time, and the step in which it last ran
        self._num_steps = 0

    def record(self, num_tokens: int, seconds: float) -> None:
        """A step of sequences that decode took that long; ``num_tokens`` with those of drafts."""
        if seconds <= 0:
            return
        self._num_steps += 1
        size = (num_tokens - 1).bit_length()
        known = self._known(size)
        mean = seconds if known is None else known + SECONDS_SMOOTHING * (seconds - known)
        self._seconds[size] = mean, self._num_steps

    def depths(self, acceptance: Mapping[Name, float], num_decoding: int, max_drafted: int) -> dict[Name, int]:
        """How many tokens each sequence with a draft runs of it, ``max_drafted`` together at most.

        acceptance: of these sequences. num_decoding: all that decode in the step.
        """
        likely = sorted(
            ((share**k, name) for name, share in acceptance.items() for k in range(1, MAX_DRAFT + 1)),
            key=lambda token: -token[0],
        )
        best, num_best = LEAST_GAIN * num_decoding / self.seconds(num_decoding), 0
        expected = float(num_decoding)
        for count, (share, _) in enumerate(likely[:max_drafted], start=1):
            expected += share
            rate = expected / self.seconds(num_decoding + count)
            if rate > best:
                best, num_best = rate, count
        depths: dict[Name, int] = {}
        for _, name in likely[:num_best]:
            depths[name] = depths.get(name, 0) + 1
        return depths

    def seconds(self, num_tokens: int) -> float:
        """What a step of so many tokens is expected to take; of which only the ratio to others counts."""
        size = (num_tokens - 1).bit_length()
        smaller = [
            (other, known) for other in self._seconds if other <= size and (known := self._known(other)) is not None
        ]
        if smaller:
            return max(smaller)[1]
        return min(self._seconds.values(), default=(1.0, 0))[0]

    def _known(self, size: int) -> float | None:
        mean, step = self._seconds.get(size, (0.0, -FORGOTTEN_STEPS))
        return mean if self._num_steps - step < FORGOTTEN_STEPS else None


def updated(share: float, was_right: bool) -> float:
    """The share of right drafts with one more."""
    return share + ACCEPTANCE_SMOOTHING * (was_right - share)
