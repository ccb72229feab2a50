"""Llama's logits against ``transformers``: every token's, however the tokens are cut into steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from strata import quant
from strata.config import ModelConfig, RopeConfig
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch
from tests.models import tiny

TOLERANCE = 1e-4  # relative norm over all logits, float32

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # the tests' 200 tokens go well beyond
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
SHAPES: dict[str, dict[str, Any]] = {
    "llama 2, every head its own KV": {"num_key_value_heads": 6},
    "grouped heads, tied head": {"tie_word_embeddings": True},
    "llama 3 rope, all biases": {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True},
    "linear rope, wide heads": {"rope_parameters": LINEAR_ROPE, "head_dim": 32, "num_key_value_heads": 1},
}
TOKENS = 200


@cache
def made(shape: str) -> tuple[Any, list[int], Tensor]:
    """A random model, tokens, and the reference's logits of them."""
    model = tiny.hf_llama(**SHAPES[shape])
    token_ids = torch.randint(0, 160, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()
    return model, token_ids, tiny.reference_logits(model, token_ids)


def runner_of(model: Any, config: ModelConfig | None = None) -> Runner:
    return tiny.runner_of(config or tiny.model_config(model), tiny.checkpoint(model))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(TOKENS, id="one prefill"),
        pytest.param(64, id="chunks of whole blocks"),
        pytest.param(7, id="chunks that end within blocks"),
        pytest.param(1, id="token by token"),
    ],
)
def test_logits(shape: str, chunk: int) -> None:
    model, token_ids, expected = made(shape)
    runner = runner_of(model)
    blocks = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    assert tiny.relative(tiny.run_chunks(runner, token_ids, chunk, blocks), expected) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_beside_other_sequences(shape: str) -> None:
    """Decoding at different lengths and two prefill chunks, one of them a sequence's last, in one step."""
    model, token_ids, expected = made(shape)
    runner = runner_of(model)
    tables = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(2)).tolist()
    blocks = [tables[i * 16 : (i + 1) * 16] for i in range(5)]
    for i, cached in enumerate((199, 61, 10, 100)):
        tiny.run_chunks(runner, token_ids[:cached], 64, blocks[i])
    spans = [(199, 200), (61, 62), (10, 11), (100, 164), (0, 30)]
    batch = Batch(tuple(tiny.sequence(token_ids, a, b, blocks[i], name=str(i)) for i, (a, b) in enumerate(spans)))
    wanted = torch.cat([expected[a:b] for a, b in spans])
    assert tiny.relative(runner.run_all(batch), wanted) < TOLERANCE
    sampled = runner.run(batch)  # the first sequence alone ends here
    assert sampled.dtype == torch.float32
    assert sampled.shape == (1, 160)
    assert tiny.relative(sampled, expected[199:]) < TOLERANCE


FAULTS: dict[str, Callable[[RopeConfig], RopeConfig]] = {
    "wrong theta": lambda rope: RopeConfig(theta=20_000.0, scaling=rope.scaling),
    "dropped scaling": lambda rope: RopeConfig(theta=rope.theta),
    "wrong original context": lambda rope: replace(
        rope, scaling={**(rope.scaling or {}), "original_max_position_embeddings": 512}
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault: str) -> None:
    """The comparison sees what it is there to see."""
    model, token_ids, expected = made("llama 3 rope, all biases")
    config = tiny.model_config(model)
    runner = runner_of(model, replace(config, rope=FAULTS[fault](config.rope)))
    found = tiny.run_chunks(runner, token_ids, TOKENS, list(range(16)))
    assert tiny.relative(found, expected) > 5 * TOLERANCE


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_bf16_activations_cost_no_more_than_in_the_reference(kind: str) -> None:
    """What serves: bf16 activations and the CPU's own kernels, over each format's weights."""
    model = tiny.hf_llama(rope_parameters=LLAMA3_ROPE)
    packed = {
        name: quant.get(kind).pack(tensor) if name.endswith("_proj.weight") else tensor
        for name, tensor in tiny.checkpoint(model).items()
    }
    for name, weight in packed.items():
        if isinstance(weight, quant.QuantizedTensor):
            model.get_parameter(name).data.copy_(quant.get(kind).unpack(weight))
    token_ids = list(range(TOKENS // 2))
    expected = tiny.reference_logits(model, token_ids)
    runner = tiny.runner_of(tiny.model_config(model), packed, dtype=torch.bfloat16)
    error = tiny.relative(tiny.run_chunks(runner, token_ids, 40, list(range(16))), expected)
    reference_error = tiny.relative(tiny.reference_logits(model.bfloat16(), token_ids).float(), expected)
    print(f"{kind}: relative error {error:.2e}, of transformers in bf16 {reference_error:.2e}")
    assert error < 1.3 * reference_error
