"""The access log: one line for each request, in ``key=value`` pairs; never a body, a query, a header or a key."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

from strata.server.record import RequestRecord

logger = logging.getLogger("strata.access")

_QUIET = frozenset({"/health", "/ready", "/metrics", "/v1/status"})  # asked every few seconds; logged at level "debug"
_MAX_PATH = 200  # characters of a path that are logged
_PLAIN = re.compile(r"[A-Za-z0-9/._~:@+,-]+")


def log_access(record: RequestRecord) -> None:
    """Write the line of a request that has ended."""
    level = logging.DEBUG if record.path in _QUIET else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", _line(_fields(record)))


def log_refusal(client: str, status: int, error: str) -> None:
    """Write that of what never became a request: its bytes were none, too many or too slow."""
    logger.info("%s", _line([("client", client), ("status", str(status)), ("error", error)]))


def _fields(record: RequestRecord) -> Iterator[tuple[str, str | None]]:
    yield "client", record.client
    yield "method", record.method
    yield "path", record.path[:_MAX_PATH]
    yield "status", "-" if record.status is None else str(record.status)  # -: the client left before it
    yield "seconds", _seconds(record.arrived, record.ended)
    yield "id", record.request_id
    yield "key", record.key
    yield "error", record.error
    if record.operation is None:
        return
    yield "outcome", record.outcome
    if record.num_prompt_tokens is not None:
        yield "model", record.model
        yield "prompt_tokens", str(record.num_prompt_tokens)
        yield "cached_tokens", str(record.num_cached_tokens)
        yield "completion_tokens", str(record.num_output_tokens)
        yield "queue_seconds", _seconds(record.submitted, record.began)
        yield "ttft_seconds", _seconds(record.arrived, record.first_token)


def _line(fields: Iterator[tuple[str, str | None]] | list[tuple[str, str | None]]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields if value is not None)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


def _seconds(start: float | None, end: float | None) -> str | None:
    return None if start is None or end is None else f"{max(0.0, end - start):.3f}"
