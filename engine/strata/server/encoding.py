"""Texts to tokens and back, what is long in a thread: other answers go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from strata.server.conversation import Opening
from strata.server.model import ServedModel
from strata.server.schemas import ChatRequest
from strata.server.tokens import DetokenizeRequest, TokenizeRequest

# Encoding a longer text takes milliseconds, during which no other answer could be streamed: a thread does it.
_LONG_TEXT = 8_000  # characters

_Prompts = Sequence[str | Sequence[int]]
_Result = TypeVar("_Result")


async def open_chat(model: ServedModel, chat: ChatRequest) -> tuple[tuple[int, ...], Opening]:
    """The conversation's prompt, and how its answer is read."""
    return await asyncio.to_thread(model.open_chat, chat)  # it waits for the process that runs templates


async def encode(model: ServedModel, prompts: _Prompts) -> list[tuple[int, ...]]:
    """Each prompt's tokens."""
    return await _maybe_in_thread(lambda: list(map(model.encode_prompt, prompts)), sum(map(len, prompts)))


async def decode(model: ServedModel, prompts: _Prompts) -> list[str]:
    """Each prompt's text."""
    return await _maybe_in_thread(lambda: list(map(model.decode, prompts)), sum(map(len, prompts)))


async def tokenize(model: ServedModel, body: TokenizeRequest) -> dict[str, Any]:
    """The answer of ``/tokenize``. Raises RequestError."""
    if body.prompt is not None:
        text = body.prompt
        special = body.add_special_tokens
        ids = await _maybe_in_thread(lambda: model.tokenize(text, add_special_tokens=special), len(text))
    else:
        ids, _ = await open_chat(model, body.chat)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = await _maybe_in_thread(lambda: _texts(model, ids), len(ids))
    return answer


async def detokenize(model: ServedModel, body: DetokenizeRequest) -> dict[str, Any]:
    """The answer of ``/detokenize``. Raises RequestError."""
    return {"prompt": await _maybe_in_thread(lambda: model.spell(body.tokens), len(body.tokens))}


def _texts(model: ServedModel, ids: Sequence[int]) -> list[str]:
    return [model.token_bytes(token_id).decode(errors="backslashreplace") for token_id in ids]


async def _maybe_in_thread(work: Callable[[], _Result], length: int) -> _Result:
    return await asyncio.to_thread(work) if length > _LONG_TEXT else work()
