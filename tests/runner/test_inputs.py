"""A batch to tensors: where each token's key and value go, and who is attended to together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from strata.kernels.attention.batch import AttentionBatch, AttentionGroup, PagedBatch
from strata.runner.inputs import Inputs, build_inputs
from strata.runner.pack import Packer
from strata.scheduler.batch import Batch, ScheduledSequence

BLOCK = 16


def build(
    *sequences: tuple[int, int, tuple[int, ...], bool],
    windows: tuple[int | None, ...] = (None,),
    reads_pages: bool = False,
) -> Inputs:
    """One sequence for each (start, new tokens, blocks, samples); token ids count on from 100 times its number."""
    batch = Batch(
        tuple(
            ScheduledSequence(str(i), tuple(range(100 * i, 100 * i + new)), start, blocks, samples)
            for i, (start, new, blocks, samples) in enumerate(sequences)
        )
    )
    return build_inputs(batch, BLOCK, torch.device("cpu"), torch.float32, windows, reads_pages=reads_pages)


def groups_of(inputs: Inputs) -> Mapping[int | None, tuple[AttentionGroup, ...]]:
    """Those of attention that gathers."""
    assert isinstance(inputs.attention, AttentionBatch)
    return inputs.attention.groups


def test_tokens_positions_and_slots() -> None:
    inputs = build((31, 1, (4, 2), True), (14, 4, (9, 3), True))
    assert inputs.token_ids.tolist() == [0, 100, 101, 102, 103]
    assert inputs.attention.positions.tolist() == [31, 14, 15, 16, 17]
    assert inputs.attention.slots.tolist() == [2 * 16 + 15, 9 * 16 + 14, 9 * 16 + 15, 3 * 16, 3 * 16 + 1]


@pytest.mark.parametrize(
    ("sequences", "rows"),
    [
        pytest.param(
            [(5, 1, (0,), True), (0, 3, (1,), False), (0, 2, (2,), True)], [0, 5], id="chunk without a sample"
        ),
        pytest.param([(5, 1, (0,), True), (6, 1, (1,), True)], None, id="every row"),
        pytest.param([(0, 3, (1,), False)], [], id="no row"),
    ],
)
def test_sampled_rows(sequences: list[tuple[int, int, tuple[int, ...], bool]], rows: list[int] | None) -> None:
    inputs = build(*sequences)
    assert (None if inputs.sampled is None else inputs.sampled.tolist()) == rows
    assert inputs.num_sampled == (inputs.token_ids.shape[0] if rows is None else len(rows))


def test_drafts_have_rows_of_their_own() -> None:
    sequences = (
        ScheduledSequence("a", (1, 2, 3), 5, (0,), samples=True, num_drafts=2),
        ScheduledSequence("b", (4, 5), 0, (1,), samples=True),
        ScheduledSequence("c", (6, 7), 3, (2,), samples=True, num_drafts=1),
    )
    inputs = build_inputs(Batch(sequences), 16, torch.device("cpu"), torch.float32)
    assert inputs.sampled is not None
    assert inputs.sampled.tolist() == [0, 1, 2, 4, 5, 6]
    assert inputs.num_sampled == 6


def test_decoding_sequences_share_a_group_and_chunks_do_not() -> None:
    inputs = build((40, 1, (1, 2, 3), True), (20, 1, (4, 5), True), (0, 20, (6, 7), False), (16, 8, (8, 9), True))
    groups = groups_of(inputs)[None]
    assert [(g.begin, g.end, g.num_seqs, g.kv_len) for g in groups] == [(0, 2, 2, 41), (2, 22, 1, 20), (22, 30, 1, 24)]
    assert [g.blocks.tolist() for g in groups] == [[1, 2, 3, 4, 5, 0], [6, 7], [8, 9]]
    assert groups[0].lengths.tolist() == [41, 21]
    assert [g.causal for g in groups] == [False, True, False]
    assert groups[1].mask is None


def test_masks_hide_what_comes_later() -> None:
    inputs = build((2, 1, (1,), True), (4, 1, (2,), True), (1, 3, (3,), True))
    decode, chunk = groups_of(inputs)[None]
    assert decode.mask is not None
    assert chunk.mask is not None
    assert decode.mask.isneginf().long()[:, 0, 0].tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    assert chunk.mask.isneginf().long().tolist() == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_equal_lengths_need_no_mask() -> None:
    assert groups_of(build((7, 1, (1,), True), (7, 1, (2,), True)))[None][0].mask is None


def test_lengths_too_different_to_pad_are_parted() -> None:
    long = tuple(range(10, 23))
    groups = groups_of(build((3, 1, (1,), True), (4, 1, (3,), True), (200, 1, long, True), (2, 1, (2,), True)))[None]
    assert [(g.begin, g.end, g.kv_len) for g in groups] == [(0, 2, 5), (2, 4, 201)]


def test_what_one_call_gathers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.runner.gathered.MAX_GATHERED_POSITIONS", 8 * BLOCK)
    step = [(16 * n - 1, 1, tuple(range(n)), True) for n in (2, 2, 3, 2, 9, 1, 1, 1)]
    groups = groups_of(build(*step))[None]
    assert [group.end - group.begin for group in groups] == [2, 2, 1, 1, 2]
    gathered = [group.blocks.shape[0] for group in groups]
    assert max(gathered) == 9, "a sequence that is longer goes alone"
    assert sorted(gathered)[-2] <= 8


def test_blocks_allocated_ahead_are_left_out() -> None:
    (group,) = groups_of(build((3, 1, (7, 8, 9), True)))[None]
    assert group.blocks.tolist() == [7]


def test_a_window_leaves_out_the_blocks_before_it() -> None:
    inputs = build((40, 1, (1, 2, 3), True), (50, 6, (4, 5, 6, 7), True), windows=(12, None))
    assert set(groups_of(inputs)) == {12, None}
    decode, chunk = groups_of(inputs)[12]
    assert [g.blocks.tolist() for g in (decode, chunk)] == [[2, 3], [6, 7]]  # seen are 29 .. 40, and 39 .. 55
    assert [g.starts.tolist() for g in (decode, chunk)] == [[16], [32]]
    assert [g.lengths.tolist() for g in (decode, chunk)] == [[25], [24]]
    assert [g.blocks.tolist() for g in groups_of(inputs)[None]] == [[1, 2, 3], [4, 5, 6, 7]]


def test_masks_hide_what_lies_before_the_window() -> None:
    inputs = build((5, 1, (1,), True), (3, 1, (2,), True), (2, 2, (3,), True), windows=(3,))
    decode, chunk = groups_of(inputs)[3]
    assert decode.mask is not None
    assert chunk.mask is not None
    assert decode.mask.isneginf().long()[:, 0, 0].tolist() == [[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1]]
    assert chunk.mask.isneginf().long().tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


def test_a_prompt_longer_than_the_window_is_not_merely_causal() -> None:
    long, short = groups_of(build((0, 5, (1,), True), (0, 4, (2,), True), windows=(4,)))[4]
    assert (long.causal, short.causal) == (False, True)
    assert long.mask is not None
    assert long.mask.isneginf().long()[4].tolist() == [1, 0, 0, 0, 0]


def test_a_window_that_reaches_over_all_sequences_shares_their_groups() -> None:
    groups = groups_of(build((40, 1, (1, 2, 3), True), (3, 1, (4,), True), windows=(41, None)))
    assert groups[41] is groups[None]


def test_kernels_that_read_pages_get_every_sequence_s_table() -> None:
    inputs = build(
        (40, 1, (1, 2, 3), True), (3, 1, (7, 8), True), (16, 20, (4, 5, 6), False), windows=(12, None), reads_pages=True
    )
    batch = inputs.attention
    assert isinstance(batch, PagedBatch)
    assert batch.tables.tolist() == [[1, 2, 3], [7, 8, 0], [4, 5, 6]]
    assert (batch.lengths.tolist(), batch.starts.tolist()) == ([41, 4, 36], [0, 1, 2, 22])
    assert {tensor.dtype for tensor in (batch.tables, batch.lengths, batch.starts)} == {torch.int32}
    assert batch.max_query == 20
    assert batch.positions.tolist() == [40, 3, *range(16, 36)]
    assert batch.slots.tolist() == [3 * 16 + 8, 7 * 16 + 3, *range(5 * 16, 6 * 16), *range(6 * 16, 6 * 16 + 4)]
    assert batch.positions.dtype == batch.slots.dtype == inputs.token_ids.dtype == torch.int64


@pytest.mark.parametrize("sizes", [(3, 0, 5), (1, 1, 1)])
def test_packed_lists_come_back_in_their_order_whatever_their_types(sizes: tuple[int, ...]) -> None:
    packer = Packer()
    wanted = []
    for i, size in enumerate(sizes):
        values = [(1 << 30) - 100 * i - n for n in range(size)]
        wanted.append((values, (torch.int32, torch.int64)[i % 2]))
        assert packer.add(*wanted[-1]) == i
    found = packer.to(torch.device("cpu"))
    assert [(tensor.tolist(), tensor.dtype) for tensor in found] == wanted
