"""Tokenizer files from GGUF metadata: byte-level BPE (``gguf_bpe``) or SentencePiece (``gguf_sentencepiece``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.files import write_json
from strata.store.sources import gguf_bpe, gguf_sentencepiece

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type
_MODELS = {"gpt2": "byte-level BPE", "llama": "SentencePiece"}  # tokenizer.ggml.model


def write(metadata: Mapping[str, Any], directory: Path, *, origin: str) -> None:
    """Write tokenizer.json and tokenizer_config.json; raises CheckpointError naming what ``origin`` lacks."""
    tokens, types = _vocabulary(metadata, origin)
    if metadata["tokenizer.ggml.model"] == "llama":
        tokenizer = gguf_sentencepiece.tokenizer(metadata, tokens, types, origin)
        adds_bos = True
    else:
        tokenizer = gguf_bpe.tokenizer(metadata, tokens, origin)
        adds_bos = gguf_bpe.adds_bos(metadata)
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    _add_tokens(tokenizer, metadata, tokens, types, adds_bos=adds_bos)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos,
        "add_eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        "chat_template": metadata.get("tokenizer.chat_template"),
        "tool_chat_template": metadata.get("tokenizer.chat_template.tool_use"),
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
    if not isinstance(model, str) or model not in _MODELS:
        supported = ", ".join(f"{name!r} ({what})" for name, what in _MODELS.items())
        raise UnsupportedModelError(f"{origin}: tokenizer model {model!r} is not supported; supported: {supported}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{origin}: the tokenizer's metadata key 'tokenizer.ggml.tokens' is missing")
    types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError(f"{origin}: the tokenizer's 'token_type' is not a list of {len(tokens)}, one a token")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{origin}: the tokenizer holds a token twice")
    for kind in ("bos", "eos", "unknown", "padding"):
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if token is not None and (type(token) is not int or not 0 <= token < len(tokens)):
            raise CheckpointError(f"{origin}: the {kind} token is {token!r}, but there are {len(tokens)} tokens")
    return tokens, types


def _add_tokens(
    tokenizer: Any, metadata: Mapping[str, Any], tokens: list[str], types: list[int], *, adds_bos: bool
) -> None:
    """Make control tokens special and keep what the file's user defined in one piece; begin texts as the file says."""
    from tokenizers import AddedToken, processors

    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if adds_bos and bos is not None:
        start = {"id": "bos", "ids": [bos], "tokens": [tokens[bos]]}  # under a name: the token may hold a colon
        tokenizer.post_processor = processors.TemplateProcessing(
            single="bos $A", pair="bos $A bos $B", special_tokens=[start]
        )
