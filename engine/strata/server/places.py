"""Places in the engine: one for each choice that is being made."""

from __future__ import annotations

import asyncio

from strata.errors import OverloadedError, RequestError


class Places:
    """``capacity``: how many there are."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_taken = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def check(self, num_choices: int, *, param: str) -> None:
        """Raises RequestError for more choices than could ever be made together, of which ``param`` asks for many."""
        if num_choices > self._capacity:
            raise RequestError(
                f"the request asks for {num_choices} answers; --max-num-seqs and --max-waiting of this server allow "
                f"{self._capacity} at a time; ask for fewer",
                param=param,
            )

    def take(self, num_choices: int) -> int:
        """Take places for all choices of an answer, or raise OverloadedError: one that is refused would end the others,
        with what they had begun."""
        if self._num_taken + num_choices > self._capacity:
            raise OverloadedError(
                f"{self._num_taken} requests are in flight, {self._capacity} are allowed, and this one is "
                f"{num_choices}; try again later"
            )
        self._num_taken += num_choices
        self._idle.clear()
        return num_choices

    def free(self, num_choices: int) -> int:
        """Give back so many."""
        self._num_taken -= num_choices
        if self._num_taken == 0:
            self._idle.set()
        return num_choices

    async def wait_idle(self) -> None:
        """Wait until none is taken."""
        await self._idle.wait()
