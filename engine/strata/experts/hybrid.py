"""All routed experts in host memory, some of them in VRAM as well; PCIe brings the others, or the CPU computes them.

Host memory has the experts as tiles, in the order in which the CPU's kernels read them; a slot of VRAM has one as the
store's blob. In a step of few tokens the card finds out layer by layer which experts it has not, fetches some of them
into slots over PCIe and leaves the others to the CPU, which computes them meanwhile: together they move more than
either. Prefill, which takes nearly all experts, brings a whole layer's missing ones into a buffer while the layer
before it computes, and only those that a short chunk has chosen where these are much fewer. What pinned memory has no
room for stays in slots of VRAM and has no tiles; where slots run out, the rest lies on disk: the card never fetches it
in a step of few tokens, the CPU computes it, for a prompt it comes through the page cache.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from strata.config import DeviceConfig
from strata.experts.calibration import Calibration, find_times
from strata.experts.counts import ExpertStats
from strata.experts.cpu import CpuExperts
from strata.experts.facts import facts_of
from strata.experts.few_tokens import FewTokens
from strata.experts.layers import LayerBuffers
from strata.experts.part import Part
from strata.experts.saved import times_of_this_machine
from strata.experts.slots import Slots
from strata.experts.splits import best_split, describe, plain_split
from strata.experts.tier import BlobTier, TierStep
from strata.experts.times import Bounds
from strata.experts.trial import open_trial
from strata.experts.ways import Split, Way, all_ways
from strata.kernels.layer import Kernels, Router
from strata.kernels.matrix import Activation
from strata.plan.placement import ExpertPlacement
from strata.plan.rank import ALONE, Rank
from strata.store.layout import ExpertLayout

logger = logging.getLogger(__name__)

# Tokens of a step up to which the experts that VRAM has not are dealt with one by one.
MAX_TOKENS = 16


class Hybrid(BlobTier):
    """``placement.num_resident`` slots, as many for each layer. Its tensors are made, and layers run, in torch's
    inference mode; all else may be called outside of it.

    Its parts, for who measures them: ``slots``, ``cpu``, ``few`` for steps of few tokens, ``buffers`` for others."""

    max_captured = MAX_TOKENS

    def __init__(
        self,
        layout: ExpertLayout,
        placement: ExpertPlacement,
        kernels: Kernels,
        device: torch.device,
        top_k: int,
        config: DeviceConfig,
        rank: Rank = ALONE,
    ) -> None:
        """``layout``: of all experts. ``placement``: of the rank's own. ``config``: by its ``expert_placement`` experts
        that VRAM has not are all fetched ("fetch"), all computed by the CPU ("cpu"), or split as ``calibrate`` finds:
        always between both ("hybrid"), or to one alone where that is faster ("auto"). Raises HardwareError when host
        memory is too small."""
        self.rank, self._part = rank, Part.of(layout, rank, kernels)
        misses, layout = kernels.misses, self._part.layout
        assert misses is not None, "kernels that read blobs deal with missing ones as well"
        self._layout, self._top_k, self._config = layout, top_k, config
        self._rows = {layer: row for row, layer in enumerate(layout.layers)}
        num_slots = placement.num_resident // len(layout.layers)
        self.cpu = CpuExperts(
            layout,
            device,
            top_k=top_k,
            max_tokens=MAX_TOKENS,
            depth=config.pipeline_depth,
            routing_threads=config.cpu_routing_threads,
            hugepages=config.hugepages,
            num_slots=num_slots,
            num_scores=self._part.num_all,
        )
        self.slots = Slots(layout, num_slots, self.cpu, misses, device, is_alone=rank.is_alone)
        self._splits: tuple[Split, ...] = (plain_split(config.expert_placement, layout.num_experts),)
        way = Way(self._splits[0])
        self.few = FewTokens(self.slots, self.cpu, misses, self._part, top_k, way, config.prefetch_probability)
        self.buffers = LayerBuffers(self.slots, self.cpu, misses, self._part.blobs, top_k / rank.count)

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """As ``BlobTier.put``."""
        row, number = self._rows[expert[0]], self.rank.number(expert[1])
        if number is not None:
            self.cpu.put(row, number, blob)
            self.slots.put(row, number, blob)

    def layer(self, layer: int, activation: Activation, router: Router) -> TierStep:
        """As ``Tier.layer``."""
        row, part, router = self._rows[layer], self._part, self._part.router(router)
        self.cpu.open(activation, router.normalize, self.slots.num_changing)
        addresses = self.slots.registry.of_layer(layer), self.buffers.addresses[row]
        in_slots, staged = (part.experts(some, activation) for some in addresses)
        few = self.few.layer(router, in_slots)

        def step(x: Tensor, onto: Tensor) -> Tensor:
            if x.shape[0] <= MAX_TOKENS:
                return few(x, onto)
            routed = router(x)
            with self.buffers.staged(row, routed.ids):
                return staged(routed, onto)

        return step

    def calibrate(self) -> Calibration | None:
        """As ``Tier.calibrate``: how the CPU reads, and how many of a token's missing experts to fetch."""
        self.cpu.tune()
        layout, config, device = self._layout, self._config, self.slots.device
        if config.expert_placement in ("fetch", "cpu"):
            return None
        fetch, cpu = (plain_split(placement, layout.num_experts) for placement in ("fetch", "cpu"))
        bounds = Bounds(min(self._top_k, layout.num_experts), self.slots.num_changing, self.cpu.num_host)
        if not bounds.missing:  # the others are on disk
            self._splits = (fetch,)
            return None
        facts, trial = facts_of(layout, self._top_k, self.cpu, config.hugepages, device), partial(open_trial, self.few)
        saved, anew = times_of_this_machine(), config.calibrate_anew
        times, known = find_times(bounds, MAX_TOKENS, partial(trial, bounds), saved, facts, anew=anew)
        split = best_split(times, config.expert_placement, layout.num_experts)
        logger.info("%s%s", describe(times, split, self._top_k), ", as an earlier start found" if known else "")
        self._splits = tuple(dict.fromkeys((split, fetch, cpu))) if config.expert_placement == "auto" else (split,)
        return Calibration(facts, times, split, self.buffers.fetch_seconds)

    def choices(self) -> Sequence[Way]:
        """As ``Tier.choices``."""
        return all_ways(self._splits, self._config.prefetch, self._config.routing_device)

    @torch.inference_mode()
    def begin(self, way: Way) -> None:
        """As ``Tier.begin``."""
        self.few.begin(way)

    def announce_replay(self) -> None:
        """As ``Tier.announce_replay``."""
        self.few.announce_replay()

    def check(self) -> None:
        """As ``Tier.check``."""
        self.cpu.check()

    @torch.inference_mode()
    def start_counting(self) -> None:
        """As ``Tier.start_counting``."""
        self.slots.counters.clear()
        self.cpu.start_counting()

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """As ``Tier.stats``."""
        layers = self.slots.counters.look(wait=wait)
        if layers is None:
            return None
        return ExpertStats(
            layers,
            num_vram=len(self._rows) * (self.slots.num_changing + self.cpu.num_fixed),
            num_host=len(self._rows) * self.cpu.num_host,
            expert_bytes=self.cpu.expert_bytes,
            cpu=self.cpu.work(),
            way=replace(self.few.way, split=self.few.way.split[: self._top_k + 1]),
            num_disk=len(self._rows) * self.cpu.num_disk,
            disk_bytes=self.cpu.disk_bytes(),
        )

    def close(self) -> None:
        """As ``Tier.close``."""
        self.cpu.close()
