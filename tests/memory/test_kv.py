from __future__ import annotations

import torch

from strata.memory.kv import KVPool


def test_layers_are_views_of_one_zeroed_tensor() -> None:
    pool = KVPool(3, 5, 16, 2, 8, torch.bfloat16, torch.device("cpu"))
    assert pool.num_bytes == 3 * 5 * 16 * 2 * 2 * 8 * 2
    assert not pool.tensor.any()
    assert [layer.shape for layer in pool.layers] == [(5, 16, 2, 2, 8)] * 3
    assert all(layer.is_contiguous() for layer in pool.layers)
    pool.layers[1].fill_(1)
    assert pool.tensor[1].all()
    assert not pool.tensor[[0, 2]].any()
