"""Indexed attention: the reference against its definition, the fast version against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from strata.kernels.attention import reference as attention
from strata.kernels.indexed_attention import reference, sdpa
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer
from strata.kernels.matrix import Norm
from tests.kernels.batches import BLOCK_SIZE, Case, make_case

INDEX_HEADS, INDEX_DIM, GROUP = 3, 8, 4
BATCHES = [
    pytest.param([(0, 37)], id="prompt from its start"),
    pytest.param([(37, 20)], id="chunk after others, which begins within a group"),
    pytest.param([(70, 1), (71, 1), (80, 1)], id="decode"),
    pytest.param([(90, 1), (5, 1), (0, 33), (2, 1)], id="decode and a chunk, some with fewer groups than are chosen"),
    pytest.param([(0, 2)], id="less than a group"),
]


def indexer(top: int) -> Indexer:
    norm = Norm(torch.ones(INDEX_DIM), 1e-6)
    return Indexer(INDEX_HEADS, INDEX_DIM, top, GROUP, norm, norm)


def indexed(spans: list[tuple[int, int]], dtype: torch.dtype = torch.float32) -> tuple[Case, Tensor, IndexedCache]:
    case = make_case(spans, heads=6, kv_heads=2, head_dim=16, dtype=dtype)
    num_blocks, generator = len(case.cache), torch.Generator().manual_seed(4)
    tokens = torch.randn(num_blocks, BLOCK_SIZE, INDEX_DIM, generator=generator).to(dtype)
    groups = torch.randn(num_blocks, BLOCK_SIZE // GROUP, INDEX_DIM, generator=generator).abs().to(dtype)
    query = torch.randn(len(case.query), INDEX_HEADS, INDEX_DIM, generator=generator).to(dtype)
    query[:, 0].abs_()  # or else groups of which no head thinks anything would be as good as one another
    return case, query, IndexedCache(case.cache, tokens, groups)


@pytest.mark.parametrize("spans", BATCHES)
def test_a_token_attends_to_its_best_groups_and_what_is_behind_them(
    spans: list[tuple[int, int]],
) -> None:
    case, index_query, cache = indexed(spans)
    found = reference.indexed_attention(case.query, index_query, cache, case.batch, indexer(3))
    row = 0
    for blocks, (start, new) in zip(case.blocks, spans, strict=True):
        pages, groups = (tensor[list(blocks)].flatten(0, 1) for tensor in (cache.pages, cache.groups))
        for position in range(start, start + new):
            whole = (position + 1) // GROUP
            scores = [
                sum(max(0.0, float(query @ groups[group])) for query in index_query[row]) / math.sqrt(INDEX_DIM)
                for group in range(whole)
            ]
            best = sorted(range(whole), key=lambda group: -scores[group])[:3]
            seen = [GROUP * group + i for group in best for i in range(GROUP)] + list(
                range(GROUP * whole, position + 1)
            )
            for head in range(6):
                key, value = pages[seen, :, head // 3].unbind(1)
                weights = (key @ case.query[row, head] / math.sqrt(16)).softmax(0)
                assert torch.allclose(found[row, head], weights @ value, atol=1e-5)
            row += 1


@pytest.mark.parametrize("spans", BATCHES)
@pytest.mark.parametrize("top", [1, 3, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_fused_attention_is_the_reference(
    spans: list[tuple[int, int]], top: int, dtype: torch.dtype, tolerance: float
) -> None:
    case, index_query, cache = indexed(spans, dtype)
    found, expected = (
        version.indexed_attention(case.query, index_query, cache, case.batch, indexer(top)).float()
        for version in (sdpa, reference)
    )
    assert (found - expected).norm() / expected.norm() < tolerance


@pytest.mark.parametrize("spans", BATCHES)
def test_a_budget_of_all_groups_is_attention_to_all(spans: list[tuple[int, int]]) -> None:
    case, index_query, cache = indexed(spans)
    found = reference.indexed_attention(case.query, index_query, cache, case.batch, indexer(1000))
    assert torch.allclose(found, attention.paged_attention(case.query, case.cache, case.batch), atol=1e-5)


def test_a_group_is_written_with_its_last_token_and_may_be_written_again() -> None:
    case, _, cache = indexed([(5, 8)])  # positions 5 to 12 end the groups of 4 to 7 and 8 to 11
    before, keys = cache.groups.clone(), torch.randn(8, INDEX_DIM)
    block = case.blocks[0][0]

    def finish(means: Tensor, rows: Tensor) -> Tensor:
        assert rows.tolist() == [2, 6]
        return means + 1

    for _ in range(2):
        reference.write_index(keys, cache, case.batch, GROUP, finish)
        assert torch.equal(cache.tokens[block, 5:13], keys)
        assert torch.allclose(cache.groups[block, 1], cache.tokens[block, 4:8].mean(0) + 1)
        assert torch.allclose(cache.groups[block, 2], cache.tokens[block, 8:12].mean(0) + 1)
        assert torch.equal(cache.groups[block, [0, 3]], before[block, [0, 3]])
