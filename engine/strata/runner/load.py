"""What a runner is made of: where experts go, the model, its caches, its graphs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from strata.config import DeviceConfig, EngineConfig, ModelConfig
from strata.errors import HardwareError, UnsupportedModelError
from strata.experts.place import blob_tier, reads_blobs
from strata.kernels.capture import on_card
from strata.kernels.layer import Kernels
from strata.memory.caches import Caches
from strata.memory.index import IndexPool
from strata.memory.kv import KVPool
from strata.memory.states import StatePool
from strata.models import registry
from strata.models.decoder import Decoder
from strata.ngram.table import NGramTable
from strata.plan.capture import capture_sizes, mixed_sizes
from strata.plan.memory import MemoryPlan
from strata.plan.placement import ExpertBytes, ExpertPlacement, plan_experts
from strata.runner.decode import DecodeInputs
from strata.runner.device import Device, device_memory, out_of_memory, used_bytes
from strata.runner.graphs import StepGraphs
from strata.runner.mixed import MixedInputs
from strata.store.progress import Phases, Progress, phase
from strata.store.reader import Store

logger = logging.getLogger(__name__)


def check_supported(model: ModelConfig, device: Device) -> None:
    """Raises UnsupportedModelError for what has no steps on the device yet."""
    if model.hyper_connections is not None and device.type != "cpu":
        raise UnsupportedModelError(
            f"{model.architecture} on a card is not supported yet: several residual streams, indexed attention and "
            "n-grams run on a CPU alone; choose --device cpu"
        )


def place_experts(store: Store, config: EngineConfig, device: Device, kernels: Kernels) -> ExpertPlacement | None:
    """None where there are no experts, or the kernels re-order them, all in the memory of ``device``."""
    layout = store.manifest.contents.experts
    if layout is None or not reads_blobs(layout, kernels):
        return None
    experts = ExpertBytes(len(layout.layers), layout.num_experts, layout.blob_bytes)
    placement = plan_experts(
        store.model_config,
        config,
        memory=device_memory(device),
        experts=experts,
        shared_bytes=store.num_bytes - experts.num_bytes,
        element_bytes=kernels.dtype.itemsize,
    )
    if placement.is_resident and config.device.hugepages != "off":
        logger.info("all experts are in VRAM: the huge pages are left alone")
    if config.device.expert_placement == "vram" and not placement.is_resident:
        raise HardwareError(
            f"expert_placement is 'vram', but only {placement.num_resident} of {experts.num_blobs} experts fit beside "
            "the rest; choose 'auto', a dtype with fewer bits, or a smaller max_model_len"
        )
    return placement


def load_model(
    store: Store,
    device: Device,
    kernels: Kernels,
    placement: ExpertPlacement | None,
    config: DeviceConfig,
    max_model_len: int,
    progress: Phases,
    tables: Mapping[str, NGramTable],
) -> tuple[Decoder, int]:
    """The model, and the bytes that its weights take: kernels re-order them, so that is known only afterwards."""
    used_before = used_bytes(device)
    layout = store.manifest.contents.experts
    with torch.inference_mode(), out_of_memory(device):
        tier = None
        if layout is not None and placement is not None:
            top_k = store.model_config.experts.num_experts_per_tok  # type: ignore[union-attr]
            tier = blob_tier(layout, placement, kernels, device.torch_device, top_k, config)
        put = None if tier is None else tier.put
        tensors = dict(store.load(device.torch_device, phase("load", progress), put))
        prepare = phase("prepare", progress)
        model = registry.build(store.model_config, tensors, kernels, max_model_len, prepare, tier, tables)
    return model, used_bytes(device) - used_before


def make_caches(plan: MemoryPlan, device: Device, dtype: torch.dtype) -> Caches:
    """KV cache and states, as large as planned, zeroed, each with a spare block or slot for what fills up a step."""
    model, where = plan.model, device.torch_device
    with out_of_memory(device):
        kv = KVPool(
            model.num_kv_layers,
            plan.num_blocks + 1,
            plan.block_size,
            model.num_kv_heads,
            model.head_dim,
            dtype,
            where,
        )
        states = None
        if model.linear_attention is not None:
            num_slots = plan.num_states + plan.num_snapshots + 1
            states = StatePool(model, num_slots, dtype, where, plan.max_draft)
        index = None if model.indexer is None else IndexPool(model.indexer, kv)
    return Caches(model.linear_layers, kv, states, index)


@torch.inference_mode()
def capture_steps(
    model: Decoder, caches: Caches, plan: MemoryPlan, device: Device, max_num_seqs: int, progress: Progress
) -> StepGraphs:
    """Steps as graphs, those of up to ``max_num_seqs`` sequences and as many more as the tier of experts allows."""
    lengths, where = (plan.max_model_len, plan.block_size, plan.num_blocks, plan.spare_state), device.torch_device
    most = None if model.tier is None else model.tier.max_captured
    sizes = capture_sizes(max_num_seqs if most is None else min(max_num_seqs, most))
    drafts = plan.max_draft > 0
    decode = DecodeInputs(max(sizes), max_num_seqs, *lengths, where, drafts=drafts), sizes
    mixed = None
    if most is None and (larger := mixed_sizes(plan.step_tokens, plan.max_model_len)):
        mixed = MixedInputs(max(larger), max_num_seqs, *lengths, where, drafts=drafts), larger
    graphs = StepGraphs(model, caches.layers, decode, mixed, on_card(where))
    with out_of_memory(device):
        graphs.capture(progress)
    return graphs
