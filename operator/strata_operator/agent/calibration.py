"""How fast a node's memory and PCIe links are, measured once each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from strata_operator.agent.errors import HardwareError
from strata_operator.agent.hardware import Card, Gpus, Host
from strata_operator.agent.health import LOADED_PERCENT
from strata_operator.agent.observe import Observation
from strata_operator.api.node import Calibration, HostToDevice

log = logging.getLogger(__name__)

USED_SHARE = 0.05  # of a card's memory; a desktop takes less, a model more


class Calibrator:
    """Measures only while nobody works: a model would be slower meanwhile."""

    def __init__(self, gpus: Gpus, host: Host) -> None:
        self._gpus = gpus
        self._host = host
        self._unmeasurable: set[str] = set()  # by this process

    def turn(self, held: Calibration | None, seen: Observation) -> Calibration | None:
        """``held`` with what was measured now; None where nothing could be. Of the cards one a turn, for a turn that
        takes long governs no temperature."""
        if any(_is_used(card, seen) for card in seen.cards) or not seen.cards:
            return held
        held = held or Calibration()
        dram = held.dram_megabytes_per_second or self._measured("memory", self._host.dram_bandwidth)
        copies = {one.uuid: one.megabytes_per_second for one in held.host_to_device}
        unknown = {card.uuid for card in seen.cards} - set(copies) - self._unmeasurable
        for uuid in sorted(unknown)[:1]:
            measured = self._measured(uuid, partial(self._gpus.copy_bandwidth, uuid))
            if measured is not None:
                copies[uuid] = measured
        made = Calibration(dram, tuple(HostToDevice(uuid, copies[uuid]) for uuid in sorted(copies)))
        return made if made != Calibration() else None

    def _measured(self, what: str, measure: Callable[[], int]) -> int | None:
        """None where it fails, or has failed in this process before."""
        if what in self._unmeasurable:
            return None
        try:
            return measure()
        except HardwareError as error:
            log.warning("%s", error)
            self._unmeasurable.add(what)
            return None


def _is_used(card: Card, seen: Observation) -> bool:
    """Whether somebody computes there or holds memory; a card that cannot be read counts as used."""
    reading = seen.readings.get(card.uuid)
    if reading is None:
        return True
    is_busy = (reading.utilization_percent or 0) >= LOADED_PERCENT
    return is_busy or (reading.vram_used_bytes or 0) > USED_SHARE * card.vram_bytes
