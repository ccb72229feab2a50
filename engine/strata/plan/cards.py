"""Cards by name, and what a PCIe link carries.

Figures are those of NVIDIA's data sheets, product pages and architecture papers (GeForce RTX 30, 40 and 50 series; RTX
A6000 and RTX 6000 Ada; A10, L4, L40S, A100, H100 and H200 Tensor Core GPU). What a process gets is less: the driver
keeps a few hundred MiB, and see ``READ_OF_SHEET``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strata.errors import OptionError

if TYPE_CHECKING:
    from strata.plan.speed import Rates


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card. Rates in 10^9 bytes a second, memory in GiB."""

    title: str
    vram_gib: float
    vram_gbps: float
    pcie: str  # the fastest link that it takes
    tflops: float  # bf16 products summed in float32, without sparsity
    num_multiprocessors: int
    boost_ghz: float
    overlaps: bool = False  # launches with the kernel before: from compute capability 9.0 on

    def rates(self, host: Rates, vram_gbps: float | None = None) -> Rates:
        """``host`` with the card's own figures. ``vram_gbps``: instead of the data sheet's."""
        return replace(
            host,
            device=(vram_gbps or self.vram_gbps) * 1e9,
            flops=self.tflops * 1e12,
            cycles=self.num_multiprocessors * self.boost_ghz * 1e9,
            overlaps=self.overlaps,
        )


CARDS = {
    "rtx3080": Card("GeForce RTX 3080", 10, 760, "4.0x16", 59.5, 68, 1.71),
    "rtx3090": Card("GeForce RTX 3090", 24, 936, "4.0x16", 71, 82, 1.70),
    "rtx3090ti": Card("GeForce RTX 3090 Ti", 24, 1008, "4.0x16", 80, 84, 1.86),
    "rtx4080": Card("GeForce RTX 4080", 16, 717, "4.0x16", 97.5, 76, 2.51),
    "rtx4090": Card("GeForce RTX 4090", 24, 1008, "4.0x16", 165, 128, 2.52),
    "rtx4090d": Card("GeForce RTX 4090 D", 24, 1008, "4.0x16", 147, 114, 2.52),
    "rtx5080": Card("GeForce RTX 5080", 16, 960, "5.0x16", 112.6, 84, 2.62, overlaps=True),
    "rtx5090": Card("GeForce RTX 5090", 32, 1792, "5.0x16", 209.5, 170, 2.41, overlaps=True),
    "a6000": Card("RTX A6000", 48, 768, "4.0x16", 154.8, 84, 1.80),
    "rtx6000ada": Card("RTX 6000 Ada", 48, 960, "4.0x16", 364, 142, 2.51),
    "a10": Card("A10", 24, 600, "4.0x16", 125, 72, 1.70),
    "l4": Card("L4", 24, 300, "4.0x16", 121, 58, 2.04),
    "l40s": Card("L40S", 48, 864, "4.0x16", 362, 142, 2.52),
    "a100-40gb": Card("A100 40 GB (SXM)", 40, 1555, "4.0x16", 312, 108, 1.41),
    "a100-80gb": Card("A100 80 GB (SXM)", 80, 2039, "4.0x16", 312, 108, 1.41),
    "h100": Card("H100 80 GB (SXM)", 80, 3350, "5.0x16", 989, 132, 1.98, overlaps=True),
    "h200": Card("H200 (SXM)", 140, 4800, "5.0x16", 989, 132, 1.98, overlaps=True),
}

# What programs get of a data sheet's bandwidth and products. H200, 2026-11-30: plain reads reach 4.35 TB/s; all dense
# products, norms and sums of a layer of Qwen3-8B together 585 TFLOP/s, large products alone some 700.
READ_OF_SHEET, FLOPS_OF_SHEET = 0.9, 0.7

# 10^9 bytes a second of a large pinned copy to a card over 16 lanes, by generation: some 80 % of what the link signals.
# 12 and 25 are what tools report on 3.0 and 4.0 slots; 55 was measured on 5.0 (H200, 64 MiB copies), 50 is what one
# kernel reads there.
_PCIE_X16_GBPS = {1: 3.0, 2: 6.0, 3: 12.0, 4: 25.0, 5: 50.0}


def find_card(name: str) -> Card:
    """The card called ``name``, whatever its case, spaces and hyphens. Raises OptionError with the known ones."""
    cards = {_plain(key): card for key, card in CARDS.items()}
    card = cards.get(_plain(name))
    if card is None:
        raise OptionError(
            f"card {name!r} is not known; known: {', '.join(CARDS)}. For another one give the nearest of these with "
            "--vram-gib and --vram-gbps"
        )
    return card


def usual(rates: Rates) -> Rates:
    """Of a data sheet's rates those that programs get."""
    return replace(rates, device=READ_OF_SHEET * rates.device, flops=FLOPS_OF_SHEET * rates.flops)


def pcie_gbps(link: str) -> float:
    """10^9 bytes a second to the card over a link like "3.0x16" or "4x8". Raises OptionError for anything else."""
    match = re.fullmatch(r"(?:pcie)?([1-5])(?:\.0)?x(1|2|4|8|16)", link.strip().lower().replace(" ", ""))
    if match is None:
        raise OptionError(f"PCIe link {link!r} is not known; give generation x lanes, 1.0x1 to 5.0x16, e.g. 3.0x16")
    return _PCIE_X16_GBPS[int(match[1])] * int(match[2]) / 16


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("geforce")
