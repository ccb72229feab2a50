"""What travels between the server and the engine: plain ids and numbers, picklable, no tensors, no text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has them."""

    STOP = "stop"  # an end-of-sequence or stop token, or a stop string
    LENGTH = "length"  # max_tokens or the context length was reached
    TIMEOUT = "timeout"  # the request's own time was over
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the engine failed


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the output must match. ``text``: a JSON schema ("{}" for any JSON object), a regular expression, or a
    grammar in GBNF."""

    kind: Literal["json_schema", "regex", "grammar"]
    text: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn.

    temperature: 0, or next to it, is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off; tokens less likely than
    this share of the likeliest one are dropped. repetition_penalty: 1 is off (over prompt and output).
    presence_penalty, frequency_penalty: 0 is off; over the output alone, as OpenAI defines them. logit_bias: pairs of
    token id and what is added to its logit. logprobs: None gives none, N the drawn token's and the N
    likeliest ones'. grammar: what the output must match.
    seed: the same seed, parameters and logits draw the same tokens whatever else runs in the batch; None draws a seed.
    Logits themselves may differ in their last bits with the size of the batch, which can turn a close draw.
    max_tokens: at most this many new tokens, >= 1. stop_token_ids: end the sequence beside the model's own
    end-of-sequence ids; the token that stops is not part of the output text.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to be continued. ``request_id`` is unique among the requests in flight.

    priority: smaller numbers run first; equals run in order of arrival. timeout_seconds: after these, waiting included,
    the request ends with what it has and ``FinishReason.TIMEOUT``; None is for ever.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one drawn token: the logarithm of its probability before any filter (after penalties and bias, at temperature
    1), and ids and logarithms of the likeliest tokens, likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one engine step produced for one request.

    ``token_ids`` are the new tokens (empty when only the end is reported). A token that stopped the sequence is
    included. ``finish_reason`` is None until the last output. ``error`` is set with ``FinishReason.ERROR`` only.
    ``logprobs``: one entry a token where the request asked for them, else empty. ``num_cached_tokens``: how many tokens
    of the prompt the prefix cache had; the same in every output of a request, as is ``began``: when it left the queue,
    in seconds of ``time.monotonic()``; None if it never did.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    began: float | None = None
