"""The body of ``POST /v1/responses``, and the chat request that it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from strata.errors import RequestError
from strata.server import structured, tools
from strata.server.body import Body, Items, Unserved
from strata.server.messages import ChatMessage
from strata.server.openai_body import Effort, OpenAIBody
from strata.server.response_api.items import InputItem, read_item, to_messages
from strata.server.sampling import MaxTokens, Sampling
from strata.server.schemas import ChatRequest
from strata.server.structured import ObjectFormat, TextFormat
from strata.server.tools import ONE_COMPLAINT, Parameters, ToolName

_STATELESS = "nothing is kept between requests: send the whole conversation as 'input'"


class FunctionTool(Body):
    """One entry of ``tools``."""

    place = "a tool"
    unserved: ClassVar[Unserved] = {
        "allowed_callers": (None, ["direct"]),
        "defer_loading": (None, False),
        "output_schema": (None,),
    }

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Parameters = None
    strict: bool | None = None

    @property
    def for_chat(self) -> tools.Tool:
        """The same as a chat declares it."""
        function = tools.Function(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )
        return tools.Tool(type=self.type, function=function)


class NamedChoice(Body):
    """The choice of one tool."""

    place = "'tool_choice'"

    type: Literal["function"]
    name: str

    @property
    def for_chat(self) -> tools.NamedChoice:
        """The same as a chat makes it."""
        return tools.NamedChoice(type=self.type, function=tools.FunctionName(name=self.name))


class SchemaFormat(Body):
    """JSON that a schema allows."""

    place = "'text.format'"

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None

    @property
    def for_chat(self) -> structured.SchemaFormat:
        """The same as a chat asks for it."""
        named = structured.NamedSchema.model_validate(self.model_dump(exclude={"type"}, by_alias=True))
        return structured.SchemaFormat(type=self.type, json_schema=named)


class TextConfig(Body):
    """``text``."""

    place = "'text'"
    unserved: ClassVar[Unserved] = {"verbosity": (None, "medium")}

    format: Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class ReasoningConfig(Body):
    """``reasoning``. Reasoning is shown as it is, so there is no summary of it."""

    place = "'reasoning'"
    unserved: ClassVar[Unserved] = {"summary": (None, "auto"), "generate_summary": (None, "auto")}

    effort: Effort | None = None


class ResponseRequest(OpenAIBody, Sampling):
    """Fields in OpenAI's words; what they mean is said by the ``ChatRequest`` in ``chat``."""

    unserved: ClassVar[Unserved] = {
        "previous_response_id": (None,),
        "conversation": (None,),
        "background": (None, False),
        "include": (None, []),
        "max_tool_calls": (None,),
        "prompt": (None,),
        "top_logprobs": (None, 0),
        "truncation": (None, "disabled"),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "store": f"leave it out; {_STATELESS}",
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
    }

    input: str | Items[InputItem] = Field(description="a string, or a list of at least one item")
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    tools: Items[FunctionTool] | None = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedChoice | None, ONE_COMPLAINT] = Field(
        None, description='"none", "auto", "required" or {"type": "function", "name": NAME}'
    )
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object: variables of the chat template")

    @field_validator("input", mode="wrap")
    @classmethod
    def _check_input(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("it is neither")
        return [read_item(item, index) for index, item in enumerate(value)]

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        with self.own_words():
            _ = self.chat
        return self

    @cached_property
    def chat(self) -> ChatRequest:
        """The same in the words of chats, made once, while the body is checked."""
        said = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        if isinstance(self.input, str):
            said.append(ChatMessage(role="user", content=self.input))
        else:
            said += to_messages(self.input)
        form = None if self.text is None else self.text.format
        choice = self.tool_choice
        fields = {
            **{name: getattr(self, name) for name in Sampling.model_fields},
            "messages": said,
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.for_chat for tool in self.tools or ()],
            "tool_choice": choice.for_chat if isinstance(choice, NamedChoice) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": form.for_chat if isinstance(form, SchemaFormat) else form,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        return ChatRequest.model_validate(fields)

    @contextmanager
    def own_words(self) -> Iterator[None]:
        """Within it, a RequestError of the chat speaks of the fields of this request."""
        try:
            yield
        except RequestError as error:
            message = _QUOTED.sub(lambda quoted: repr(_OWN_NAMES.get(quoted[1], quoted[1])), str(error))
            param = _OWN_NAMES.get(error.param or "", error.param)
            raise type(error)(message, param=param, code=error.code) from error


_QUOTED = re.compile(r"'(\w+)'")
_OWN_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
