"""What lies where: weights, KV cache and experts over VRAM, host memory and disk; what to change if they do not fit.

Everything but the routed experts must be in the memory of the device that computes, KV cache and workspace beside it.
What is left of a card takes experts, each in a slot. If that is not all of them, VRAM is a cache and host memory holds
every expert; what host memory does not hold is read from disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata.config import EngineConfig, ModelConfig
from strata.plan.advice import largest
from strata.plan.memory import format_bytes, kv_token_bytes, resolve_max_model_len, workspace_bytes
from strata.plan.parts import WeightParts
from strata.plan.speed import Rates, Shares

# Share of the host's memory that experts may take: the system, the server and page cache live there too.
HOST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model is planned for. ``vram_bytes`` None: a CPU computes. ``ram_bytes`` None: as much as is needed."""

    vram_bytes: int | None
    ram_bytes: int | None
    rates: Rates


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes in the computing device's memory and beside it. ``max_model_len`` tokens for each of ``num_seqs``."""

    capacity: int  # that Strata may fill of the device's memory
    shared: int
    kv: int
    workspace: int
    slots: int  # experts in VRAM (on a CPU: in its memory)
    num_experts: int
    expert: float
    ram_experts: int  # of those that host memory holds for the card
    disk_experts: int
    max_model_len: int
    num_seqs: int
    problem: str | None  # why it does not fit, and what to change

    @property
    def free(self) -> int:
        return int(self.capacity - self.shared - self.kv - self.workspace - self.slots * self.expert)

    @property
    def shares(self) -> Shares:
        """Where a token finds its experts if every one is as likely."""
        if not self.num_experts:
            return Shares()
        vram = self.slots / self.num_experts
        disk = (1 - vram) * self.disk_experts / self.num_experts
        return Shares(vram, 1 - vram - disk, disk)


def fit(model: ModelConfig, parts: WeightParts, config: EngineConfig, machine: Machine, *, element_bytes: int) -> Fit:
    """Place the model for ``max_num_seqs`` sequences of ``max_model_len`` tokens (both from ``config``).

    Raises OptionError for a ``max_model_len`` beyond the checkpoint's positions.
    """
    on_card = machine.vram_bytes is not None
    share = config.device.gpu_memory_utilization if on_card else HOST_SHARE
    device_bytes = machine.vram_bytes if on_card else machine.ram_bytes
    length, num_seqs = resolve_max_model_len(model, config), config.scheduler.max_num_seqs
    workspace = workspace_bytes(model, config, element_bytes)
    kv = num_seqs * length * kv_token_bytes(model, element_bytes)
    # On a CPU the experts are no cache: they are in memory like everything else.
    shared = int(parts.shared)
    needed = shared + kv + workspace + (0 if on_card else int(parts.experts))
    capacity = needed if device_bytes is None else int(device_bytes * share)
    left = max(0, capacity - shared - kv - workspace)
    slots = min(parts.num_experts, int(left // parts.expert)) if parts.num_experts else 0
    ram = disk = 0
    if on_card and slots < parts.num_experts:
        held = parts.num_experts if machine.ram_bytes is None else int(machine.ram_bytes * HOST_SHARE // parts.expert)
        ram = min(parts.num_experts, held)
        disk = parts.num_experts - ram
    problem = None
    if needed > capacity:
        where = "the card" if on_card else "host memory"
        problem = (
            f"{format_bytes(needed - capacity)} are missing: {where} leaves Strata {format_bytes(capacity)} "
            f"({share:.0%} of it). {_advice(model, parts, config, capacity, on_card, element_bytes)}"
        )
    return Fit(
        capacity, shared, kv, workspace, slots, parts.num_experts, parts.expert, ram, disk, length, num_seqs, problem
    )


def _advice(
    model: ModelConfig, parts: WeightParts, config: EngineConfig, capacity: int, on_card: bool, element_bytes: int
) -> str:
    """The largest setting that fits, of those that the user may lower one at a time."""
    weights = parts.shared + (0 if on_card else parts.experts)
    scheduler = config.scheduler

    def fits(length: int, num_seqs: int) -> bool:
        changed = replace(config, scheduler=replace(scheduler, max_model_len=length, max_num_seqs=num_seqs))
        kv = num_seqs * length * kv_token_bytes(model, element_bytes)
        return weights + kv + workspace_bytes(model, changed, element_bytes) <= capacity

    length = resolve_max_model_len(model, config)
    ways = []
    if shorter := largest(1, length, lambda n: fits(n, scheduler.max_num_seqs)):
        ways.append(f"a max_model_len of {shorter}")
    if fewer := largest(1, scheduler.max_num_seqs, lambda n: fits(length, n)):
        ways.append(f"a concurrency of {fewer}")
    if ways:
        return f"What fits: {' or '.join(ways)}"
    where = "a card with more memory" if on_card else "more memory"
    workspace = format_bytes(workspace_bytes(model, config, element_bytes))
    return f"Weights take {format_bytes(int(weights))} and workspace {workspace}: a smaller dtype or {where} is needed"
