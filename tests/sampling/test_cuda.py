"""The same draws on a card, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from strata.plan.memory import ADJUSTED_BYTES, MAX_ADJUSTED
from strata.request import Grammar, SamplingParams
from strata.sampling.adjust import Adjustment, adjust
from strata.sampling.grammar import GrammarCompiler
from strata.sampling.sampler import Drawn, Sampler

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

VOCAB = 300
KINDS = {
    "plain": SamplingParams(max_tokens=99, seed=1, logprobs=3),
    "greedy": SamplingParams(max_tokens=99, temperature=0, frequency_penalty=0.7, presence_penalty=0.3),
    "hot": SamplingParams(max_tokens=99, seed=2, temperature=1.7, min_p=0.05, repetition_penalty=1.3),
    "biased": SamplingParams(max_tokens=99, seed=3, top_k=20, logit_bias=((5, 4.0), (299, -100.0)), logprobs=0),
    "held": SamplingParams(max_tokens=99, seed=4, grammar=Grammar("regex", "[0-9a-f]+x"), logprobs=2),
}


def draw(device: str, compiler: GrammarCompiler) -> list[Drawn]:
    sampler = Sampler(VOCAB, torch.device(device))
    for name, params in KINDS.items():
        matcher = None if params.grammar is None else compiler.compile(params.grammar).result()
        sampler.add(name, params, (1, 2, 3), matcher)
    generator = torch.Generator().manual_seed(8)
    steps = [torch.randn(len(KINDS), VOCAB, generator=generator) * 3 for _ in range(40)]
    return [sampler.sample(logits.to(device), list(KINDS)) for logits in steps]


def test_a_card_draws_what_the_cpu_does(tmp_path: Path) -> None:
    """Penalties, bias, filters, grammars and logprobs, side by side in one batch."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: id_ for id_, character in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    compiler = GrammarCompiler(tmp_path / "tokenizer.json", vocab_size=VOCAB, eos_token_ids=(256,))
    for on_cpu, on_card in zip(draw("cpu", compiler), draw("cuda", compiler), strict=True):
        assert on_card.token_ids == on_cpu.token_ids
        assert on_card.errors == on_cpu.errors == {}
        for name, expected in on_cpu.logprobs.items():
            assert on_card.logprobs[name].logprob == pytest.approx(expected.logprob, abs=1e-4)
            assert [token for token, _ in on_card.logprobs[name].top] == [token for token, _ in expected.top]


def test_adjusting_takes_what_is_planned_for_it() -> None:
    rows, vocab = 40, 20_000  # three pieces and a bit
    logits = torch.zeros(rows, vocab, device="cuda")
    params = SamplingParams(max_tokens=9, repetition_penalty=1.5)
    adjustments = {row: Adjustment(params, range(vocab)) for row in range(rows)}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    adjust(logits, adjustments)
    assert torch.cuda.max_memory_allocated() - before <= MAX_ADJUSTED * ADJUSTED_BYTES
