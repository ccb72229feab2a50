"""Whole agents that may end at any moment: between two words to the API server, two settings, two reservations.

Whatever happens, what an administrator had comes back: power limit, persistence mode, clocks, huge pages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from strata_operator.agent.fake import SimulatedCard, rtx3090, rtx4090
from strata_operator.agent.restore import left, restore_here
from strata_operator.api.node import NODE_KIND
from tests.operator.agent.conftest import World

T = TypeVar("T")
WISHES = st.fixed_dictionaries(
    {"model": st.sampled_from(["ns/a", "ns/b"])},
    optional={
        "powerLimitWatts": st.sampled_from([150, 280, 390, 1000]),
        "smClockMaxMHz": st.just(1500),
        "maxCoreTemperatureC": st.just(60),
        "hugepages": st.sampled_from([[{"size": "2Mi", "pages": 100}], [{"size": "1Gi", "pages": 3}]]),
    },
)


class DeathError(Exception):
    """The process ends here."""


class Lives(RuleBasedStateMachine):
    """Every call that leaves the process counts down to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()

    @initialize(watts=st.integers(100, 400), mode=st.integers(0, 1), pages=st.sampled_from([0, 7]))
    def begin(self, watts: int, mode: int, pages: int) -> None:
        first = rtx3090(power_limit=1000 * watts, persistence=mode, load=1.0, ambient=40.0)
        self.world = World(Path(self.directory.name), first, rtx4090())
        self.world.host.memory[0, "2Mi"].total = pages
        self.world.host.refresh()
        self.owned = [self.settings(card) for card in self.world.cards]
        self.pages = self.world.host.hugepages()
        self.left: int | None = None
        for owner, name in (
            (self.world.client, "apply"),
            (self.world.client, "merge"),
            (self.world.driver, "_set"),
            (self.world.host, "reserve_hugepages"),
        ):
            setattr(owner, name, self.mortal(getattr(owner, name)))
        self.world.turn()

    def mortal(self, call: Callable[..., T]) -> Callable[..., T]:
        def counted(*arguments: Any, **options: Any) -> T:
            self.step()
            answer = call(*arguments, **options)
            self.step()  # done, and not known to be
            return answer

        return counted

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise DeathError

    @staticmethod
    def settings(card: SimulatedCard) -> tuple[Any, ...]:
        return card.power_limit, card.persistence, card.sm_lock, card.memory_lock

    def is_recorded(self) -> bool:
        return bool(left(self.world.strata_node))

    @rule(wishes=st.lists(WISHES, max_size=2, unique_by=lambda wish: wish["model"]), suspend=st.booleans())
    def want(self, wishes: list[dict[str, Any]], suspend: bool) -> None:
        self.world.want(*wishes, **({"suspend": True} if suspend and len(wishes) < 2 else {}))

    @rule(times=st.integers(1, 4))
    def live(self, times: int) -> None:
        self.world.turn(times)

    @rule(wish=WISHES, after=st.integers(0, 15))
    def live_and_die(self, wish: dict[str, Any], after: int) -> None:
        self.world.want(wish)
        self.left = after
        with suppress(DeathError):
            self.world.turn(2)
        self.left = None
        self.world.restart()

    @rule()
    def outage(self) -> None:
        self.world.outage(is_down=True)
        self.world.turn(2)
        self.world.outage(is_down=False)

    @rule()
    def load_the_driver_anew(self) -> None:
        """Of cards that are not on record, what an administrator had is gone with it, without our doing."""
        recorded = {one["uuid"] for one in (self.world.status.get("originals") or {}).get("gpus") or []}
        for number, card in enumerate(self.world.cards):
            card.reset()
            if card.uuid not in recorded:
                self.owned[number] = self.settings(card)

    @rule()
    def count_the_cards_anew(self) -> None:
        self.world.driver.cards.reverse()

    @rule()
    def somebody_deletes_the_strata_node(self) -> None:
        """While an agent runs, which holds the originals. Without one they would be lost."""
        self.world.turn()
        del self.world.client.objects[NODE_KIND, "", "gpu-1"]
        self.world.turn(2)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.give_back()
        finally:
            self.directory.cleanup()

    def give_back(self) -> None:
        self.world.restart()
        assert restore_here(self.world.mirror, self.world.agent, lambda: None) == []
        assert [self.settings(card) for card in self.world.cards] == self.owned
        assert self.world.host.hugepages() == self.pages
        assert not self.is_recorded()


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=20,
    stateful_step_count=10,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink a failure takes minutes
)
