"""The items of ``input``, and the chat messages that they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import ValidationError, model_validator

from strata.errors import RequestError
from strata.server import messages as chat
from strata.server.body import Body, Items, Unserved, refused
from strata.server.messages import ChatMessage, ToolCall
from strata.server.parse import refusal


class TextPart(Body):
    """A text of a message, of a tool's result, or of reasoning."""

    place = "a part of 'content'"
    unserved: ClassVar[Unserved] = {"annotations": (None, []), "logprobs": (None, [])}  # of an answer's own parts

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not str(kind).endswith("_text"):
            message = f"a part of 'content' has the type {kind!r}; only texts are served, e.g. 'input_text'"
            raise refused(message, field="type", code="unsupported_parameter")
        return value


class Item(Body):
    """What all items share. Clients send an answer's items back with every field."""

    place = "an item of 'input'"

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class Message(Item):
    """Something that was said."""

    unserved: ClassVar[Unserved] = {"phase": (None,)}

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Items[TextPart]


class FunctionCall(Item):
    """A call that an earlier answer made."""

    unserved: ClassVar[Unserved] = {"caller": (None,), "namespace": (None,), "async_": (None,), "async": (None, False)}

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Item):
    """The result of a call."""

    unserved: ClassVar[Unserved] = {"caller": (None,)}

    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[TextPart]


class ReasoningItem(Item):
    """What an earlier answer has thought."""

    unserved: ClassVar[Unserved] = {"encrypted_content": (None,)}

    type: Literal["reasoning"]
    summary: Items[TextPart] | None = None
    content: Items[TextPart] | None = None


InputItem = Message | FunctionCall | FunctionCallOutput | ReasoningItem

_KINDS: dict[str, type[InputItem]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
}


def read_item(value: Any, index: int) -> InputItem:
    """One item. Raises RequestError that names what is wrong where."""
    if not isinstance(value, dict):
        raise RequestError(f"'input[{index}]' is no object; the items of 'input' are objects", param=f"input[{index}]")
    kind = value.get("type", "message")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise RequestError(
            f"'input[{index}]' has the type {kind!r}; served are: {', '.join(_KINDS)}",
            param=f"input[{index}].type",
            code="unsupported_parameter",
        )
    try:
        return _KINDS[kind].model_validate(value)
    except ValidationError as error:
        raise refusal(_KINDS[kind], error, value, at=f"input[{index}]") from None


def to_messages(items: Iterable[InputItem]) -> list[ChatMessage]:
    """Chat messages: what an answer has thought, said and called, an item each, is one message of the assistant."""
    messages: list[dict[str, Any]] = []
    for item in items:
        last = messages[-1] if messages else {}
        is_open = last.get("role") == "assistant"
        match item:
            case Message(role="assistant"):
                if not is_open or last["content"] is not None or "tool_calls" in last:
                    last = _begin_answer(messages)
                last["content"] = _text(item.content)
            case Message():
                messages.append({"role": item.role, "content": _text(item.content)})
            case ReasoningItem():
                last = _begin_answer(messages)
                last["reasoning_content"] = _text(item.content or item.summary or [])
            case FunctionCall():
                last = last if is_open else _begin_answer(messages)
                function = chat.FunctionCall(name=item.name, arguments=item.arguments)
                last.setdefault("tool_calls", []).append(ToolCall(id=item.call_id, function=function))
            case FunctionCallOutput():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
    for message in messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""  # an answer that was cut off while it was thought out
    return [ChatMessage.model_validate(message) for message in messages]


def _begin_answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
