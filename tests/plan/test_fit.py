"""Where public models lie on public cards, and what is said when they do not fit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from strata.config import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from strata.errors import HardwareError, OptionError
from strata.plan.budget import plan_memory
from strata.plan.cards import CARDS, find_card, pcie_gbps
from strata.plan.estimate import estimate
from strata.plan.fit import HOST_SHARE, Fit, Machine, fit
from strata.plan.memory import PROCESS_BYTES, DeviceMemory, MemoryPlan, kv_token_bytes
from strata.plan.parts import loaded_parts
from strata.plan.placement import MIN_SLOTS
from strata.plan.speed import Rates, Shares
from strata.plan.states import state_bytes
from strata.plan.tables import fit_table, parts_table
from tests.plan.configs import hybrid, public

GIB = 1 << 30
RATES = Rates(device=936e9, pcie=12e9, cpu=60e9, dram=60e9, disk=3e9)


def settings(max_model_len: int | None = 8192, num_seqs: int = 1) -> EngineConfig:
    return EngineConfig(
        model="m",
        dtype="int4",
        device=DeviceConfig(gpu_memory_utilization=0.9),
        scheduler=SchedulerConfig(max_model_len=max_model_len, max_num_seqs=num_seqs),
    )


def place(
    name: str, *, vram_gib: float | None = 24, ram_gib: float | None = None, config: EngineConfig | None = None
) -> Fit:
    machine = Machine(
        vram_bytes=None if vram_gib is None else int(vram_gib * GIB),
        ram_bytes=None if ram_gib is None else int(ram_gib * GIB),
        rates=RATES,
    )
    return fit(public(name), config or settings(), machine, element_bytes=2)


def test_a_model_that_fits_leaves_host_memory_alone() -> None:
    found = place("qwen3-30b-a3b")
    assert found.problem is None
    assert found.slots == found.parts.num_experts == 48 * 128
    assert (found.ram_experts, found.disk_experts) == (0, 0)
    assert found.shares == Shares(1, 0, 0)
    assert found.kv == 8192 * kv_token_bytes(public("qwen3-30b-a3b"), 2)
    assert (found.num_whole_seqs, found.shortage) == (1, None)
    assert (
        found.free == found.capacity - found.shared - found.kv - found.workspace - found.slots * found.parts.expert > 0
    )


def test_states_of_linear_attention_are_shown_beside_the_kv_cache() -> None:
    machine = Machine(vram_bytes=24 * GIB, ram_bytes=None, rates=RATES)
    found = estimate(hybrid(), settings(num_seqs=8), machine)
    placed = found.fit
    assert placed.states >= 9 * state_bytes(hybrid(), 2), "those of eight sequences, and one that is kept"
    taken = placed.shared + placed.kv + placed.states + placed.workspace
    assert placed.free == int(placed.capacity - taken)
    assert any(line.startswith("states of linear attention") for line in fit_table([found], on_card=True))
    assert any(line.startswith("states of linear attention: ") for line in parts_table(hybrid(), [found], on_card=True))
    plain = estimate(public("qwen3-8b"), settings(num_seqs=8), machine)
    assert plain.fit.states == 0
    assert not any("states" in line for line in fit_table([plain], on_card=True))


def test_what_a_card_has_left_takes_experts_and_the_host_holds_all() -> None:
    found = place("gpt-oss-120b", ram_gib=128)
    assert 0 < found.slots < found.parts.num_experts == found.ram_experts
    assert found.disk_experts == 0
    assert found.staging == 2 * 128 * found.parts.expert, "two layers pass through VRAM for a prompt"
    assert 0 <= found.free < 36 * found.parts.expert, "another expert of each layer would not fit"
    assert found.shares == Shares(found.slots / 4608, 1 - found.slots / 4608, 0)


def test_what_the_host_cannot_hold_stays_in_vram() -> None:
    found = place("gpt-oss-120b", ram_gib=56)
    assert found.ram_experts < 4608
    assert found.disk_experts == 0
    assert found.shares.vram + found.shares.ram == 1


def test_what_neither_can_hold_is_on_disk() -> None:
    found = place("gpt-oss-120b", ram_gib=32)
    assert found.ram_experts == int(32 * GIB * HOST_SHARE // found.parts.expert)
    fixed = 36 * (found.slots // 36 - MIN_SLOTS)
    assert found.ram_experts + fixed + found.disk_experts == 4608
    shares = found.shares
    assert shares.vram + shares.ram + shares.disk == pytest.approx(1)
    assert shares.disk == found.disk_experts / 4608, "VRAM never has them"


def test_a_cpu_reads_everything_from_its_memory() -> None:
    found = place("qwen3-30b-a3b", vram_gib=None, ram_gib=32)
    assert found.problem is None
    assert (found.slots, found.ram_experts) == (found.parts.num_experts, 0)
    assert found.capacity == 32 * GIB - PROCESS_BYTES
    assert found.store_bytes < found.shared + found.parts.experts, "its kernels keep more than the store"
    too_small = place("qwen3-30b-a3b", vram_gib=None, ram_gib=16)
    assert too_small.problem is not None
    assert too_small.problem.startswith("cpu has not the memory for one sequence of max_model_len 8192")


@pytest.mark.parametrize("vram_gib", [None, 24])
@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b"])
def test_what_fits_is_what_the_engine_serves(name: str, vram_gib: float | None) -> None:
    """From where nothing fits to where all sequences are whole; experts beyond a card are not served yet."""
    config, model = settings(num_seqs=16), public(name)
    device = "cpu" if vram_gib is None else "cuda"
    weight_bytes = math.ceil(loaded_parts(model, "int4", device).total)

    def served(memory: DeviceMemory) -> MemoryPlan | str:
        try:
            return plan_memory(model, config, memory=memory, weight_bytes=weight_bytes, element_bytes=2)
        except HardwareError as error:
            return str(error)

    outcomes = set()
    for size in (4, 5.5, 8, 16, 18, 20, 24, 40, 64):
        room = int(size * GIB) - (PROCESS_BYTES if vram_gib is None else 0)
        memory = DeviceMemory(device, room, room)
        found = place(name, vram_gib=vram_gib and size, ram_gib=size, config=config)
        plan = served(memory)
        if isinstance(plan, str):
            outcomes.add("nothing")
            assert found.problem == plan or (vram_gib and found.slots < found.parts.num_experts)
        else:
            outcomes.add("whole" if found.shortage is None else "some")
            assert found.problem is None
            assert found.slots == found.parts.num_experts
            assert (found.num_kv_tokens, found.capacity) == (plan.num_kv_tokens, plan.capacity_bytes)
    assert outcomes == {"nothing", "some", "whole"}


def fits_with(config: EngineConfig) -> bool:
    return place("qwen3-8b", config=config).shortage is None


def test_advice_names_the_largest_settings_with_which_all_sequences_are_whole() -> None:
    asked = settings(max_model_len=40960, num_seqs=8)
    shortage = place("qwen3-8b", config=asked).shortage
    assert shortage is not None
    match = re.search(r"All of them: max_model_len (\d+), or max_num_seqs (\d+), or more memory$", shortage)
    assert match is not None, shortage
    length, num_seqs = int(match[1]), int(match[2])

    def changed(**values: Any) -> EngineConfig:
        return replace(asked, scheduler=replace(asked.scheduler, **values))

    assert fits_with(changed(max_model_len=length))
    assert not fits_with(changed(max_model_len=length + 1))
    assert fits_with(changed(max_num_seqs=num_seqs))
    assert not fits_with(changed(max_num_seqs=num_seqs + 1))


def test_weights_that_do_not_fit_ask_for_another_dtype_or_more_memory() -> None:
    problem = place("qwen3-8b", vram_gib=4).problem
    assert problem is not None
    assert re.search(r"What fits: [\d.]+ GiB more for Strata on the card$", problem)
    problem = place("qwen3-8b", vram_gib=12, config=replace(settings(), dtype="bf16")).problem
    assert problem is not None
    assert "What fits: dtype int8, or " in problem


def test_more_context_than_the_checkpoint_has_is_refused() -> None:
    with pytest.raises(OptionError, match="40960"):
        place("qwen3-8b", config=settings(max_model_len=50_000))


# --- estimates: fit and speed together


def planned(model: ModelConfig, *, vram_gib: float, hit_share: float | None = None, rates: Rates = RATES) -> float:
    machine = Machine(int(vram_gib * GIB), None, rates)
    return estimate(model, settings(), machine, hit_share=hit_share).bounds[0].best.tokens_per_second


def test_more_vram_is_faster_until_everything_fits() -> None:
    model = public("qwen3-30b-a3b")
    speeds = [planned(model, vram_gib=size) for size in (6, 8, 16, 24, 48)]
    assert speeds == sorted(speeds)
    assert speeds[3] == speeds[4]


def test_a_better_hit_share_is_faster() -> None:
    model = public("gpt-oss-120b")
    assert planned(model, vram_gib=24, hit_share=0.9) > planned(model, vram_gib=24, hit_share=0.5)


def test_one_leg_is_slower_than_both() -> None:
    machine = Machine(24 * GIB, None, replace(RATES, cpu=30e9))
    for bound in estimate(public("gpt-oss-120b"), settings(), machine).bounds:
        assert bound.pcie_only is not None
        assert bound.cpu_only is not None
        assert bound.pcie_only.tokens_per_second < bound.cpu_only.tokens_per_second < bound.best.tokens_per_second


def test_no_more_sequences_decode_than_the_cache_holds() -> None:
    found = estimate(public("qwen3-8b"), settings(max_model_len=40960, num_seqs=8), Machine(24 * GIB, None, RATES))
    short, long = found.bounds
    assert (short.context, short.num_seqs) == (1024, 8)
    assert (long.context, long.num_seqs) == (40960, found.fit.num_whole_seqs)
    assert 1 <= long.num_seqs < 8


def test_no_bound_is_given_for_what_does_not_fit() -> None:
    machine = Machine(4 * GIB, None, RATES)
    found = estimate(public("qwen3-8b"), settings(), machine)
    assert found.fit.problem is not None
    assert found.bounds == ()


# --- names of cards and links


@pytest.mark.parametrize("name", ["rtx3090", "RTX 3090", "geforce-rtx-3090", "GeForce RTX 3090"])
def test_a_card_has_many_spellings(name: str) -> None:
    assert find_card(name) == CARDS["rtx3090"]


def test_an_unknown_card_lists_the_known() -> None:
    with pytest.raises(OptionError, match=r"'rtx3099' is not known; known: .*rtx3090.*rtx4090"):
        find_card("rtx3099")


@pytest.mark.parametrize(("link", "rate"), [("3.0x16", 12), ("4x8", 12.5), ("PCIe 5.0 x16", 50), ("3.0x4", 3)])
def test_links(link: str, rate: float) -> None:
    assert pcie_gbps(link) == rate


@pytest.mark.parametrize("link", ["", "x16", "3.0", "3.0x3", "7.0x16", "3.0x160"])
def test_a_link_that_does_not_exist(link: str) -> None:
    with pytest.raises(OptionError, match=r"e\.g\. 3\.0x16"):
        pcie_gbps(link)


def test_every_card_names_a_link_that_exists() -> None:
    for card in CARDS.values():
        assert pcie_gbps(card.pcie) > 0
