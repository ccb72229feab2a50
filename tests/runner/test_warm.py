"""Steps that build the kernels: of every size, and of no consequence."""

from __future__ import annotations

import pytest
import torch

from strata.runner.warm import warm_up_steps
from tests.models import tiny


@pytest.mark.parametrize(
    ("max_tokens", "max_model_len", "sizes"),
    [(1, 64, [1]), (8, 64, [2, 4, 8]), (100, 64, [2, 4, 8, 16, 32, 64, 100]), (5, 1, [2, 4, 5])],
)
def test_every_size_alone_and_beside_decoding(max_tokens: int, max_model_len: int, sizes: list[int]) -> None:
    steps = list(warm_up_steps(max_tokens, max_model_len, 16, 40))
    assert list(dict.fromkeys(step.num_tokens for step in steps)) == sizes
    mixed = {step.num_tokens for step in steps if step.sequences[0].start > 0}
    assert mixed == (set(sizes) if min(max_tokens, max_model_len) > 1 else set())
    for step in steps:
        for part in step.sequences:
            assert part.end <= max_model_len
            assert set(part.block_ids) == {40}
            assert len(part.block_ids) == -(-part.end // 16)


def test_only_the_spare_block_is_written() -> None:
    model = tiny.hf_llama(num_hidden_layers=1)
    runner = tiny.runner_of(tiny.model_config(model), tiny.checkpoint(model), max_model_len=40)
    spare = runner.num_blocks
    assert len(runner.caches.kv.layers[0]) == spare + 1
    seen: list[tuple[int, int]] = []
    runner.warm_up(50, lambda *now: seen.append(now))
    assert not torch.count_nonzero(runner.caches.kv.tensor[:, :spare])
    assert torch.count_nonzero(runner.caches.kv.tensor[:, spare])
    assert seen[-1] == (2 * (2 + 4 + 8 + 16 + 32 + 50),) * 2
