"""Paged attention: the reference against attention over plain tensors, the fast versions against the reference."""

from __future__ import annotations

import math

import pytest
import torch

from strata.kernels.attention import reference, sdpa
from strata.kernels.attention.reference import write_kv
from tests.kernels.batches import BLOCK_SIZE, make_case

BATCHES = [
    pytest.param([(0, 37)], id="prompt from its start"),
    pytest.param([(37, 20)], id="chunk after others"),
    pytest.param([(16, 1)], id="decode, first token of a block"),
    pytest.param([(31, 1), (31, 1)], id="decode, equal lengths"),
    pytest.param([(31, 1), (30, 1), (45, 1)], id="decode, lengths that need a mask"),
    pytest.param([(0, 1), (500, 1), (3, 1)], id="decode, lengths too different to pad"),
    pytest.param([(40, 1), (9, 1), (0, 33), (16, 24), (5, 1)], id="decode and chunks in one step"),
]
# Which heads share, sinks and types are apart from each other, so not all of their combinations meet every batch.
KINDS = [
    pytest.param(4, 4, False, torch.float32, id="no sharing"),
    pytest.param(6, 2, True, torch.float32, id="grouped heads, sinks"),
    pytest.param(6, 2, False, torch.bfloat16, id="grouped heads, bf16"),
    pytest.param(4, 1, True, torch.bfloat16, id="one KV head, sinks, bf16"),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


WINDOWS = [
    pytest.param(None, id="sees all"),
    pytest.param(1, id="sees itself only"),
    pytest.param(16, id="window of a block"),
    pytest.param(23, id="window that ends within blocks"),
    pytest.param(40, id="window that some sequences fit in"),
]


@pytest.mark.parametrize("spans", BATCHES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_reference_is_causal_attention(spans: list[tuple[int, int]], window: int | None, has_sinks: bool) -> None:
    case = make_case(spans, heads=6, kv_heads=2, head_dim=16, dtype=torch.float32, window=window)
    sinks = torch.randn(6) if has_sinks else None
    found = reference.paged_attention(case.query, case.cache, case.batch, window, sinks)
    flat = case.cache.view(-1, 2, 2, 16)
    row = 0
    for blocks, (start, new) in zip(case.blocks, spans, strict=True):
        slots = [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start + new)]
        for position in range(start, start + new):
            assert int(case.batch.positions[row]) == position
            assert int(case.batch.slots[row]) == slots[position]
            seen = slots[: position + 1] if window is None else slots[max(0, position + 1 - window) : position + 1]
            for head in range(6):
                key, value = flat[seen, :, head // 3].double().unbind(1)
                shares = (key @ case.query[row, head].double() / math.sqrt(16)).exp()
                total = shares.sum() + (0 if sinks is None else sinks[head].double().exp())
                assert torch.allclose(found[row, head].double(), shares / total @ value, atol=1e-5)
            row += 1
    assert row == len(found)


@pytest.mark.parametrize("spans", BATCHES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("heads", "kv_heads", "has_sinks", "dtype"), KINDS)
def test_sdpa(
    spans: list[tuple[int, int]], window: int | None, heads: int, kv_heads: int, has_sinks: bool, dtype: torch.dtype
) -> None:
    case = make_case(spans, heads, kv_heads, head_dim=32, dtype=dtype, window=window)
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(heads)).to(dtype) if has_sinks else None
    expected = reference.paged_attention(case.query, case.cache, case.batch, window, sinks).double()
    found = sdpa.paged_attention(case.query, case.cache, case.batch, window, sinks).double()
    assert found.shape == expected.shape
    assert (found - expected).norm() / expected.norm() < TOLERANCE[dtype]


def test_write_kv_touches_its_slots_only() -> None:
    cache = torch.zeros(4, BLOCK_SIZE, 2, 2, 8)
    kv = torch.randn(3, 2, 2, 8)
    slots = torch.tensor([5, 63, 16])
    write_kv(kv, cache, slots)
    flat = cache.view(-1, 2, 2, 8)
    assert torch.equal(flat[slots], kv)
    flat[slots] = 0
    assert not flat.any()
