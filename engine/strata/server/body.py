"""JSON objects of requests: every field is known, and refused by name where it is not served."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# Names of fields, each with the values that ask for nothing.
Unserved = Mapping[str, tuple[Any, ...]]

_Item = TypeVar("_Item")
# A list whose first wrong item is the only one that is complained about: a million complaints, of a body of 5 MB, would
# keep all other requests waiting for ten seconds.
Items = Annotated[list[_Item], Field(fail_fast=True)]


def _same(value: Any, neutral: Any) -> bool:
    """Equality that tells 1 from true, as JSON does."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def refused(message: str, *, field: str | None = None, code: str = "invalid_value") -> PydanticCustomError:
    """What a check of an object raises, about all of it or one of its fields: parsing makes a RequestError of it that
    says where the object stands. Checks of whole requests may raise that themselves."""
    return PydanticCustomError("refused", "{message}", {"message": message, "field": field, "code": code})


class Body(BaseModel):
    """A JSON object whose fields are all known. Subclasses add to what their bases say of ``unserved`` fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    place: ClassVar[str] = "the request"  # how errors call this object
    unserved: ClassVar[Unserved] = {}
    instead: ClassVar[Mapping[str, str]] = {}  # of some of them: what to do

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.unserved = _inherited(cls, "unserved")
        cls.instead = _inherited(cls, "instead")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, value in data.items():
            if name in cls.unserved:
                if not any(_same(value, neutral) for neutral in cls.unserved[name]):
                    advice = cls.instead.get(name, f"leave it out of {cls.place}")
                    raise refused(f"{name!r} is not served; {advice}", field=name, code="unsupported_parameter")
            elif name not in _names(cls):
                allowed = ", ".join(sorted(_names(cls)))
                raise refused(
                    f"{name!r} is no known field of {cls.place}; the fields are: {allowed}",
                    field=name,
                    code="unknown_parameter",
                )
        return {name: value for name, value in data.items() if name not in cls.unserved}


def _inherited(body: type[Body], table: str) -> dict[str, Any]:
    """What all of a body's classes have in a table of theirs; the last one has the last word."""
    classes = reversed(body.__mro__)
    return {name: value for cls in classes for name, value in vars(cls).get(table, {}).items()}


@lru_cache
def _names(body: type[Body]) -> frozenset[str]:
    """The fields as JSON calls them."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())
