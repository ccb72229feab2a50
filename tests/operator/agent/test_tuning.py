"""What is changed and in which order; and that whatever happens, a card gets back what its administrator had."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strata_operator.agent.fake import FakeDriver, SimulatedCard, gpus_of, rtx3090, rtx4090
from strata_operator.agent.hardware import Card, Gpus, Reading
from strata_operator.agent.tuner import Outcome, Record, Tuner
from strata_operator.agent.tuning import Action, plan
from strata_operator.agent.wishes import CardWish, Limit
from strata_operator.api.errors import UnavailableError
from strata_operator.api.node import GpuOriginals

UUID = rtx3090().uuid
CARD = gpus_of(FakeDriver([rtx3090()])).find().cards[0]
NONE = GpuOriginals(UUID)


def wish(power: int | None = None, sm: int | None = None, memory: int | None = None) -> CardWish:
    """Power in watts."""
    return CardWish(
        power_milliwatts=1000 * power if power else None,
        sm_clock_mhz=Limit(sm, "ns/m") if sm else None,
        memory_clock_mhz=Limit(memory, "ns/m") if memory else None,
    )


def now(power: int = 350, *, on: bool | None = False, sm: int = 210) -> Reading:
    return Reading(power_limit=1000 * power, persistence_mode=on, sm_clock_mhz=sm, memory_clock_mhz=405)


def originals(power: int | None = None, on: bool | None = None, *clocks: str) -> GpuOriginals:
    return GpuOriginals(UUID, 1000 * power if power else None, on, clocks)


def act(setting: Any, value: Any) -> Action:
    return Action(UUID, setting, value)


CASES: list[Any] = [
    pytest.param(now(), wish(), NONE, {}, None, NONE, [], id="nobody wants anything"),
    pytest.param(
        now(300),
        wish(280),
        NONE,
        {},
        None,
        originals(300, False),
        [act("persistence", True), act("power", 280_000)],
        id="the administrator's 300 W are put on record, not the factory's 350",
    ),
    pytest.param(
        now(280, on=True), wish(280), originals(300, False), {}, None, originals(300, False), [], id="all is in force"
    ),
    pytest.param(
        now(350, on=False),
        wish(280),
        originals(300, True),
        {},
        None,
        originals(300, True),
        [act("persistence", True), act("power", 280_000)],
        id="the driver was loaded anew: the record stays, the limit comes again",
    ),
    pytest.param(
        now(280, on=True),
        wish(),
        originals(300, False),
        {},
        None,
        originals(300, False),
        [act("power", 300_000), act("persistence", False)],
        id="restored in the opposite order, on record until it is so",
    ),
    pytest.param(
        now(300, on=False), wish(), originals(300, False), {}, None, NONE, [], id="restored: struck off the record"
    ),
    pytest.param(
        now(350, on=True),
        wish(sm=1500, memory=5001),
        NONE,
        {},
        None,
        originals(350, True, "sm", "memory"),
        [act("sm", 1500), act("memory", 5001)],
        id="clocks alone leave the power limit, and put it on record for a driver that is loaded anew",
    ),
    pytest.param(
        now(on=True, sm=1500),
        wish(sm=1500),
        originals(350, True, "sm"),
        {(UUID, "sm"): 1500},
        None,
        originals(350, True, "sm"),
        [],
        id="locked by us already",
    ),
    pytest.param(
        now(on=True, sm=1515),
        wish(sm=1500),
        originals(350, True, "sm"),
        {},
        None,
        originals(350, True, "sm"),
        [act("sm", 1500)],
        id="after a restart locks are unknown: locked again",
    ),
    pytest.param(
        now(on=False),
        wish(sm=1500),
        originals(350, True, "sm"),
        {(UUID, "sm"): 1500},
        None,
        originals(350, True, "sm"),
        [act("persistence", True), act("sm", 1500)],
        id="the driver was loaded anew: its locks are gone too",
    ),
    pytest.param(
        now(on=True, sm=1900),
        wish(sm=1500),
        originals(350, True, "sm"),
        {(UUID, "sm"): 1500},
        None,
        originals(350, True, "sm"),
        [act("sm", 1500)],
        id="a clock past its lock says that somebody took the lock off",
    ),
    pytest.param(
        now(on=True),
        wish(),
        originals(350, True, "sm"),
        {},
        None,
        originals(350, True, "sm"),
        [act("sm", None)],
        id="unlocked, on record until it is so",
    ),
    pytest.param(
        now(on=True), wish(), originals(350, True, "sm"), {(UUID, "sm"): None}, None, NONE, [], id="unlocked by us"
    ),
    pytest.param(
        now(280, on=True),
        wish(sm=1500),
        originals(300, True, "sm"),
        {(UUID, "sm"): 1500},
        None,
        originals(300, True, "sm"),
        [act("power", 300_000)],
        id="the wish for power has gone, that for the clock stays",
    ),
    pytest.param(
        now(on=True), wish(280), NONE, {}, 250_000, originals(350, True), [act("power", 250_000)], id="too hot"
    ),
    pytest.param(
        now(300, on=True), wish(), NONE, {}, 250_000, originals(300, True), [act("power", 250_000)], id="hot, no wish"
    ),
    pytest.param(
        now(on=None), wish(280), NONE, {}, None, originals(350), [act("power", 280_000)], id="no persistence mode"
    ),
]


@pytest.mark.parametrize(("reading", "wanted", "held", "locks", "cap", "record", "actions"), CASES)
def test_plan(
    reading: Reading,
    wanted: CardWish,
    held: GpuOriginals,
    locks: Mapping[Any, Any],
    cap: int | None,
    record: GpuOriginals,
    actions: list[Action],
) -> None:
    made = plan(CARD, reading, wanted, held, locks, cap=cap)
    assert made.originals == record
    assert list(made.actions) == actions


def test_actions_are_told_in_words() -> None:
    assert str(act("power", 287_500)) == f"power limit of {UUID} to 287.5 W"
    assert str(act("persistence", False)) == f"persistence mode of {UUID} off"
    assert str(act("sm", 1500)) == f"sm clock of {UUID} to at most 1500 MHz"
    assert str(act("memory", None)) == f"memory clock of {UUID} unlocked"


def read(gpus: Gpus) -> tuple[tuple[Card, ...], dict[str, Reading]]:
    cards = gpus.find().cards
    return cards, {card.uuid: gpus.read(card.uuid) for card in cards}


def test_one_card_s_refusal_leaves_the_others() -> None:
    bad, good = rtx3090(1, errors={"nvmlDeviceSetPowerManagementLimit": 4}), rtx3090(2)
    gpus = gpus_of(FakeDriver([bad, good]))
    cards, readings = read(gpus)
    wishes = {card.uuid: wish(200) for card in cards}
    outcome = Tuner(gpus).turn(cards, readings, wishes, (), caps={}, write=lambda record: None)
    assert (bad.power_limit, good.power_limit) == (350_000, 200_000)
    assert outcome.failed == {bad.uuid}
    (trouble,) = outcome.troubles
    assert trouble.message.startswith(f"power limit of {bad.uuid} to 200 W: card {bad.uuid}: NVML says")


def test_without_a_record_nothing_is_changed() -> None:
    card = rtx3090()
    driver = FakeDriver([card])
    gpus = gpus_of(driver)
    cards, readings = read(gpus)

    def refuse(record: Record) -> None:
        raise UnavailableError("no answer")

    outcome = Tuner(gpus).turn(cards, readings, {card.uuid: wish(200, 1500)}, (), caps={}, write=refuse)
    assert driver.sets == []
    assert (outcome.record, [trouble.reason for trouble in outcome.troubles]) == ((), ["Unrecorded"])


def test_the_record_of_a_card_that_is_away_stays_and_follows_its_uuid() -> None:
    first, second = rtx3090(1), rtx3090(2)
    driver = FakeDriver([first, second])
    gpus = gpus_of(driver)
    kept: list[Record] = [()]
    tuner = Tuner(gpus)

    def turn(**wishes: CardWish) -> Outcome:
        cards, readings = read(gpus)
        wanted = {first.uuid: wishes.get("first", CardWish())}
        return tuner.turn(cards, readings, wanted, kept[-1], caps={}, write=kept.append)

    turn(first=wish(200))
    driver.cards = [second]
    turn()
    assert kept[-1] == (GpuOriginals(first.uuid, 350_000, False),)
    driver.cards = [second, first]  # it is number 1 now
    turn()
    assert (first.power_limit, second.power_limit) == (350_000, 350_000)
    assert turn().record == ()


WISHES = st.builds(
    wish, st.sampled_from([150, 280, 400, None]), st.sampled_from([None, 1200]), st.sampled_from([None, 5001])
)


class CrashError(Exception):
    """The process ends here."""


class Lives(RuleBasedStateMachine):
    """An agent that may end after any step, cards that are counted anew, drivers that are loaded anew.

    What the record said when it was last written is all that outlives the process.
    """

    @initialize(
        limits=st.lists(st.integers(100, 400), min_size=1, max_size=3),
        modes=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    )
    def begin(self, limits: list[int], modes: list[int]) -> None:
        self.cards: list[SimulatedCard] = [
            rtx3090(number, power_limit=1000 * watts, persistence=mode)
            for number, (watts, mode) in enumerate(zip(limits, modes, strict=False))
        ]
        self.cards.append(rtx4090(9, power_limit=300_000))
        self.owned = {card.uuid: self.settings(card) for card in self.cards}
        self.driver = FakeDriver(self.cards)
        self.record: Record = ()
        self.wishes: dict[str, CardWish] = {}
        self.restart()

    @staticmethod
    def settings(card: SimulatedCard) -> tuple[Any, ...]:
        return card.power_limit, card.persistence, card.sm_lock, card.memory_lock

    def restart(self) -> None:
        self.gpus = gpus_of(self.driver)
        self.tuner = Tuner(self.gpus)
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise CrashError

    def write(self, record: Record) -> None:
        self.step()
        self.record = record
        self.step()

    def turn(self, caps: Mapping[str, int] | None = None) -> None:
        cards, readings = read(self.gpus)
        set_one = self.tuner._do

        def counted(action: Action) -> None:
            self.step()
            set_one(action)

        self.tuner._do = counted  # type: ignore[method-assign]
        try:
            self.tuner.turn(cards, readings, self.wishes, self.record, caps=caps or {}, write=self.write)
        finally:
            self.tuner._do = set_one  # type: ignore[method-assign]

    @rule(wanted=WISHES)
    def want(self, wanted: CardWish) -> None:
        self.wishes = {card.uuid: wanted for card in self.cards}

    @rule(wanted=WISHES, number=st.integers(0, 3))
    def want_of_one(self, wanted: CardWish, number: int) -> None:
        self.wishes[self.cards[number % len(self.cards)].uuid] = wanted

    @rule()
    def last_model_leaves(self) -> None:
        self.wishes = {}

    @rule(hot=st.booleans())
    def live(self, hot: bool) -> None:
        self.turn({card.uuid: 160_000 for card in self.cards} if hot else None)

    @rule(after=st.integers(0, 8))
    def live_and_die(self, after: int) -> None:
        self.left = after
        with suppress(CrashError):
            self.turn()
        self.restart()

    @rule()
    def load_the_driver_anew(self) -> None:
        recorded = {one.uuid for one in self.record}
        for card in self.cards:
            card.reset()
            if card.uuid not in recorded:
                self.owned[card.uuid] = self.settings(card)  # what was lost was never ours to keep
        self.restart()

    @rule(seed=st.integers(0, 5))
    def count_the_cards_anew(self, seed: int) -> None:
        random.Random(seed).shuffle(self.driver.cards)

    @invariant()
    def what_is_changed_is_on_record(self) -> None:
        recorded = {one.uuid for one in self.record}
        for card in self.cards if hasattr(self, "cards") else ():
            assert card.uuid in recorded or self.settings(card) == self.owned[card.uuid]

    def teardown(self) -> None:
        if not hasattr(self, "cards"):
            return
        self.restart()
        self.wishes = {}
        for _ in range(3):
            self.turn()
        assert self.record == ()
        # A driver that was loaded anew in between has forgotten part of what an administrator had; what was on record
        # by then comes back.
        for card in self.cards:
            assert self.settings(card) == self.owned[card.uuid]
        sets = len(self.driver.sets)
        self.turn()
        assert len(self.driver.sets) == sets


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
