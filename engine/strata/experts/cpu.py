"""Routed experts in host memory, and the threads that compute them there."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from strata.errors import EngineError
from strata.experts.spill import Spill
from strata.kernels.matrix import Activation
from strata.kernels.misses.table import Mailbox
from strata.memory.host import PinnedMemory, check_room
from strata.native.cores import cores_of_nodes
from strata.native.layout import TileLayout
from strata.native.mailbox import MailboxLayout
from strata.native.pool import CpuWork, ExpertPool, PoolOptions, Routing
from strata.native.tiles import tile_expert
from strata.native.tuning import tune_prefetch
from strata.plan.hardware import available_memory, disk_bytes_read
from strata.plan.memory import HEADROOM_BYTES
from strata.plan.placement import fixed_slots
from strata.plan.units import format_bytes
from strata.store.directories import default_cache_dir
from strata.store.layout import ExpertLayout

logger = logging.getLogger(__name__)

_ALIGNMENT = 128  # bytes: a cache line of a GPU
_KEPT_CORES = 2  # for the engine's own thread and the server


class CpuExperts:
    """A store's experts as tiles, and a mailbox through which the card asks for some of them.

    Where this process has cores of several NUMA nodes, the experts lie in the memory of all of them, and each node's
    cores compute those that are near. Of each layer the first ``num_host`` experts are in pinned memory. Where that has
    no room for all, ``num_fixed`` more stay in VRAM and have no tiles; the rest lies on disk, and the CPU alone
    computes it.
    """

    def __init__(
        self,
        layout: ExpertLayout,
        device: torch.device,
        *,
        top_k: int,
        max_tokens: int,
        depth: int,
        routing_threads: int,
        hugepages: str = "off",
        num_slots: int,
        num_scores: int,
    ) -> None:
        """``depth``: requests that may be under way together. ``routing_threads``: threads that may share the choice of
        experts for a step. ``num_slots``: of VRAM for each layer's experts. ``num_scores``: of a token, which are of
        experts that lie elsewhere too where several ranks share them. Raises HardwareError when host memory is
        too small even for what the rest of these may hold in turn, or the native library is not there, StorageError
        when the disk is too small for the others."""
        self._layout, self._num_scores = layout, num_scores
        gate = layout.weights["gate_proj.weight"]
        intermediate, hidden = gate.shape
        self._biases = layout.weights.get("gate_proj.bias")
        self._tiles = TileLayout(gate.format, hidden, intermediate, self._biases is not None)
        size = self.stride = -(-self._tiles.num_bytes // _ALIGNMENT) * _ALIGNMENT  # bytes from expert to expert
        self._cores = cores_of_nodes(_KEPT_CORES)
        nodes, layers = len(self._cores), len(layout.layers)
        self.num_host, self.num_fixed = layout.num_experts, 0
        if hugepages == "off":
            self.num_host, self.num_fixed = _fitting(layout, size, num_slots)
            check_room(layers * self.num_host * size)
        self._table = torch.zeros(layers, layout.num_experts, dtype=torch.int64)
        self._slabs: list[PinnedMemory] = []
        for node, cores in enumerate(self._cores):
            mine = self._table[:, node : self.num_host : nodes]  # as the pool wants them to be spread
            slab = PinnedMemory(mine.numel() * size, device, hugepages, near=cores if nodes > 1 else ())
            mine.copy_(_row_of(slab.tensor, size, mine.numel()).view(mine.shape))
            self._slabs.append(slab)
        self._spill: Spill | None = None
        if self.num_disk:
            others = self._table[:, self.num_host + self.num_fixed :]
            self._spill = Spill(others.numel() * size, default_cache_dir())
            others.copy_(_row_of(self._spill.tensor, size, others.numel()).view(others.shape))
        # int64 [layers, experts], where those begin that the card can read; 0 for the others.
        self.sources = torch.where(torch.arange(layout.num_experts) < self.num_host, self._table, 0)
        self._max_tokens, self._top_k = max_tokens, top_k
        places = MailboxLayout(max_tokens, top_k, hidden, "float32", num_scores, depth)
        self._places, self._routing_threads = places, routing_threads
        self._mail = PinnedMemory(places.num_bytes + _ALIGNMENT, device)
        self._late = self._mail.tensor[places.num_bytes : places.num_bytes + 4].view(torch.int32).zero_()
        self.mailbox = Mailbox(
            sent=torch.zeros(3, dtype=torch.int32, device=device),
            ring=self._mail.tensor.data_ptr(),
            depth=depth,
            stride=places.stride,
            late=self._late.data_ptr(),
            ids=places.ids_offset,
            shares=places.weights_offset,
            scores=places.scores_offset,
            x=places.x_offset,
            answer=places.y_offset,
        )
        self._pool: ExpertPool | None = None
        self._before = CpuWork(0, 0.0, 0.0)
        self._read_before: int | None = None

    def put(self, row: int, expert: int, blob: Tensor) -> None:
        """Take the store's blob of expert number ``expert`` of a layer, unless it stays in VRAM; ``row`` counts the
        layers with experts."""
        if self.num_host <= expert < self.num_host + self.num_fixed:
            return
        begin = blob.data_ptr()
        parts = {part: begin + self._layout.parts[part][0] for part in self._tiles.parts}
        narrow = self._biases is not None and self._biases.format == "bf16"
        tile_expert(self._tiles, parts, int(self._table[row, expert]), narrow_biases=narrow)

    @property
    def num_disk(self) -> int:
        """Of each layer's experts, those on disk."""
        return self._table.shape[1] - self.num_host - self.num_fixed

    @property
    def expert_bytes(self) -> int:
        """Of one expert, as the threads read it."""
        return self._tiles.num_bytes

    @property
    def num_threads(self) -> int:
        """That compute experts."""
        return len(self._opened.options.cores)

    def tiles(self, row: int) -> Iterator[tuple[slice, Tensor]]:
        """A layer's experts as they lie: of each NUMA node and of the disk which ones, and uint8 [experts, stride]."""
        nodes, layers = len(self._slabs), len(self._table)
        for node, slab in enumerate(self._slabs):
            count = len(range(node, self.num_host, nodes))
            yield slice(node, self.num_host, nodes), slab.tensor.view(layers, count, self.stride)[row]
        if self._spill is not None:
            spilled = self._spill.tensor.view(layers, -1, self.stride)[row]
            self._spill.read_ahead(row * spilled.numel(), spilled.numel())
            yield slice(self.num_host + self.num_fixed, None), spilled

    def open(self, activation: Activation, normalize: bool, num_resident: int) -> None:
        """Start the threads, once. ``normalize``: see ``Router``. ``num_resident``: where the threads choose and
        compute, the experts of a layer with a lower number are left to the card."""
        if self._pool is not None:
            return
        nodes = [node for node, cores in enumerate(self._cores) for _ in cores]
        options = PoolOptions(
            top_k=self._top_k,
            max_tokens=self._max_tokens,
            gating="silu" if activation.limit is None else "clamped_swiglu",
            limit=activation.limit or 0.0,
            number="float32",
            cores=[core for cores in self._cores for core in cores],
            nodes=nodes,
        )
        self._pool = ExpertPool(self._tiles, options)
        atexit.register(self.close)  # keeps what the threads read for as long as there are any
        layers, experts = self._table.shape
        self._pool.set_table(self._table.data_ptr(), layers, experts, self)
        if self._spill is not None:
            self._pool.set_mapped(self._spill.tensor.data_ptr(), len(self._spill.tensor))
        routing = Routing(normalize, min(self._routing_threads, len(nodes)), num_resident)
        self._pool.attach(self._mail.tensor.data_ptr(), self._places, self, routing)

    def tune(self) -> int:
        """Measure how the threads best read this machine's memory, once all experts are there: the bytes ahead that
        they ask for it from now on."""
        prefetch_bytes = tune_prefetch(self._opened, self.sources.tolist())
        if self._spill is not None:
            self._warn(self._spill)
        return prefetch_bytes

    def _warn(self, spill: Spill) -> None:
        rate, (layers, experts) = spill.settle(), self._table.shape
        token = self._top_k * layers * self._tiles.num_bytes * self.num_disk / self._num_scores
        logger.warning(
            "neither host memory nor VRAM has room for %d of %d experts, %s, which are in %s: read at %.1f GB/s, what "
            "a token takes of them bounds it to %.1f tok/s where the page cache has none. Raise the memory, or the "
            "container's limit, by as much; `strata plan --ram-gib` tells of other sizes",
            layers * self.num_disk,
            layers * experts,
            format_bytes(len(spill.tensor), round_up=True),
            spill.directory,
            rate / 1e9,
            rate / token,
        )

    def expect(self, requests: int) -> None:
        """So many requests will come, or be told of as skipped; the threads stay awake for them."""
        self._opened.expect(requests)

    def start_counting(self) -> None:
        """Let ``work`` begin here."""
        self._before = self._opened.work()
        self._read_before = disk_bytes_read()

    def work(self) -> CpuWork:
        """What the threads did for the card."""
        return self._opened.work().since(self._before)

    def disk_bytes(self) -> int | None:
        """Read for experts on disk; this process reads next to nothing else once all is loaded. None where no expert
        is there, or the kernel does not tell."""
        now = None if self._spill is None else disk_bytes_read()
        return None if now is None or self._read_before is None else now - self._read_before

    def check(self) -> None:
        """Raise EngineError if a request was not answered."""
        self._opened.check()
        if int(self._late):
            raise EngineError("the GPU had no answer of the CPU's experts in time; restart the engine")

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            atexit.unregister(self.close)

    @property
    def _opened(self) -> ExpertPool:
        assert self._pool is not None, "layers are made before they run"
        return self._pool


def _fitting(layout: ExpertLayout, size: int, num_slots: int) -> tuple[int, int]:
    """Of each layer's experts, those for which pinned memory has room, and those that stay in VRAM instead, as few as
    can be. Where there are others still, as much as a layer takes is left to the page cache, through which they
    come."""
    left, layers, num_experts = available_memory() - HEADROOM_BYTES, len(layout.layers), layout.num_experts
    if left >= layout.num_blobs * size:
        return num_experts, 0
    most_fixed = fixed_slots(num_slots)
    room = left // (layers * size)
    if room >= num_experts - most_fixed:
        return room, num_experts - room
    return max(num_slots - most_fixed, (left - num_experts * size) // (layers * size)), most_fixed


def _row_of(memory: Tensor, size: int, count: int) -> Tensor:
    return memory.data_ptr() + size * torch.arange(count, dtype=torch.int64)
