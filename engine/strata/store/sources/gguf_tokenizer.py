"""Tokenizer files from GGUF metadata: byte-level BPE with the pre-tokenizer that the file names.

The merges and the vocabulary are in the file; how text is cut into words before merging is only named there, so the
table below holds what each name means. A name that it does not hold is refused: a wrong cut gives tokens that the model
was never trained on, and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.files import write_json

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type

# Patterns are alternatives tried from left to right; what none of them takes is a word of its own.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
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


_CUTS = {
    "default": _Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _Cut((_GPT2,)),
    "smollm": _Cut((r"\p{N}", _GPT2)),
    "llama-bpe": _Cut((_CL100K.format(digits="{1,3}"),), ignore_merges=True, add_bos=True),
    "qwen2": _Cut((_CL100K.format(digits=""),), nfc=True),
}


def write(metadata: Mapping[str, Any], directory: Path, *, origin: str) -> None:
    """Write tokenizer.json and tokenizer_config.json; raises CheckpointError naming what ``origin`` lacks."""
    tokens, types = _vocabulary(metadata, origin)
    tokenizer = _tokenizer(metadata, tokens, types, origin)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(metadata),
        "add_eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    for key, source in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{source}_token_id")
        if token is not None:
            config[f"{key}_token"] = tokens[token]
    write_json(directory / "tokenizer_config.json", config)


def _vocabulary(metadata: Mapping[str, Any], origin: str) -> tuple[list[str], list[int]]:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError(f"{origin} holds no tokenizer: the metadata key 'tokenizer.ggml.model' is missing")
    if model != "gpt2":
        raise UnsupportedModelError(
            f"{origin}: tokenizer model {model!r} is not supported; supported: 'gpt2' (byte-level BPE)"
        )
    for key in ("tokens", "merges"):
        if not isinstance(metadata.get(f"tokenizer.ggml.{key}"), list):
            raise CheckpointError(f"{origin}: the tokenizer's metadata key 'tokenizer.ggml.{key}' is missing")
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError(f"{origin}: the tokenizer's 'token_type' is not a list of {len(tokens)}, one a token")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{origin}: the tokenizer holds a token twice")
    for kind in ("bos", "eos", "unknown", "padding"):
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if token is not None and not 0 <= token < len(tokens):
            raise CheckpointError(f"{origin}: the {kind} token is {token}, but there are {len(tokens)} tokens")
    return tokens, types


def _tokenizer(metadata: Mapping[str, Any], tokens: list[str], types: list[int], origin: str) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _CUTS:
        raise UnsupportedModelError(
            f"{origin}: pre-tokenizer {name!r} is not supported; supported: {', '.join(sorted(_CUTS))}"
        )
    cut = _CUTS[name]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.ignore_merges))
    except Exception as error:
        raise CheckpointError(f"{origin}: the tokenizer's merges do not fit its vocabulary: {error}") from error
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if _adds_bos(metadata) and bos is not None:
        start = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, bos)]
        )
    return tokenizer


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    cut = _CUTS.get(metadata.get("tokenizer.ggml.pre", "default"))
    return bool(metadata.get("tokenizer.ggml.add_bos_token", cut is not None and cut.add_bos))
