"""Rows of n-grams, against the class of ``transformers``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen4_exp import modeling_qwen4_exp
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.config.keys import Keys
from strata.config.ngram import NGramConfig, primes_from, read_ngrams
from strata.errors import CheckpointError
from strata.ngram.ids import ngram_ids

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "ple_layer_ids": [3, 1],
    "ngram_vocab_size_base": 101,
    "heads_per_ngram": 2,
    "make_ngram_vocab_size_divisible_by": 16,
    "eos_token_id": 2,
}
REAL = {  # as large as the published one
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "ple_layer_ids": [2],
    "eos_token_id": [248_046, 248_044],
}


class Rows(torch.nn.Module):  # type: ignore[misc]
    """In the place of an embedding: gives the rows that it is asked for, whatever their number."""

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        self.shape = (num_rows, dim)
        self.weight = torch.empty(0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids[..., None]


def theirs(table: dict[str, Any], layer: int) -> Any:
    config = Qwen4ExpTextConfig(**table, layer_types=["linear_attention"] * table["num_hidden_layers"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn, "Embedding", Rows)
        position = config.ple_layer_ids.index(layer + 1)
        return modeling_qwen4_exp.Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer, position)


def ours(table: dict[str, Any]) -> NGramConfig:
    config = read_ngrams(Keys(table, "here"), table["num_hidden_layers"])
    assert config is not None
    return config


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(TINY, id="two layers"),
        pytest.param(TINY | {"ngram_size": 2}, id="pairs alone"),
        pytest.param(TINY | {"ngram_size": 5, "seed": -7, "ple_embed_dim": 96}, id="longer, another seed"),
        pytest.param(TINY | {"eos_token_id": [0, 7]}, id="the first of several ends, token 0"),
        pytest.param(TINY | {"ngram_vocab_size_base": 1}, id="the smallest primes"),
        pytest.param(REAL, id="published sizes"),
    ],
)
def test_rows_are_those_of_transformers(table: dict[str, Any]) -> None:
    config = ours(table)
    generator = torch.Generator().manual_seed(0)
    for layer in config.layers:
        reference, hashed = theirs(table, layer), config.hash(layer)
        assert list(hashed.multipliers) == reference.layer_multipliers.tolist()
        assert list(hashed.sizes) == reference.head_vocab_sizes
        assert list(hashed.offsets) == reference.head_offsets
        assert (config.num_rows(layer), config.head_dim) == reference.ngram_embedding.shape
        tokens = torch.randint(0, table["vocab_size"], (3, 200), generator=generator)
        tokens[torch.rand(tokens.shape, generator=generator) < 0.2] = hashed.eos_token_id
        before = torch.full((3, hashed.num_context), hashed.eos_token_id)
        ids = ngram_ids(torch.cat([before, tokens], dim=1), hashed)
        assert torch.equal(ids, reference(tokens, None).flatten(0, 1))
        assert int(ids.max()) < config.num_rows(layer)


@given(tokens=st.lists(st.integers(0, 5), min_size=1, max_size=30), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_token_reads_the_same_rows_however_its_text_is_cut(tokens: list[int], seed: int) -> None:
    hashed = ours(TINY | {"ngram_size": 4, "ple_embed_dim": 60, "seed": seed}).hash(2)
    history = torch.tensor([[hashed.eos_token_id] * hashed.num_context + tokens])
    whole = ngram_ids(history, hashed)
    lines = history.unfold(1, hashed.num_context + 1, 1)[0]  # one for each token, with those before it
    assert torch.equal(ngram_ids(lines, hashed), whole)


def test_hundreds_of_primes_near_20_million() -> None:
    primes = primes_from(20_000_000, 512)
    assert len(set(primes)) == 512
    assert primes == tuple(sorted(primes))
    assert primes[0] == 20_000_003
    assert all(prime % factor for prime in primes for factor in range(2, 4500))
    between = set(range(primes[0], primes[-1])) - set(primes)
    assert all(any(number % factor == 0 for factor in range(2, 4500)) for number in list(between)[:1000])


def test_no_layers_no_tables() -> None:
    assert read_ngrams(Keys(TINY | {"ple_layer_ids": None}, "here"), 4) is None
    assert read_ngrams(Keys(TINY | {"ple_layer_ids": []}, "here"), 4) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ple_layer_ids": [0]}, "ple_layer_ids"),
        ({"ple_layer_ids": [5]}, "ple_layer_ids"),
        ({"ple_layer_ids": "all"}, "ple_layer_ids"),
        ({"ngram_size": 1}, "ngram_size"),
        ({"ngram_size": 10**6}, "ngram_size"),
        ({"heads_per_ngram": 10**6}, "heads_per_ngram"),
        ({"ple_embed_dim": 65}, "ple_embed_dim"),
        ({"seed": "x"}, "seed"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
    ],
)
def test_what_no_table_can_be_made_of_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=f"here: '{named}'"):
        read_ngrams(Keys(TINY | changes, "here"), 4)
