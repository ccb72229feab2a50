"""Byte-level BPE from GGUF metadata, with the pre-tokenizer that the file names.

The merges and the vocabulary are in the file; how text is cut into words before merging is only named there, so the
table below holds what each name means. A name that it does not hold is refused: a wrong cut gives tokens that the model
was never trained on, and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError

# Patterns are alternatives tried from left to right; what none of them takes is a word of its own.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CL100K = rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}DIGITS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Words in lower case, of which the first letters may be capitals, or all in capitals; marks belong to their letters.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SHORT|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SHORT"
    rf"|\p{{N}}DIGITS| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How text becomes words. ``patterns`` each cut the pieces of the one before. ``ignore_merges``: a word that is in
    the vocabulary is one token even if no merges lead to it. ``nfc``: text is brought to Unicode's composed form first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False  # where the file does not say


_LLAMA3 = _Cut((_CL100K.replace("DIGITS", "{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = _Cut((_CL100K.replace("DIGITS", ""),), nfc=True)
_CUTS = {
    "default": _Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _Cut((_GPT2,)),
    "smollm": _Cut((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _Cut((_BY_CASE.replace("SHORT", f"{_SHORT_FORMS}?").replace("DIGITS", "{1,3}"),), ignore_merges=True),
    "tekken": _Cut((_BY_CASE.replace("SHORT", "").replace("DIGITS", ""),), ignore_merges=True, add_bos=True),
}


def tokenizer(metadata: Mapping[str, Any], tokens: list[str], origin: str) -> Any:
    """The ``tokenizers.Tokenizer`` without its added tokens.

    Raises UnsupportedModelError naming a pre-tokenizer that is not known, CheckpointError for merges that do not fit.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in _CUTS:
        raise UnsupportedModelError(
            f"{origin}: pre-tokenizer {name!r} is not supported; supported: {', '.join(sorted(_CUTS))}"
        )
    cut = _CUTS[name]
    if not isinstance(metadata.get("tokenizer.ggml.merges"), list):
        raise CheckpointError(f"{origin}: the tokenizer's metadata key 'tokenizer.ggml.merges' is missing")
    try:
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.ignore_merges))
    except Exception as error:
        raise CheckpointError(f"{origin}: the tokenizer's merges do not fit its vocabulary: {error}") from error
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    if cut.nfc:
        made.normalizer = normalizers.NFC()
    return made


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether texts begin with the token for it where the file does not say."""
    cut = _CUTS.get(metadata.get("tokenizer.ggml.pre", "default"))
    return cut is not None and cut.add_bos
