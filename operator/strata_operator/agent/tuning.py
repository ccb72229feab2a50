"""From what is wanted of a card, what it has now and what it had before to the ordered list of changes. Pure.

What a card had is written down (StrataNode's ``status.originals``) before it is changed, and struck out once it has it
again; so at any moment the record together with the card says all that is needed to put it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from strata_operator.agent.hardware import Card, Clock, Gpus, Reading
from strata_operator.agent.wishes import CardWish
from strata_operator.api.node import GpuOriginals

T = TypeVar("T")

# A locked clock may be passed by one step of the card's own; more says that the lock is gone.
CLOCK_STEP_MHZ = 15

# What this process last did to a clock, for NVML does not tell: a lock in MHz, None once unlocked; absent: nothing yet.
Locks = Mapping[tuple[str, Clock], int | None]


@dataclass(frozen=True, slots=True)
class Action:
    """One change of one card. ``value`` is in milliwatts, MHz (None: unlock), or whether persistence mode is on."""

    uuid: str
    setting: Literal["power", "persistence", "sm", "memory"]
    value: int | bool | None

    def __str__(self) -> str:
        if self.setting == "power":
            return f"power limit of {self.uuid} to {(self.value or 0) / 1000:g} W"
        if self.setting == "persistence":
            return f"persistence mode of {self.uuid} {'on' if self.value else 'off'}"
        return f"{self.setting} clock of {self.uuid} " + (f"to at most {self.value} MHz" if self.value else "unlocked")


@dataclass(frozen=True, slots=True)
class CardPlan:
    """``originals`` have to be written down before the first of ``actions``."""

    originals: GpuOriginals
    actions: tuple[Action, ...]


def is_empty(originals: GpuOriginals) -> bool:
    """Whether there is nothing to put back."""
    return originals == GpuOriginals(originals.uuid)


def plan(
    card: Card, now: Reading, wish: CardWish, originals: GpuOriginals, locks: Locks, *, cap: int | None
) -> CardPlan:
    """``cap``: milliwatts that the temperature governor allows, None where it does not interfere."""
    power = _power(now, wish, originals, cap)
    clocks: dict[Clock, int | None] = {
        "sm": wish.sm_clock_mhz.value if wish.sm_clock_mhz else None,
        "memory": wish.memory_clock_mhz.value if wish.memory_clock_mhz else None,
    }
    if power is None and not any(clocks.values()):
        return _restore(now, originals, locks)
    record = replace(
        originals,
        power_limit_milliwatts=_first(originals.power_limit_milliwatts, now.power_limit),
        persistence_mode=_first(originals.persistence_mode, now.persistence_mode),
        locked_clocks=tuple(clock for clock in clocks if clocks[clock] or _is_locked(originals, locks, clock)),
    )
    actions = []
    # First of all: without it the driver forgets the rest when its last user goes. Off although it was switched on, it
    # says that the driver was loaded anew, and has forgotten the locks too.
    is_fresh = now.persistence_mode is False
    if is_fresh:
        actions.append(Action(card.uuid, "persistence", True))
    # The card's own limit too: a driver that is loaded anew knows the factory's alone.
    power = _first(power, record.power_limit_milliwatts)
    if power is not None and now.power_limit != power:
        actions.append(Action(card.uuid, "power", power))
    for clock, value in clocks.items():
        if value is None:
            if clock in record.locked_clocks:
                actions.append(Action(card.uuid, clock, None))
        elif is_fresh or locks.get((card.uuid, clock)) != value or _is_past(now, clock, value):
            actions.append(Action(card.uuid, clock, value))
    return CardPlan(record, tuple(actions))


def carry_out(gpus: Gpus, action: Action) -> None:
    """Raises HardwareError where the card does not do it."""
    if action.setting == "power":
        gpus.set_power_limit(action.uuid, int(action.value or 0))
    elif action.setting == "persistence":
        gpus.set_persistence_mode(action.uuid, bool(action.value))
    elif action.value is None:
        gpus.unlock_clock(action.uuid, action.setting)
    else:
        gpus.lock_clock(action.uuid, action.setting, action.value)


def _power(now: Reading, wish: CardWish, originals: GpuOriginals, cap: int | None) -> int | None:
    """The limit that is to be in force; None: the card's own."""
    wanted = wish.power_milliwatts
    if cap is None:
        return wanted
    free = _first(wanted, _first(originals.power_limit_milliwatts, now.power_limit))
    return cap if free is None else min(free, cap)


def _restore(now: Reading, originals: GpuOriginals, locks: Locks) -> CardPlan:
    """In the order opposite to that of changing: persistence mode last."""
    uuid = originals.uuid
    clocks = tuple(clock for clock in originals.locked_clocks if _is_locked(originals, locks, clock))
    record = replace(originals, locked_clocks=clocks)
    actions = [Action(uuid, "sm" if clock == "sm" else "memory", None) for clock in clocks]
    power = originals.power_limit_milliwatts
    if power is not None and now.power_limit != power:
        actions.append(Action(uuid, "power", power))
    if originals.persistence_mode is not None and now.persistence_mode != originals.persistence_mode:
        actions.append(Action(uuid, "persistence", originals.persistence_mode))
    # Struck out all at once: until then, a driver that is loaded anew is put right again.
    return CardPlan(record if actions else GpuOriginals(uuid), tuple(actions))


def _is_locked(originals: GpuOriginals, locks: Locks, clock: str) -> bool:
    """Whether the lock is on record, and not undone by this process since."""
    key: tuple[str, Clock] = (originals.uuid, "sm" if clock == "sm" else "memory")
    return clock in originals.locked_clocks and locks.get(key, 0) is not None


def _is_past(now: Reading, clock: Clock, value: int) -> bool:
    running = now.sm_clock_mhz if clock == "sm" else now.memory_clock_mhz
    return running is not None and running > value + CLOCK_STEP_MHZ


def _first(value: T | None, otherwise: T | None) -> T | None:
    return value if value is not None else otherwise
