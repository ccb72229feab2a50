"""Who gets which bytes, and what is said when they do not suffice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata.config import CacheConfig, EngineConfig, ExpertsConfig, ModelConfig, RopeConfig, SchedulerConfig
from strata.errors import HardwareError, OptionError
from strata.kernels.attention import sdpa
from strata.kernels.linear import reference as linear
from strata.plan import memory
from strata.plan.memory import (
    CPU_KV_SHARE,
    MAX_GATHERED_POSITIONS,
    MemoryPlan,
    budget_table,
    format_bytes,
    gathered_positions,
    kv_token_bytes,
    plan_memory,
    workspace_bytes,
)

MIB = 1 << 20
MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_position_embeddings=1000,
    rope=RopeConfig(),
    tie_word_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    attention_sinks=False,
    windows=(None,) * 4,
    experts=None,
    expert_layers=(False,) * 4,
    swiglu_limit=None,
    eos_token_ids=(),
)
TOKEN = 2 * 4 * 2 * 16 * 2  # bytes of a token's keys and values in bf16
SEQUENCE = 1008  # tokens of one whole sequence in blocks of 16


def config(*, max_num_seqs: int = 4, max_model_len: int | None = None, **cache: Any) -> EngineConfig:
    scheduler = SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len)
    return EngineConfig(model="m", cache=CacheConfig(**cache), scheduler=scheduler)


def plan(left: int, engine: EngineConfig, device: str = "cuda") -> MemoryPlan:
    """The plan for a device where ``left`` bytes are left beside weights of 5 MiB and the workspace."""
    capacity = 5 * MIB + workspace_bytes(MODEL, engine, 2) + left
    return plan_memory(MODEL, engine, device=device, capacity_bytes=capacity, weight_bytes=5 * MIB, element_bytes=2)


def test_kv_token_bytes() -> None:
    assert kv_token_bytes(MODEL, 2) == TOKEN


def test_a_card_gives_all_that_is_left() -> None:
    found = plan(2 * SEQUENCE * TOKEN + 5, config())
    assert (found.num_kv_tokens, found.free_bytes) == (2 * SEQUENCE, 5)


def test_a_cpu_gives_its_share() -> None:
    assert plan(int(3 * SEQUENCE * TOKEN / CPU_KV_SHARE), config(), "cpu").num_kv_tokens == 3 * SEQUENCE


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_more_than_the_sequences_can_fill(device: str) -> None:
    assert plan(1 << 40, config(max_num_seqs=3), device).num_kv_tokens == 3 * SEQUENCE


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_sequence_that_just_fits(device: str) -> None:
    found = plan(SEQUENCE * TOKEN, config(), device)
    assert (found.num_kv_tokens, found.free_bytes) == (SEQUENCE, 0)


def test_tokens_that_are_asked_for_are_given() -> None:
    assert plan(1 << 40, config(num_kv_tokens=1500, block_size=32)).num_kv_tokens == 1504


def test_shorter_sequences_need_less() -> None:
    assert plan(112 * TOKEN, config(max_model_len=100)).num_kv_tokens == 112


def test_one_sequence_that_does_not_fit_says_what_would() -> None:
    engine = config()
    with pytest.raises(HardwareError) as caught:
        plan(500 * TOKEN, engine)
    message = str(caught.value)
    assert "cuda has not the memory for one sequence of max_model_len 1000: 504.0 KiB are needed" in message
    assert "weights take 5.0 MiB" in message
    assert "leaves 250.0 KiB" in message
    assert "Set max_model_len to 496 or less, or raise gpu_memory_utilization above 0.9" in message
    assert plan(500 * TOKEN, config(max_model_len=496)).num_kv_tokens == 496, "the advice is sound"


def test_weights_that_do_not_fit_ask_for_a_smaller_dtype() -> None:
    with pytest.raises(HardwareError, match=r"leaves 0 B\. Set a smaller dtype, or give the process 1\.5 MiB more"):
        plan(SEQUENCE * TOKEN - int(1.5 * MIB), config(), "cpu")


def test_more_tokens_than_fit() -> None:
    with pytest.raises(HardwareError, match=r"for 4000 tokens of KV cache.*Set num_kv_tokens to 3008 or less"):
        plan(3010 * TOKEN, config(num_kv_tokens=4000))


def test_fewer_tokens_than_one_sequence() -> None:
    with pytest.raises(
        OptionError, match=r"num_kv_tokens is 64.*set num_kv_tokens to 1008 or more, or max_model_len to 64"
    ):
        plan(1 << 40, config(num_kv_tokens=64))


@pytest.mark.parametrize("length", [0, -5, 1001])
def test_model_length_out_of_range(length: int) -> None:
    with pytest.raises(OptionError, match=f"max_model_len is {length}; .* reach 1000"):
        plan(1 << 40, config(max_model_len=length))


def test_the_workspace_holds_the_logits() -> None:
    small, large = (workspace_bytes(replace(MODEL, vocab_size=v), config(max_num_seqs=7), 2) for v in (1000, 2000))
    assert large - small >= 7 * 1000 * 4


@pytest.mark.parametrize(
    ("length", "seqs", "expected"),
    [
        pytest.param(1000, 1, 1008, id="one sequence, in whole blocks"),
        pytest.param(1000, 4, 4032, id="all of a few sequences"),
        pytest.param(1000, 256, MAX_GATHERED_POSITIONS, id="what is gathered together has a bound"),
        pytest.param(100_000, 256, 100_000, id="a sequence that is longer"),
    ],
)
def test_the_workspace_holds_what_a_call_gathers(length: int, seqs: int, expected: int) -> None:
    assert gathered_positions(length, seqs, 16) == expected
    model, engine = replace(MODEL, max_position_embeddings=length), config(max_num_seqs=seqs)
    assert workspace_bytes(model, engine, 2) > expected * TOKEN // MODEL.num_layers


def test_bounds_are_those_of_the_kernels() -> None:
    assert memory.MAX_DEQUANTIZED == linear.MAX_DEQUANTIZED
    assert memory.SINK_DIMS == sdpa.SINK_DIMS


EXPERTS = ExpertsConfig(
    num_experts=8,
    num_experts_per_tok=3,
    intermediate_size=32,
    shared_intermediate_size=0,
    norm_topk_prob=True,
    router_bias=False,
    bias=False,
)


def test_the_workspace_holds_every_token_once_for_each_of_its_experts() -> None:
    small, large = (
        workspace_bytes(
            replace(MODEL, experts=replace(EXPERTS, num_experts_per_tok=k), expert_layers=(True,) * 4), config(), 2
        )
        for k in (3, 6)
    )
    assert large - small >= 3 * 512 * 2 * MODEL.hidden_size * 2


def test_a_window_needs_a_mask_of_its_own() -> None:
    engine = config()
    plain = workspace_bytes(MODEL, engine, 2)
    everywhere = workspace_bytes(replace(MODEL, windows=(100,) * 4), engine, 2)
    alternating = workspace_bytes(replace(MODEL, windows=(100, None) * 2), engine, 2)
    mask = 512 * (100 + 512 + 16) * 2
    assert everywhere < plain
    assert alternating == plain + mask


def test_sinks_double_what_is_gathered() -> None:
    engine = config()
    plain, sinks = (workspace_bytes(replace(MODEL, attention_sinks=has), engine, 2) for has in (False, True))
    pages = 2 * gathered_positions(1000, 4, 16) * MODEL.num_kv_heads
    assert sinks - plain >= pages * (MODEL.head_dim + 8) * 2


def test_budget_table_adds_up() -> None:
    found = plan(2 * SEQUENCE * TOKEN + 3 * 1024, config())
    table = "\n".join(budget_table(found))
    assert "weights        5.0 MiB" in table
    assert "KV cache    1008.0 KiB  2016 tokens in blocks of 16; 2.0 sequences of 1000" in table
    assert "free           3.0 KiB" in table
    assert found.weight_bytes + found.kv_bytes + found.workspace_bytes + found.free_bytes == found.capacity_bytes


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 41, "6144.0 GiB")])
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
