"""Errors as OpenAI's clients expect them: a status, and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from strata.errors import NotReadyError, OverloadedError, RequestError, StoppingError, StrataError, UnknownModelError

RETRY_LOADING_SECONDS = 5
RETRY_OVERLOADED_SECONDS = 1
STOPPING_HEADERS = {"Retry-After": "1", "Connection": "close"}  # the next connection may find another server

_MAX_MESSAGE = 2_000  # characters; the longest list of allowed fields takes half of it

_STATUS_OF_CODE = {"request_too_large": 413}


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object. The middle of a very long message, which repeats what was given, is left out."""
    if len(message) > _MAX_MESSAGE:
        half = _MAX_MESSAGE // 2
        message = f"{message[:half]} [... {len(message) - 2 * half} characters ...] {message[-half:]}"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: StrataError) -> tuple[int, dict[str, Any]]:
    """HTTP status and body for an error of the one tree."""
    message = str(error)
    match error:
        case UnknownModelError():
            return 404, error_body(message, "invalid_request_error", param=error.param, code=error.code)
        case RequestError():
            status = _STATUS_OF_CODE.get(error.code, 400)
            return status, error_body(message, "invalid_request_error", param=error.param, code=error.code)
        case NotReadyError():
            return 503, error_body(message, "service_unavailable_error", code="model_loading")
        case StoppingError():
            return 503, error_body(message, "service_unavailable_error", code="server_stopping")
        case OverloadedError():
            return 429, error_body(message, "rate_limit_error", code="engine_overloaded")
        case _:
            return 500, error_body(message, "server_error", code="engine_error")


def error_response(error: StrataError) -> JSONResponse:
    """The whole response, with ``Retry-After`` where waiting helps."""
    status, body = describe(error)
    headers = {}
    if isinstance(error, NotReadyError):
        headers["Retry-After"] = str(RETRY_LOADING_SECONDS)
    elif isinstance(error, OverloadedError):
        headers["Retry-After"] = str(RETRY_OVERLOADED_SECONDS)
    elif isinstance(error, StoppingError):
        headers = STOPPING_HEADERS
    return JSONResponse(body, status, headers)
