"""How a model lies in a card and the host memory beside it, by the engine's own rules; pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from strata.config import EngineConfig
from strata.errors import HardwareError
from strata.plan.budget import plan_memory
from strata.plan.expect import Place, expect_decode
from strata.plan.known import Shape
from strata.plan.memory import DeviceMemory, MemoryPlan, size_memory
from strata.plan.parts import WeightParts, weight_parts
from strata.plan.placement import ExpertBytes, ExpertPlacement, plan_experts
from strata.plan.speed import Rates, Shares, StepTime, roofline, step_bytes

ELEMENT_BYTES = 2  # of KV cache and activations: bf16
WHAT_FITS = "What fits: "  # in the planner's words


@dataclass(frozen=True, slots=True)
class Placed:
    """``problem``: what would let the model fit, in the planner's words; None where it does."""

    shape: Shape
    config: EngineConfig
    parts: WeightParts
    plan: MemoryPlan
    experts: ExpertPlacement | None  # None: the model has no experts
    problem: str | None

    @property
    def vram_bytes(self) -> int:
        """Weights, KV cache, states and workspace."""
        return self.plan.taken_bytes

    @property
    def host_bytes(self) -> int:
        """Of pinned host memory, for experts."""
        return self.experts.host_bytes if self.experts is not None else 0

    @property
    def least_host_bytes(self) -> int:
        """Of it, what must be there so that none is on disk; huge pages hold all of them."""
        if self.experts is None or self.config.device.hugepages != "off":
            return self.host_bytes
        return self.experts.least_host_bytes

    def speed(self, rates: Rates, context: int) -> StepTime:
        """The bound on decoding at that context, or the longest one where it is longer."""
        context, num_seqs = self._batch(context)
        step = step_bytes(
            self.shape.config, self.parts, context=context, num_seqs=num_seqs, element_bytes=ELEMENT_BYTES
        )
        resident = self._resident
        return roofline(step, rates, Shares(vram=resident, ram=1 - resident))

    def expected(self, rates: Rates, context: int) -> StepTime:
        """The same, with launches and what kernels reach of ``rates``, which are those that programs get."""
        context, num_seqs = self._batch(context)
        return expect_decode(
            self.shape.config,
            self.parts,
            rates,
            context=context,
            num_seqs=num_seqs,
            place=Place(self._resident),
            element_bytes=ELEMENT_BYTES,
        )

    def _batch(self, context: int) -> tuple[int, int]:
        """The context, and the sequences of that many tokens that decode together."""
        context = min(context, self.plan.max_model_len)
        return context, max(1, min(self.config.scheduler.max_num_seqs, self.plan.num_kv_tokens // context))

    @property
    def _resident(self) -> float:
        """Share of the experts in VRAM."""
        return 1.0 if self.experts is None else self.experts.num_resident / self.experts.experts.num_blobs


# Nodes are much alike, and models are judged again whenever a node changes: each question is answered once. An answer
# for Qwen3-235B-A22B takes 0.2 s (one core of a Xeon of 2023, 2026-11-30).
@lru_cache(maxsize=1024)
def place(shape: Shape, config: EngineConfig, total_bytes: int, available_bytes: int) -> Placed:
    """Onto a card with so much memory, of which so much is not the driver's. Raises OptionError for a ``max_model_len``
    beyond the checkpoint's positions."""
    memory = DeviceMemory("cuda", total_bytes, available_bytes)
    parts = weight_parts(shape.config, config.dtype, shape.expert_format)
    experts = _experts(shape, parts)
    placed, weights = None, ceil(parts.shared)
    if experts is not None:
        placed = plan_experts(
            shape.config,
            config,
            memory=memory,
            experts=experts,
            shared_bytes=weights,
            element_bytes=ELEMENT_BYTES,
        )
        weights += placed.vram_bytes
        config = placed.settle(config)
    plan = size_memory(shape.config, config, memory, weights, ELEMENT_BYTES)
    problem = None
    if not plan.fits:
        problem = _advice(shape, config, memory, weights)
    return Placed(shape, config, parts, plan, placed, problem)


@lru_cache(maxsize=1024)
def whole_bytes(shape: Shape, config: EngineConfig) -> int:
    """What a card needs at least for all of the model and one sequence."""
    weights = ceil(weight_parts(shape.config, config.dtype, shape.expert_format).total)
    plan = size_memory(shape.config, config, DeviceMemory("cuda", 0, 0), weights, ELEMENT_BYTES)
    return plan.taken_bytes


def _experts(shape: Shape, parts: WeightParts) -> ExpertBytes | None:
    experts = shape.config.experts
    if experts is None or not parts.num_experts:
        return None
    return ExpertBytes(sum(shape.config.expert_layers), experts.num_experts, ceil(parts.expert))


def _advice(shape: Shape, config: EngineConfig, memory: DeviceMemory, weights: int) -> str:
    try:
        plan_memory(shape.config, config, memory=memory, weight_bytes=weights, element_bytes=ELEMENT_BYTES)
    except HardwareError as error:
        _, lead, ways = str(error).partition(WHAT_FITS)
        return lead + ways
    raise AssertionError("plan_memory takes what size_memory says does not fit")
