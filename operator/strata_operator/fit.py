"""Whether a model fits a node, before any pod starts: the engine's planner over what the nodes' agents tell; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Literal, cast

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.errors import OptionError, StrataError
from strata.plan.cards import find_card, pcie_gbps, usual
from strata.plan.estimate import SHORT_CONTEXT, estimate
from strata.plan.fit import Fit, Machine
from strata.plan.known import BUILTINS, Shape, known
from strata.plan.memory import HEADROOM_BYTES, PROCESS_BYTES
from strata.plan.speed import Rates
from strata.plan.units import format_bytes
from strata_operator import shortage
from strata_operator.api.conditions import Trouble
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import StrataModel
from strata_operator.api.node import Gpu, StrataNode
from strata_operator.api.quantity import format_quantity
from strata_operator.card import WHAT_FITS, place, whole_bytes
from strata_operator.inventory import GIB, Candidate, candidates, describe
from strata_operator.placement import needs
from strata_operator.shortage import EXPERT_MEMORY, VRAM, Shortage, explain, listed
from strata_operator.wording import in_words_of_the_spec

DRAM_GBPS = 100  # of a host whose agent has not measured it: two channels of DDR5 at its fastest
MAX_VRAM_GIB = 512  # no card has more
_DEFAULTS = EngineConfig(model="")


@dataclass(frozen=True, slots=True, weakref_slot=True)
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


def check_source(model: StrataModel) -> None:
    """Raises InvalidSpecError for a built-in model that this release's engine lacks; another image may have others."""
    if model.source.builtin is not None and model.image is None and model.source.text not in BUILTINS:
        words = f"there is no such built-in model, allowed are {', '.join(BUILTINS)}"
        raise InvalidSpecError(f"spec.model.source is {model.source.text!r}; {words}")


def shape_of(model: StrataModel) -> Shape | None:
    """What is known of the model's shape without its files."""
    if model.source.hub is not None:
        return known(model.source.hub) if model.revision in (None, "main") else None
    return known(model.source.text)


def judge(model: StrataModel, shape: Shape | None, nodes: Sequence[StrataNode]) -> Verdict:
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
        return _on_cards(model, shape, matching, short)
    except StrataError as error:  # max_model_len beyond the checkpoint's positions
        return Verdict(False, "InvalidSettings", in_words_of_the_spec(str(error)))


def least_vram_gib(model: StrataModel) -> int | None:
    """GiB of VRAM, as cards are called, below which the model cannot fit; None where that is not known.

    It follows from spec and shape alone, so that it can be asked of a node's labels.
    """
    shape = shape_of(model)
    if model.hardware.accelerator != "nvidia" or shape is None:
        return None
    try:
        in_card = model.engine.expert_placement == "vram"
        return _least_gib(shape, _config(model), 0 if in_card else _host_budget(model))
    except OptionError:
        return None


@lru_cache(maxsize=1024)
def _least_gib(shape: Shape, config: EngineConfig, host_budget: int) -> int | None:
    low, high = 0, MAX_VRAM_GIB  # cards so called: not the low one, maybe the high one
    if not _holds(shape, config, host_budget, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _holds(shape, config, host_budget, middle) else (middle, high)
    return high


def _holds(shape: Shape, config: EngineConfig, host_budget: int, vram_gib: int) -> bool:
    """Whether the largest card of that name does, with nothing kept by the driver."""
    most = vram_gib * GIB + GIB // 2 - 1
    placed = place(shape, config, most, most)
    return placed.problem is None and placed.least_host_bytes <= host_budget


def _on_cpu(model: StrataModel, shape: Shape) -> Verdict:
    machine = Machine(None, model.hardware.memory_bytes, Rates(device=0.0))
    found = estimate(shape.config, _config(model), machine, expert_format=shape.expert_format)
    if found.fit.problem is not None:
        return Verdict(False, "NotEnoughMemory", _too_little(model, found.fit, found.fit.problem))
    placed = PROCESS_BYTES + found.fit.taken
    # Nodes without a card have no agent that tells of them.
    words = f"fits into spec.hardware.memory {model.hardware.memory}; whether a node has that free, the scheduler says"
    return Verdict(
        True, "Fits", words, {"vramBytes": 0, "hostBytes": placed, "diskBytes": 0, "limitingResource": "RAM"}
    )


def _too_little(model: StrataModel, fit: Fit, problem: str) -> str:
    """What a CPU model takes of which its pod has not enough, and what would fit."""
    needed = PROCESS_BYTES + fit.taken
    takers = {
        "weights": fit.taken - fit.kv - fit.states - fit.workspace,
        f"KV cache of {fit.num_kv_tokens} tokens": fit.kv,
        "states": fit.states,
        "workspace": fit.workspace,
        "the process": PROCESS_BYTES,
    }
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in takers.items() if size)
    enough = format_quantity(ceil(needed / GIB) * GIB)
    ways = in_words_of_the_spec(problem.partition(WHAT_FITS)[2], memory=enough)
    least, given = format_bytes(needed, round_up=True), model.hardware.memory
    words = f"needs {least}, and spec.hardware.memory is {given}: {parts}"
    return ". ".join((words, *([f"{WHAT_FITS}{ways}"] if ways else [])))


def _on_cards(
    model: StrataModel,
    shape: Shape,
    matching: Iterable[Candidate],
    short: list[tuple[Candidate, Shortage]],
) -> Verdict:
    """``short``: those of the nodes that lack what the pod asks for beside the card."""
    plans: dict[str, dict[str, Any]] = {}  # by node
    lacking = {one.node.name for one, _ in short}
    judged: dict[object, tuple[Shortage | None, dict[str, Any]]] = {}  # by what counts of a node: many are alike
    for one in matching:
        if one.node.name in lacking:
            continue
        facts = _facts(one)
        if facts not in judged:
            judged[facts] = _on_card(model, shape, one)
        lack, plan = judged[facts]
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


def _on_card(model: StrataModel, shape: Shape, one: Candidate) -> tuple[Shortage | None, dict[str, Any]]:
    """What is short on that node, or the plan there."""
    placed = place(shape, _config(model), one.gpu.vram_bytes, one.gpu.usable_vram_bytes)
    if placed.problem is not None:
        advice = in_words_of_the_spec(placed.problem)
        return Shortage(VRAM, placed.vram_bytes, placed.plan.capacity_bytes, advice), {}
    if model.engine.expert_placement == "vram" and placed.host_bytes:
        needed, why = whole_bytes(shape, _config(model)), "engine.expertPlacement is vram; auto needs less"
        return Shortage(VRAM, needed, placed.plan.capacity_bytes, why), {}
    budget = _host_budget(model)
    if placed.least_host_bytes > budget:
        return Shortage(
            EXPERT_MEMORY, placed.least_host_bytes, budget, "raise spec.hardware.memory, or take a larger card"
        ), {}
    upper = placed.speed(_rates(one.gpu, one.node, measured=False), SHORT_CONTEXT)
    plan: dict[str, Any] = {
        "vramBytes": placed.vram_bytes,
        "hostBytes": min(placed.host_bytes, budget),
        "diskBytes": 0,
        "limitingResource": upper.limit,
        "upperBoundTokensPerSecond": round(upper.tokens_per_second),
    }
    if one.node.status.calibration is not None:
        rates = usual(_rates(one.gpu, one.node, measured=True))
        expected = placed.expected(rates, placed.plan.max_model_len)
        plan["expectedTokensPerSecond"] = round(expected.tokens_per_second)
    return None, plan


def _host_budget(model: StrataModel) -> int:
    """Host memory for experts: as asked for, in huge pages or not, else what the engine may pin."""
    hardware = model.hardware
    if hardware.pinned_bytes is not None:
        return hardware.pinned_bytes
    return max(0, hardware.memory_bytes - HEADROOM_BYTES)


def _rates(gpu: Gpu, node: StrataNode, *, measured: bool) -> Rates:
    """``measured``: with the bandwidths that the agent measured where it did, else with those of data sheets."""
    card = find_card(gpu.product.removeprefix("NVIDIA-"))
    generation, width = min(gpu.pcie.max_generation or 3, 5), gpu.pcie.max_width or 16
    pcie = pcie_gbps(f"{generation}.0x{width}") * 1e9
    dram, calibration = DRAM_GBPS * 1e9, node.status.calibration
    if calibration is not None and calibration.dram_megabytes_per_second is not None:
        dram = calibration.dram_megabytes_per_second * 1e6
    if measured:
        pcie = (_copy_rate(node, gpu) or 0) * 1e6 or pcie
    # The CPU computes experts at no more than what its memory gives.
    return card.rates(Rates(device=0.0, pcie=pcie, cpu=dram, dram=dram))


def _config(model: StrataModel) -> EngineConfig:
    """The engine's settings as its command line will have them."""
    engine, scheduler, cache = model.engine, _DEFAULTS.scheduler, _DEFAULTS.cache
    share = float(engine.gpu_memory_utilization or _DEFAULTS.device.gpu_memory_utilization)
    expert_vram = None if engine.expert_vram_gib is None else engine.expert_vram_gib * GIB
    return EngineConfig(
        model="",
        dtype=cast("Literal['bf16', 'int8', 'int4']", model.format),
        device=DeviceConfig(
            gpu_memory_utilization=share,
            expert_vram_bytes=expert_vram,
            hugepages=cast("Literal['off', '2Mi', '1Gi']", model.hardware.hugepages or "off"),
        ),
        cache=CacheConfig(
            block_size=engine.block_size or cache.block_size,
            num_kv_tokens=engine.num_kv_tokens,
        ),
        scheduler=SchedulerConfig(
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs or scheduler.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens or scheduler.max_num_batched_tokens,
        ),
    )
