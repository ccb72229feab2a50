"""SentencePiece's BPE from GGUF metadata: the tokenizer of Llama 2, Mistral and Mixtral.

The file has a score for each piece and no merges: of all neighbours that together are a piece, the pair whose piece has
the highest score is joined first. So every way to cut a piece into two others is a merge, ranked by the piece's score.
Characters that are no piece become the tokens of their UTF-8 bytes, ``<0xE2>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.errors import CheckpointError

_NORMAL, _UNUSED = 1, 5  # tokenizer.ggml.token_type
_SPACE = "\u2581"


def tokenizer(metadata: Mapping[str, Any], tokens: list[str], types: list[int], origin: str) -> Any:
    """The ``tokenizers.Tokenizer`` without its added tokens; raises CheckpointError naming what ``origin`` lacks."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(type(score) is float for score in scores):
        raise CheckpointError(f"{origin}: the tokenizer's 'scores' are not a list of {len(tokens)}, one a token")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    made = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=list(_merges(tokens, types, scores)),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # SentencePiece puts a space before every text, one that begins with a space included.
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    spaces = normalizers.Replace(" ", _SPACE)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return made


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Every pair of pieces that together are a piece, the one to be joined first at the front."""
    pieces = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _UNUSED)}
    for index in sorted(range(len(tokens)), key=lambda index: -scores[index]):
        piece = tokens[index]
        if piece in pieces:
            for cut in range(1, len(piece)):
                if piece[:cut] in pieces and piece[cut:] in pieces:
                    yield piece[:cut], piece[cut:]
