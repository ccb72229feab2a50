"""How many experts a card holds."""

from __future__ import annotations

import pytest

from strata.plan.placement import MIN_SLOTS, PIECE, ExpertBytes, place_experts

EXPERTS = ExpertBytes(num_layers=4, num_experts=8, blob_bytes=100)  # 3,200 bytes, 800 a layer


@pytest.mark.parametrize(
    ("room", "at_most", "num_resident", "staging_bytes"),
    [
        pytest.param(3200, None, 32, 0, id="all fit: nothing is staged"),
        pytest.param(3199, None, 29, 200, id="one byte too few: two buffers for one expert each"),
        pytest.param(1599, None, 0, 1600, id="less than the buffers: none, and plan_memory says what is missing"),
        pytest.param(1799, None, 1, 1600, id="the buffers first, then as many experts as the rest holds"),
        pytest.param(5000, 1600, 16, 800, id="half of them as told"),
        pytest.param(5000, 0, 0, 1600, id="none as told"),
        pytest.param(5000, 3200, 32, 0, id="told enough for all"),
        pytest.param(5000, 3199, 31, 200, id="told one byte too few for all"),
    ],
)
def test_place_experts(room: int, at_most: int | None, num_resident: int, staging_bytes: int) -> None:
    placement = place_experts(EXPERTS, room, at_most=at_most)
    assert (placement.num_resident, placement.staging_bytes) == (num_resident, staging_bytes)
    assert placement.is_resident == (num_resident == 32)
    assert placement.host_bytes == (32 - num_resident) * 100


def test_residents_are_spread_evenly() -> None:
    placement = place_experts(EXPERTS, 5000, at_most=1400)
    assert [placement.resident_of(row) for row in range(4)] == [4, 4, 3, 3]


def test_a_cache_has_as_many_slots_in_each_layer_and_buffers_for_a_whole_one() -> None:
    placement = place_experts(EXPERTS, 1 << 20, at_most=2399, cached=True)
    assert (placement.num_resident, placement.staging_bytes, placement.host_bytes) == (20, 1600, 3200)
    least = place_experts(EXPERTS, 0, cached=True)
    assert least.num_resident == 4 * MIN_SLOTS
    most = place_experts(EXPERTS, 1 << 20, at_most=3199, cached=True)
    assert most.num_resident == 28


def test_prefill_that_copies_whole_layers_has_a_piece_more() -> None:
    many = ExpertBytes(num_layers=2, num_experts=64, blob_bytes=100)
    few, more = (place_experts(many, 1 << 20, at_most=at_most, cached=True) for at_most in (1000, 1200))
    assert (few.num_resident, few.staging_bytes) == (2 * 5, (2 * 64 + PIECE) * 100)
    assert (more.num_resident, more.staging_bytes) == (2 * 6, 2 * 64 * 100)
