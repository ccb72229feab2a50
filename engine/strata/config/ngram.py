"""Embeddings of n-grams: how many rows the table of a layer has, and the numbers that hash tokens to them.

Every n-gram of 2 to ``ngram_size`` tokens has several heads, each with rows of its own, as many as a prime number; a
token reads one row of each head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isqrt

from strata.config.keys import Keys
from strata.errors import CheckpointError

MAX_HEADS = 1024  # of a table: several times what any model has
MAX_NGRAM_SIZE = 64

_GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's (https://doi.org/10.1145/2660193.2660195), as are the two factors
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_LAYER_STRIDE = 10_007  # between the seeds of two tables
_SIEVED = 1 << 16  # numbers looked through at a time


@dataclass(frozen=True, slots=True)
class NGramHash:
    """From the tokens before a place to the rows that a table has for it."""

    ngram_size: int
    heads_per_ngram: int
    multipliers: tuple[int, ...]  # of a token and of those before it
    sizes: tuple[int, ...]  # rows of each head
    eos_token_id: int  # no n-gram reaches over it, and it stands for tokens that are not there

    @property
    def num_context(self) -> int:
        """Tokens before a token that its rows depend on."""
        return self.ngram_size - 1

    @property
    def num_heads(self) -> int:
        """Rows that a token reads."""
        return len(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each head."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]


@dataclass(frozen=True, slots=True)
class NGramConfig:
    """The tables of a model: one for each of a few layers."""

    layers: tuple[int, ...]  # that have one, in order
    embed_dim: int  # of a token: the rows of its heads, one behind the other
    ngram_size: int  # tokens of the longest n-gram
    heads_per_ngram: int
    vocab_size_base: int  # rows of a head, at least
    row_divisor: int  # a table is filled up to a multiple of it
    seed: int
    vocab_size: int  # of tokens
    eos_token_id: int

    @property
    def num_heads(self) -> int:
        """Rows that a token reads of a table."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def head_dim(self) -> int:
        """Numbers of a row."""
        return self.embed_dim // self.num_heads

    def hash(self, layer: int) -> NGramHash:
        """Of the table of a layer."""
        table = self.layers.index(layer)
        primes = primes_from(self.vocab_size_base, len(self.layers) * self.num_heads)
        return NGramHash(
            self.ngram_size,
            self.heads_per_ngram,
            _multipliers(self.seed + _LAYER_STRIDE * table, self.ngram_size, self.vocab_size),
            primes[table * self.num_heads : (table + 1) * self.num_heads],
            self.eos_token_id,
        )

    def num_rows(self, layer: int) -> int:
        """Rows of the table of a layer."""
        return -(-sum(self.hash(layer).sizes) // self.row_divisor) * self.row_divisor


def read_ngrams(keys: Keys, num_layers: int) -> NGramConfig | None:
    """The tables that ``ple_layer_ids`` gives layers, which it counts from 1; None where there are none.

    Raises CheckpointError naming the keys that are wrong or do not fit together.
    """
    ids = keys.get("ple_layer_ids", [])
    if not isinstance(ids, list) or not all(type(item) is int and 1 <= item <= num_layers for item in ids):
        raise CheckpointError(
            f"{keys.origin}: 'ple_layer_ids' is {ids!r}; a list of numbers from 1 to {num_layers} is needed"
        )
    if not ids:
        return None
    ngram_size = keys.whole("ngram_size", 3, most=MAX_NGRAM_SIZE)
    if ngram_size < 2:
        raise CheckpointError(f"{keys.origin}: 'ngram_size' is {ngram_size}; 2 or more is needed")
    config = NGramConfig(
        layers=tuple(sorted({item - 1 for item in ids})),
        embed_dim=keys.whole("ple_embed_dim", keys.whole("hidden_size")),
        ngram_size=ngram_size,
        heads_per_ngram=keys.whole("heads_per_ngram", 8, most=MAX_HEADS // (ngram_size - 1)),
        vocab_size_base=keys.whole("ngram_vocab_size_base", 20_000_000),
        row_divisor=keys.whole("make_ngram_vocab_size_divisible_by", 128),
        seed=_seed(keys),
        vocab_size=keys.whole("vocab_size"),
        eos_token_id=_eos_token_id(keys),
    )
    if config.embed_dim % config.num_heads:
        raise CheckpointError(
            f"{keys.origin}: 'ple_embed_dim' is {config.embed_dim}; a multiple of the {config.num_heads} heads of all "
            "n-grams is needed"
        )
    return config


@lru_cache(maxsize=16)
def primes_from(least: int, count: int) -> tuple[int, ...]:
    """The first ``count`` primes that are ``least`` or more."""
    found: list[int] = []
    begin = max(least, 2)
    while len(found) < count:
        end = begin + _SIEVED
        is_prime = bytearray([1]) * _SIEVED
        for factor in _primes_up_to(isqrt(end)):
            first = max(factor * factor, -(-begin // factor) * factor) - begin
            is_prime[first::factor] = bytes(len(range(first, _SIEVED, factor)))
        found += [begin + place for place, prime in enumerate(is_prime) if prime]
        begin = end
    return tuple(found[:count])


def _primes_up_to(most: int) -> list[int]:
    is_prime = bytearray([0, 0]) + bytearray([1]) * (most - 1)
    for number in range(2, isqrt(most) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = bytes(len(range(number * number, most + 1, number)))
    return [number for number, prime in enumerate(is_prime) if prime]


def _multipliers(seed: int, count: int, vocab_size: int) -> tuple[int, ...]:
    """Odd numbers whose product with any token stays below 2^63."""
    half = max(1, ((1 << 63) - 1) // vocab_size // 2)
    return tuple(2 * (_mixed(seed + _GAMMA * (place + 1)) % half) + 1 for place in range(count))


def _mixed(word: int) -> int:
    """SplitMix64's next number from a state."""
    word = (word + _GAMMA) & _WORD
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 31)


def _seed(keys: Keys) -> int:
    seed = keys.get("seed", 1234)
    if type(seed) is not int:
        raise CheckpointError(f"{keys.origin}: 'seed' is {seed!r}; an integer is needed")
    return seed


def _eos_token_id(keys: Keys) -> int:
    """The first, where there are several."""
    value = keys.get("eos_token_id")
    first = value[0] if isinstance(value, list) and value else value
    if type(first) is not int or first < 0:
        raise CheckpointError(
            f"{keys.origin}: 'eos_token_id' is {value!r}; a token id is needed, since n-grams end at it"
        )
    return first
