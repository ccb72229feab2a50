"""All routed experts in host memory, some of them in VRAM as well, and two ways to the others.

Host memory has the experts as tiles, in the order in which the CPU's kernels read them; a slot of VRAM has one as the
store's blob. In a step of few tokens the card finds out layer by layer which experts it has not, fetches some of them
into slots over PCIe and leaves the others to the CPU, which computes them meanwhile: both ways together move more than
either. Prefill, which takes nearly all experts, brings a whole layer's missing ones into a buffer while the layer
before it computes. What pinned memory has no room for stays in slots of VRAM and has no tiles; where slots run out, the
rest lies on disk: the card never fetches it in a step of few tokens, the CPU computes it, for a prompt it comes through
the page cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from strata.config import DeviceConfig
from strata.experts.calibration import Calibration, find_times
from strata.experts.counters import Counters
from strata.experts.counts import ExpertStats
from strata.experts.cpu import CpuExperts
from strata.experts.layers import LayerBuffers
from strata.experts.layout import blob_layout
from strata.experts.prefetch import MAX_AHEAD, Prefetch
from strata.experts.registry import ExpertRegistry
from strata.experts.saved import Facts, times_of_this_machine
from strata.experts.splits import best_split, describe, plain_split
from strata.experts.tier import BlobTier
from strata.experts.times import Bounds
from strata.experts.trial import Trial
from strata.experts.ways import Split, Way, all_ways
from strata.kernels.capture import on_card
from strata.kernels.layer import ExpertsFn, Kernels, Routed, Router
from strata.kernels.matrix import Activation
from strata.kernels.misses.table import MissTable
from strata.memory.device import aligned
from strata.plan.host import cpu_name, driver_version
from strata.plan.placement import ExpertPlacement
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout

logger = logging.getLogger(__name__)

# Tokens of a step up to which the experts that VRAM has not are dealt with one by one.
MAX_TOKENS = 16


class Hybrid(BlobTier):
    """``placement.num_resident`` slots, as many for each layer; at first its first experts are in them, and in the last
    slots those that stay there. Its tensors are made, and layers run, in torch's inference mode; all else may be called
    outside of it."""

    max_captured = MAX_TOKENS

    def __init__(
        self,
        layout: ExpertLayout,
        placement: ExpertPlacement,
        kernels: Kernels,
        device: torch.device,
        top_k: int,
        config: DeviceConfig,
    ) -> None:
        """``config``: by its ``expert_placement`` experts that VRAM has not are all fetched ("fetch"), all computed by
        the CPU ("cpu"), or split as ``calibrate`` finds: always between both ("hybrid"), or to one alone where that is
        faster ("auto"). Raises HardwareError when host memory is too small."""
        assert kernels.misses is not None, "kernels that read blobs deal with missing ones as well"
        self._kernels, self._misses = kernels, kernels.misses
        self._layout = blob_layout(layout)
        self._store_layout = layout
        self._device = device
        self._top_k = top_k
        self._rows = {layer: row for row, layer in enumerate(layout.layers)}
        num_slots = placement.num_resident // len(layout.layers)
        self._cpu = CpuExperts(
            layout,
            device,
            top_k=top_k,
            max_tokens=MAX_TOKENS,
            depth=config.pipeline_depth,
            routing_threads=config.cpu_routing_threads,
            hugepages=config.hugepages,
            num_slots=num_slots,
        )
        self.registry = ExpertRegistry(layout.layers, layout.num_experts, device)
        size = layout.blob_bytes
        of_layers = len(layout.layers) * num_slots * size
        slab = aligned(of_layers + MAX_AHEAD * size, BLOB_ALIGNMENT, device)
        slots = slab[:of_layers].view(len(layout.layers), num_slots, size)
        self._slots, self._fixed = slots.split([num_slots - self._cpu.num_fixed, self._cpu.num_fixed], 1)
        spare = _addresses(slab.data_ptr() + of_layers, MAX_AHEAD, size)
        self._prefetch = Prefetch(self._misses, self._layout, spare, config.prefetch_probability, device)
        self._config = config
        self._splits: tuple[Split, ...] = (plain_split(config.expert_placement, layout.num_experts),)
        self._way = Way(self._splits[0])
        self._split = torch.tensor(self._way.split, dtype=torch.int32, device=device)
        self._counters = Counters(layout.layers, device)
        self._tables = [self._make(row, layer) for layer, row in self._rows.items()]
        self._runs: list[ExpertsFn] = []  # of each layer, from its slots
        self._buffers = LayerBuffers(self._tables, self._cpu, self._misses, self._layout, device)

    def put(self, expert: tuple[int, int], blob: Tensor) -> None:
        """As ``BlobTier.put``."""
        layer, number = expert
        row = self._rows[layer]
        self._cpu.put(row, number, blob)
        if number < self._slots.shape[1]:
            self._slots[row, number].copy_(blob)
        elif 0 <= number - self._cpu.num_host < self._cpu.num_fixed:
            self._fixed[row, number - self._cpu.num_host].copy_(blob)

    @torch.inference_mode()
    def calibrate(self) -> Calibration | None:
        """As ``Tier.calibrate``: how the CPU reads, and how many of a token's missing experts to fetch."""
        self._cpu.tune()
        placement, num_experts = self._config.expert_placement, self._store_layout.num_experts
        if placement in ("fetch", "cpu"):
            return None
        fetch, cpu = (plain_split(plain, num_experts) for plain in ("fetch", "cpu"))
        bounds = Bounds(self._top_k, self._slots.shape[1], self._cpu.num_host)
        if not bounds.missing:  # the others are on disk
            self._splits = (fetch,)
            return None
        facts, anew = self._facts(), self._config.calibrate_anew
        times, known = find_times(
            bounds, MAX_TOKENS, partial(self.trial, bounds), times_of_this_machine(), facts, anew=anew
        )
        split = best_split(times, placement, num_experts)
        logger.info("%s%s", describe(times, split, self._top_k), ", as an earlier start found" if known else "")
        self._splits = tuple(dict.fromkeys((split, fetch, cpu))) if placement == "auto" else (split,)
        return Calibration(facts, times, split, self.fetch_seconds)

    def choices(self) -> Sequence[Way]:
        """As ``Tier.choices``."""
        return all_ways(self._splits, self._config.prefetch, self._config.routing_device)

    @torch.inference_mode()
    def begin(self, way: Way) -> None:
        """As ``Tier.begin``."""
        self._way = way
        self._split.copy_(torch.tensor(way.split, dtype=torch.int32))
        self._prefetch.predictor = way.predictor
        for table in self._tables:
            self._reset(table)

    @torch.inference_mode()
    def fetch_seconds(self) -> float:
        """That one expert takes over PCIe, a whole layer at a time, while nothing else goes on."""
        num_experts = self._cpu.num_host
        fetch, took = self.fetching(num_experts)[0], []
        for _ in range(3):
            self._wait()
            began = time.perf_counter()
            fetch()
            self._wait()
            took.append(time.perf_counter() - began)
        return min(took) / num_experts

    def tune(self) -> int:
        """As ``CpuExperts.tune``, which ``calibrate`` begins with."""
        return self._cpu.tune()

    def fetching(self, num_experts: int) -> list[Callable[[], None]]:
        """Calls that bring so many experts of a layer over PCIe each, into a buffer; one after another they go through
        all layers' in pinned memory."""
        count = torch.tensor([num_experts], dtype=torch.int32, device=self._device)
        targets = self._buffers.places[0, :num_experts]

        def fetch(sources: Tensor) -> Callable[[], None]:
            return lambda: self._misses.untile(sources, targets, count, self._layout)

        begins = range(0, self._cpu.num_host - num_experts + 1, num_experts)
        # Copies, which begin where the kernel's loads are aligned, as in a step.
        sources = [table.sources[begin : begin + num_experts].clone() for table in self._tables for begin in begins]
        return [fetch(some) for some in sources]

    @contextmanager
    def trial(self, bounds: Bounds, tokens: int, num_layers: int) -> Iterator[Trial]:
        """Steps of so many tokens through the experts of so many layers at most, of which some are missing. Slots are
        afterwards as they were before."""
        tables, device = self._tables[:num_layers], self._device
        hidden = self._layout.gate.cols
        inner = self._misses.inner(torch.randn(tokens, hidden, device=device))
        x = torch.zeros(tokens, hidden, device=device)
        shares = torch.ones(tokens, self._top_k, device=device)
        # Any that differ: their kernels are built with them.
        ids = torch.arange(self._top_k, dtype=torch.int32, device=device).repeat(len(tables), tokens, 1)

        def step() -> None:
            for row, (run, chosen) in enumerate(zip(self._runs, ids, strict=False)):
                self._run_few(row, run, Routed(chosen, shares, inner), x)

        on_its_own = self._device.type == "cuda"
        again = on_card(self._device)(step)[0] if on_its_own else step

        def run_all() -> None:
            if on_its_own:
                self._cpu.expect(len(tables))
            again()
            self._wait()
            self._cpu.check()

        yield Trial(run_all, bounds, ids, self.registry.table[: len(tables), : self._cpu.num_host], self._split)
        for table in tables:
            self._reset(table)

    def _facts(self) -> Facts:
        """On which the times of a trial depend, as far as they can be known. The number of slots bounds what is tried,
        and does not change what it takes."""
        card = self._device.type
        return {
            "card": torch.cuda.get_device_name(self._device) if card == "cuda" else card,
            "driver": driver_version(),
            "cpu": cpu_name(),
            "cpu_threads": self._cpu.num_threads,
            "hugepages": self._config.hugepages,
            "hidden": self._layout.gate.cols,
            "intermediate": self._layout.gate.rows,
            "format": self._layout.gate.kind,
            "num_experts": self._store_layout.num_experts,
            "top_k": self._top_k,
        }

    @torch.inference_mode()
    def start_counting(self) -> None:
        """As ``Tier.start_counting``."""
        self._counters.clear()
        self._cpu.start_counting()

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """As ``Tier.stats``."""
        layers = self._counters.look(wait=wait)
        if layers is None:
            return None
        return ExpertStats(
            layers,
            num_vram=len(self._tables) * (self._slots.shape[1] + self._cpu.num_fixed),
            num_host=len(self._tables) * self._cpu.num_host,
            expert_bytes=self._cpu.expert_bytes,
            cpu=self._cpu.work(),
            way=replace(self._way, split=self._way.split[: self._top_k + 1]),
            num_disk=len(self._tables) * self._cpu.num_disk,
            disk_bytes=self._cpu.disk_bytes(),
        )

    def layer(self, layer: int, activation: Activation, router: Router) -> Callable[[Tensor], Tensor]:
        """As ``Tier.layer``."""
        row = self._rows[layer]
        table = self._tables[row]
        self._prefetch.add(table, router)
        self._cpu.open(activation, router.normalize, self._slots.shape[1])
        in_slots = self._kernels.blob_experts(self._layout, table.addresses, activation)
        staged = self._kernels.blob_experts(self._layout, self._buffers.addresses[row], activation)
        self._runs.append(in_slots)

        def step(x: Tensor) -> Tensor:
            if x.shape[0] > MAX_TOKENS:  # nearly all are taken, whoever chooses them
                routed = router(x)
                with self._buffers.staged(row):
                    return staged(routed, x)
            if self._way.routed_on == "cpu":
                return self._run_scored(row, in_slots, router, x)
            return self._run_few(row, in_slots, router(x), x)

        return step

    def announce_replay(self) -> None:
        """As ``Tier.announce_replay``."""
        asks_twice = self._way.routed_on == "cpu" and not self._leaves_all
        self._cpu.expect(len(self._tables) * (2 if asks_twice else 1))

    def check(self) -> None:
        """As ``Tier.check``."""
        self._cpu.check()

    def close(self) -> None:
        """As ``Tier.close``."""
        self._cpu.close()

    # --- inside

    @property
    def _leaves_all(self) -> bool:
        """Whether the CPU, where it chooses, knows by itself what to compute: what VRAM has never changes, and is the
        first experts alone."""
        return self._way.leaves_all and self._way.predictor == "off" and not self._cpu.num_fixed

    def _run_scored(self, row: int, in_slots: ExpertsFn, router: Router, x: Tensor) -> Tensor:
        """The CPU chooses. Where it computes all that is missing it does so at once, and the card finds out beside it
        which experts it has; else the card waits for the choice and goes on as ever."""
        table, mailbox, leaves_all = self._tables[row], self._cpu.mailbox, self._leaves_all
        scored = router.score(x)
        self._misses.ask_route(scored.scores, scored.inner if leaves_all else None, mailbox, row)
        if not _is_captured(self._device):
            self._cpu.expect(1)
        if not leaves_all:
            choice = self._misses.take_choice(mailbox, len(x), self._top_k, table.counters)
            return self._run_few(row, in_slots, Routed(*choice, scored.inner), x)
        routed = router.routed(scored)
        self._misses.share_out(routed.ids, routed.shares, routed.inner, table, None, row)  # for what it counts
        return self._misses.add_answer(in_slots(routed, x), mailbox, table.counters)

    def _run_few(self, row: int, in_slots: ExpertsFn, routed: Routed, x: Tensor) -> Tensor:
        table, mailbox = self._tables[row], self._cpu.mailbox
        with self._prefetch.around(row, routed.ids, x):
            self._misses.share_out(routed.ids, routed.shares, routed.inner, table, mailbox, row)
            if not _is_captured(self._device):
                self._cpu.expect(1)  # only now: the kernel may be built first, for longer than the pool waits
            self._misses.untile(table.copy_sources, table.copy_targets, table.count, self._layout)
        return self._misses.add_answer(in_slots(routed, x), mailbox, table.counters)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _make(self, row: int, layer: int) -> MissTable:
        num_experts, num_slots = self._store_layout.num_experts, self._slots.shape[1]
        device = self._device
        table = MissTable(
            addresses=self.registry.of_layer(layer),
            sources=self._cpu.sources[row].to(device),
            heat=torch.zeros(num_experts, device=device),
            slots=_addresses(self._slots[row].data_ptr(), num_slots, self._layout.num_bytes).to(device),
            owners=torch.arange(num_slots, dtype=torch.int32, device=device),
            split=self._split,
            counters=self._counters.tensor[row],
            recent=torch.zeros(num_experts, dtype=torch.int32, device=device),
            copy_sources=torch.zeros(num_slots, dtype=torch.int64, device=device),
            copy_targets=torch.zeros(num_slots, dtype=torch.int64, device=device),
            count=torch.zeros(1, dtype=torch.int32, device=device),
            scratch=torch.zeros(2 * num_experts, dtype=torch.int32, device=device),
        )
        table.addresses[:num_slots] = table.slots
        stay = slice(self._cpu.num_host, self._cpu.num_host + self._cpu.num_fixed)
        size = self._layout.num_bytes
        table.addresses[stay] = _addresses(self._fixed[row].data_ptr(), self._cpu.num_fixed, size).to(device)
        return table

    def _reset(self, table: MissTable) -> None:
        """The first experts back into the slots, as if no step had been."""
        first = torch.arange(len(table.slots), device=self._device)
        lost = (table.owners != first).nonzero().flatten()
        count = torch.tensor([len(lost)], dtype=torch.int32, device=self._device)
        self._misses.untile(table.sources[lost], table.slots[lost], count, self._layout)
        table.owners.copy_(first)
        table.addresses[: self._cpu.num_host].zero_()
        table.addresses[: len(first)] = table.slots
        table.heat.zero_()
        table.recent.zero_()
        table.counters.zero_()


def _addresses(begin: int, count: int, size: int) -> Tensor:
    return begin + size * torch.arange(count, dtype=torch.int64)


def _is_captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
