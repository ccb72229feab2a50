"""From the bytes of a request body to its fields, or to an error that says what is wrong where."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from strata.errors import RequestError
from strata.server.body import Body

Request = TypeVar("Request", bound=Body)


def parse(schema: type[Request], body: bytes) -> Request:
    """Read a request body. Raises RequestError that names the place in the JSON text, or the field."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8: byte {body[error.start]:#04x} at offset {error.start}; send JSON in UTF-8",
            code="invalid_encoding",
        ) from None
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
        if "\\u" in text:  # an escape can make half a surrogate pair, which no text may contain
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"the body is not JSON: {error.msg} at {place}", code="invalid_json") from None
    except UnicodeEncodeError:
        raise RequestError("the body has half of a surrogate pair (\\ud800 to \\udfff)", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON that can be read: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise RequestError(f"the body is {_shown(data)}; it must be a JSON object")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise refusal(schema, error, data) from None


def refusal(schema: type[Body], error: ValidationError, data: dict[str, Any], *, at: str = "") -> RequestError:
    """The first of pydantic's complaints about ``data``, with what was given and what is allowed. ``at``: where the
    object stands."""
    first = _first(error)
    steps = [*_steps(first["loc"], data, first["input"])]
    if first["type"] == "missing":
        steps.append(first["loc"][-1])
    elif first["type"] == "refused" and first["ctx"]["field"] is not None:
        steps.append(first["ctx"]["field"])
    path = at
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    if first["type"] == "refused":
        return RequestError(first["ctx"]["message"], param=path or None, code=first["ctx"]["code"])
    if first["type"] == "missing":
        return RequestError(f"{path!r} is missing; it is required", param=path, code="missing_required_parameter")
    field = schema.model_fields.get(str(steps[0])) if len(steps) == 1 else None
    allowed = field.description if field is not None else None
    if allowed is None:
        allowed = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    else:
        allowed = f"it must be {allowed}"
    return RequestError(f"{path!r} is {_shown(first['input'])}; {allowed}", param=path)


def _first(error: ValidationError) -> ErrorDetails:
    """Of the complaints about the first field that is wrong, the one that goes deepest: a union has one for each kind
    of value that it could be, and what was meant is what fits furthest."""
    complaints = error.errors(include_url=False)
    about_one = (complaint for complaint in complaints if complaint["loc"][:1] == complaints[0]["loc"][:1])
    return max(about_one, key=lambda complaint: len(complaint["loc"]))


def _steps(location: tuple[int | str, ...], data: Any, given: Any) -> Iterator[int | str]:
    """The way from ``data`` to the value ``given`` in it, without pydantic's names for the members of unions."""
    for step in location:
        if data is given:
            return
        if isinstance(data, list) if isinstance(step, int) else isinstance(data, dict) and step in data:
            data = data[step]
            yield step


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {_shown(next(key for key in counts if counts[key] > 1))} stands twice in one object")
    return table


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
