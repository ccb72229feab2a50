"""What lies where: weights, KV cache and experts over VRAM, host memory and disk; what to change if they do not fit.

Everything but the routed experts must be in the memory of the device that computes, KV cache and workspace beside it.
What is left of a card takes experts, each in a slot. If that is not all of them, VRAM is a cache and host memory holds
every expert; what host memory does not hold is read from disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.config import EngineConfig, ModelConfig
from strata.plan.advice import find_ways
from strata.plan.memory import format_bytes, kv_token_bytes, resolve_max_model_len, workspace_bytes
from strata.plan.parts import WeightParts, weight_parts
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

    parts: WeightParts
    capacity: int  # that Strata may fill of the device's memory
    shared: int
    kv: int
    workspace: int
    slots: int  # experts in VRAM (on a CPU: in its memory)
    ram_experts: int  # of those that host memory holds for the card
    disk_experts: int
    max_model_len: int
    num_seqs: int
    problem: str | None  # why it does not fit, and what to change

    @property
    def free(self) -> int:
        return int(self.capacity - self.shared - self.kv - self.workspace - self.slots * self.parts.expert)

    @property
    def shares(self) -> Shares:
        """Where a token finds its experts if every one is as likely."""
        num_experts = self.parts.num_experts
        if not num_experts:
            return Shares()
        vram = self.slots / num_experts
        disk = (1 - vram) * self.disk_experts / num_experts
        return Shares(vram, 1 - vram - disk, disk)


def fit(
    model: ModelConfig,
    config: EngineConfig,
    machine: Machine,
    *,
    expert_format: str | None = None,
    element_bytes: int,
) -> Fit:
    """Place the model in ``config.dtype`` for ``max_num_seqs`` sequences of ``max_model_len`` tokens.

    ``expert_format``: see ``weight_parts``. ``element_bytes``: of KV cache and activations. Raises OptionError for a
    ``max_model_len`` beyond the checkpoint's positions.
    """
    on_card = machine.vram_bytes is not None
    length, num_seqs = resolve_max_model_len(model, config), config.scheduler.max_num_seqs

    def kv_bytes(changed: EngineConfig) -> int:
        tokens = changed.scheduler.max_num_seqs * resolve_max_model_len(model, changed)
        return tokens * kv_token_bytes(model, element_bytes)

    def needed(changed: EngineConfig) -> int:
        weights = parts if changed.dtype == config.dtype else weight_parts(model, changed.dtype, expert_format)
        held = weights.shared if on_card else weights.total
        return int(held) + kv_bytes(changed) + workspace_bytes(model, changed, element_bytes)

    def capacity(changed: EngineConfig) -> int:
        if machine.vram_bytes is not None:
            return int(machine.vram_bytes * changed.device.gpu_memory_utilization)
        return needed(changed) if machine.ram_bytes is None else int(machine.ram_bytes * HOST_SHARE)

    parts = weight_parts(model, config.dtype, expert_format)
    problem = None
    if (short := needed(config) - capacity(config)) > 0:
        ways = find_ways(config, lambda changed: needed(changed) <= capacity(changed), max_model_len=length)
        listed = [" and ".join(map(str, way)) for way in ways] + [f"{format_bytes(short, round_up=True)} more"]
        problem = (
            f"{format_bytes(needed(config))} are needed {'on the card' if on_card else 'of host memory'}, and Strata "
            f"may fill {format_bytes(capacity(config))}. What fits: {', or '.join(listed)}"
        )
    shared, kv, workspace = int(parts.shared), kv_bytes(config), workspace_bytes(model, config, element_bytes)
    left = max(0, capacity(config) - shared - kv - workspace)
    slots = min(parts.num_experts, int(left // parts.expert)) if parts.num_experts else 0
    ram = disk = 0
    if on_card and slots < parts.num_experts:
        held = parts.num_experts if machine.ram_bytes is None else int(machine.ram_bytes * HOST_SHARE // parts.expert)
        ram = min(parts.num_experts, held)
        disk = parts.num_experts - ram
    return Fit(
        parts,
        capacity(config),
        shared,
        kv,
        workspace,
        slots,
        ram_experts=ram,
        disk_experts=disk,
        max_model_len=length,
        num_seqs=num_seqs,
        problem=problem,
    )
