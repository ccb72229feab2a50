"""From what is seen turn after turn to a verdict on each card and on the node, with hysteresis. Pure.

XIDs are NVIDIA's numbers of faults ("XID Errors", NVIDIA GPU Deployment and Management Documentation). Those of an
application say nothing about the card: the engine ends by them, and its container starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from strata_operator.agent.hardware import Card, Reading
from strata_operator.agent.observe import Observation
from strata_operator.api.conditions import Trouble, timestamp
from strata_operator.api.node import FORGET_FAULTS_ANNOTATION, Fault, Pcie

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68})
LOST_XIDS = frozenset({79})
FAULT_XIDS = frozenset({48, 63, 64, 94, 95})  # of the card's memory

LOADED_PERCENT = 20  # a card that is this busy has its link at full speed
TURNS = 3  # in a row that a link's speed or a throttle has to be seen before it counts, or counts no more
BAD_TURNS = 2  # in a row that a driver or a card has to fail
RECOVERY_SECONDS = 120.0  # without any trouble before the node counts as healthy again

_THERMAL = frozenset({"thermal", "hardware_thermal"})


@dataclass(frozen=True, slots=True)
class Steady:
    """A yes or no that changes only after it was seen ``TURNS`` times in a row."""

    value: bool = False
    against: int = 0  # so often in a row the opposite was seen

    def see(self, value: bool) -> Steady:
        if value == self.value:
            return Steady(self.value)
        return Steady(value) if self.against + 1 >= TURNS else Steady(self.value, self.against + 1)


@dataclass(frozen=True, slots=True)
class CardHealth:
    """What is held of one card from turn to turn."""

    pcie: Pcie = field(default_factory=Pcie)  # as it was for ``TURNS`` turns of load in a row
    link: tuple[int | None, int | None] | None = None  # generation and width in the last turn of load
    link_turns: int = 0  # so often in a row it was the same
    is_throttled: Steady = field(default_factory=Steady)  # by the card itself, because of heat


@dataclass(frozen=True, slots=True)
class Health:
    """What is held of the node from turn to turn. ``trouble`` is None while it is healthy."""

    cards: Mapping[str, CardHealth] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    trouble: Trouble | None = None
    bad_turns: int = 0
    good_since: float | None = None


def step(health: Health, seen: Observation, *, now: float, wall: datetime) -> Health:
    """``now``: seconds of a clock that only goes forward."""
    cards = dict(health.cards)
    for card in seen.cards:
        if card.uuid in seen.readings:
            cards[card.uuid] = _card(cards.get(card.uuid, CardHealth()), card, seen.readings[card.uuid])
    known = {(fault.uuid, fault.xid) for fault in health.faults}
    new = {(xid.uuid or "unknown", xid.code) for xid in seen.xids if xid.code in FAULT_XIDS | LOST_XIDS} - known
    faults = (*health.faults, *(Fault(uuid, code, timestamp(wall)) for uuid, code in sorted(new)))
    held = replace(health, cards=cards, faults=faults)
    certain, likely = _certain(seen, faults), _likely(seen)
    if certain is not None:
        return replace(held, trouble=certain, bad_turns=BAD_TURNS, good_since=None)
    if likely is not None:
        bad_turns = health.bad_turns + 1
        trouble = likely if bad_turns >= BAD_TURNS or health.trouble else None
        return replace(held, trouble=trouble, bad_turns=bad_turns, good_since=None)
    good_since = now if health.good_since is None else health.good_since
    is_over = health.trouble is None or now - good_since >= RECOVERY_SECONDS
    return replace(held, trouble=None if is_over else health.trouble, bad_turns=0, good_since=good_since)


def _card(held: CardHealth, card: Card, reading: Reading) -> CardHealth:
    most = Pcie(max_generation=card.max_pcie_generation, max_width=card.max_pcie_width)
    pcie = replace(most, generation=held.pcie.generation, width=held.pcie.width)
    link, turns = held.link, held.link_turns
    # At rest the link trains down by itself, which says nothing.
    if (reading.utilization_percent or 0) >= LOADED_PERCENT:
        now = (reading.pcie_generation, reading.pcie_width)
        link, turns = now, turns + 1 if now == link else 1
        if turns >= TURNS:
            pcie = replace(most, generation=now[0], width=now[1])
    return CardHealth(pcie, link, turns, held.is_throttled.see(bool(_THERMAL & reading.throttle_reasons)))


def is_below(pcie: Pcie) -> bool:
    """Whether a link is slower than card and slot can do."""
    pairs = ((pcie.generation, pcie.max_generation), (pcie.width, pcie.max_width))
    return any(now < most for now, most in pairs if now is not None and most is not None)


def lost(seen: Observation, faults: tuple[Fault, ...]) -> dict[str, str]:
    """Cards that are gone, by UUID, each with how that is known."""
    told = {fault.uuid: f"XID {fault.xid}" for fault in faults if fault.xid in LOST_XIDS}
    return dict(sorted({**told, **seen.lost}.items()))


def _certain(seen: Observation, faults: tuple[Fault, ...]) -> Trouble | None:
    """What no later look takes back."""
    gone = lost(seen, faults)
    if gone:
        words = "; ".join(f"card {uuid}: {why}" for uuid, why in gone.items())
        return Trouble("GpuLost", f"{words}. Drain the node and restart it; check power cables and risers")
    if faults:
        words = ", ".join(
            f"XID {fault.xid} on card {fault.uuid}" for fault in sorted(faults, key=lambda f: (f.uuid, f.xid))
        )
        advice = (
            f"restart the node, or reset the card and annotate this StrataNode with {FORGET_FAULTS_ANNOTATION}=true"
        )
        return Trouble("GpuFault", f"{words}: memory of the card failed; {advice}")
    broken = sorted(uuid for uuid, reading in seen.readings.items() if reading.uncorrected_ecc_errors)
    if broken:
        advice = "restart the node, and replace the card if it comes again"
        return Trouble("EccErrors", f"memory errors that could not be corrected on card {', '.join(broken)}; {advice}")
    return None


def _likely(seen: Observation) -> Trouble | None:
    """What may be over at the next look."""
    if seen.driver is not None:
        return seen.driver
    return next((seen.failures[uuid] for uuid in sorted(seen.failures)), None)
