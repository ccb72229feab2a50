"""Messages of a conversation: as clients send them, and as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import ValidatorFunctionWrapHandler, field_validator, model_validator

from strata.server.body import Body, Items, Unserved, refused


class TextPart(Body):
    """One text of a message's content."""

    place = "a part of 'content'"

    type: Literal["text"]
    text: str


class FunctionCall(Body):
    """What a call calls."""

    place = "a call's 'function'"

    name: str
    arguments: str  # JSON, as the model wrote it


class ToolCall(Body):
    """A call that an earlier answer made."""

    place = "a call of 'tool_calls'"
    unserved: ClassVar[Unserved] = {"index": (None, *range(128))}  # of a stream that was put together

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall

    def turn(self, fitting_id: Callable[[str], str]) -> dict[str, Any]:
        """As templates take it: they write the arguments as JSON themselves, so an object is one again."""
        arguments: Any = self.function.arguments
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        function = {"name": self.function.name, "arguments": parsed if isinstance(parsed, dict) else arguments}
        return {"type": "function", "function": function} | ({} if self.id is None else {"id": fitting_id(self.id)})


class ChatMessage(Body):
    """One message of a conversation."""

    place = "a message"
    # What clients send back from an answer that they got.
    unserved: ClassVar[Unserved] = {
        "function_call": (None,),
        "refusal": (None,),
        "annotations": (None, []),
        "audio": (None,),
    }
    instead: ClassVar[Mapping[str, str]] = {"function_call": "OpenAI has replaced it: use 'tool_calls'"}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    provider_specific_fields: dict[str, Any] | None = None  # LiteLLM's copy of what stands beside it; without effect

    @field_validator("role", mode="before")
    @classmethod
    def _refuse_functions(cls, value: Any) -> Any:
        if value == "function":
            raise refused(
                "messages of the role 'function' are not served; OpenAI has replaced it: "
                "use 'tool', with 'tool_call_id'",
                code="unsupported_parameter",
            )
        return value

    @field_validator("content", mode="wrap")
    @classmethod
    def _check_content(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("it must be a string or a list of text parts")
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"a part has the type {kind!r}; only 'text' parts are served")
        return handler(value)

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise refused(
                f"a message of the role {self.role!r} has 'tool_calls'; only 'assistant' calls tools",
                field="tool_calls",
            )
        if self.role == "tool" and self.tool_call_id is None:
            raise refused(
                "a message of the role 'tool' needs the 'tool_call_id' of the call that it answers",
                field="tool_call_id",
                code="missing_required_parameter",
            )
        if self.content is None and not self.tool_calls:
            raise refused(
                f"a message of the role {self.role!r} has no content, or null; it must be a string or a list of text "
                "parts (an assistant's message with 'tool_calls' needs none)",
                field="content",
            )
        return self

    @property
    def text(self) -> str:
        """The content as one string; parts stand on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def turn(self, fitting_id: Callable[[str], str] = str) -> dict[str, Any]:
        """The message in the words of Hugging Face's chat templates. ``fitting_id``: of calls, as a template wants."""
        # "developer" is OpenAI's later name for "system"; templates know the older one.
        turn: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": None if self.content is None else self.text,
        }
        if self.name is not None:
            turn["name"] = self.name
        if self.tool_calls:
            turn["tool_calls"] = [call.turn(fitting_id) for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = fitting_id(self.tool_call_id)
        if self.reasoning_content is not None:
            turn |= {"reasoning_content": self.reasoning_content, "thinking": self.reasoning_content}  # both are in use
        return turn
