"""A device's budget in words: the plan that fits, or why none does and what would."""

from __future__ import annotations

from dataclasses import replace

from strata.config import EngineConfig, ModelConfig
from strata.errors import HardwareError, OptionError
from strata.plan.advice import Way
from strata.plan.memory import DeviceMemory, MemoryPlan, advise, kv_token_bytes, size_memory
from strata.plan.states import state_bytes
from strata.plan.units import format_bytes

MORE_MEMORY = "of memory (the container's limit, or other processes' use)"  # what a CPU lacks


def plan_memory(
    model: ModelConfig, config: EngineConfig, *, memory: DeviceMemory, weight_bytes: int, element_bytes: int
) -> MemoryPlan:
    """``size_memory``'s plan. Raises HardwareError when it does not fit, OptionError when ``num_kv_tokens`` is less
    than one sequence of ``max_model_len``; both say what would."""
    plan = size_memory(model, config, memory, weight_bytes, element_bytes)
    if plan.fits:
        return plan
    ways = advise(model, config, memory=memory, weight_bytes=weight_bytes, element_bytes=element_bytes)
    if plan.holds_one_sequence:
        raise HardwareError(explain(plan, config, ways))
    too_few = f"num_kv_tokens is {config.cache.num_kv_tokens}, less than max_model_len {plan.max_model_len}"
    if ways:
        raise OptionError(f"{too_few}. {_what_fits(plan, ways)}")
    without = replace(config, cache=replace(config.cache, num_kv_tokens=None))
    try:
        return plan_memory(model, without, memory=memory, weight_bytes=weight_bytes, element_bytes=element_bytes)
    except HardwareError as error:
        raise HardwareError(f"{too_few}; without it, {error}") from None


def explain(plan: MemoryPlan, config: EngineConfig, ways: list[Way]) -> str:
    """Why a plan does not fit, and what would."""
    return f"{_shortage(plan, config)}. {_what_fits(plan, ways)}"


def _shortage(plan: MemoryPlan, config: EngineConfig) -> str:
    what = f"{plan.num_kv_tokens} tokens of KV cache"
    if config.cache.num_kv_tokens is None:
        what = f"one sequence of max_model_len {plan.max_model_len}"
    takers = [f"weights take {format_bytes(plan.weight_bytes)}"]
    if plan.num_states:
        takers.append(f"states of {plan.num_states} sequences {format_bytes(plan.states_bytes)}")
    left = plan.capacity_bytes - plan.weight_bytes - plan.workspace_bytes - plan.states_bytes
    return (
        f"{plan.device} has not the memory for {what}: {format_bytes(plan.kv_bytes)} are needed; of "
        f"{format_bytes(plan.capacity_bytes)} that Strata may fill, {', '.join(takers)} and workspace "
        f"{format_bytes(plan.workspace_bytes)}, which leaves {format_bytes(max(0, left))}"
    )


def _what_fits(plan: MemoryPlan, ways: list[Way]) -> str:
    listed = [" and ".join(map(str, way)) for way in ways]
    if plan.holds_one_sequence:
        where = "on the card" if plan.device == "cuda" else MORE_MEMORY
        listed.append(f"{format_bytes(-plan.free_bytes, round_up=True)} more for Strata {where}")
    return f"What fits: {', or '.join(listed)}"


def budget_table(plan: MemoryPlan) -> tuple[str, ...]:
    """Lines of a table that says where the bytes go."""
    model = plan.model
    rows = [
        ("weights", plan.weight_bytes, ""),
        (
            "KV cache",
            plan.kv_bytes,
            f"{plan.num_kv_tokens} tokens in blocks of {plan.block_size}; "
            f"{plan.num_kv_tokens / plan.max_model_len:.1f} sequences of {plan.max_model_len}",
        ),
        (
            "per token",
            kv_token_bytes(model, plan.element_bytes),
            f"2 x {model.num_kv_layers} layers x {model.num_kv_heads} KV heads x {model.head_dim} x "
            f"{plan.element_bytes} bytes"
            + ("; sliding windows count in full" if any(model.kv_windows) else "")
            + ("; index keys beside them" if model.indexer else ""),
        ),
        *_states_row(plan),
        ("workspace", plan.workspace_bytes, "at most, in a step"),
        ("free", plan.free_bytes, ""),
        ("budget", plan.capacity_bytes, f"on {plan.device}"),
    ]
    return tuple(f"{name:<10} {format_bytes(size):>11}  {note}".rstrip() for name, size, note in rows)


def _states_row(plan: MemoryPlan) -> list[tuple[str, int, str]]:
    if not plan.num_states:
        return []
    note = (
        f"of {sum(plan.model.linear_layers)} layers with linear attention: {plan.num_states} sequences x "
        f"{format_bytes(plan.state_bytes)}"
    )
    if plan.max_draft:
        note += f", {format_bytes(plan.state_bytes - state_bytes(plan.model, plan.element_bytes))} of it for drafts"
    kept = f"{plan.num_snapshots} states that the prefix cache keeps" if plan.num_snapshots else "none: no prefix cache"
    return [("states", plan.states_bytes - plan.snapshot_bytes, note), ("snapshots", plan.snapshot_bytes, kept)]
