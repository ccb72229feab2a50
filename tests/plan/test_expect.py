"""What a step is expected to take, against steps that were measured on one card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.config import ModelConfig
from strata.plan.cards import CARDS, usual
from strata.plan.expect import Place, expect_decode, expect_prefill
from strata.plan.parts import weight_parts
from strata.plan.speed import Rates, StepTime, roofline, step_bytes
from strata.plan.states import state_bytes
from tests.plan.configs import hybrid, public

HOST = Rates(device=0.0, pcie=55e9, cpu=105e9, dram=160e9)
H200 = usual(CARDS["h200"].rates(HOST))
CONTEXT = 576  # the middle of 128 tokens after 512


WHOLE = Place()


def decode(name: str, *, num_seqs: int = 1, place: Place = WHOLE, rates: Rates = H200) -> StepTime:
    model = public(name)
    return expect_decode(model, weight_parts(model, "int4"), rates, context=CONTEXT, num_seqs=num_seqs, place=place)


def prefill(model: ModelConfig, tokens: int, chunk: int | None = None, place: Place = WHOLE) -> StepTime:
    parts = weight_parts(model, "int4")
    return expect_prefill(model, parts, H200, tokens=tokens, chunk_tokens=chunk or tokens, place=place)


@pytest.mark.parametrize(
    ("name", "num_seqs", "measured"),
    [("qwen3-8b", 1, 567), ("qwen3-8b", 32, 5565), ("qwen3-30b-a3b", 1, 744), ("qwen3-30b-a3b", 32, 2522)],
)
def test_measured_decode_steps_are_expected_so(name: str, num_seqs: int, measured: float) -> None:
    """int4 behind prompts of 512 tokens (NVIDIA H200, 2026-11-30)."""
    assert 0.8 <= decode(name, num_seqs=num_seqs).tokens_per_second / measured <= 1.25


@pytest.mark.parametrize(("vram", "measured"), [(0.0, 109.5), (0.5, 157)], ids=["none in VRAM", "half of them"])
def test_measured_steps_with_missing_experts_are_expected_so(vram: float, measured: float) -> None:
    """int4, one sequence (the same card; half: the median of six runs on four hosts)."""
    assert 0.8 <= decode("qwen3-30b-a3b", place=Place(vram)).tokens_per_second / measured <= 1.25


def test_what_a_step_finds_in_vram_decides_and_not_what_lies_there() -> None:
    def missing(place: Place) -> float:
        return decode("qwen3-30b-a3b", place=place).seconds["missing experts"]

    assert missing(Place(0.25, hits=0.5)) == pytest.approx(missing(Place(0.5)), rel=0.1)
    assert missing(Place(0.25, hits=1.0)) == 0 < missing(Place(0.25, hits=0.99)) < missing(Place(0.25))


@pytest.mark.parametrize(
    ("place", "measured"),
    [
        pytest.param(Place(0.5, "cpu", 0.740, 0.236), 157, id="half of them in VRAM, the CPU computes the others"),
        pytest.param(Place(0.5, "auto", 0.740, 0.236), 157, id="half of them, as a start chose"),
        pytest.param(Place(0.5, "fetch", 0.744, 0.236), 91, id="half of them, all others fetched"),
        pytest.param(Place(0.0, "cpu", 0.277, 0.246), 103, id="none, the CPU computes the others"),
        pytest.param(Place(0.0, "fetch", 0.277, 0.246), 93, id="none, all fetched"),
    ],
)
def test_measured_steps_with_guesses_are_expected_so(place: Place, measured: float) -> None:
    """int4, one sequence (the same card): guesses bring a quarter of what a step needs, and take PCIe for it."""
    assert 0.8 <= decode("qwen3-30b-a3b", place=place).tokens_per_second / measured <= 1.25


def test_a_measured_prompt_is_expected_so() -> None:
    """2,048 tokens of Qwen3-30B-A3B in int4 (the same card)."""
    assert 0.8 <= prefill(public("qwen3-30b-a3b"), 2048).tokens_per_second / 40_800 <= 1.25


@pytest.mark.parametrize(
    ("place", "share", "rate"),
    [(Place(0.0), 1.0, 1.0), (Place(0.5), 0.5, 0.83)],
    ids=["whole layers by the copy engine", "half of them by a kernel"],
)
def test_prompts_wait_for_pcie_where_experts_are_beyond_vram(place: Place, share: float, rate: float) -> None:
    model = public("qwen3-30b-a3b")
    seconds = share * weight_parts(model, "int4").experts / (rate * 55e9)
    assert 1.0 <= 2048 / prefill(model, 2048, place=place).tokens_per_second / seconds <= 1.05


@pytest.mark.parametrize("card", CARDS)
def test_no_card_is_expected_to_beat_its_bound(card: str) -> None:
    model, rates = public("qwen3-30b-a3b"), CARDS[card].rates(HOST)
    parts = weight_parts(model, "int4")
    for num_seqs in (1, 4, 8, 32, 256):
        at_most = roofline(step_bytes(model, parts, context=CONTEXT, num_seqs=num_seqs), rates)
        found = decode("qwen3-30b-a3b", num_seqs=num_seqs, rates=usual(rates))
        assert found.tokens_per_second < at_most.tokens_per_second, num_seqs


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"device": 2e12}, "dense products"),
        ({"device": 2e12}, "attention"),
        ({"cycles": 1e11}, "experts"),
        ({"overlaps": False}, "launches"),
        ({"pcie": 20e9}, "missing experts"),
        ({"cpu": 20e9}, "missing experts"),
        ({"dram": 80e9}, "missing experts"),
    ],
)
def test_a_slower_card_or_host_takes_longer_for_what_it_does(change: dict[str, float], part: str) -> None:
    place = Place(0.5)
    plain = decode("qwen3-30b-a3b", place=place)
    slower = decode("qwen3-30b-a3b", place=place, rates=replace(H200, **change))  # type: ignore[arg-type]
    assert slower.seconds[part] > plain.seconds[part]
    assert slower.tokens_per_second < plain.tokens_per_second


def test_products_of_many_rows_wait_for_arithmetic() -> None:
    slow = replace(H200, flops=100e12)
    assert decode("qwen3-8b", rates=slow).seconds == decode("qwen3-8b").seconds
    for num_seqs in (32, 256):
        found, plain = (decode("qwen3-8b", num_seqs=num_seqs, rates=rates) for rates in (slow, H200))
        assert found.seconds["dense products"] > plain.seconds["dense products"], num_seqs


def test_a_tier_that_is_not_used_costs_nothing() -> None:
    assert decode("qwen3-30b-a3b", place=Place(1.0, placement="cpu")).seconds == decode("qwen3-30b-a3b").seconds
    assert "missing experts" not in decode("qwen3-30b-a3b").seconds


def test_both_ways_at_once_beat_each_alone_and_more_vram_beats_less() -> None:
    def speed(vram: float, way: str = "auto") -> float:
        return decode("qwen3-30b-a3b", place=Place(vram, placement=way)).tokens_per_second

    for vram in (0.0, 0.5):
        assert speed(vram) > max(speed(vram, "cpu"), speed(vram, "fetch")), vram
    speeds = [speed(vram) for vram in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)]
    assert speeds == sorted(speeds)


def test_host_memory_that_pcie_uses_up_leaves_the_cpu_none() -> None:
    """Then everything goes one way."""
    rates = replace(H200, dram=45e9)
    alone = decode("qwen3-30b-a3b", place=Place(0.0, placement="cpu"), rates=rates)
    best = decode("qwen3-30b-a3b", place=Place(0.0), rates=rates)
    assert best.tokens_per_second == alone.tokens_per_second > 0


def test_no_more_is_fetched_than_there_are_slots_for() -> None:
    """With none in VRAM a layer has four slots of its eight experts: the CPU computes the others."""
    place = Place(0.0, placement="fetch")
    slow, fast = (decode("qwen3-30b-a3b", place=place, rates=replace(H200, pcie=pcie)) for pcie in (55e9, 1e15))
    assert fast.tokens_per_second < 1.25 * slow.tokens_per_second


def test_missing_experts_come_one_by_one_or_as_chosen_or_all_at_once() -> None:
    def missing(num_seqs: int, vram: float = 0.5, hits: float | None = None) -> float:
        place = Place(vram, hits=hits)
        return decode("qwen3-30b-a3b", num_seqs=num_seqs, place=place).seconds["missing experts"]

    model = public("qwen3-30b-a3b")
    whole = weight_parts(model, "int4").experts
    assert missing(64) > 0.9 * 0.5 * whole / 55e9 > 2 * missing(1), "a whole layer at a time"
    for num_seqs, taken in ((17, 0.666), (24, 0.787)):  # 1 - (1 - 8/128)^n
        assert missing(num_seqs) == pytest.approx(0.5 * taken * whole / 48.4e9, rel=0.01), num_seqs
        assert missing(num_seqs, 0.0) == pytest.approx(124 / 128 * taken * whole / 48.4e9, rel=0.01), num_seqs
    assert missing(17, hits=0.75) == pytest.approx(missing(17) / 2)


def test_chunks_read_the_weights_again_and_windows_shorten_attention() -> None:
    model = public("qwen3-30b-a3b")
    whole, chunks = prefill(model, 4096), prefill(model, 4096, 1024)
    assert chunks.seconds["attention"] == pytest.approx(whole.seconds["attention"])
    assert chunks.seconds["head"] == whole.seconds["head"], "only the last chunk has a token"
    assert chunks.seconds["experts"] > 1.5 * whole.seconds["experts"]
    gpt_oss = public("gpt-oss-120b")  # every second layer sees 128 tokens
    every = replace(gpt_oss, windows=(None,) * gpt_oss.num_layers)
    assert prefill(gpt_oss, 4096).seconds["attention"] < 0.6 * prefill(every, 4096).seconds["attention"]


def test_experts_behind_a_link_that_is_not_there_never_come() -> None:
    for num_seqs in (1, 32):
        rates = replace(H200, pcie=0.0, cpu=0.0)
        assert decode("qwen3-30b-a3b", num_seqs=num_seqs, place=Place(0.5), rates=rates).tokens_per_second == 0


def test_states_take_as_long_at_any_context_and_longer_for_more_sequences() -> None:
    model, plain = hybrid(), public("qwen3-8b")
    parts = weight_parts(plain, "int4")

    def attention(model: ModelConfig, context: int, num_seqs: int = 1) -> float:
        return expect_decode(model, parts, H200, context=context, num_seqs=num_seqs).seconds["attention"]

    states = attention(model, 0)
    assert states == pytest.approx(2 * state_bytes(model, 2) / (0.75 * H200.device))
    assert attention(model, 0, num_seqs=8) == pytest.approx(8 * states)
    assert attention(model, 4096) - states == pytest.approx(attention(plain, 4096) / 4)


def test_a_prompt_s_linear_attention_grows_with_its_tokens_alone() -> None:
    model = hybrid()
    model = replace(model, linear_layers=(True,) * model.num_layers)
    short, long = (prefill(model, tokens, chunk=1024).seconds["attention"] for tokens in (2048, 8192))
    assert long == pytest.approx(4 * short)
