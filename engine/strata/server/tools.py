"""Tools that a chat may call: as clients declare them, and what a choice among them asks of the answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from strata.errors import RequestError
from strata.request import Grammar
from strata.server.body import Body
from strata.server.structured import bounded


def _complain_once(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:  # one for each member of the union
        raise ValueError("it is none of them") from None


ONE_COMPLAINT = WrapValidator(_complain_once)  # about a choice of several kinds

MAX_DEPTH = 64  # of a schema; a nested object takes two

ToolName = Annotated[
    str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$", description="1 to 64 letters, digits, '_', '.' or '-'")
]


def _check_parameters(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """A tool's schema. Raises ValueError unless it is that of an object, and one that can be walked through."""
    if schema is not None and schema.get("type", "object") != "object":
        raise ValueError('the arguments of a tool are an object: "type" must be "object"')
    if not _is_shallow(schema, MAX_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels, the most that is read")
    return schema


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(item, depth - 1) for item in items)


Parameters = Annotated[dict[str, Any] | None, AfterValidator(_check_parameters)]  # a JSON schema


class Function(Body):
    """A function that the client offers.

    ``strict`` asks for what a forced call does anyway; a call that the model makes by its own choice is not held to the
    schema.
    """

    place = "a tool's 'function'"

    name: ToolName
    description: str | None = None
    parameters: Parameters = None
    strict: bool | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The JSON schema of the arguments, which are an object; without ``parameters`` an empty one."""
        return {"type": "object", **(self.parameters or {"properties": {}, "additionalProperties": False})}


class Tool(Body):
    """One entry of ``tools``."""

    place = "a tool"

    type: Literal["function"]
    function: Function

    @property
    def turn(self) -> dict[str, Any]:
        """As chat templates show it to the model, the fields in the order in which models know them."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": {**function, "parameters": self.function.arguments}}


class FunctionName(Body):
    """One tool by its name."""

    place = "'tool_choice'"

    name: str


class NamedChoice(Body):
    """The choice of one tool."""

    place = "'tool_choice'"

    type: Literal["function"]
    function: FunctionName


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What an answer may call, and must."""

    declared: Sequence[Tool]
    choice: str | NamedChoice | None
    is_parallel: bool

    def check(self) -> None:
        """Raises RequestError for a choice that the tools do not allow."""
        counts = Counter(tool.function.name for tool in self.declared)
        for name, count in counts.items():
            if count > 1:
                raise RequestError(f"'tools' has {count} tools of the name {name!r}; one is allowed", param="tools")
        if not counts and self.is_forced:
            raise RequestError("'tool_choice' asks for a call, and there are no 'tools'; add them", param="tool_choice")
        if isinstance(self.choice, NamedChoice) and self.choice.function.name not in counts:
            message = f"'tool_choice' names {self.choice.function.name!r}; the tools are: {', '.join(counts)}"
            raise RequestError(message, param="tool_choice")

    @property
    def offered(self) -> tuple[Tool, ...]:
        """What the model gets to see; with the choice "none" nothing."""
        return () if self.choice == "none" else tuple(self.declared)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The arguments' JSON schema by name."""
        return {tool.function.name: tool.function.arguments for tool in self.offered}

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice == "required" or isinstance(self.choice, NamedChoice)

    @property
    def forced_name(self) -> str | None:
        """The only tool that a forced call can mean; None if there are several."""
        if isinstance(self.choice, NamedChoice):
            return self.choice.function.name
        return self.declared[0].function.name if len(self.declared) == 1 else None

    def grammar(self, *, arguments_key: str) -> Grammar:
        """What holds a forced answer to its call: the arguments of one tool, or an object that names one of several.

        Raises RequestError when their schemas are too long.
        """
        if self.forced_name is not None:
            return _grammar(self.schemas[self.forced_name])
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    arguments_key: _moved(schema, f"#/anyOf/{index}/properties/{arguments_key}"),
                },
                "required": ["name", arguments_key],
                "additionalProperties": False,
            }
            for index, (name, schema) in enumerate(self.schemas.items())
        ]
        return _grammar({"anyOf": calls})


def _grammar(schema: Mapping[str, Any]) -> Grammar:
    return bounded(Grammar("json_schema", json.dumps(schema, ensure_ascii=False)), param="tools")


def _moved(schema: Any, place: str) -> Any:
    """A schema whose own references hold when it stands at ``place`` of another."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
