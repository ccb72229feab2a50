"""Which class runs which architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import AttentionBatch
from strata.kernels.select import Kernels
from strata.models.llama import Llama
from strata.models.rope import inverse_frequencies
from strata.models.weights import Weight, Weights
from strata.plan.shape import check as check_tensors
from strata.plan.shape import check_architecture


class Model(Protocol):
    """What the runner needs of a model."""

    def forward(self, token_ids: Tensor, batch: AttentionBatch, caches: Sequence[Tensor]) -> Tensor:
        """token_ids int64 [tokens], one KV cache a layer -> hidden states [tokens, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of hidden states [rows, hidden] -> float32 [rows, vocab]."""


ARCHITECTURES = {"LlamaForCausalLM": Llama}


def check(config: ModelConfig) -> None:
    """Raise UnsupportedModelError, before a byte is loaded, for an architecture or a RoPE scaling that no class here
    runs; its message lists those that are."""
    check_architecture(config.architecture, ARCHITECTURES)
    inverse_frequencies(config.rope, config.head_dim)


def build(
    config: ModelConfig, tensors: dict[str, Weight], kernels: Kernels, dtype: torch.dtype, max_positions: int
) -> Model:
    """The model, from all of its tensors on their device (the dict is emptied of them).

    Activations are in ``dtype``; no sequence is longer than ``max_positions``. Raises as ``check`` does, and
    CheckpointError naming every tensor that is missing, unknown or of the wrong shape.
    """
    check(config)
    specs = check_tensors(
        config, {name: tuple(weight.shape) for name, weight in tensors.items()}, origin="the checkpoint"
    )
    model = ARCHITECTURES[config.architecture](config, Weights(tensors, kernels, dtype), max_positions)
    unused = [spec.name for spec in specs if spec.name in tensors]
    assert not unused, f"{config.architecture} left tensors unused that it needs: {unused}"
    return model
