"""Shapes of public models."""

from __future__ import annotations

import json
from dataclasses import replace

from strata.config import LinearAttentionConfig, ModelConfig, read_hf_config
from strata.config.public import SHAPES


def public(name: str) -> ModelConfig:
    """The shape of a public model, e.g. "qwen3-30b-a3b"."""
    return read_hf_config(json.loads(SHAPES[name].read_text()), origin=name)


def hybrid() -> ModelConfig:
    """Qwen3-8B with linear attention in three of four layers."""
    linear = LinearAttentionConfig(
        num_key_heads=8, num_value_heads=16, key_head_dim=128, value_head_dim=128, conv_kernel_size=4
    )
    return replace(public("qwen3-8b"), linear_attention=linear, linear_layers=(True, True, True, False) * 9)
