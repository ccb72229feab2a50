"""How much of a prompt may run beside sequences that decode."""

from __future__ import annotations

SMALLEST_CHUNK = 64  # tokens; what a step costs whatever it runs would weigh too much in a smaller one
SMOOTHING = 0.2  # share of the newest step in the mean time of a decode step


class ChunkController:
    """Follows a latency target: ``limit`` is how many prompt tokens a step with decoding sequences may run.

    A step of n prompt tokens takes about D + c * n seconds, D for decoding alone. After each step the limit becomes
    n * T / seconds, T being the time allowed. Where the limit bounds n that has one fixed point, the step that takes T,
    and nears it from one side without passing it: what is left of the distance shrinks by D / T. T is the target, but
    not less than 2 * D: where decoding alone misses the target, no chunk would meet it, and prompts get half of the
    time.

    target_seconds: None lets every chunk be ``max_tokens``. It decides from what it is told alone, and never waits.
    """

    def __init__(self, target_seconds: float | None, max_tokens: int) -> None:
        self._target_seconds = target_seconds
        self._max_tokens = max_tokens
        self._decode_seconds: float | None = None  # mean time of a step that only decodes
        self.limit = max_tokens

    def record(self, num_decoding: int, num_prefill: int, seconds: float) -> None:
        """A step with that many decoding sequences and prompt tokens took that long."""
        if self._target_seconds is None or not num_decoding or seconds <= 0:
            return
        decode = self._decode_seconds
        if not num_prefill:
            self._decode_seconds = seconds if decode is None else decode + SMOOTHING * (seconds - decode)
            return
        allowed = max(self._target_seconds, 2 * (decode or 0))
        fitting = int(num_prefill * allowed / seconds)
        if seconds > allowed:
            # Halved at most: one step that something else held up says little.
            self.limit = max(min(fitting, self.limit), self.limit // 2, min(SMALLEST_CHUNK, self._max_tokens))
        else:
            self.limit = min(max(fitting, self.limit), self._max_tokens)
