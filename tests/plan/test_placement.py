"""How many experts a card holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.config import EngineConfig, ModelConfig, SchedulerConfig
from strata.plan.memory import DeviceMemory, size_memory, workspace_bytes
from strata.plan.parts import weight_parts
from strata.plan.placement import MIN_SLOTS, PIECE, ExpertBytes, max_chosen_tokens, place_experts, plan_experts
from strata.plan.rank import Rank
from strata.plan.speed import distinct_experts
from strata.plan.states import state_bytes
from tests.plan.configs import hybrid, public

EXPERTS = ExpertBytes(num_layers=4, num_experts=8, blob_bytes=100)  # 3,200 bytes, 800 a layer


@pytest.mark.parametrize(
    ("room", "at_most", "num_resident", "staging_bytes"),
    [
        pytest.param(3200, None, 32, 0, id="all fit: nothing is staged"),
        pytest.param(3199, None, 16, 1600, id="one byte too few: two buffers for a layer each"),
        pytest.param(0, None, 16, 1600, id="no room: the fewest, and plan_memory says what is missing"),
        pytest.param(3600, None, 32, 0, id="more than all"),
        pytest.param(5000, 2399, 20, 1600, id="as told, as many in each layer"),
        pytest.param(5000, 0, 16, 1600, id="none as told: the fewest"),
        pytest.param(5000, 3200, 32, 0, id="told enough for all"),
        pytest.param(5000, 3199, 28, 1600, id="told one byte too few for all"),
    ],
)
def test_place_experts(room: int, at_most: int | None, num_resident: int, staging_bytes: int) -> None:
    placement = place_experts(EXPERTS, room, at_most=at_most)
    assert (placement.num_resident, placement.staging_bytes) == (num_resident, staging_bytes)
    assert placement.is_resident == (num_resident == 32)
    assert placement.host_bytes == (0 if placement.is_resident else 3200)


def test_what_stays_in_slots_needs_no_host_memory() -> None:
    assert MIN_SLOTS == 4
    for at_most, host_bytes in ((0, 3200), (2399, 2800), (3199, 2000), (3200, 0)):
        assert place_experts(EXPERTS, 5000, at_most=at_most).least_host_bytes == host_bytes, at_most


def test_prefill_that_copies_whole_layers_has_a_piece_more() -> None:
    many = ExpertBytes(num_layers=2, num_experts=64, blob_bytes=100)
    few, more = (place_experts(many, 1 << 20, at_most=at_most) for at_most in (1000, 1200))
    assert (few.num_resident, few.staging_bytes) == (2 * 5, (2 * 64 + 2 * PIECE) * 100)
    assert (more.num_resident, more.staging_bytes) == (2 * 6, 2 * 64 * 100)


def test_states_leave_less_room_for_experts() -> None:
    plain = public("qwen3-30b-a3b")
    model = replace(plain, linear_attention=hybrid().linear_attention, linear_layers=(True,) + (False,) * 47)
    card, parts = DeviceMemory("cuda", 12 << 30, 12 << 30), weight_parts(plain, "int4")
    experts = ExpertBytes(48, 128, int(parts.expert))
    config = EngineConfig(model="m", scheduler=SchedulerConfig(max_num_seqs=512, max_num_batched_tokens=512))

    def resident(model: ModelConfig) -> int:
        return plan_experts(
            model, config, memory=card, experts=experts, shared_bytes=int(parts.shared), element_bytes=2
        ).num_resident

    workspaces = [workspace_bytes(one, config, 2, "cuda") for one in (plain, model)]
    lost = 512 * state_bytes(model, 2) + workspaces[1] - workspaces[0]
    assert (resident(plain) - resident(model)) * parts.expert == pytest.approx(lost, abs=2 * 48 * parts.expert)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_cards_share_the_experts_and_their_bytes(count: int) -> None:
    """Of gpt-oss-120b on cards of 40 GiB: one holds a part, of several each holds all of its own."""
    model, memory = public("gpt-oss-120b"), DeviceMemory("cuda", 40 << 30, 40 << 30)
    parts, layers = weight_parts(model, "int4"), sum(model.expert_layers)
    experts = ExpertBytes(layers, parts.num_experts // layers, int(parts.expert))
    config = EngineConfig("m", dtype="int4", scheduler=SchedulerConfig(max_model_len=8192, max_num_seqs=1))
    shared = int(parts.shared)
    placed = [
        plan_experts(
            model, config, memory=memory, experts=experts, shared_bytes=shared, element_bytes=2, rank=Rank(index, count)
        )
        for index in range(count)
    ]
    own = [each.experts.num_experts for each in placed]
    assert (sum(own), max(own) - min(own) <= 1) == (experts.num_experts, True)
    assert sum(each.experts.num_bytes for each in placed) == experts.num_bytes
    assert [each.is_resident for each in placed] == [count > 1] * count
    assert sum(each.host_bytes for each in placed) == (experts.num_bytes if count == 1 else 0)
    for each in placed:
        assert each.vram_bytes + shared < memory.capacity_bytes(config.device.gpu_memory_utilization)


@pytest.mark.parametrize("count", [2, 3])
def test_cards_that_hold_a_part_of_their_own_need_host_memory_for_these_alone(count: int) -> None:
    own = [EXPERTS.own(Rank(index, count)) for index in range(count)]
    placed = [place_experts(each, 0) for each in own]
    assert [each.num_resident // EXPERTS.num_layers for each in placed] == [min(4, one.num_experts - 1) for one in own]
    assert [each.staging_bytes for each in placed] == [2 * one.layer_bytes for one in own]
    assert [each.host_bytes for each in placed] == [one.num_bytes for one in own]
    assert sum(one.num_bytes for one in own) == EXPERTS.num_bytes


@pytest.mark.parametrize(
    ("num_experts", "top_k", "num_slots", "tokens"),
    [
        pytest.param(128, 8, 64, 37, id="half in VRAM: 37 tokens of 8 take 0.9 of the others"),
        pytest.param(128, 8, 4, 30, id="none: all would come by the copy engine, which is faster"),
        pytest.param(512, 10, 64, 151, id="many experts: a token takes a small part"),
        pytest.param(128, 8, 121, 3, id="little is missing: the layer's own time counts"),
        pytest.param(128, 8, 127, 0, id="next to nothing is missing"),
        pytest.param(8, 2, 4, 8, id="few experts: a step of 17 tokens takes all"),
        pytest.param(8, 8, 4, 0, id="every token takes all"),
    ],
)
def test_so_many_tokens_have_only_what_they_take_brought(
    num_experts: int, top_k: int, num_slots: int, tokens: int
) -> None:
    assert max_chosen_tokens(num_experts, top_k, num_slots) == tokens


@pytest.mark.parametrize("num_slots", [4, 12, 64, 100])
def test_what_is_taken_pays_as_far_as_that_and_no_further(num_slots: int) -> None:
    """In seconds, of experts of 2.7 MB: PCIe moves 55 GB/s, a kernel reads 48.4, the layer's own time is 0.3 ms."""
    size, missing = 2.7e6, 1 - num_slots / 128
    ahead = 128 * size / 55e9 if num_slots < 11 else missing * 128 * size / 48.4e9
    pays = [
        missing * distinct_experts(128, 8, tokens) * size / 48.4e9 + 0.05 * 128 * size / 55e9 < ahead
        for tokens in range(1, 100)
    ]
    assert pays == sorted(pays, reverse=True)
    assert max_chosen_tokens(128, 8, num_slots) == sum(pays) > 0


@pytest.mark.parametrize(
    ("name", "gib", "asked", "step_tokens"),
    [
        pytest.param("qwen3-30b-a3b", 24, None, None, id="all fit: steps are as they suit the card"),
        pytest.param("qwen3-30b-a3b", 16, None, 2048, id="a third comes over PCIe"),
        pytest.param("gpt-oss-120b", 24, None, 8192, id="most come"),
        pytest.param("gpt-oss-120b", 12, None, 8192, id="on a small card, too"),
        pytest.param("gpt-oss-120b", 24, 512, 512, id="as asked for"),
    ],
)
def test_steps_are_worth_what_they_bring(name: str, gib: int, asked: int | None, step_tokens: int | None) -> None:
    model, memory = public(name), DeviceMemory("cuda", gib << 30, gib << 30)
    scheduler = SchedulerConfig(max_model_len=8192, max_num_seqs=1, max_num_batched_tokens=asked)
    config, parts = EngineConfig("m", dtype="int4", scheduler=scheduler), weight_parts(model, "int4")
    layers = sum(model.expert_layers)
    experts = ExpertBytes(layers, parts.num_experts // layers, int(parts.expert))
    shared = int(parts.shared)
    placed = plan_experts(model, config, memory=memory, experts=experts, shared_bytes=shared, element_bytes=2)
    assert placed.step_tokens == step_tokens
    plan = size_memory(model, placed.settle(config), memory, shared + placed.vram_bytes, 2)
    assert plan.fits
    assert plan.step_tokens == (step_tokens or 2048)
