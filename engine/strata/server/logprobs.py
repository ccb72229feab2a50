"""Logarithms of probabilities beside the text that they belong to, and as OpenAI's two routes write them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strata.request import TokenLogprobs
from strata.server.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer: the bytes it stands for, where its text begins in the answer's, and its logprobs.

    top: bytes and logprobs of the likeliest tokens in its place, likeliest first.
    """

    data: bytes
    offset: int  # characters
    logprob: float
    top: tuple[tuple[bytes, float], ...]


class ScoredText:
    """The tokens of one choice, given out with their text: what a stop string holds back holds them back as well."""

    def __init__(self, detokenizer: Detokenizer, token_bytes: Callable[[int], bytes]) -> None:
        self._detokenizer = detokenizer
        self._token_bytes = token_bytes
        self._held: deque[ScoredToken] = deque()
        self._num_decoded = 0  # characters
        self._num_shown = 0

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> str:
        """Add tokens; gives the new text, as the detokenizer does."""
        texts = []
        # The token that ends an answer has logprobs, but is no part of it.
        for token_id, scores in zip(token_ids, logprobs, strict=False):
            top = tuple((self._token_bytes(other), logprob) for other, logprob in scores.top)
            self._held.append(ScoredToken(self._token_bytes(token_id), self._num_decoded, scores.logprob, top))
            texts.append(self._detokenizer.feed((token_id,)))
            self._num_decoded += len(texts[-1])
        return "".join(texts)

    def shown(self, text: str, *, is_all: bool) -> tuple[ScoredToken, ...]:
        """The tokens of which a part is shown with ``text``; ``is_all``: of the answer, which nothing has cut."""
        self._num_shown += len(text)
        shown = []
        while self._held and (is_all or self._held[0].offset < self._num_shown):
            shown.append(self._held.popleft())
        return tuple(shown)


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """``logprobs`` of a chat's choice. Bytes that are no text by themselves are written as escapes, ``\\xf0\\x9f``."""

    def entry(data: bytes, logprob: float) -> dict[str, Any]:
        return {"token": data.decode(errors="backslashreplace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(token.data, token.logprob), "top_logprobs": [entry(*other) for other in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """``logprobs`` of a completion's choice: lists with one entry a token. The drawn token is among the likeliest even
    if it is none of them; of two tokens with the same text the likelier is there."""
    return {
        "tokens": [_name(token.data) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {_name(data): logprob for data, logprob in reversed([*token.top, (token.data, token.logprob)])}
            for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _name(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode(errors="backslashreplace")
