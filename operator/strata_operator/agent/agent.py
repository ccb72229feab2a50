"""One turn of the agent: look, decide, write down what was, change, tell. Level-based: no turn needs the one before.

What it holds between turns is either told by nobody (hysteresis, locked clocks) or the truth of the originals, of which
StrataNode's status is the copy that outlives the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from strata_operator.agent import hugepages, report
from strata_operator.agent.calibration import Calibrator
from strata_operator.agent.errors import HardwareError
from strata_operator.agent.governor import Governor, degrees_too_hot
from strata_operator.agent.hardware import Gpus, Host, Xid
from strata_operator.agent.health import CardHealth, Health, step
from strata_operator.agent.hugepages import Reserver
from strata_operator.agent.mirror import Mirror
from strata_operator.agent.observe import Observation, observe
from strata_operator.agent.report import Turn
from strata_operator.agent.tuner import UNRECORDED, Tuner
from strata_operator.agent.wishes import CardWish, resolve
from strata_operator.api import conditions, wire
from strata_operator.api.conditions import Trouble
from strata_operator.api.errors import ApiError, InvalidSpecError
from strata_operator.api.event import Event
from strata_operator.api.node import (
    FORGET_FAULTS_ANNOTATION,
    PAGE_BYTES,
    NodeSpec,
    NodeStatus,
    Originals,
    StrataNode,
)
from strata_operator.api.quantity import parse_quantity

log = logging.getLogger(__name__)

MOST_EVENTS = 100  # that wait while the API server is away; the oldest are dropped


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the exporter shows; replaced as a whole after each turn."""

    turn: Turn | None = None
    is_connected: bool = False  # the last turn could write all that it had to


class Agent:
    """``monotonic`` tells seconds that only go forward, ``wall`` the time of day."""

    def __init__(
        self,
        gpus: Gpus,
        host: Host,
        mirror: Mirror,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self._gpus = gpus
        self._host = host
        self._mirror = mirror
        self._monotonic = monotonic
        self._wall = wall
        self._tuner = Tuner(gpus)
        self._reserver = Reserver(host, monotonic)
        self._calibrator = Calibrator(gpus, host)
        self._governors: dict[str, Governor] = {}
        self._health = Health()
        self._status: NodeStatus | None = None  # None until the StrataNode was seen
        self._conditions: tuple[Mapping[str, Any], ...] = ()
        self._outbox: list[Event] = []
        self._untold_xids: tuple[Xid, ...] = ()
        self.snapshot = Snapshot()

    @property
    def originals(self) -> Originals:
        """What is still to be put back."""
        return self._status.originals if self._status else Originals()

    def turn(self) -> None:
        """Raises nothing that a later turn may better."""
        obj = self._own()
        seen = self._look()
        if self._health.bad_turns and self._health.trouble is None:
            # One bad look tells nothing: the next one, in some seconds, has all or confirms it.
            self._untold_xids = seen.xids
            self.snapshot = replace(self.snapshot, turn=Turn(0, None, replace(seen, xids=()), self._health))
            return
        if obj is None or self._status is None or "deletionTimestamp" in obj["metadata"]:
            # Without the StrataNode nobody knows what is wanted, or could write down what was.
            self.snapshot = Snapshot(Turn(0, None, seen, self._health))
            return
        self._status = replace(self._status, calibration=self._calibrator.turn(self._status.calibration, seen))
        turn = self._tune(obj, seen)
        is_connected = self._tell(obj, turn)
        self.snapshot = Snapshot(turn, is_connected)

    def _own(self) -> Mapping[str, Any] | None:
        """The StrataNode; None while it is not known, or cannot be made."""
        obj = None
        try:
            if self._mirror.is_synced:  # before, a StrataNode that is there would look absent
                obj = self._mirror.strata_node or self._mirror.create()
        except ApiError as error:
            log.warning("the StrataNode cannot be made: %s", error)
        self._adopt(obj)
        if obj is not None and FORGET_FAULTS_ANNOTATION in (obj["metadata"].get("annotations") or {}):
            self._forget_faults()
        return obj

    def _look(self) -> Observation:
        """At cards and host; and what that says of their health."""
        status = self._status or NodeStatus()
        seen = observe(self._gpus, self._host, {gpu.uuid for gpu in status.gpus})
        seen = replace(seen, xids=(*self._untold_xids, *seen.xids))
        self._untold_xids = ()
        if seen.boot_id is not None and status.boot_id not in (None, seen.boot_id):
            # The machine was started anew: cards may have been taken out, and faults are over.
            self._status = replace(status, gpus=(), faults=(), boot_id=seen.boot_id)
            self._health = Health()
            seen = replace(seen, lost={})
        self._health = step(self._health, seen, now=self._monotonic(), wall=self._wall())
        return seen

    def _adopt(self, obj: Mapping[str, Any] | None) -> None:
        """What an earlier process wrote down, once. Later this one knows better than a status edited by hand."""
        if self._status is not None or obj is None:
            return
        self._status = wire.load_parts(NodeStatus, obj.get("status") or {}, "status")
        later = (fault for fault in self._health.faults if fault not in self._status.faults)
        cards = dict(self._health.cards)
        for gpu in self._status.gpus:
            held = cards.get(gpu.uuid, CardHealth())
            if held.pcie.generation is None:
                cards[gpu.uuid] = replace(held, pcie=gpu.pcie)
        self._health = replace(self._health, cards=cards, faults=(*self._status.faults, *later))
        self._conditions = tuple((obj.get("status") or {}).get("conditions") or ())

    def _forget_faults(self) -> None:
        """Somebody reset the card, or took it out: what was held against it does not count any more."""
        try:
            self._mirror.take_annotation(FORGET_FAULTS_ANNOTATION)
        except ApiError as error:
            log.warning("the annotation %s stays for now: %s", FORGET_FAULTS_ANNOTATION, error)
            return
        self._health = replace(self._health, faults=(), trouble=None)
        if self._status is not None:
            self._status = replace(self._status, faults=(), gpus=())

    # -- change -------------------------------------------------------------------------------------------------------

    def _tune(self, obj: Mapping[str, Any], seen: Observation) -> Turn:
        generation = obj["metadata"]["generation"]
        try:
            spec = StrataNode.parse(obj).spec
        except InvalidSpecError as error:
            trouble = Trouble("InvalidSpec", f"nothing is changed: {error}")
            return Turn(generation, None, seen, self._health, troubles=(trouble,), originals=self.originals)
        limits = self._own_limits(seen)
        wishes, troubles = resolve(spec, seen.cards, limits)
        caps = self._govern(seen, wishes, limits)
        troubles += seen.troubles
        if seen.driver and (spec.is_of_cards or self.originals.gpus):  # else it is no obstacle: huge pages need none
            troubles += (seen.driver,)
        troubles += tuple(seen.failures[uuid] for uuid in sorted(seen.failures))
        outcome = self._tuner.turn(
            seen.cards,
            seen.readings,
            wishes,
            self.originals.gpus,
            caps=caps,
            write=lambda gpus: self._record(obj, replace(self.originals, gpus=gpus)),
        )
        troubles += tuple(outcome.troubles) + self._reserve(obj, spec, seen)
        after, pages = self._look_again(seen, {action.uuid for action in outcome.done})
        wants = hugepages.wanted(spec)
        tuned = hugepages.tuned(pages, wants, self._allocatable())
        troubles += (*hugepages.troubles(tuned, pages), *hugepages.still_held(self.originals.hugepages, pages, wants))
        return Turn(
            generation,
            spec,
            replace(seen, readings=after, pages=pages),
            self._health,
            wishes,
            caps,
            frozenset(outcome.failed),
            troubles,
            self.originals,
            tuned,
        )

    def _own_limits(self, seen: Observation) -> dict[str, int]:
        """The cards' power limits without us, in milliwatts; of a card that cannot be read, the last that was seen."""
        last = {gpu.uuid: 1000 * gpu.power.limit_watts for gpu in (self._status or NodeStatus()).gpus if gpu.power}
        held = {one.uuid: one.power_limit_milliwatts for one in self.originals.gpus}
        found = {uuid: held.get(uuid) or reading.power_limit for uuid, reading in seen.readings.items()}
        return last | {uuid: limit for uuid, limit in found.items() if limit is not None}

    def _govern(self, seen: Observation, wishes: Mapping[str, CardWish], limits: Mapping[str, int]) -> dict[str, int]:
        """The temperature governors, one step on; what they allow."""
        for card in seen.cards:
            reading, wish = seen.readings.get(card.uuid), wishes.get(card.uuid, CardWish())
            if reading is None or card.power_limit_range is None or card.uuid not in limits:
                continue
            hot = degrees_too_hot(
                reading.core_temperature_c,
                reading.memory_temperature_c,
                most_core=wish.core_temperature_c.value if wish.core_temperature_c else None,
                most_memory=wish.memory_temperature_c.value if wish.memory_temperature_c else None,
            )
            self._governors[card.uuid] = self._governors.get(card.uuid, Governor()).step(
                self._monotonic(),
                too_hot=hot,
                power=reading.power,
                limit=wish.power_milliwatts or limits[card.uuid],
                least=card.power_limit_range[0],
            )
        return {uuid: one.cap for uuid, one in self._governors.items() if one.cap is not None}

    def _reserve(self, obj: Mapping[str, Any], spec: NodeSpec, seen: Observation) -> tuple[Trouble, ...]:
        wants, record = hugepages.wanted(spec), self.originals.hugepages
        if not wants and not record:
            return ()
        try:
            made = self._reserver.turn(
                seen.pages, wants, record, lambda pages: self._record(obj, replace(self.originals, hugepages=pages))
            )
        except ApiError as error:
            log.warning("huge pages are left, for their original numbers cannot be written down: %s", error)
            return (UNRECORDED,)
        except HardwareError as error:
            return (Trouble("HardwareFailed", str(error)),)
        assert made == self.originals.hugepages
        return ()

    def _look_again(self, seen: Observation, changed: set[str]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Readings and pages after the changes."""
        readings = dict(seen.readings)
        try:
            for uuid in changed:
                readings[uuid] = self._gpus.read(uuid)
            return readings, self._host.hugepages()
        except HardwareError as error:
            log.warning("after the changes: %s", error)
            return readings, seen.pages

    def _allocatable(self) -> dict[str, int]:
        """Huge pages that the kubelet gives to pods, by size."""
        node = self._mirror.node or {}
        told = (node.get("status") or {}).get("allocatable") or {}
        return {
            size: parse_quantity(str(told[f"hugepages-{size}"]), "allocatable") // page
            for size, page in PAGE_BYTES.items()
            if f"hugepages-{size}" in told
        }

    # -- tell ---------------------------------------------------------------------------------------------------------

    def _record(self, obj: Mapping[str, Any], originals: Originals) -> None:
        """Write the originals where they outlive this process. Raises ApiError; then nothing must be changed."""
        assert self._status is not None
        status = replace(self._status, originals=originals)
        self._mirror.write_status(obj["metadata"]["uid"], self._written(status, self._conditions))
        self._status = status

    @staticmethod
    def _written(status: NodeStatus, verdicts: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
        return {**wire.dump(status), **({"conditions": list(verdicts)} if verdicts else {})}

    def _tell(self, obj: Mapping[str, Any], turn: Turn) -> bool:
        """Write what differs; whether all could be written."""
        assert self._status is not None
        merged = conditions.merge(report.verdicts(turn), self._conditions, generation=turn.generation, now=self._wall())
        self._outbox = [*self._outbox, *report.events(merged, self._conditions, turn.seen)][-MOST_EVENTS:]
        self._status, self._conditions = report.status(turn, self._status), tuple(merged)
        had_cards = bool(self._status.gpus)
        try:
            wanted = self._written(self._status, self._conditions)
            current = self._mirror.strata_node or obj
            if wanted != (current.get("status") or {}):
                self._mirror.write_status(obj["metadata"]["uid"], wanted)
            is_unhealthy = turn.health.trouble is not None and had_cards
            self._mirror.mark_node(report.labels(turn.seen), is_unhealthy=is_unhealthy)
            while self._outbox:
                self._mirror.post(self._outbox[0], now=self._wall())
                self._outbox.pop(0)
        except ApiError as error:
            log.warning("not told yet: %s", error)
            return False
        return True
