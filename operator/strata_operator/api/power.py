"""``spec.power``: what a model wants of the cards that it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields


@dataclass(frozen=True, slots=True)
class Power:
    """None leaves a setting as the node's owner has it."""

    limit_watts: int | None = None  # of one card
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    max_core_celsius: int | None = None
    max_memory_celsius: int | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Power:
        """Raises InvalidSpecError naming the field; what a card allows, its node's agent knows."""
        sm, memory, temperature = (fields.table(name) for name in ("smClockMHz", "memoryClockMHz", "maxTemperatureC"))
        return cls(
            limit_watts=fields.between(50, 1000, "limitWatts"),
            max_sm_clock_mhz=sm.between(210, 5000, "max"),
            max_memory_clock_mhz=memory.between(210, 20000, "max"),
            max_core_celsius=temperature.between(50, 100, "core"),
            max_memory_celsius=temperature.between(50, 115, "memory"),
        )

    def check(self, accelerator: str) -> None:
        """Raises InvalidSpecError for a CPU model that wants anything of a card."""
        if accelerator == "cpu" and self != Power():
            raise InvalidSpecError("spec.power is about cards, and hardware.accelerator is cpu; remove it")
