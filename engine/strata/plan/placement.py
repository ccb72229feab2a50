"""How many routed experts a card holds beside everything else. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from strata.config import EngineConfig, ModelConfig
from strata.plan.memory import DeviceMemory, kv_token_bytes, num_states, resolve_max_model_len, workspace_bytes
from strata.plan.rank import ALONE, Rank
from strata.plan.speed import multiplications_per_token
from strata.plan.states import max_draft, state_bytes
from strata.plan.step import step_choices
from strata.plan.units import format_bytes

# Of what is left beside the shared weights and the workspace, what the KV cache takes at most when it is not told how
# many tokens to hold: the experts make the speed of every token, a larger cache that of many sequences.
KV_SHARE = 0.25
MIN_SLOTS = 4  # of a layer whose experts in VRAM change: what a step fetches has to go somewhere
# Multiplications and additions that a card does while PCIe moves a byte, as kernels and links go: an RTX 3090 1,600 on
# PCIe 4.0 and 3,200 on 3.0, an RTX 4090 3,600 on 4.0, an H200 7,000 on 5.0 (data sheets, shares measured on the last).
FLOPS_PER_BYTE = 3000
PIECE = 8  # experts that the copy engine brings at once, where it brings all of a layer, to two pieces in turn
FETCH_SHARE = 0.88  # of PCIe, a kernel that reads experts from pinned memory: 48.3 of 55 GB/s (H200, 2026-11-30)
# Of the time that PCIe takes for all of a layer's experts, what the layer itself takes for 17 to 64 tokens: 0.01 to
# 0.14 of four models in int4 on an H200 (PCIe 5.0), an RTX 4090 (4.0) and an RTX 3090 (3.0, 4.0), by ``plan.expect``.
LAYER_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class ExpertBytes:
    """The routed experts of a model: blobs of ``blob_bytes`` each, ``num_experts`` in each of ``num_layers``."""

    num_layers: int
    num_experts: int
    blob_bytes: int

    @property
    def num_blobs(self) -> int:
        return self.num_layers * self.num_experts

    @property
    def num_bytes(self) -> int:
        return self.num_blobs * self.blob_bytes

    @property
    def layer_bytes(self) -> int:
        return self.num_experts * self.blob_bytes

    def own(self, rank: Rank) -> ExpertBytes:
        """Those of one of several cards."""
        return replace(self, num_experts=rank.num_own(self.num_experts))


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """``num_resident``: experts in VRAM, as many of each layer, which change where that is not all. ``staging_bytes``:
    of VRAM, through which the others pass in prefill. ``host_bytes``: of pinned host memory, for all of them.
    ``step_tokens``: of a step, for which it leaves room; None: as many as suit the device."""

    experts: ExpertBytes
    num_resident: int
    staging_bytes: int = 0
    host_bytes: int = 0
    step_tokens: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.num_resident} of {self.experts.num_blobs} experts in VRAM, {format_bytes(self.vram_bytes)} with "
            f"the buffers that prefill streams through; all of them take {format_bytes(self.host_bytes)} of host memory"
        )

    def settle(self, config: EngineConfig) -> EngineConfig:
        """With steps for which this leaves room."""
        if self.step_tokens is None:
            return config
        return replace(config, scheduler=replace(config.scheduler, max_num_batched_tokens=self.step_tokens))

    @property
    def is_resident(self) -> bool:
        """Whether all experts are in VRAM."""
        return self.num_resident == self.experts.num_blobs

    @property
    def vram_bytes(self) -> int:
        """Of the card, staging included."""
        return self.num_resident * self.experts.blob_bytes + self.staging_bytes

    @property
    def least_host_bytes(self) -> int:
        """Of ``host_bytes``, what is needed so that none is on disk: experts that stay in VRAM need none."""
        layers, num_slots = self.experts.num_layers, self.num_resident // self.experts.num_layers
        return max(0, self.host_bytes - layers * fixed_slots(num_slots) * self.experts.blob_bytes)


def plan_experts(
    model: ModelConfig,
    config: EngineConfig,
    *,
    memory: DeviceMemory,
    experts: ExpertBytes,
    shared_bytes: int,
    element_bytes: int,
    rank: Rank = ALONE,
) -> ExpertPlacement:
    """All experts in VRAM where that leaves a KV cache for one sequence; else as many as fit beside a larger one, and
    beside steps that are worth what they bring over PCIe. Of ``experts`` those are placed that are the rank's own.

    ``shared_bytes``: of all other weights. ``element_bytes``: of KV cache and activations. Where not even the shared
    weights fit, no expert does; ``plan_memory`` says the rest. Raises OptionError for settings out of range.
    """
    device, total_bytes, experts = memory.device, memory.total_bytes, experts.own(rank)

    def plan(choice: EngineConfig) -> tuple[ExpertPlacement, int]:
        return _plan(model, choice, memory, experts, shared_bytes, element_bytes)

    choices = step_choices(config, device, total_bytes)
    for choice in choices:
        placement, _ = plan(choice)
        if placement.is_resident:
            return placement
    streamed = experts.num_bytes - placement.num_resident * experts.blob_bytes
    for choice in step_choices(config, device, total_bytes, balanced=_balanced_tokens(model, streamed)):
        placement, room = plan(choice)
        if placement.num_resident and placement.vram_bytes <= room:
            return replace(placement, step_tokens=choice.scheduler.step_tokens)
    return placement


def _plan(
    model: ModelConfig,
    config: EngineConfig,
    memory: DeviceMemory,
    experts: ExpertBytes,
    shared_bytes: int,
    element_bytes: int,
) -> tuple[ExpertPlacement, int]:
    """With the room that there was for it."""
    left = memory.capacity_bytes(config.device.gpu_memory_utilization) - shared_bytes
    left -= workspace_bytes(model, config, element_bytes, memory.device)
    left -= num_states(model, config) * state_bytes(model, element_bytes, max_draft(model, config))
    token = kv_token_bytes(model, element_bytes)
    length = resolve_max_model_len(model, config) + config.cache.block_size
    asked = config.cache.num_kv_tokens
    least = token * (length if asked is None else asked)
    most_in_vram = config.device.expert_vram_bytes
    placement = place_experts(experts, left - least, at_most=most_in_vram)
    if placement.is_resident or asked is not None:
        return placement, left - least
    wanted = max(least, min(token * length * config.scheduler.max_num_seqs, int(KV_SHARE * left)))
    return place_experts(experts, left - wanted, at_most=most_in_vram), left - wanted


def place_experts(experts: ExpertBytes, room: int, *, at_most: int | None = None) -> ExpertPlacement:
    """As many in VRAM as ``room`` bytes of the card hold, in ``at_most`` bytes where that is given.

    Where some are left, VRAM is a cache: each layer has as many slots as the others and ``MIN_SLOTS`` at least, two
    buffers through which prefill streams hold a whole layer, and host memory has all experts.
    """
    allowed = experts.num_blobs if at_most is None else min(experts.num_blobs, at_most // experts.blob_bytes)
    if allowed == experts.num_blobs and experts.num_bytes <= room:
        return ExpertPlacement(experts, experts.num_blobs)
    fitting = min(allowed, (room - 2 * experts.layer_bytes) // experts.blob_bytes) // experts.num_layers
    num_slots = min(max(fitting, MIN_SLOTS), experts.num_experts - 1)
    staging = 2 * experts.layer_bytes
    if copies_whole_layers(num_slots, experts.num_experts):
        staging += 2 * PIECE * experts.blob_bytes
    return ExpertPlacement(experts, num_slots * experts.num_layers, staging, experts.num_bytes)


def fixed_slots(num_slots: int) -> int:
    """Of a layer's slots, those whose experts may stay where host memory has no room for all."""
    return max(0, num_slots - MIN_SLOTS)


def copies_whole_layers(num_slots: int, num_experts: int) -> bool:
    """Whether prefill has all of a layer's experts brought by the copy engine, those in its slots too. On PCIe 5.0 that
    moves 55 GB/s, and a kernel, which leaves out what is in slots, 48 (H200, 2026-11-30)."""
    return num_slots * 12 < num_experts


def max_chosen_tokens(num_experts: int, top_k: float, num_slots: int) -> int:
    """Tokens of a step up to which prefill has only those experts brought that they take, once the layer has chosen;
    0 where that never pays. In times that the copy engine takes for all of a layer:

        taken * missing / FETCH_SHARE + LAYER_SHARE  <  missing / FETCH_SHARE, or 1 where all are copied

    with ``taken`` = 1 - (1 - top_k / num_experts)^tokens as if they drew evenly: what comes once the layer has chosen
    comes while it computes nothing, all of the layer would come while the one before computes."""
    missing = 1 - num_slots / num_experts
    ahead = 1.0 if copies_whole_layers(num_slots, num_experts) else missing / FETCH_SHARE
    if top_k >= num_experts or ahead <= LAYER_SHARE:
        return 0
    most_taken = (ahead - LAYER_SHARE) * FETCH_SHARE / missing
    return int(math.log1p(-most_taken) / math.log1p(-top_k / num_experts))


def _balanced_tokens(model: ModelConfig, streamed_bytes: float) -> int:
    """Of a chunk whose arithmetic takes as long as so many bytes of experts over PCIe."""
    return int(streamed_bytes * FLOPS_PER_BYTE / (2 * multiplications_per_token(model)))
