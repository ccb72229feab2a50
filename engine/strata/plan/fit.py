"""What lies where: weights, KV cache and experts over VRAM, host memory and disk; what to change if they do not fit.

The engine's own rule (``plan.memory``) says what fits. Everything but the routed experts must be in the memory of the
device that computes, KV cache, states and workspace beside it. What is left of a card takes experts, each in a slot.
If that is not all of them, VRAM is a cache and host memory holds every expert. What it has no room for stays in slots,
as far as there are more than a layer needs, and is read from disk else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from strata.config import EngineConfig, ModelConfig
from strata.plan.advice import Fits, Way, find_ways
from strata.plan.budget import explain
from strata.plan.memory import PROCESS_BYTES, DeviceMemory, MemoryPlan, size_memory
from strata.plan.ngrams import TableFit
from strata.plan.parts import WeightParts, loaded_parts, weight_parts
from strata.plan.placement import ExpertBytes, ExpertPlacement, fixed_slots, plan_experts
from strata.plan.speed import Rates, Shares

# Share of the host's memory that experts may take: the system, the server and page cache live there too.
HOST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model is planned for. ``vram_bytes`` None: a CPU computes. ``ram_bytes``: what is free before Strata
    starts; None, which goes with a card alone: as much as is needed."""

    vram_bytes: int | None
    ram_bytes: int | None
    rates: Rates

    @property
    def memory(self) -> DeviceMemory:
        """Of the device that computes, for weights, workspace and KV cache."""
        if self.vram_bytes is not None:
            return DeviceMemory("cuda", self.vram_bytes, self.vram_bytes)
        assert self.ram_bytes is not None, "a machine without a card computes in its RAM"
        left = max(0, self.ram_bytes - PROCESS_BYTES)
        return DeviceMemory("cpu", left, left)


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes in the computing device's memory and beside it, for ``num_seqs`` sequences of ``max_model_len`` tokens, of
    which the KV cache holds ``num_whole_seqs`` at once."""

    parts: WeightParts  # as the device has them
    store_bytes: float  # of all weights on disk
    capacity: int  # that Strata may fill of the device's memory
    shared: int
    kv: int
    states: int  # of linear attention
    workspace: int
    slots: int  # experts in VRAM (on a CPU: in its memory)
    staging: int  # through which the others pass for a prompt
    ram_experts: int  # of those that host memory holds for the card
    disk_experts: int
    max_model_len: int
    step_tokens: int
    num_kv_tokens: int
    num_seqs: int
    num_whole_seqs: int
    problem: str | None  # why it does not fit, and what to change
    shortage: str | None  # where it does: why not all sequences can be whole at once, and what to change
    tables: TableFit | None  # of n-grams, where the model has any

    @property
    def taken(self) -> int:
        """Of the device's memory."""
        beside = self.kv + self.states + self.workspace + self.staging
        return int(self.shared + beside + self.slots * self.parts.expert)

    @property
    def free(self) -> int:
        return self.capacity - self.taken

    def seqs_at(self, context: int) -> int:
        """Of the sequences asked for, those of ``context`` tokens that the KV cache holds at once."""
        return min(self.num_seqs, self.num_kv_tokens // context)

    @property
    def shares(self) -> Shares:
        """Where a token finds its experts if every one is as likely. Those on disk are never in VRAM."""
        num_experts = self.parts.num_experts
        if not num_experts:
            return Shares()
        vram = self.slots / num_experts
        disk = min(self.disk_experts / num_experts, 1 - vram)
        return Shares(vram, 1 - vram - disk, disk)


def fit(
    model: ModelConfig,
    config: EngineConfig,
    machine: Machine,
    *,
    expert_format: str | None = None,
    element_bytes: int,
) -> Fit:
    """Place the model in ``config.dtype`` for ``max_num_seqs`` sequences of ``max_model_len`` tokens, of which at least
    one must fit.

    ``expert_format``: see ``weight_parts``. ``element_bytes``: of KV cache and activations. Raises OptionError for a
    ``max_model_len`` beyond the checkpoint's positions.
    """
    memory = machine.memory

    def size(changed: EngineConfig) -> tuple[MemoryPlan, ExpertPlacement | None]:
        parts = loaded_parts(model, changed.dtype, memory.device, expert_format)
        if memory.device == "cpu" or not parts.num_experts:
            return size_memory(model, changed, memory, math.ceil(parts.total), element_bytes), None
        layers, shared = sum(model.expert_layers), math.ceil(parts.shared)
        experts = ExpertBytes(layers, parts.num_experts // layers, math.ceil(parts.expert))
        placed = plan_experts(
            model, changed, memory=memory, experts=experts, shared_bytes=shared, element_bytes=element_bytes
        )
        held = shared + placed.vram_bytes
        return size_memory(model, placed.settle(changed), memory, held, element_bytes), placed

    def resize(changed: EngineConfig) -> MemoryPlan:
        return size(changed)[0]

    plan, placed = size(config)
    parts = loaded_parts(model, config.dtype, memory.device, expert_format)
    stored = weight_parts(model, config.dtype, expert_format)
    slots = parts.num_experts if placed is None else placed.num_resident
    ram = disk = 0
    if slots < parts.num_experts:
        ram, layers = _host_experts(parts, machine.ram_bytes), sum(model.expert_layers)
        disk = max(0, parts.num_experts - ram - layers * fixed_slots(slots // layers))
    tables = None
    if model.ngrams is not None:
        tables = TableFit.of(model.ngrams, _left_ram(machine, plan, ram * parts.expert))
    return Fit(
        parts,
        stored.total + (0 if tables is None else tables.disk_bytes),
        plan.capacity_bytes,
        int(parts.shared),
        plan.kv_bytes,
        plan.states_bytes,
        plan.workspace_bytes,
        slots,
        staging=0 if placed is None else placed.staging_bytes,
        ram_experts=ram,
        disk_experts=disk,
        max_model_len=plan.max_model_len,
        step_tokens=plan.step_tokens,
        num_kv_tokens=plan.num_kv_tokens,
        num_seqs=config.scheduler.max_num_seqs,
        num_whole_seqs=plan.num_whole_seqs,
        problem=None if plan.fits else explain(plan, config, _ways(config, plan, lambda c: resize(c).fits)),
        shortage=_shortage(config, plan, resize) if plan.fits else None,
        tables=tables,
    )


def _left_ram(machine: Machine, plan: MemoryPlan, expert_bytes: float) -> int | None:
    """What is left of RAM for the page cache."""
    if machine.ram_bytes is None:
        return None
    if machine.vram_bytes is None:
        return plan.free_bytes
    return machine.ram_bytes - PROCESS_BYTES - math.ceil(expert_bytes)


def _host_experts(parts: WeightParts, ram_bytes: int | None) -> int:
    """Experts that host memory holds."""
    if ram_bytes is None:
        return parts.num_experts
    return min(parts.num_experts, int(ram_bytes * HOST_SHARE // parts.expert))


def _shortage(config: EngineConfig, plan: MemoryPlan, resize: Callable[[EngineConfig], MemoryPlan]) -> str | None:
    """What would let all sequences be whole at once; None where they are."""

    def holds_all(changed: EngineConfig) -> bool:
        sized = resize(changed)
        return sized.fits and sized.num_whole_seqs >= changed.scheduler.max_num_seqs

    if holds_all(config):
        return None
    ways = [" and ".join(map(str, way)) for way in _ways(config, plan, holds_all)]
    return (
        f"the KV cache holds {plan.num_kv_tokens} tokens, {plan.num_whole_seqs} of {config.scheduler.max_num_seqs} "
        f"sequences of {plan.max_model_len}; others wait, or are computed again. All of them: "
        f"{', or '.join([*ways, 'more memory'])}"
    )


def _ways(config: EngineConfig, plan: MemoryPlan, fits: Fits) -> list[Way]:
    return find_ways(config, fits, max_model_len=plan.max_model_len)
