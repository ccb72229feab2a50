"""Rotary frequencies against those of ``transformers``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from strata.config import read_hf_config
from strata.models.rope import inverse_frequencies

TABLES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 8.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    {"rope_type": "yarn", "factor": 32.0, "beta_fast": 20.0, "beta_slow": 3.0, "attention_factor": 0.9},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.3},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},  # a step, no blend
    {"rope_type": "yarn", "factor": 0.5},  # shrinks: no temperature
]


@pytest.mark.parametrize("table", TABLES, ids=str)
@pytest.mark.parametrize(
    ("head_dim", "theta", "original", "longest"),
    [
        pytest.param(128, 500_000.0, 8192, 131_072, id="llama 3"),
        pytest.param(64, 150_000.0, 4096, 131_072, id="gpt-oss"),
        pytest.param(16, 10_000.0, 64, 200, id="tiny"),
        pytest.param(16, 10_000.0, 64, 64, id="no longer than the training"),
    ],
)
def test_frequencies(table: dict[str, Any], head_dim: int, theta: float, original: int, longest: int) -> None:
    keys = {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "max_position_embeddings": original,
    }
    rope = {**table, "rope_theta": theta}
    if table["rope_type"] in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = original
        keys["max_position_embeddings"] = original + 1  # not by accident the same
    expected, expected_scale = ROPE_INIT_FUNCTIONS[table["rope_type"]](
        LlamaConfig(**keys, rope_parameters=dict(rope)), seq_len=longest
    )
    more = {"vocab_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    config = read_hf_config({**keys, **more, "rope_parameters": rope}, origin="here")
    found, scale = inverse_frequencies(config.rope, head_dim, longest)
    assert torch.allclose(found, expected, rtol=1e-5, atol=0)
    assert scale == pytest.approx(expected_scale)
