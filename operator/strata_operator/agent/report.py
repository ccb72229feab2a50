"""From what was seen and done to StrataNode's status, the Node's labels and the events. Pure; nothing in it ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_operator.agent.hardware import Card, Reading
from strata_operator.agent.health import APPLICATION_XIDS, FAULT_XIDS, LOST_XIDS, CardHealth, Health, is_below, lost
from strata_operator.agent.observe import Observation
from strata_operator.agent.wishes import MEMORY_CLOCK, POWER, SM_CLOCK, CardWish, Limit
from strata_operator.api.conditions import Condition, Trouble, shorten
from strata_operator.api.event import Event
from strata_operator.api.node import (
    GPU_LOST,
    GPU_PRODUCT_LABEL,
    HEALTHY,
    NODE_LABELS,
    PCIE_DEGRADED,
    PCIE_GENERATION_LABEL,
    PCIE_WIDTH_LABEL,
    THERMALLY_LIMITED,
    TUNED,
    VRAM_LABEL,
    Enforced,
    Gpu,
    NodeSpec,
    NodeStatus,
    Originals,
    Power,
    Setting,
    TunedGpu,
    TunedPages,
    product_label,
)

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn saw and did. ``spec`` is None where it cannot be read; ``troubles`` then says why."""

    generation: int
    spec: NodeSpec | None
    seen: Observation  # with the readings of after the changes
    health: Health
    wishes: Mapping[str, CardWish] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)  # of the temperature governor, in milliwatts
    failed: frozenset[str] = frozenset()  # cards that did not do all
    troubles: tuple[Trouble, ...] = ()
    originals: Originals = field(default_factory=Originals)
    pages: tuple[TunedPages, ...] = ()


def status(turn: Turn, previous: NodeStatus) -> NodeStatus:
    """All but the conditions."""
    seen = turn.seen
    return NodeStatus(
        observed_generation=turn.generation,
        boot_id=seen.boot_id or previous.boot_id,
        driver_version=seen.driver_version,
        gpus=_gpus(turn, previous),
        host=seen.host or previous.host,
        calibration=previous.calibration,
        enforced=Enforced(_enforced(turn), turn.pages),
        originals=turn.originals,
        faults=turn.health.faults,
    )


def _gpus(turn: Turn, previous: NodeStatus) -> tuple[Gpu, ...]:
    """A card that is gone stays listed: that is how the next process knows that it was there."""
    seen = turn.seen
    found = {gpu.uuid: gpu for gpu in previous.gpus}
    for card in seen.cards:
        held = found.get(card.uuid)
        reading = seen.readings.get(card.uuid)
        found[card.uuid] = Gpu(
            uuid=card.uuid,
            index=card.index,
            product=card.product,
            vram_bytes=card.vram_bytes,
            usable_vram_bytes=card.usable_vram_bytes,
            compute_capability=card.compute_capability,
            pcie=turn.health.cards.get(card.uuid, CardHealth()).pcie,
            power=_power(card, reading) if reading else held.power if held else None,
            numa_node=seen.numa.get(card.uuid),
        )
    return tuple(found[uuid] for uuid in sorted(found))


def _power(card: Card, reading: Reading) -> Power | None:
    if reading.power_limit is None or card.default_power_limit is None or card.power_limit_range is None:
        return None
    low, high = card.power_limit_range
    return Power(*(round(one / 1000) for one in (reading.power_limit, card.default_power_limit, low, high)))


def _enforced(turn: Turn) -> tuple[TunedGpu, ...]:
    made = []
    for uuid in sorted(turn.wishes):
        wish, reading = turn.wishes[uuid], turn.seen.readings.get(uuid)
        is_in_force = reading is not None and uuid not in turn.failed
        limit = reading.power_limit // 1000 if reading and reading.power_limit is not None else None
        settings = [
            Setting(name, one.value, one.model, value if is_in_force else None)
            for name, one, value in (
                (POWER, wish.power_watts, limit),
                (SM_CLOCK, wish.sm_clock_mhz, _value(wish.sm_clock_mhz)),
                (MEMORY_CLOCK, wish.memory_clock_mhz, _value(wish.memory_clock_mhz)),
            )
            if one is not None
        ]
        if settings:
            made.append(TunedGpu(uuid, tuple(settings)))
    return tuple(made)


def _value(limit: Limit | None) -> int | None:
    return limit.value if limit else None


def verdicts(turn: Turn) -> list[Condition]:
    """The conditions."""
    return [_healthy(turn), _tuned(turn), _pcie(turn), _thermal(turn), _lost(turn)]


def _healthy(turn: Turn) -> Condition:
    trouble = turn.health.trouble
    if trouble is not None:
        return Condition(HEALTHY, False, trouble.reason, shorten(trouble.message))
    if turn.seen.driver is None and not turn.seen.cards:
        return Condition(HEALTHY, False, "NoGpus", "the driver sees no card; this node needs no agent")
    return Condition(HEALTHY, True, "AllWell", "every card answers and has no fault")


def _tuned(turn: Turn) -> Condition:
    spec = turn.spec
    if turn.troubles:
        words = "; ".join(dict.fromkeys(trouble.message for trouble in turn.troubles))
        return Condition(TUNED, False, turn.troubles[0].reason, shorten(words))
    if spec is not None and spec.suspend:
        words = (
            "spec.suspend is true, so every setting has its original value; set it to false to apply what models want"
        )
        return Condition(TUNED, False, "Suspended", words)
    if not turn.pages and not _enforced(turn):
        return Condition(TUNED, True, "NothingAsked", "no model wants anything of this node")
    return Condition(TUNED, True, "InForce", "; ".join(["all that models want is in force", *_notes(turn)]))


def _notes(turn: Turn) -> list[str]:
    """Where several models want different limits, whose is in force; and what the budget took."""
    notes = []
    assert turn.spec is not None
    models = turn.spec.tuning.models
    for title, of_wish, of_card in (
        ("power limit", "power_limit_watts", "power_watts"),
        ("SM clock", "sm_clock_max_mhz", "sm_clock_mhz"),
        ("memory clock", "memory_clock_max_mhz", "memory_clock_mhz"),
    ):
        if len({getattr(wish, of_wish) for wish in models} - {None}) > 1:
            lowest = {getattr(wish, of_card) for wish in turn.wishes.values()} - {None}
            words = sorted(f"{limit.value} of {limit.model}" for limit in lowest if limit.model is not None)
            notes.append(f"of several wishes for the {title} the lowest counts: {', '.join(words)}")
    lowered = [
        wish
        for wish in turn.wishes.values()
        if wish.power_watts and wish.power_milliwatts != 1000 * wish.power_watts.value
    ]
    if lowered:
        notes.append(f"power limits are lowered to stay within powerBudgetWatts {turn.spec.power_budget_watts}")
    return notes


def _pcie(turn: Turn) -> Condition:
    slow = {uuid: held.pcie for uuid, held in sorted(turn.health.cards.items()) if is_below(held.pcie)}
    if not slow:
        return Condition(PCIE_DEGRADED, False, "AsExpected", "no link is slower under load than card and slot can do")
    words = ", ".join(
        f"card {uuid} has {pcie.generation}.0 x{pcie.width} under load, card and slot can do "
        f"{pcie.max_generation}.0 x{pcie.max_width}"
        for uuid, pcie in slow.items()
    )
    return Condition(PCIE_DEGRADED, True, "LinkSlow", f"{words}; seat the card anew, check riser and BIOS")


def _thermal(turn: Turn) -> Condition:
    words = []
    for uuid in sorted(turn.caps):
        wish = turn.wishes.get(uuid, CardWish())
        wanted = [
            f"{title} at most {limit.value} °C as {limit.model} wants"
            for title, limit in (("core", wish.core_temperature_c), ("memory", wish.memory_temperature_c))
            if limit is not None
        ]
        words.append(f"the power limit of card {uuid} is held down to keep {' and '.join(wanted)}")
    if words:
        return Condition(THERMALLY_LIMITED, True, "Governed", "; ".join(words))
    hot = sorted(uuid for uuid, held in turn.health.cards.items() if held.is_throttled.value)
    if hot:
        advice = "improve the cooling, or have models set spec.power.maxTemperatureC"
        return Condition(THERMALLY_LIMITED, True, "Throttled", f"too hot, slows down: card {', '.join(hot)}; {advice}")
    return Condition(THERMALLY_LIMITED, False, "AsExpected", "no card is held down because of its temperature")


def _lost(turn: Turn) -> Condition:
    gone = lost(turn.seen, turn.health.faults)
    if not gone:
        return Condition(GPU_LOST, False, "AsExpected", "no card is lost")
    words = "; ".join(f"card {uuid}: {why}" for uuid, why in gone.items())
    return Condition(GPU_LOST, True, "OffTheBus", shorten(f"{words}; drain the node and restart it"))


def labels(seen: Observation) -> dict[str, str | None]:
    """The Node's labels; empty where nothing can be said now, so that they stay as they are. None: no such label."""
    if seen.driver is not None or seen.lost:
        return {}
    made: dict[str, str | None] = dict.fromkeys(NODE_LABELS)
    if not seen.cards:
        return made
    made[GPU_PRODUCT_LABEL] = product_label(card.product for card in seen.cards)
    made[VRAM_LABEL] = str(min(round(card.vram_bytes / GIB) for card in seen.cards))
    for label, values in (
        (PCIE_GENERATION_LABEL, [card.max_pcie_generation for card in seen.cards]),
        (PCIE_WIDTH_LABEL, [card.max_pcie_width for card in seen.cards]),
    ):
        known = [value for value in values if value is not None]
        made[label] = str(min(known)) if len(known) == len(values) else None
    return made


# The good status of each condition, and the reason of the event that tells of its return.
_GOOD = {
    HEALTHY: ("True", "Healthy"),
    TUNED: ("True", "Tuned"),  # or Restored, where nothing is asked for any more
    PCIE_DEGRADED: ("False", "PcieMended"),
    THERMALLY_LIMITED: ("False", "Cooled"),
    GPU_LOST: ("False", "GpuFound"),
}


def events(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]], seen: Observation) -> list[Event]:
    """What a person should know: conditions that turned bad or good, and the driver's faults."""
    before = {one["type"]: one for one in old}
    told = []
    for one in new:
        held = before.get(one["type"])
        good, back = _GOOD[one["type"]]
        is_good = one["status"] == good
        if held is None:
            is_news = not is_good
        elif is_good and one["type"] != TUNED:
            is_news = held["status"] != one["status"]
        else:
            is_news = (held["status"], held["reason"]) != (one["status"], one["reason"])
        if is_news:
            back = "Restored" if one["reason"] == "NothingAsked" else back
            told.append(
                Event("Normal", back, one["message"]) if is_good else Event("Warning", one["reason"], one["message"])
            )
    told += (
        Event("Warning", f"Xid{xid.code}", f"XID {xid.code} on card {xid.uuid or 'unknown'}: {_meaning(xid.code)}")
        for xid in seen.xids
    )
    return told


def _meaning(code: int) -> str:
    if code in APPLICATION_XIDS:
        return "an error of the program that used the card; its container is started anew"
    if code in LOST_XIDS:
        return "the card fell off the bus"
    if code in FAULT_XIDS:
        return "a fault of the card's memory; the node takes no more models"
    return "see NVIDIA's list of XIDs"
