"""Which class runs which architecture."""

from __future__ import annotations

from collections.abc import Mapping

from strata.config import ModelConfig
from strata.experts.tier import Tier
from strata.kernels.layer import Kernels
from strata.models.decoder import Decoder
from strata.models.gpt_oss import GptOss
from strata.models.llama import Llama
from strata.models.mistral import Mistral
from strata.models.qwen2 import Qwen2
from strata.models.qwen3 import Qwen3
from strata.models.qwen3_next import Qwen3Next
from strata.models.qwen4 import Qwen4
from strata.models.weights import Weight, Weights, num_bytes
from strata.ngram.table import NGramTable
from strata.plan.shape import check, needed
from strata.store.progress import Progress, counter

ARCHITECTURES: dict[str, type[Decoder]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "MixtralForCausalLM": Mistral,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen2MoeForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Qwen3MoeForCausalLM": Qwen3,
    "Qwen3NextForCausalLM": Qwen3Next,
    "Qwen3_5MoeForCausalLM": Qwen3Next,
    "Qwen3_5MoeForConditionalGeneration": Qwen3Next,
    "Qwen4ExpForCausalLM": Qwen4,
    "Qwen4ExpForConditionalGeneration": Qwen4,
    "GptOssForCausalLM": GptOss,
}


def build(
    config: ModelConfig,
    tensors: dict[str, Weight],
    kernels: Kernels,
    max_positions: int,
    progress: Progress | None = None,
    tier: Tier | None = None,
    tables: Mapping[str, NGramTable] | None = None,
) -> Decoder:
    """The model, from all of its tensors on their device (the dict is emptied of them).

    No sequence is longer than ``max_positions``. progress: called with the bytes of the tensors that were made ready so
    far. ``tier``: has the routed experts; None where they are among the tensors. ``tables``: of n-grams, by the names
    of their weights; what is not there is among the tensors. Raises CheckpointError naming every tensor that is
    missing, unknown or of the wrong shape.
    """
    shapes = {name: tuple(weight.shape) for name, weight in tensors.items()}
    if tier is not None:
        shapes |= {spec.name: spec.shape for spec in needed(config) if spec.expert is not None}
    if tables:
        shapes |= {spec.name: spec.shape for spec in needed(config) if spec.name in tables}
    specs = check(config, shapes, origin="the checkpoint")
    took = counter(sum(map(num_bytes, tensors.values())), progress)
    weights = Weights(tensors, kernels, took, tier, tables=tables, zero_centred_norms=config.zero_centred_norms)
    model = ARCHITECTURES[config.architecture](config, weights, max_positions)
    unused = [spec.name for spec in specs if spec.name in tensors]
    assert not unused, f"{config.architecture} left tensors unused that it needs: {unused}"
    return model
