"""Carries the plans for cards out: first the record, then the changes; and remembers what NVML does not tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from strata_operator.agent import tuning
from strata_operator.agent.errors import HardwareError
from strata_operator.agent.hardware import Card, Clock, Gpus, Reading
from strata_operator.agent.tuning import Action
from strata_operator.agent.wishes import CardWish
from strata_operator.api.conditions import Trouble
from strata_operator.api.errors import ApiError
from strata_operator.api.node import GpuOriginals

log = logging.getLogger(__name__)

Record = tuple[GpuOriginals, ...]
UNRECORDED = Trouble("Unrecorded", "what is not on record is not changed while the API server cannot be reached")


@dataclass
class Outcome:
    """What one turn came to."""

    record: Record
    done: list[Action] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  # UUIDs of cards that did not do all


class Tuner:
    """One for a process: what it knows of locked clocks is lost with it, and they are locked again by the next."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._locks: dict[tuple[str, Clock], int | None] = {}

    def turn(
        self,
        cards: Sequence[Card],
        readings: Mapping[str, Reading],
        wishes: Mapping[str, CardWish],
        record: Record,
        *,
        caps: Mapping[str, int],
        write: Callable[[Record], None],
    ) -> Outcome:
        """One step of every card that was read to what is wanted of it.

        ``write`` has to put the record where it outlives this process; it is called before the first change. Where it
        raises ApiError, only cards of which the record says all already are changed. That of a card that is not here
        stays.
        """
        held = {one.uuid: one for one in record}
        plans = {
            card.uuid: tuning.plan(
                card,
                readings[card.uuid],
                wishes.get(card.uuid, CardWish()),
                held.get(card.uuid, GpuOriginals(card.uuid)),
                self._locks,
                cap=caps.get(card.uuid),
            )
            for card in cards
            if card.uuid in readings
        }
        held |= {uuid: plan.originals for uuid, plan in plans.items()}
        outcome = Outcome(tuple(held[uuid] for uuid in sorted(held) if not tuning.is_empty(held[uuid])))
        if outcome.record != record:
            try:
                write(outcome.record)
            except ApiError as error:
                log.warning("some cards are not changed, for their original values cannot be written down: %s", error)
                outcome = Outcome(record, troubles=[UNRECORDED])
                known = {one.uuid: one for one in record}
                plans = {uuid: plan for uuid, plan in plans.items() if plan.originals == known.get(uuid)}
        for uuid, plan in plans.items():
            try:
                for action in plan.actions:
                    self._do(action)
                    outcome.done.append(action)
            except HardwareError as error:
                outcome.failed.add(uuid)
                outcome.troubles.append(Trouble("HardwareFailed", f"{action}: {error}"))
        return outcome

    def _do(self, action: Action) -> None:
        tuning.carry_out(self._gpus, action)
        log.info("%s", action)
        if action.setting in ("sm", "memory"):
            clock: Clock = "sm" if action.setting == "sm" else "memory"
            self._locks[action.uuid, clock] = None if action.value is None else int(action.value)
