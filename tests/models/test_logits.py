"""Every architecture's logits against ``transformers``: every token's, however the tokens are cut into steps."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch

from strata import quant
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch
from tests.models import tiny
from tests.models.cases import CASES, CONFIG_FAULTS, TENSOR_FAULTS, TOKENS, made, packed_experts, runner_of

HYBRID_CASES = [name for name, case in CASES.items() if "linear_num_key_heads" in case.settings]
TOLERANCE = 1e-4  # relative norm over all logits, float32
PREFILL = 150  # tokens before those that are decoded one by one


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(TOKENS, id="one prefill"),
        pytest.param(64, id="chunks of whole blocks"),
        pytest.param(7, id="chunks that end within blocks"),
    ],
)
def test_logits(name: str, chunk: int) -> None:
    _, token_ids, expected = made(name)
    runner = runner_of(name)
    blocks = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    assert tiny.relative(tiny.run_chunks(runner, token_ids, chunk, blocks), expected) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_logits_of_decoded_tokens(name: str) -> None:
    _, token_ids, expected = made(name)
    runner = runner_of(name)
    blocks = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    tiny.run_chunks(runner, token_ids[:PREFILL], PREFILL, blocks)
    found = tiny.run_chunks(runner, token_ids, 1, blocks, begin=PREFILL)
    assert tiny.relative(found, expected[PREFILL:]) < TOLERANCE


SPANS = [(199, 200), (61, 62), (10, 11), (100, 164), (0, 30)]


def beside_others(name: str) -> tuple[Runner, Batch]:
    """Decoding at different lengths and two prefill chunks, one of them a sequence's last, in one step."""
    _, token_ids, _ = made(name)
    runner = runner_of(name)
    tables = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(2)).tolist()
    sequences = []
    for slot, (start, end) in enumerate(SPANS):
        blocks = tables[slot * 16 : (slot + 1) * 16]
        if start:
            tiny.run_chunks(runner, token_ids[:start], 64, blocks, slot=slot)
        state_slot = slot if runner.num_states else None
        sequences.append(tiny.sequence(token_ids, start, end, blocks, name=str(slot), state_slot=state_slot))
    return runner, Batch(tuple(sequences))


@pytest.mark.parametrize("name", CASES)
def test_logits_beside_other_sequences(name: str) -> None:
    runner, batch = beside_others(name)
    wanted = torch.cat([made(name)[2][start:end] for start, end in SPANS])
    assert tiny.relative(runner.run_all(batch), wanted) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_logits_of_sequences_that_end_in_a_step(name: str) -> None:
    runner, batch = beside_others(name)
    sampled = runner.run(batch).logits  # the first one alone
    assert sampled.dtype == torch.float32
    assert sampled.shape == (1, 160)
    assert tiny.relative(sampled, made(name)[2][199:]) < TOLERANCE


@pytest.mark.parametrize("name", HYBRID_CASES)
def test_a_prompt_with_states_may_be_cut_anywhere(name: str) -> None:
    _, token_ids, expected = made(name)
    runner, blocks = runner_of(name), list(range(16))
    for border in range(1, 40):
        before = tiny.run_chunks(runner, token_ids[:border], border, blocks)
        after = tiny.run_chunks(runner, token_ids[:40], 40 - border, blocks, begin=border)
        assert tiny.relative(torch.cat([before, after]), expected[:40]) < TOLERANCE, border


@pytest.mark.parametrize("name", HYBRID_CASES)
def test_a_sequence_finds_nothing_in_a_slot_that_was_used(name: str) -> None:
    """Nor does one that was preempted, whose tokens run once more, in another slot."""
    _, token_ids, expected = made(name)
    runner, blocks = runner_of(name), list(range(16))
    assert runner.caches.states is not None
    for states in runner.caches.states.layers:
        states.conv.fill_(torch.nan)
        states.recurrent.fill_(torch.nan)
        if states.ngrams is not None:
            states.ngrams.conv.fill_(torch.nan)
            states.ngrams.tokens.fill_(7)
    tiny.run_chunks(runner, token_ids[:100], 30, blocks, slot=2)
    assert tiny.relative(tiny.run_chunks(runner, token_ids, 130, blocks, slot=1), expected) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("qwen3 next", "conv"),
        ("qwen3 next", "recurrent"),
        ("qwen4", "recurrent"),
        ("qwen4", "ngrams.conv"),
        ("qwen4", "ngrams.tokens"),
    ],
)
@pytest.mark.parametrize("fault", ["lost", "another sequence's"])
def test_faults_of_a_state_show(name: str, what: str, fault: str) -> None:
    _, token_ids, expected = made(name)
    runner, blocks = runner_of(name), [list(range(i, i + 16)) for i in (0, 16)]
    tiny.run_chunks(runner, token_ids[:PREFILL], PREFILL, blocks[0])
    tiny.run_chunks(runner, token_ids[7:PREFILL], PREFILL, blocks[1], slot=1)
    assert runner.caches.states is not None
    for states in runner.caches.states.layers:
        if what.startswith("ngrams") and states.ngrams is None:
            continue
        tensor = attrgetter(what)(states)
        tensor[0] = 0 if fault == "lost" else tensor[1]
    found = tiny.run_chunks(runner, token_ids, TOKENS, blocks[0], begin=PREFILL)
    assert tiny.relative(found, expected[PREFILL:]) > 5 * TOLERANCE


@pytest.mark.parametrize("what", ["tokens", "groups"])
def test_faults_of_an_index_show(what: str) -> None:
    _, token_ids, expected = made("qwen4")
    runner, blocks = runner_of("qwen4"), list(range(16))
    border = 149  # within a group
    tiny.run_chunks(runner, token_ids[:border], border, blocks)
    for layer in runner.caches.index.layers if runner.caches.index else ():
        getattr(layer, what).zero_()
    found = tiny.run_chunks(runner, token_ids, TOKENS, blocks, begin=border)
    assert tiny.relative(found, expected[border:]) > 5 * TOLERANCE


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_faults_of_the_config_show(fault: str) -> None:
    """The comparison sees what it is there to see."""
    name, change = CONFIG_FAULTS[fault]
    model, token_ids, expected = made(name)
    runner = runner_of(name, config=change(tiny.model_config(model)))
    found = tiny.run_chunks(runner, token_ids, TOKENS, list(range(16)))
    assert tiny.relative(found, expected) > 5 * TOLERANCE


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_faults_of_a_tensor_show(fault: str) -> None:
    name, suffix, change = TENSOR_FAULTS[fault]
    model, token_ids, expected = made(name)
    tensors = tiny.checkpoint(model)
    changed = {key: change(tensor) for key, tensor in tensors.items() if key.endswith(suffix)}
    assert changed
    found = tiny.run_chunks(runner_of(name, tensors=tensors | changed), token_ids, TOKENS, list(range(16)))
    assert tiny.relative(found, expected) > 5 * TOLERANCE


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_bf16_activations_cost_no_more_than_in_the_reference(kind: str) -> None:
    """What serves: bf16 activations and the CPU's own kernels, over each format's weights."""
    model = tiny.hf_model("LlamaForCausalLM", **CASES["llama 3 rope, all biases"].settings)
    packed = {
        name: quant.get(kind).pack(tensor) if name.endswith("_proj.weight") else tensor.bfloat16()
        for name, tensor in tiny.checkpoint(model).items()
    }
    for name, weight in packed.items():
        if isinstance(weight, quant.QuantizedTensor):
            model.get_parameter(name).data.copy_(quant.get(kind).unpack(weight))
    token_ids = list(range(TOKENS // 2))
    expected = tiny.reference_logits(model, token_ids)
    runner = tiny.runner_of(tiny.model_config(model), packed, dtype=torch.bfloat16)
    error = tiny.relative(tiny.run_chunks(runner, token_ids, 40, list(range(16))), expected)
    reference_error = tiny.relative(tiny.reference_logits(model.bfloat16(), token_ids).float(), expected)
    print(f"{kind}: relative error {error:.2e}, of transformers in bf16 {reference_error:.2e}")
    assert error < 1.3 * reference_error


@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss", "qwen3 next"])
@pytest.mark.parametrize("kind", ["int8", "int4", "mxfp4"])
def test_packed_experts_give_the_logits_of_their_numbers(name: str, kind: str) -> None:
    _, token_ids, _ = made(name)
    packed, numbers = packed_experts(name, kind)
    found, expected = (
        tiny.run_chunks(runner_of(name, tensors=tensors), token_ids, 50, list(range(13)))
        for tensors in (packed, numbers)
    )
    assert tiny.relative(found, expected) < 1e-5
    assert tiny.relative(expected, made(name)[2]) > 1e-3, "packing changed the numbers"
