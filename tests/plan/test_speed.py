"""The bound on decoding against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.plan.parts import weight_parts
from strata.plan.speed import (
    SYNC_SECONDS,
    Rates,
    Shares,
    StepBytes,
    StepTime,
    distinct_experts,
    kv_read_bytes,
    multiplications_per_token,
    prefill_roofline,
    roofline,
    step_bytes,
)
from strata.plan.states import state_bytes
from tests.plan.configs import hybrid, public

GB = 1e9
DESKTOP = Rates(device=936 * GB, pcie=12 * GB, cpu=60 * GB, dram=60 * GB, disk=3 * GB)
STEP = StepBytes(weights=2.3 * GB, experts=1.25 * GB, kv=0.0, num_seqs=1, sync_layers=48)


@pytest.mark.parametrize(
    ("rates", "shares", "seconds"),
    [
        pytest.param(DESKTOP, Shares(), (2.3 + 1.25) / 936, id="all in VRAM: nothing for the offload machinery"),
        pytest.param(
            replace(DESKTOP, cpu=0.0),
            Shares(vram=0, ram=1),
            2.3 / 936 + 1.25 / 12,
            id="every miss over PCIe 3.0: about 10 tok/s on 125B, whatever the software does",
        ),
        pytest.param(
            DESKTOP,
            Shares(vram=0, ram=1),
            2.3 / 936 + 1.25 / 60 + 48 * SYNC_SECONDS,
            id="both legs read one memory: 60, not 72",
        ),
        pytest.param(
            replace(DESKTOP, cpu=30 * GB),
            Shares(vram=0.5, ram=0.5),
            (2.3 + 0.625) / 936 + 0.625 / 42 + 48 * SYNC_SECONDS,
            id="the legs add up below the memory's rate",
        ),
        pytest.param(
            replace(DESKTOP, cpu=0.0),
            Shares(vram=0.5, ram=0.25, disk=0.25),
            (2.3 + 0.625) / 936 + 0.3125 / 12 + 0.3125 / 3,
            id="what RAM does not hold comes from disk",
        ),
    ],
)
def test_seconds_of_a_step(rates: Rates, shares: Shares, seconds: float) -> None:
    line = roofline(STEP, rates, shares)
    assert sum(line.seconds.values()) == pytest.approx(seconds)
    assert line.tokens_per_second == pytest.approx(1 / seconds)


def test_the_largest_term_is_the_limit() -> None:
    assert roofline(STEP, DESKTOP).limit == "device memory"
    assert roofline(STEP, DESKTOP, Shares(0.5, 0.5)).limit == "experts from host memory"
    assert roofline(STEP, DESKTOP, Shares(0.5, 0.25, 0.25)).limit == "experts from disk"


def test_a_rate_that_is_missing_gives_no_speed() -> None:
    assert roofline(STEP, replace(DESKTOP, disk=0.0), Shares(0.5, 0.25, 0.25)).tokens_per_second == 0


@pytest.mark.parametrize(
    ("card_gbps", "published"),
    [(936, 141), (1008, 196)],
)
def test_public_figures_of_qwen3_30b_stay_below_the_bound(card_gbps: float, published: float) -> None:
    """Qwen3-30B-A3B at 4 bits wholly in an RTX 3090 and 4090."""
    model = public("qwen3-30b-a3b")
    step = step_bytes(model, weight_parts(model, "int4"), context=1024)
    bound = roofline(step, Rates(device=card_gbps * GB)).tokens_per_second
    assert published < bound < 4 * published


def test_sequences_share_weights_and_experts_but_not_their_cache() -> None:
    model = public("qwen3-30b-a3b")
    parts = weight_parts(model, "int4")
    one, many = (step_bytes(model, parts, context=1024, num_seqs=n) for n in (1, 32))
    assert many.weights == one.weights == parts.shared_per_token
    assert many.kv == 32 * one.kv == 32 * 1024 * 2 * 48 * 4 * 128 * 2
    assert one.experts == pytest.approx(parts.experts_per_token_bytes)
    assert one.experts < many.experts < 32 * one.experts


def test_distinct_experts() -> None:
    assert distinct_experts(128, 8, 1) == pytest.approx(8)
    assert distinct_experts(128, 8, 2) == pytest.approx(8 + 8 * 120 / 128)  # the second's, less those that are the same
    assert distinct_experts(128, 8, 10_000) == pytest.approx(128)


def test_a_window_bounds_what_its_layer_reads() -> None:
    model = public("gpt-oss-120b")  # every second layer sees 128 tokens
    per_position = 2 * 8 * 64 * 2
    assert kv_read_bytes(model, 100, 2) == 36 * 100 * per_position
    assert kv_read_bytes(model, 4096, 2) == 18 * (4096 + 128) * per_position


def test_an_indexer_reads_all_groups_and_the_tokens_that_it_chooses() -> None:
    model = public("qwen3.8-flash-next")
    per_token, per_group = 2 * 2 * 256 * 2, 128 * 2
    assert kv_read_bytes(model, 1002, 2) == 12 * (1002 * per_token + 250 * per_group)
    assert kv_read_bytes(model, 100_003, 2) == 12 * ((2048 + 3) * per_token + 25_000 * per_group)


def test_a_state_is_read_and_written_and_keys_and_values_are_of_the_other_layers() -> None:
    model = hybrid()
    state = 27 * ((2 * 8 * 128 + 16 * 128) * 4 * 2 + 16 * 128 * 128 * 4)
    assert state_bytes(model, 2) == state
    assert kv_read_bytes(model, 1000, 2) == 9 * 1000 * 2 * 8 * 128 * 2
    parts = weight_parts(model, "int4")
    short, long = (step_bytes(model, parts, context=context, num_seqs=4) for context in (0, 1000))
    assert short.kv == 4 * 2 * state
    assert long.kv - short.kv == 4 * kv_read_bytes(model, 1000, 2)


def test_products_bound_a_long_prompt_memory_a_short_one_and_pcie_what_vram_has_not() -> None:
    model = public("qwen3-30b-a3b")
    parts = weight_parts(model, "int4")
    rates = Rates(device=4e12, pcie=50e9, flops=600e12)

    def bound(tokens: int, chunk: int, vram: float = 1.0) -> StepTime:
        return prefill_roofline(model, parts, rates, tokens=tokens, chunk_tokens=chunk, vram=vram)

    products = 600e12 / (2 * multiplications_per_token(model))
    assert bound(100_000, 100_000).tokens_per_second == pytest.approx(products)
    short = bound(20, 2048)
    assert (short.limit, short.seconds["experts over PCIe"]) == ("device memory", 0.0)
    assert bound(40, 20).tokens_per_second == pytest.approx(short.tokens_per_second), "every chunk reads the weights"
    offloaded = bound(8192, 8192, 0.25)
    assert offloaded.limit == "experts over PCIe"
    assert offloaded.tokens_per_second == pytest.approx(8192 / (0.75 * parts.experts / 50e9))


def test_a_token_is_multiplied_with_the_experts_that_it_takes() -> None:
    attention = 2048 * 128 * (32 + 4 + 4) + 2048 * 128 * 32
    experts = 8 * 3 * 2048 * 768 + 128 * 2048
    assert multiplications_per_token(public("qwen3-30b-a3b")) == 48 * (attention + experts)
