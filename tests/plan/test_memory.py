"""Who gets which bytes, and what is said when they do not suffice."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ExpertsConfig,
    LinearAttentionConfig,
    ModelConfig,
    RopeConfig,
    SchedulerConfig,
)
from strata.config.engine import BLOCK_SIZES, DTYPES, STATE_CACHE_SHARE
from strata.errors import HardwareError, OptionError
from strata.kernels.attention import sdpa, tuning
from strata.kernels.delta_rule import cpu, prefill
from strata.kernels.linear import reference as linear
from strata.plan import memory, states
from strata.plan.budget import budget_table, plan_memory
from strata.plan.memory import (
    ADJUSTED_BYTES,
    CPU_KV_SHARE,
    MAX_GATHERED_POSITIONS,
    DeviceMemory,
    MemoryPlan,
    advise,
    gathered_positions,
    kv_token_bytes,
    workspace_bytes,
)
from strata.plan.parts import loaded_parts
from strata.plan.states import max_draft, state_bytes
from strata.plan.units import format_bytes
from tests.plan.configs import public

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
    gated_attention=False,
    zero_centred_norms=False,
    windows=(None,) * 4,
    experts=None,
    expert_layers=(False,) * 4,
    linear_attention=None,
    linear_layers=(False,) * 4,
    hyper_connections=None,
    indexer=None,
    ngrams=None,
    ngram_conv_kernel_size=0,
    swiglu_limit=None,
    eos_token_ids=(),
)
TOKEN = 2 * 4 * 2 * 16 * 2  # bytes of a token's keys and values in bf16
SEQUENCE = 1008  # tokens of one whole sequence in blocks of 16
LINEAR = LinearAttentionConfig(
    num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=32, conv_kernel_size=4
)
HYBRID = replace(MODEL, linear_attention=LINEAR, linear_layers=(True, True, True, False))
STATE = 3 * ((2 * 2 * 16 + 4 * 32) * 4 * 2 + 4 * 16 * 32 * 4)  # bytes that its layers keep of a sequence


def config(
    *,
    max_num_seqs: int = 4,
    max_model_len: int | None = None,
    speculative: Literal["off", "lookup"] = "off",
    **cache: Any,
) -> EngineConfig:
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_model_len=max_model_len, max_num_batched_tokens=512, speculative=speculative
    )
    return EngineConfig(model="m", dtype="bf16", cache=CacheConfig(**cache), scheduler=scheduler)


def plan(left: int, engine: EngineConfig, device: str = "cuda", model: ModelConfig = MODEL) -> MemoryPlan:
    """The plan for a device where ``left`` bytes are left beside weights of 5 MiB and the workspace."""
    capacity = 5 * MIB + workspace_bytes(model, engine, 2, device) + left
    room = DeviceMemory(device, 10 * capacity, capacity)
    return plan_memory(model, engine, memory=room, weight_bytes=5 * MIB, element_bytes=2)


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
    with pytest.raises(HardwareError) as caught:
        plan(500 * TOKEN, config())
    message = str(caught.value)
    assert "cuda has not the memory for one sequence of max_model_len 1000: 504.0 KiB are needed" in message
    assert "weights take 5.0 MiB" in message
    assert "leaves 250.0 KiB" in message
    ways = r"max_model_len 496, or max_num_batched_tokens 511, or max_num_seqs 2, or dtype int8"
    assert re.search(f"What fits: {ways}, or 254.0 KiB more for Strata on the card$", message)


def test_weights_that_do_not_fit_ask_for_a_smaller_dtype() -> None:
    missing = SEQUENCE * TOKEN + int(1.53 * MIB)
    with pytest.raises(HardwareError, match=r"leaves 0 B\. What fits: dtype int4, or 2\.1 MiB more .* of memory"):
        plan(-int(1.53 * MIB), config(max_num_seqs=1), "cpu")
    assert missing > int(2.02 * MIB), "the memory is rounded up"


def test_more_tokens_than_fit() -> None:
    with pytest.raises(HardwareError, match=r"for 4000 tokens of KV cache.*What fits: num_kv_tokens 3008, or"):
        plan(3010 * TOKEN, config(num_kv_tokens=4000))


def test_fewer_tokens_than_one_sequence() -> None:
    with pytest.raises(OptionError, match=r"num_kv_tokens is 64.*What fits: num_kv_tokens 1008, or max_model_len 64$"):
        plan(1 << 40, config(num_kv_tokens=64))


def test_a_larger_share_of_the_card() -> None:
    engine = config(max_num_seqs=1)
    needed = 5 * MIB + workspace_bytes(MODEL, engine, 2, "cuda") + SEQUENCE * TOKEN
    card = DeviceMemory("cuda", int(needed / 0.945), 1 << 40)
    with pytest.raises(HardwareError, match=r"or gpu_memory_utilization 0\.95, or"):
        plan_memory(MODEL, engine, memory=card, weight_bytes=5 * MIB, element_bytes=2)
    # Not where others have filled it.
    with pytest.raises(HardwareError, match=r"What fits: ((?!utilization).)*$"):
        plan_memory(
            MODEL, engine, memory=replace(card, available_bytes=needed - 1), weight_bytes=5 * MIB, element_bytes=2
        )


def test_a_smaller_dtype_with_shorter_sequences() -> None:
    """Weights of 16-bit fill a card; of 4-bit leave no room for the longest sequence either."""
    model = replace(MODEL, max_position_embeddings=1 << 20)
    engine = replace(config(), dtype="bf16", scheduler=SchedulerConfig(max_num_batched_tokens=16))
    size = (14 * MIB + workspace_bytes(model, engine, 2, "cuda")) * 10 // 9
    card = DeviceMemory("cuda", size, size)
    with pytest.raises(HardwareError, match=r"What fits: dtype int4 and max_model_len \d+, or"):
        plan_memory(model, engine, memory=card, weight_bytes=15 * MIB, element_bytes=2)


@st.composite
def shortages(draw: st.DrawFn) -> tuple[ModelConfig, EngineConfig, DeviceMemory, int]:
    """A model, settings, and a device that may be too small for them."""
    length = draw(st.integers(1, 5000))
    model = replace(
        MODEL,
        vocab_size=draw(st.integers(100, 5000)),
        num_layers=4,
        num_kv_heads=draw(st.sampled_from((1, 2, 4))),
        max_position_embeddings=length,
        windows=draw(st.sampled_from(((None,) * 4, (100, None) * 2))),
        attention_sinks=draw(st.booleans()),
    )
    if draw(st.booleans()):
        model = replace(model, linear_attention=LINEAR, linear_layers=HYBRID.linear_layers)
    max_num_seqs = draw(st.integers(1, 64))
    engine = EngineConfig(
        model="m",
        dtype=draw(st.sampled_from(DTYPES)),
        device=DeviceConfig(gpu_memory_utilization=draw(st.sampled_from((0.29, 0.5, 0.9, 1.0)))),
        cache=CacheConfig(
            block_size=draw(st.sampled_from(BLOCK_SIZES)), num_kv_tokens=draw(st.none() | st.integers(1, 20_000))
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=draw(st.integers(max_num_seqs, 2048))
        ),
    )
    total = draw(st.integers(0, 64 * MIB))
    memory = DeviceMemory(draw(st.sampled_from(("cpu", "cuda"))), total, int(total * draw(st.floats(0, 1))))
    return model, engine, memory, draw(st.integers(1, 16 * MIB))


@settings(max_examples=150, deadline=None)
@given(shortages())
def test_what_is_said_to_fit_does_fit(shortage: tuple[ModelConfig, EngineConfig, DeviceMemory, int]) -> None:
    model, engine, device, weight_bytes = shortage

    def size(changed: EngineConfig, room: DeviceMemory = device) -> MemoryPlan:
        sizes = [loaded_parts(model, dtype, device.device).total for dtype in (changed.dtype, engine.dtype)]
        weights = math.ceil(weight_bytes * (sizes[0] / sizes[1]))
        return plan_memory(model, changed, memory=room, weight_bytes=weights, element_bytes=2)

    try:
        found = size(engine)
    except (HardwareError, OptionError) as error:
        message = str(error)
    else:
        assert found.free_bytes >= 0
        assert found.num_kv_tokens >= found.max_model_len
        return
    if "; without it, " in message:
        engine = replace(engine, cache=replace(engine.cache, num_kv_tokens=None))
    ways = advise(model, engine, memory=device, weight_bytes=weight_bytes, element_bytes=2)
    for way in ways:
        assert " and ".join(map(str, way)) in message
        changed = engine
        for change in way:
            changed = change.apply(changed)
        size(changed)
        # The next larger size does not.
        if isinstance(way[-1].value, int):
            larger = replace(way[-1], value=way[-1].value + 1)
            if larger.apply(changed) != engine and larger.setting != "num_kv_tokens":
                with pytest.raises((HardwareError, OptionError)):
                    size(larger.apply(changed))
    if more := re.search(r"([\d.]+) (B|KiB|MiB) more for Strata", message):
        amount = math.ceil(float(more[1]) * {"B": 1, "KiB": 1024, "MiB": MIB}[more[2]])
        capacity = device.capacity_bytes(engine.device.gpu_memory_utilization) + amount
        size(engine, DeviceMemory(device.device, 100 * capacity, capacity))
    assert ways or more


@pytest.mark.parametrize("length", [0, -5, 1001])
def test_model_length_out_of_range(length: int) -> None:
    with pytest.raises(OptionError, match=f"max_model_len is {length}; .* reach 1000"):
        plan(1 << 40, config(max_model_len=length))


def test_the_workspace_holds_what_adjusts_the_logits() -> None:
    model = replace(MODEL, vocab_size=100_000)
    one, two = (workspace_bytes(model, config(max_num_seqs=seqs, max_model_len=16), 2, "cpu") for seqs in (1, 2))
    assert two - one >= model.vocab_size * (4 + 4 + ADJUSTED_BYTES), "a row, its copy, and an entry for each token"


def test_the_workspace_holds_the_logits() -> None:
    small, large = (
        workspace_bytes(replace(MODEL, vocab_size=v), config(max_num_seqs=7), 2, "cpu") for v in (1000, 2000)
    )
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
    assert workspace_bytes(model, engine, 2, "cpu") > expected * TOKEN // MODEL.num_layers


def test_bounds_are_those_of_the_kernels() -> None:
    assert memory.MAX_DEQUANTIZED == linear.MAX_DEQUANTIZED
    assert memory.SINK_DIMS == sdpa.SINK_DIMS
    gpus = (tuning.HOPPER, tuning.HOPPER_WIDE, tuning.AMPERE, tuning.AMPERE_WIDE)
    assert max(gpu.decode.programs for gpu in gpus) == memory.MAX_SPLIT_PROGRAMS
    assert states.CHUNK == prefill.CHUNK == cpu.CHUNK


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
            replace(MODEL, experts=replace(EXPERTS, num_experts_per_tok=k), expert_layers=(True,) * 4),
            config(),
            2,
            "cpu",
        )
        for k in (3, 6)
    )
    assert large - small >= 3 * 512 * 2 * MODEL.hidden_size * 2


def test_a_window_needs_a_mask_of_its_own() -> None:
    engine = config()
    plain = workspace_bytes(MODEL, engine, 2, "cpu")
    everywhere = workspace_bytes(replace(MODEL, windows=(100,) * 4), engine, 2, "cpu")
    alternating = workspace_bytes(replace(MODEL, windows=(100, None) * 2), engine, 2, "cpu")
    mask = 512 * (100 + 512 + 16) * 2
    assert everywhere < plain
    assert alternating == plain + mask


def test_a_card_reads_the_pages_in_place() -> None:
    engine = config()
    short, long = (workspace_bytes(replace(MODEL, max_position_embeddings=n), engine, 2, "cuda") for n in (1000, 2000))
    assert short == long
    small, large = (
        workspace_bytes(MODEL, replace(engine, scheduler=SchedulerConfig(max_num_batched_tokens=n)), 2, "cuda")
        for n in (512, 1024)
    )
    assert large - small >= 512 * MODEL.num_heads * MODEL.head_dim * 2, "the queries, turned"


def test_sinks_double_what_is_gathered() -> None:
    engine = config()
    plain, sinks = (workspace_bytes(replace(MODEL, attention_sinks=has), engine, 2, "cpu") for has in (False, True))
    pages = 2 * gathered_positions(1000, 4, 16) * MODEL.num_kv_heads
    assert sinks - plain >= pages * (MODEL.head_dim + 8) * 2


def test_budget_table_adds_up() -> None:
    found = plan(2 * SEQUENCE * TOKEN + 3 * 1024, config())
    table = "\n".join(budget_table(found))
    assert "weights        5.0 MiB" in table
    assert "KV cache    1008.0 KiB  2016 tokens in blocks of 16; 2.0 sequences of 1000" in table
    assert re.search(r"^per token +512 B  2 x 4 layers x 2 KV heads x 16 x 2 bytes$", table, re.MULTILINE)
    assert "free           3.0 KiB" in table
    assert found.weight_bytes + found.kv_bytes + found.workspace_bytes + found.free_bytes == found.capacity_bytes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_sequence_has_a_state_before_the_kv_cache_gets_the_rest(device: str) -> None:
    share = CPU_KV_SHARE if device == "cpu" else 1.0
    room = 4 * STATE + int(2 * SEQUENCE * TOKEN / 4 / share)
    found = plan(room, config(prefix_cache=False), device, HYBRID)
    assert (found.num_states, found.states_bytes) == (4, 4 * STATE)
    assert found.num_kv_tokens == 2 * SEQUENCE, "a quarter of the layers has keys and values"
    assert found.taken_bytes + found.free_bytes == found.capacity_bytes
    assert found.spare_state == 4
    table = "\n".join(budget_table(found))
    assert re.search(
        r"^states +\S+ KiB  of 3 layers with linear attention: 4 sequences x \S+ KiB$", table, re.MULTILINE
    )
    assert "2 x 1 layers x 2 KV heads x 16 x 2 bytes" in table
    assert re.search(r"^snapshots +0 B  none: no prefix cache$", table, re.MULTILINE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_states_that_wait_for_drafts_are_larger(device: str) -> None:
    longer = STATE + 3 * (14 * (2 * 2 * 16 + 4 * 32) * 2 + 18 * 2 * 4 * 4)
    assert state_bytes(HYBRID, 2, 7) == longer
    found = plan(1 << 30, config(speculative="lookup", state_cache_bytes=2 * longer), device, HYBRID)
    assert (found.max_draft, found.num_states, found.num_snapshots) == (7, 4, 2)
    assert (found.states_bytes, found.snapshot_bytes) == (6 * longer, 2 * longer)
    table = "\n".join(budget_table(found))
    assert re.search(r"^states .* 4 sequences x 45.9 KiB, 17.4 KiB of it for drafts$", table, re.MULTILINE)


def test_states_of_a_model_with_n_grams_wait_for_no_drafts() -> None:
    engine = config(speculative="lookup")
    assert (max_draft(HYBRID, engine), max_draft(public("qwen3.8-flash-next"), engine)) == (7, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_prefix_cache_keeps_states_in_a_share_of_what_keys_and_values_may_take(device: str) -> None:
    engine, room = config(max_num_seqs=200), 200 * SEQUENCE * TOKEN // 4
    share = CPU_KV_SHARE if device == "cpu" else 1.0
    found = plan(200 * STATE + int(room / share), engine, device, HYBRID)
    assert found.num_snapshots == int(STATE_CACHE_SHARE * room) // STATE > 1
    assert room - found.kv_bytes == pytest.approx(STATE_CACHE_SHARE * room, abs=16 * TOKEN)
    assert any(
        line.endswith(f"{found.num_snapshots} states that the prefix cache keeps") for line in budget_table(found)
    )


def test_one_state_is_kept_where_there_is_room_beside_one_sequence() -> None:
    of_sequence = SEQUENCE * TOKEN // 4
    without, with_one = (plan(4 * STATE + of_sequence + more, config(), model=HYBRID) for more in (STATE - 1, STATE))
    assert (without.num_snapshots, with_one.num_snapshots) == (0, 1)
    assert without.num_kv_tokens == with_one.num_kv_tokens == SEQUENCE


@pytest.mark.parametrize(("asked", "kept"), [(0, 0), (3 * STATE, 3), (1 << 40, 5)])
def test_no_more_states_are_kept_than_asked_for_and_than_one_sequence_leaves(asked: int, kept: int) -> None:
    room = 4 * STATE + SEQUENCE * TOKEN // 4 + 5 * STATE
    found = plan(room, config(state_cache_bytes=asked), model=HYBRID)
    assert found.num_snapshots == kept
    assert found.fits


def test_a_model_without_linear_attention_keeps_no_states() -> None:
    assert plan(1 << 30, config(state_cache_bytes=1 << 20)).num_snapshots == 0


def test_a_model_without_linear_attention_has_no_states() -> None:
    found = plan(SEQUENCE * TOKEN, config())
    assert (found.num_states, found.states_bytes, state_bytes(MODEL, 2)) == (0, 0, 0)
    assert not any(line.startswith("states") for line in budget_table(found))


def test_states_that_do_not_fit_ask_for_fewer_sequences() -> None:
    of_sequence = SEQUENCE * TOKEN // 4
    with pytest.raises(HardwareError) as caught:
        plan(2 * STATE + of_sequence, config(), model=HYBRID)
    message = str(caught.value)
    assert f"states of 4 sequences {format_bytes(4 * STATE)} and workspace" in message
    assert "or max_num_seqs 3, or" in message


def test_the_workspace_holds_rows_of_linear_attention_in_float32() -> None:
    engine = config()
    wider = replace(HYBRID, linear_attention=replace(LINEAR, value_head_dim=64))
    for device in ("cpu", "cuda"):
        small, large = (workspace_bytes(model, engine, 2, device) for model in (HYBRID, wider))
        assert large - small >= 512 * 4 * 32 * (2 + 4), "a token's values, as they are projected and as they are read"


def test_a_card_has_a_state_that_fills_up_a_step() -> None:
    engine = config()
    linear, plain = (
        workspace_bytes(model, engine, 2, "cuda") for model in (HYBRID, replace(HYBRID, linear_layers=(False,) * 4))
    )
    assert linear - plain == STATE - 16 * TOKEN * 3 // 4


def test_windows_are_counted_in_full_and_this_is_said() -> None:
    windowed = replace(MODEL, windows=(100, None) * 2)
    assert kv_token_bytes(windowed, 2) == TOKEN
    room = DeviceMemory("cpu", 1 << 30, 1 << 30)
    table = budget_table(plan_memory(windowed, config(), memory=room, weight_bytes=0, element_bytes=2))
    assert any("sliding windows count in full" in line for line in table)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 41, "6144.0 GiB")])
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(("size", "text"), [(1537, "1.6 KiB"), (1536, "1.5 KiB"), (100, "100 B")])
def test_format_bytes_rounded_up(size: int, text: str) -> None:
    assert format_bytes(size, round_up=True) == text


@pytest.mark.parametrize(("size", "text"), [((3 << 30) - 1, "2.9 GiB"), (1536, "1.5 KiB"), (100, "100 B")])
def test_format_bytes_rounded_down(size: int, text: str) -> None:
    assert format_bytes(size, round_down=True) == text
