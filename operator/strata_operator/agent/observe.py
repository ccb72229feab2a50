"""One look at cards and host: all that a turn of the agent goes by. What fails is part of what was seen."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from strata_operator.agent.errors import (
    DriverMismatchError,
    DriverMissingError,
    GpuLostError,
    HardwareError,
    HungError,
    NoPermissionError,
)
from strata_operator.agent.hardware import Card, Gpus, Host, NodePages, Reading, Xid
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import Host as HostFacts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen. Maps are by UUID."""

    driver_version: str | None = None
    cards: tuple[Card, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)  # of those that could be read
    failures: Mapping[str, Trouble] = field(default_factory=dict)  # of those that answered with an error
    lost: Mapping[str, str] = field(default_factory=dict)  # gone, with what is known of it
    driver: Trouble | None = None  # why the driver tells nothing at all
    xids: tuple[Xid, ...] = ()
    boot_id: str | None = None
    host: HostFacts | None = None
    pages: tuple[NodePages, ...] = ()
    numa: Mapping[str, int] = field(default_factory=dict)  # NUMA nodes of the cards
    troubles: tuple[Trouble, ...] = ()  # of the host


def observe(gpus: Gpus, host: Host, known: Collection[str]) -> Observation:
    """``known``: UUIDs of the cards that were there before in this run of the machine. Raises nothing."""
    seen = _host(host)
    try:
        version, found = gpus.driver_version(), gpus.find()
    except HardwareError as error:
        return Observation(driver=_of_driver(error), **seen)
    try:
        xids = gpus.take_xids()
    except HardwareError as error:  # as where a card is lost, which is told below
        log.debug("faults are not told: %s", error)
        xids = ()
    readings: dict[str, Reading] = {}
    failures = {f"number {number}": Trouble("GpuFails", words) for number, words in enumerate(found.failing)}
    away = sorted(set(known) - {card.uuid for card in found.cards})
    if found.lost:
        words = "; ".join(found.lost)
        lost = dict.fromkeys(away or ["unknown"], words)
    else:
        # Of a card that fails the driver does not tell the UUID: it may be the one that is missed.
        lost = {} if found.failing else dict.fromkeys(away, "the driver does not list it any more")
    for card in found.cards:
        try:
            readings[card.uuid] = gpus.read(card.uuid)
        except GpuLostError as error:
            lost[card.uuid] = str(error)
        except HardwareError as error:
            failures[card.uuid] = _of_card(error)
    numa = {card.uuid: node for card in found.cards if (node := host.numa_node_of(card.bus_id)) is not None}
    return Observation(version, found.cards, readings, failures, lost, None, xids, numa=numa, **seen)


def _host(host: Host) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    troubles = []
    for name, look in (("boot_id", host.boot_id), ("host", host.facts), ("pages", host.hugepages)):
        try:
            seen[name] = look()
        except HardwareError as error:
            troubles.append(Trouble("HostUnreadable", str(error)))
    return {**seen, "troubles": tuple(troubles)}


def _of_driver(error: HardwareError) -> Trouble:
    reasons = {
        DriverMissingError: "DriverMissing",
        DriverMismatchError: "DriverMismatch",
        NoPermissionError: "NoPermission",
        HungError: "DriverHangs",
    }
    return Trouble(reasons.get(type(error), "DriverFails"), str(error))


def _of_card(error: HardwareError) -> Trouble:
    return Trouble("DriverHangs" if isinstance(error, HungError) else "GpuFails", str(error))
