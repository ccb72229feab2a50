"""A tokenizer for models that know no language: every token id stands for a text, and every text has tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path

from strata.store.files import write_json

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def write_word_tokenizer(directory: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
    """tokenizer.json and tokenizer_config.json, with a plain chat template.

    Ids from 0 on are the bytes, as far as there are ids; all others are made-up words with a space before them. A text
    of such words has a token a word, any other has one a byte.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    ends = {token_id: f"<|end{index or ''}|>" for index, token_id in enumerate(eos_token_ids) if token_id < vocab_size}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = iter([*alphabet, *islice(_words(), max(0, vocab_size - len(ends) - len(alphabet)))])
    vocabulary = {ends[token_id] if token_id in ends else next(texts): token_id for token_id in range(vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False) for end in ends.values()])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": _TEMPLATE, "eos_token": next(iter(ends.values()), None)}
    write_json(directory / "tokenizer_config.json", settings)


def _words() -> Iterator[str]:
    """ba, be, ... vu, baba, ...; Ġ is how the byte alphabet spells a space."""
    for length in count(1):
        for syllables in product(_CONSONANTS, _VOWELS, repeat=length):
            yield "Ġ" + "".join(syllables)
