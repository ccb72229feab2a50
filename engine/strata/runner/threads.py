"""With how many CPU threads a step runs, and how they wait for each other. Imports no torch.

Torch's threads meet at the end of every operation, some 150 times a token; when another process has the CPU of one, all
others wait for it. What is best therefore depends on what else runs, which comes and goes. Milliseconds a token of
SmolLM2-135M int4 on 2 Zen 4 CPUs:

    threads, turns of spinning      quiet    beside 4 busy threads
    1                               14.7     24
    2, GNU OpenMP's own number      10.1     282
    2, 4,000 turns                  10.1     74
    2, 1,000 turns                  12.3     40

So waiting threads sleep soon (``spin_briefly``), and the number of threads is found by trial, again and again
(``ThreadTuner``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import cycle

SPIN_TURNS = 4000
FIRST_INTERVAL = 16  # steps from one trial to the next; twice as many after each trial that changes nothing
LAST_INTERVAL = 1024
PAIRS = 4  # steps of each side in a trial, in turn
LOST = 2.0  # a step this many times slower than the one before it ends its side's trial at once
WON = 0.95  # the share of the other side's time that is worth a change


def spin_briefly() -> None:
    """Let a waiting thread sleep after ``SPIN_TURNS``, so that the one that it waits for gets the CPU.

    Works until torch is imported, for this process and those that it starts. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))


def choices(num_threads: int) -> tuple[int, ...]:
    """Numbers of threads worth a trial when ``num_threads`` are allowed, the first to start with."""
    half = (num_threads // 2,) if num_threads >= 4 else ()
    return tuple(dict.fromkeys((num_threads, *half, 1)))


class ThreadTuners:
    """One tuner for each size of step, in powers of two: what is best for one token is not for a chunk of a prompt."""

    def __init__(self, options: Sequence[int]) -> None:
        self._options = options
        self._tuners: dict[int, ThreadTuner] = {}

    def of(self, num_tokens: int) -> ThreadTuner:
        """The tuner of steps with ``num_tokens`` tokens."""
        return self._tuners.setdefault(num_tokens.bit_length(), ThreadTuner(self._options))


class ThreadTuner:
    """Before a step: ``threads``. After it: ``record``."""

    def __init__(self, options: Sequence[int]) -> None:
        self._best = options[0]
        self._rivals: Iterator[int] = cycle(options)
        self._has_rivals = len(options) > 1
        self._interval = FIRST_INTERVAL
        self._steps_to_trial = FIRST_INTERVAL
        self._rival: int | None = None  # set during a trial
        self._seconds: list[float] = []  # of the trial's steps: best, rival, best, rival, ...

    @property
    def threads(self) -> int:
        """For the next step."""
        return self._rival if self._rival is not None and len(self._seconds) % 2 == 1 else self._best

    def record(self, seconds: float) -> None:
        """How long the step took, for each of its tokens."""
        if not self._has_rivals:
            return
        if self._rival is None:
            self._steps_to_trial -= 1
            if self._steps_to_trial <= 0:
                self._rival = next(rival for rival in self._rivals if rival != self._best)
                self._seconds = []
            return
        self._seconds.append(seconds)
        if len(self._seconds) % 2 == 0 and seconds > LOST * self._seconds[-2]:
            self._end(won=False)
        elif len(self._seconds) == 2 * PAIRS:
            self._end(won=sum(self._seconds[1::2]) < WON * sum(self._seconds[0::2]))

    def _end(self, *, won: bool) -> None:
        if won:
            assert self._rival is not None, "a trial has a rival"
            self._best = self._rival
        self._interval = FIRST_INTERVAL if won else min(2 * self._interval, LAST_INTERVAL)
        self._steps_to_trial = self._interval
        self._rival = None
        self._seconds = []
