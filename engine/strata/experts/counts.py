"""Where steps found the experts that they needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """Experts of all layers and steps so far. A step that takes an expert for several tokens needs it once."""

    needed: int
    in_vram: int
    fetched: int  # over PCIe; the CPU computed the others

    @property
    def computed(self) -> int:
        """By the CPU."""
        return self.needed - self.in_vram - self.fetched

    def since(self, before: ExpertCounts) -> ExpertCounts:
        """What came after ``before``."""
        return ExpertCounts(self.needed - before.needed, self.in_vram - before.in_vram, self.fetched - before.fetched)

    def shares(self) -> dict[str, float]:
        """Of those that were needed."""
        total = max(1, self.needed)
        return {"in VRAM": self.in_vram / total, "fetched": self.fetched / total, "on the CPU": self.computed / total}
