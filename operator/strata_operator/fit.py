"""Whether a model fits a node, before any pod starts: the engine's planner over what the nodes' agents tell; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Literal, cast

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.errors import StrataError
from strata.plan.cards import find_card, pcie_gbps
from strata.plan.estimate import KV_BYTES, Estimate, estimate
from strata.plan.fit import HOST_SHARE, Machine
from strata.plan.known import Shape, known
from strata.plan.memory import DeviceMemory, plan_memory, size_memory
from strata.plan.parts import weight_parts
from strata.plan.speed import Rates
from strata_operator import shortage
from strata_operator.api.conditions import Trouble
from strata_operator.api.engine import NOT_SERVED
from strata_operator.api.hardware import WORKING_SET_BYTES
from strata_operator.api.model import StrataModel
from strata_operator.api.node import Gpu, StrataNode
from strata_operator.inventory import GIB, Candidate, candidates, describe
from strata_operator.placement import needs
from strata_operator.shortage import HOST_MEMORY, VRAM, Shortage, explain, listed

# While the engine refuses the flags of experts in host memory, all of them must fit where the model runs.
SERVES_HOST_EXPERTS = not NOT_SERVED
_DEFAULTS = EngineConfig(model="")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``fits`` None: it is not known. ``plan`` is for the status, of the node that serves fastest; None unless it
    fits. ``nodes``: those that will do, the fastest first."""

    fits: bool | None
    reason: str
    message: str
    plan: dict[str, Any] | None = None
    nodes: tuple[str, ...] = ()

    @property
    def trouble(self) -> Trouble | None:
        """Why no pod is started; None where one may be."""
        return Trouble(self.reason, self.message) if self.fits is False else None


def shape_of(model: StrataModel) -> Shape | None:
    """What is known of the model's shape without its files."""
    if model.source.hub is not None:
        return known(model.source.hub) if model.revision in (None, "main") else None
    return known(model.source.text)


def judge(
    model: StrataModel,
    shape: Shape | None,
    nodes: Sequence[StrataNode],
    *,
    serves_host_experts: bool = SERVES_HOST_EXPERTS,
) -> Verdict:
    """``shape`` None: not known yet. ``nodes``: all that there are, whatever their cards."""
    matching: tuple[Candidate, ...] = ()
    if model.hardware.accelerator == "nvidia":
        matching = candidates(model.hardware, nodes)
        if nodes and not matching:
            there = describe(nodes, model.hardware)
            return Verdict(False, "NoMatchingNode", f"needs {needs(model.hardware)}; {there}")
    short = [(one, lack) for one in matching if (lack := shortage.of_host(model.hardware, one)) is not None]
    if short and len(short) == len(matching):
        return Verdict(False, *explain(short))
    if shape is None:
        words = "what the model takes is not known before its files have been read; the engine judges when it starts"
        return Verdict(None, "ShapeUnknown", words)
    try:
        if model.hardware.accelerator == "cpu":
            return _on_cpu(model, shape)
        if not matching:
            return Verdict(None, "NoInventory", "no node agent tells of a GPU; the engine judges when it starts")
        return _on_cards(model, shape, matching, short, serves_host_experts)
    except StrataError as error:  # max_model_len beyond the checkpoint's positions
        return Verdict(False, "InvalidSettings", str(error))


def least_vram_gib(model: StrataModel, *, serves_host_experts: bool = SERVES_HOST_EXPERTS) -> int | None:
    """GiB of VRAM, as cards are called, below which the model cannot fit; None where that is not known.

    It follows from spec and shape alone, so that it can be asked of a node's labels.
    """
    shape = shape_of(model)
    if model.hardware.accelerator != "nvidia" or shape is None:
        return None
    config = _config(model)
    try:
        needed = _least_bytes(shape, config, with_experts=not serves_host_experts)
    except StrataError:
        return None
    return max(1, ceil(needed / config.device.gpu_memory_utilization / GIB - 0.5))


def _on_cpu(model: StrataModel, shape: Shape) -> Verdict:
    memory = model.hardware.memory_bytes
    found = _estimate(shape, _config(model), Machine(None, memory, Rates(device=0.0)))
    if found.fit.problem is not None:
        return Verdict(
            False, "NotEnoughMemory", f"spec.hardware.memory is {model.hardware.memory}: {found.fit.problem}"
        )
    placed = int(found.parts.total) + found.fit.workspace + found.fit.kv
    words = f"fits into spec.hardware.memory {model.hardware.memory}"
    return Verdict(
        True, "Fits", words, {"vramBytes": 0, "hostBytes": placed, "diskBytes": 0, "limitingResource": "RAM"}
    )


def _on_cards(
    model: StrataModel,
    shape: Shape,
    matching: Iterable[Candidate],
    short: list[tuple[Candidate, Shortage]],
    serves_host_experts: bool,
) -> Verdict:
    """``short``: those of the nodes that lack what the pod asks for beside the card."""
    plans: dict[str, dict[str, Any]] = {}  # by node
    lacking = {one.node.name for one, _ in short}
    known: dict[object, tuple[Shortage | None, dict[str, Any]]] = {}  # by what counts of a node: many are alike
    for one in matching:
        if one.node.name in lacking:
            continue
        facts = _facts(one)
        if facts not in known:
            known[facts] = _on_card(model, shape, one, serves_host_experts)
        lack, plan = known[facts]
        if lack is not None:
            short = [*short, (one, lack)]
        else:
            plans[one.node.name] = {"node": one.node.name, **plan}
    if not plans:
        return Verdict(False, *explain(short))
    names = tuple(sorted(plans, key=lambda name: (-plans[name]["upperBoundTokensPerSecond"], name)))
    return Verdict(True, "Fits", f"fits on {listed(sorted(names))}", plans[names[0]], names)


def _facts(one: Candidate) -> object:
    gpu, calibration = one.gpu, one.node.status.calibration
    card = (gpu.product, gpu.vram_bytes, gpu.usable_vram_bytes, gpu.pcie.max_generation, gpu.pcie.max_width)
    return (*card, one.host_bytes, calibration and (calibration.dram_megabytes_per_second, _copy_rate(one.node, gpu)))


def _copy_rate(node: StrataNode, gpu: Gpu) -> int | None:
    """As the agent measured it, in 10^6 bytes a second."""
    copies = node.status.calibration.host_to_device if node.status.calibration is not None else ()
    return next((one.megabytes_per_second for one in copies if one.uuid == gpu.uuid), None)


def _on_card(
    model: StrataModel, shape: Shape, one: Candidate, serves_host_experts: bool
) -> tuple[Shortage | None, dict[str, Any]]:
    """What is short on that node, or the plan there."""
    machine = _machine(one.gpu, one.node, model, measured=False)
    upper = _estimate(shape, _config(model), machine)
    placed, parts = upper.fit, upper.parts
    vram = placed.shared + placed.workspace + placed.kv
    if placed.problem is not None:
        return Shortage(VRAM, vram, placed.capacity, _what_fits(placed.problem)), {}
    if placed.slots < parts.num_experts and not serves_host_experts:
        needed, ways = _whole(shape, _config(model), machine)
        return Shortage(VRAM, needed, placed.capacity, ways), {}
    if placed.slots < parts.num_experts and placed.disk_experts:
        needed = int(parts.experts / HOST_SHARE)
        advice = "it is spec.hardware.hostMemory.pinned that holds experts: give it more"
        return Shortage(f"{HOST_MEMORY} for experts", needed, _pinned_budget(model), advice), {}
    beyond = int(placed.ram_experts * parts.expert)
    plan: dict[str, Any] = {
        "vramBytes": vram + int(placed.slots * parts.expert),
        "hostBytes": beyond,
        "diskBytes": 0,
        "limitingResource": upper.bounds[0].best.limit,
        "upperBoundTokensPerSecond": round(upper.bounds[0].best.tokens_per_second),
    }
    if one.node.status.calibration is not None:
        expected = _estimate(shape, _config(model), _machine(one.gpu, one.node, model, measured=True))
        plan["expectedTokensPerSecond"] = round(expected.bounds[-1].best.tokens_per_second)
    return None, plan


def _pinned_budget(model: StrataModel) -> int:
    """Host memory for experts: as asked for, else what the server leaves."""
    hardware = model.hardware
    return hardware.pinned_bytes or max(0, hardware.memory_bytes - WORKING_SET_BYTES)


def _machine(gpu: Gpu, node: StrataNode, model: StrataModel, *, measured: bool) -> Machine:
    """``measured``: with the bandwidths that the agent measured where it did, else with those of data sheets."""
    # What the driver keeps is not the engine's to fill, however large its share.
    vram = min(gpu.vram_bytes, int(gpu.usable_vram_bytes / _config(model).device.gpu_memory_utilization))
    pinned = _pinned_budget(model)
    card = find_card(gpu.product.removeprefix("NVIDIA-"))
    generation, width = min(gpu.pcie.max_generation or 3, 5), gpu.pcie.max_width or 16
    pcie = pcie_gbps(f"{generation}.0x{width}") * 1e9
    dram = pcie
    calibration = node.status.calibration
    if measured and calibration is not None:
        pcie = (_copy_rate(node, gpu) or 0) * 1e6 or pcie
        dram = (calibration.dram_megabytes_per_second or 0) * 1e6 or dram
    return Machine(vram, pinned, Rates(device=card.vram_gbps * 1e9, pcie=pcie, dram=dram))


def _config(model: StrataModel) -> EngineConfig:
    """The engine's settings as its command line will have them."""
    engine, scheduler, cache = model.engine, _DEFAULTS.scheduler, _DEFAULTS.cache
    share = float(engine.gpu_memory_utilization or _DEFAULTS.device.gpu_memory_utilization)
    return EngineConfig(
        model="",
        dtype=cast("Literal['bf16', 'int8', 'int4']", model.format),
        device=DeviceConfig(gpu_memory_utilization=share),
        cache=CacheConfig(
            block_size=engine.block_size or cache.block_size,
            num_kv_tokens=engine.num_kv_tokens,
        ),
        scheduler=SchedulerConfig(
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs or scheduler.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
        ),
    )


# Nodes are much alike, and models are judged again whenever a node changes: each question is answered once. An answer
# for Qwen3-235B-A22B takes 0.15 s (one core of a Xeon of 2023, 2026-11-30).
@lru_cache(maxsize=1024)
def _estimate(shape: Shape, config: EngineConfig, machine: Machine) -> Estimate:
    return estimate(shape.config, config, machine, expert_format=shape.expert_format)


@lru_cache(maxsize=1024)
def _least_bytes(shape: Shape, config: EngineConfig, *, with_experts: bool) -> int:
    """Of a card, for one sequence."""
    parts = weight_parts(shape.config, config.dtype, shape.expert_format)
    weights = int(parts.total if with_experts else parts.shared)
    plan = size_memory(shape.config, config, DeviceMemory("cuda", 0, 0), weights, KV_BYTES)
    return plan.weight_bytes + plan.workspace_bytes + plan.kv_bytes


@lru_cache(maxsize=1024)
def _whole(shape: Shape, config: EngineConfig, machine: Machine) -> tuple[int, str]:
    """Bytes that the device needs for the whole model and one sequence, and the planner's words on what would fit."""
    weights = int(weight_parts(shape.config, config.dtype, shape.expert_format).total)
    try:
        plan_memory(shape.config, config, memory=machine.memory, weight_bytes=weights, element_bytes=KV_BYTES)
    except StrataError as error:
        return _least_bytes(shape, config, with_experts=True), _what_fits(str(error))
    raise AssertionError("what the planner placed beside the card fits into it")


def _what_fits(problem: str) -> str:
    """The planner's advice in its words on a problem."""
    _, lead, ways = problem.partition("What fits: ")
    return lead + ways
