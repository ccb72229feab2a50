"""How much of a prompt may run beside sequences that decode."""

from __future__ import annotations

SMALLEST_CHUNK = 64  # tokens; what a step costs whatever it runs would weigh too much in a smaller one
MUCH_SHORTER = 0.75  # of the chunk before: how its time compares then says more than the clock's noise
HELD_STEPS = 16  # that a length is held to, until a shorter one is tried again
SMOOTHING = 0.2  # share of the newest step in the mean time of a decode step


class ChunkController:
    """Follows a latency target: ``limit`` is how many prompt tokens a step with decoding sequences may run.

    A step of n prompt tokens takes about D + c * n seconds, D for decoding alone. After each step the limit becomes
    n * T / seconds, T being the time allowed. Where the limit bounds n that has one fixed point, the step that takes T,
    and nears it from one side without passing it: what is left of the distance shrinks by D / T. T is the target, but
    not less than 2 * D: where decoding alone misses the target, no chunk would meet it, and prompts get half of the
    time.

    Where chunks miss the target and shorter ones hardly take less, most of the time goes to what every chunk costs, as
    with experts that come over PCIe for each: then the limit stays where both are about alike, and shorter chunks are
    tried again every ``HELD_STEPS``.

    target_seconds: None lets every chunk be ``max_tokens``. It decides from what it is told alone, and never waits.
    """

    def __init__(self, target_seconds: float | None, max_tokens: int) -> None:
        self._target_seconds = target_seconds
        self._max_tokens = max_tokens
        self._decode_seconds: float | None = None  # mean time of a step that only decodes
        self._smallest = min(SMALLEST_CHUNK, max_tokens)
        self._least = self._smallest  # that the limit may be now
        self._held = 0  # steps for which that was more than the smallest
        self._before: tuple[int, float] | None = None  # tokens and seconds of the chunk before
        self.limit = max_tokens

    def record(self, num_decoding: int, num_prefill: int, seconds: float) -> None:
        """A step with that many decoding sequences and prompt tokens took that long."""
        if self._target_seconds is None or not num_decoding or seconds <= 0:
            return
        decode = self._decode_seconds
        if not num_prefill:
            self._decode_seconds = seconds if decode is None else decode + SMOOTHING * (seconds - decode)
            return
        if num_prefill < self._smallest:  # the end of a prompt
            return
        allowed = max(self._target_seconds, 2 * (decode or 0))
        fitting = int(num_prefill * allowed / seconds)
        if seconds > allowed:
            self._hold(num_prefill, seconds)
            # Halved at most: one step that something else held up says little.
            self.limit = max(min(fitting, self.limit), self.limit // 2, self._least)
        else:
            self.limit = min(max(fitting, self.limit), self._max_tokens)
        self._before = num_prefill, seconds

    def _hold(self, num_prefill: int, seconds: float) -> None:
        """To the length of the chunk before, where this one is much shorter and saves less than half of what it should;
        not for ever."""
        if self._least > self._smallest:
            self._held += 1
        if self._held == HELD_STEPS:
            self._least, self._held = self._smallest, 0
        if self._before is None:
            return
        longer, took = self._before
        shorter = num_prefill / longer
        if shorter <= MUCH_SHORTER and seconds > took * (1 + shorter) / 2:
            self._least, self._held = longer, 0
