"""What travels between the server and the engine: plain ids and numbers, picklable, no tensors, no text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has them."""

    STOP = "stop"  # an end-of-sequence or stop token, or a stop string
    LENGTH = "length"  # max_tokens or the context length was reached
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the engine failed


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn.

    temperature: 0, or next to it, is greedy. top_k: 0 is off. top_p: 1 is off. repetition_penalty: 1 is off (over
    prompt and output).
    seed: the same seed, parameters and logits draw the same tokens whatever else runs in the batch; None draws a seed.
    Logits themselves may differ in their last bits with the size of the batch, which can turn a close draw.
    max_tokens: at most this many new tokens, >= 1. stop_token_ids: end the sequence beside the model's own
    end-of-sequence ids; the token that stops is not part of the output text.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to be continued. ``request_id`` is unique among the requests in flight."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one engine step produced for one request.

    ``token_ids`` are the new tokens (empty when only the end is reported). A token that stopped the sequence is
    included. ``finish_reason`` is None until the last output. ``error`` is set with ``FinishReason.ERROR`` only.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None
