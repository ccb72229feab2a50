"""The temperature governor: holds a card's power limit down while it is too hot. Pure.

It is a slow integrator. Every ``STEP_SECONDS`` at most one step down, larger the hotter the card is; up again only
after ``CALM_SECONDS`` of cool, a small step at a time. A card's cooler takes 10 to 60 s to answer and changes by 0.1 to
0.2 degrees a watt, so a step up (5 W, at most 1 degree) cannot cross the band of ``HYSTERESIS_C`` and start the next
one down.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_SECONDS = 10.0
CALM_SECONDS = 60.0
HYSTERESIS_C = 4
DOWN_MILLIWATTS = 5_000  # for each degree too many
MOST_DEGREES = 4  # that one step answers
UP_MILLIWATTS = 5_000


@dataclass(frozen=True, slots=True)
class Governor:
    """One card's. ``cap`` is what it allows, in milliwatts; None while it does not interfere."""

    cap: int | None = None
    changed_at: float = float("-inf")  # seconds of any clock that only goes forward
    cool_since: float | None = None

    def step(self, now: float, *, too_hot: int | None, power: int | None, limit: int, least: int) -> Governor:
        """The governor ``now``.

        ``too_hot``: degrees above the wish, of core or memory whichever is more; negative below it, None where there is
        no wish or the card tells no temperature. ``power``: drawn now. ``limit``: what would be in force without the
        governor, ``least``: what the card takes at least; all in milliwatts.
        """
        if too_hot is None:
            return Governor()
        cap = None if self.cap is None or self.cap >= limit else self.cap
        if too_hot > 0:
            if now - self.changed_at < STEP_SECONDS:
                return Governor(cap, self.changed_at)
            # From what the card draws, where that is less: a cap above it would do nothing.
            start = min(one for one in (cap, limit, power) if one is not None)
            return Governor(max(least, start - DOWN_MILLIWATTS * min(too_hot, MOST_DEGREES)), now)
        if cap is None or too_hot > -HYSTERESIS_C:
            return Governor(cap, self.changed_at)
        since = now if self.cool_since is None else self.cool_since
        if now - max(since, self.changed_at) < CALM_SECONDS:
            return Governor(cap, self.changed_at, since)
        raised = cap + UP_MILLIWATTS
        return Governor(None if raised >= limit else raised, now, since)


def degrees_too_hot(
    core: int | None, memory: int | None, *, most_core: int | None, most_memory: int | None
) -> int | None:
    """By how much the hotter of the two is above its wish; None where nothing can be said."""
    pairs = ((core, most_core), (memory, most_memory))
    return max((is_now - most for is_now, most in pairs if is_now is not None and most is not None), default=None)
