"""``strata-agent show``: the node in words, for a person on it."""

from __future__ import annotations

from collections.abc import Iterator

from strata.plan.units import format_bytes
from strata_operator.agent.hardware import Card, Gpus, Host, Reading
from strata_operator.agent.health import is_below
from strata_operator.agent.observe import observe
from strata_operator.api.node import PAGE_BYTES, Pcie


def lines(gpus: Gpus, host: Host) -> Iterator[str]:
    """Changes nothing."""
    seen = observe(gpus, host, ())
    if seen.driver is not None:
        yield f"driver    {seen.driver.message}"
    else:
        yield f"driver    {seen.driver_version}, {len(seen.cards)} cards"
    for card in seen.cards:
        yield ""
        yield f"card {card.index}    {card.product}, {card.uuid}"
        reading = seen.readings.get(card.uuid)
        if reading is None:
            trouble = seen.failures.get(card.uuid)
            yield f"          {trouble.message if trouble else seen.lost.get(card.uuid, 'does not answer')}"
        else:
            yield from _card(card, reading)
    yield from (f"card ?    {why}" for uuid, why in seen.lost.items() if uuid == "unknown")
    if seen.host is not None:
        yield ""
        yield f"host      {seen.host.cpu}, {seen.host.cores} CPUs, {format_bytes(seen.host.memory_bytes)}"
        yield f"          {', '.join(seen.host.cpu_flags)}"
    for page in seen.pages:
        if page.total:
            size = format_bytes(page.total * PAGE_BYTES[page.size])
            yield f"pages     NUMA node {page.node}: {page.total} of {page.size} ({size}), {page.free} free"
    yield from (f"trouble   {trouble.message}" for trouble in seen.troubles)


def _card(card: Card, now: Reading) -> Iterator[str]:
    yield f"          memory {format_bytes(card.vram_bytes)}, {format_bytes(now.vram_used_bytes or 0)} used"
    if now.power_limit is not None and card.power_limit_range is not None:
        low, high = (one / 1000 for one in card.power_limit_range)
        yield (
            f"          power {(now.power or 0) / 1000:.0f} W, limit {now.power_limit / 1000:g} W (factory "
            f"{(card.default_power_limit or 0) / 1000:g}, {low:g} to {high:g} may be set), persistence mode "
            f"{'on' if now.persistence_mode else 'off'}"
        )
    memory = f", memory {now.memory_temperature_c} °C" if now.memory_temperature_c is not None else ""
    clocks = f"SM {now.sm_clock_mhz} MHz, memory {now.memory_clock_mhz} MHz"
    yield f"          core {now.core_temperature_c} °C{memory}; {clocks}"
    pcie = Pcie(now.pcie_generation, now.pcie_width, card.max_pcie_generation, card.max_pcie_width)
    rest = "; a card at rest lowers it" if is_below(pcie) else ""
    yield (
        f"          PCIe {pcie.generation}.0 x{pcie.width}, card and slot can do {pcie.max_generation}.0 "
        f"x{pcie.max_width}{rest}"
    )
    if now.throttle_reasons - {"idle"}:
        yield f"          slows down because of: {', '.join(sorted(now.throttle_reasons))}"
