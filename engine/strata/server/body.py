"""JSON objects of requests: every field is known, and refused by name where it is not served."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from strata.errors import RequestError

# Names of fields, each with the values that ask for nothing.
Unserved = Mapping[str, tuple[Any, ...]]


def _same(value: Any, neutral: Any) -> bool:
    """Equality that tells 1 from true, as JSON does."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


class Body(BaseModel):
    """A JSON object whose fields are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    place: ClassVar[str] = "the request"  # how errors call this object
    unserved: ClassVar[Unserved] = {}
    instead: ClassVar[Mapping[str, str]] = {}  # of some of them: what to do

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, value in data.items():
            if name in cls.unserved:
                if not any(_same(value, neutral) for neutral in cls.unserved[name]):
                    advice = cls.instead.get(name, f"leave it out of {cls.place}")
                    raise RequestError(f"{name!r} is not served; {advice}", param=name, code="unsupported_parameter")
            elif name not in _names(cls):
                allowed = ", ".join(sorted(_names(cls)))
                raise RequestError(
                    f"{name!r} is no known field of {cls.place}; the fields are: {allowed}",
                    param=name,
                    code="unknown_parameter",
                )
        return {name: value for name, value in data.items() if name not in cls.unserved}


@lru_cache
def _names(body: type[Body]) -> frozenset[str]:
    """The fields as JSON calls them."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())
