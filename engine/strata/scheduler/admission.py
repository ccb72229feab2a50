"""Whether a request can be run at all. The server asks when a request comes, the engine once more when it gets it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from strata.config import SchedulerConfig
from strata.errors import OptionError, OverloadedError, RequestError
from strata.request import GenerationRequest


def check_length(num_tokens: int, *, max_model_len: int, param: str = "prompt") -> None:
    """Raise RequestError unless a prompt of ``num_tokens`` leaves room for one new token.

    ``param``: the field that holds the prompt.
    """
    if num_tokens == 0:
        raise RequestError("the prompt has no tokens; at least one is needed", param=param)
    if num_tokens >= max_model_len:
        raise RequestError(
            f"the prompt has {num_tokens} tokens; max-model-len is {max_model_len} tokens for prompt and answer "
            f"together, so a prompt may have at most {max_model_len - 1}; shorten it",
            param=param,
            code="context_length_exceeded",
        )


def check_vocabulary(token_ids: Sequence[int], *, vocab_size: int, param: str = "prompt") -> None:
    """Raise RequestError unless the model has every one of these tokens. ``param``: the field that holds them."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{param!r} has the token id {wrong}; this model's ids go from 0 to {vocab_size - 1}",
            param=param,
        )


def check_id(request_id: str, in_flight: Container[str]) -> None:
    """Raise RequestError for an id that a request in flight has already."""
    if request_id in in_flight:
        raise RequestError(f"a request with the id {request_id!r} is already in flight; ids must differ")


def check_capacity(num_in_flight: int, config: SchedulerConfig) -> None:
    """Raise OverloadedError unless one more request may run or wait."""
    if num_in_flight >= config.capacity:
        raise OverloadedError(
            f"{num_in_flight} requests are in flight; {config.max_num_seqs} may run and {config.max_waiting} wait; "
            "try again later"
        )


def check_config(config: SchedulerConfig) -> None:
    """Raise OptionError for limits under which nothing could run."""
    if config.max_num_seqs < 1:
        raise OptionError(f"max_num_seqs is {config.max_num_seqs}; at least 1 is needed")
    if config.step_tokens < config.max_num_seqs:
        # Else decoding alone could fill every step, and a prompt would never be prefilled.
        raise OptionError(
            f"max_num_batched_tokens is {config.step_tokens} and max_num_seqs {config.max_num_seqs}: "
            "a step must have room for one token of every sequence; raise the first or lower the second"
        )
    if config.max_waiting < 0:
        raise OptionError(f"max_waiting is {config.max_waiting}; 0 or more is allowed")
    latency = config.decode_latency_seconds
    if latency is not None and not latency > 0:
        raise OptionError(f"decode_latency_seconds is {latency}; give more than 0, or None for no target")


def check_request(
    request: GenerationRequest, in_flight: Container[str], *, max_model_len: int, num_kv_tokens: int
) -> None:
    """Raise RequestError for a request that could not run even alone. num_kv_tokens: what the KV cache holds."""
    num_prompt, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
    check_length(num_prompt, max_model_len=max_model_len)
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; at least 1 is needed", param="max_tokens")
    if request.timeout_seconds is not None and not request.timeout_seconds > 0:
        raise RequestError(
            f"the timeout is {request.timeout_seconds} seconds; give more than 0, or none", param="timeout"
        )
    check_id(request.request_id, in_flight)
    # The last token is never run, so it needs no place in the cache.
    num_cached = min(num_prompt + max_tokens, max_model_len) - 1
    if num_cached > num_kv_tokens:
        raise RequestError(
            f"prompt and output may come to {num_cached + 1} tokens, but the KV cache holds {num_kv_tokens}; "
            "lower max_tokens or shorten the prompt",
            param="max_tokens",
            code="context_length_exceeded",
        )
