"""Whether a request can be run at all. The server asks when a request comes, the engine once more when it gets it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from strata.config import SchedulerConfig
from strata.errors import OverloadedError, RequestError


def check_length(num_tokens: int, *, max_model_len: int, param: str = "prompt") -> None:
    """Raise RequestError unless a prompt of ``num_tokens`` leaves room for one new token.

    ``param``: the field that holds the prompt.
    """
    if num_tokens == 0:
        raise RequestError("the prompt has no tokens; at least one is needed", param=param, code="invalid_value")
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
            code="invalid_value",
        )


def check_id(request_id: str, in_flight: Container[str]) -> None:
    """Raise RequestError for an id that a request in flight has already."""
    if request_id in in_flight:
        raise RequestError(f"a request with the id {request_id!r} is already in flight; ids must differ")


def check_capacity(num_in_flight: int, config: SchedulerConfig) -> None:
    """Raise OverloadedError unless one more request may run or wait."""
    if num_in_flight >= config.max_num_seqs + config.max_waiting:
        raise OverloadedError(
            f"{num_in_flight} requests are in flight; {config.max_num_seqs} may run and {config.max_waiting} wait; "
            "try again later"
        )
