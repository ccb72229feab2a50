"""The body of ``POST /v1/responses``, and the chat request that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from strata.errors import RequestError
from strata.server.body import Body, Unserved
from strata.server.response_api.items import InputItem, read_item, to_messages
from strata.server.sampling import MaxTokens, Sampling
from strata.server.schemas import ChatRequest
from strata.server.structured import ObjectFormat, TextFormat
from strata.server.tools import ToolName, check_parameters

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
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return check_parameters(value)


class NamedChoice(Body):
    """The choice of one tool."""

    place = "'tool_choice'"

    type: Literal["function"]
    name: str


class SchemaFormat(Body):
    """JSON that a schema allows."""

    place = "'text.format'"

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """``text``."""

    place = "'text'"
    unserved: ClassVar[Unserved] = {"verbosity": (None, "medium")}

    format: Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class ReasoningConfig(Body):
    """``reasoning``. Reasoning is shown as it is, so there is no summary of it."""

    place = "'reasoning'"
    unserved: ClassVar[Unserved] = {"summary": (None, "auto"), "generate_summary": (None, "auto")}

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class StreamOptions(Body):
    """``stream_options``."""

    place = "'stream_options'"

    include_obfuscation: bool = False  # OpenAI pads its events against eavesdroppers; here there is no padding


class ResponseRequest(Sampling):
    """Fields in OpenAI's words; what they mean is said by the ``ChatRequest`` of ``to_chat``."""

    unserved: ClassVar[Unserved] = {
        "store": (None, False),
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

    input: str | list[InputItem] = Field(description="a string, or a list of at least one item")
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = Field(
        None, description='"none", "auto", "required" or {"type": "function", "name": NAME}'
    )
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object: variables of the chat template")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    # Accepted and without effect on the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @field_validator("input", mode="wrap")
    @classmethod
    def _check_input(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("it is neither")
        return [read_item(item, index) for index, item in enumerate(value)]

    @field_validator("tool_choice", mode="wrap")
    @classmethod
    def _check_tool_choice(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:  # one for each member of the union
            raise ValueError("it is none of them") from None

    def to_chat(self) -> ChatRequest:
        """The same in the words of chats. Raises RequestError."""
        return ChatRequest.model_validate(self._chat_fields())

    @contextmanager
    def own_words(self) -> Iterator[None]:
        """Within it, a RequestError of the chat names the field of this request."""
        try:
            yield
        except RequestError as error:
            error.param = _OWN_NAMES.get(error.param or "", error.param)
            raise

    def _chat_fields(self) -> dict[str, Any]:
        messages = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
        else:
            messages += to_messages(self.input)
        choice: Any = self.tool_choice
        if isinstance(choice, NamedChoice):
            choice = {"type": "function", "function": {"name": choice.name}}
        return {
            **{name: getattr(self, name) for name in Sampling.model_fields},
            "messages": messages,
            "max_completion_tokens": self.max_output_tokens,
            "tools": [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools or ()],
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._response_format(),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "chat_template_kwargs": self.chat_template_kwargs,
        }

    def _response_format(self) -> dict[str, Any] | None:
        form = None if self.text is None else self.text.format
        if isinstance(form, SchemaFormat):
            schema = form.model_dump(exclude={"type"}, by_alias=True)
            return {"type": "json_schema", "json_schema": schema}
        return None if form is None else form.model_dump()


_OWN_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
