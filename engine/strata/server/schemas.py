"""Request bodies in OpenAI's words, checked field by field.

A field that would change the answer is never dropped silently: it is served, or refused by name. OpenAI's fields that
change nothing here (``user``, ``metadata``, ...) are accepted; those that Strata does not serve yet are accepted only
with the value that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from strata.errors import RequestError
from strata.request import Grammar
from strata.server.body import Body, Items, Unserved
from strata.server.messages import ChatMessage
from strata.server.openai_body import Effort, OpenAIBody, StreamOptions
from strata.server.sampling import MaxTokens, NonEmpty, Sampling, TokenId
from strata.server.structured import ResponseFormat, grammar_of
from strata.server.tools import ONE_COMPLAINT, NamedChoice, Tool, ToolUse

MAX_CHOICES = 16  # of each prompt
MAX_SEQUENCES = 128  # of one request: prompts times choices
MAX_TOP_LOGPROBS = 20  # of chats; OpenAI's limits
MAX_TEXT_LOGPROBS = 5

NumChoices = Annotated[
    int | None, Field(ge=1, le=MAX_CHOICES, description=f"a number of choices from 1 to {MAX_CHOICES}")
]


class CountedStreamOptions(StreamOptions):
    """Those of completions."""

    include_usage: bool = False


class OpenAIRequest(OpenAIBody, Sampling):
    """What chat and text completions share."""

    n: NumChoices = None
    response_format: ResponseFormat | None = None
    stream_options: CountedStreamOptions | None = None

    @cached_property
    def grammar(self) -> Grammar | None:
        return grammar_of(self.response_format, self.structured_outputs)

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class PromptOptions(Body):
    """What shapes the prompt of a conversation beside its messages."""

    tools: Items[Tool] | None = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedChoice | None, ONE_COMPLAINT] = Field(
        None, description='"none", "auto", "required" or {"type": "function", "function": {"name": NAME}}'
    )
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object: variables of the chat template")


class ChatRequest(OpenAIRequest, PromptOptions):
    """The body of ``POST /v1/chat/completions``."""

    unserved: ClassVar[Unserved] = {
        "prompt": (None,),
        "suffix": (None, ""),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "verbosity": (None,),
        "web_search_options": (None,),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "prompt": "a chat has 'messages', and /v1/completions continues a text",
        "functions": "OpenAI has replaced it: use 'tools'",
        "function_call": "OpenAI has replaced it: use 'tool_choice'",
    }

    messages: Items[ChatMessage] = Field(min_length=1, description="a list of at least one message")
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = Field(False, description="true or false")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description=f"a whole number from 0 to {MAX_TOP_LOGPROBS}"
    )
    parallel_tool_calls: bool | None = Field(True, description="false ends an answer behind its first call")
    prediction: dict[str, Any] | None = None  # a hint that only saves time

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        self.tool_use.check()
        return self

    @property
    def tool_use(self) -> ToolUse:
        """What the answer may call."""
        return ToolUse(self.tools or (), self.tool_choice, is_parallel=self.parallel_tool_calls is not False)

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                f"'max_tokens' is {self.max_tokens} and 'max_completion_tokens' is {self.max_completion_tokens}; "
                "they mean the same, give one",
                param="max_completion_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("'top_logprobs' is allowed only with \"logprobs\": true", param="top_logprobs")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


Prompt = NonEmpty | Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(OpenAIRequest):
    """The body of ``POST /v1/completions``."""

    unserved: ClassVar[Unserved] = {"suffix": (None, ""), "messages": (None,)}
    instead: ClassVar[Mapping[str, str]] = {"messages": "/v1/chat/completions takes them, and a completion a 'prompt'"}

    prompt: Prompt | list[Prompt] = Field(
        description="a string, a list of token ids, or a list of several of one of these; none of them empty"
    )
    echo: bool | None = Field(False, description="true puts the prompt before its answer")
    best_of: NumChoices = None
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TEXT_LOGPROBS,
        description=f"a whole number from 0 (the token alone) to {MAX_TEXT_LOGPROBS}",
    )

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _check_prompt(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        for prompt in value if _is_several(value) else [value]:
            _check_one(prompt)
        return value

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.best_of not in (None, self.num_choices):
            raise RequestError(
                f"'best_of' is {self.best_of} and 'n' is {self.num_choices}; all choices that are made are returned, "
                "so they must be the same: leave 'best_of' out",
                param="best_of",
            )
        if self.echo and self.logprobs is not None:
            raise RequestError(
                "'echo' with 'logprobs' would need those of the prompt, which are not served; leave one of them out",
                param="echo",
                code="unsupported_parameter",
            )
        if len(self.prompts) * self.num_choices > MAX_SEQUENCES:
            raise RequestError(
                f"{len(self.prompts)} prompts with {self.num_choices} choices each are "
                f"{len(self.prompts) * self.num_choices} answers; one request may ask for {MAX_SEQUENCES}, "
                "send several requests",
                param="prompt",
            )
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """All of them."""
        return cast("list[Prompt]", self.prompt if _is_several(self.prompt) else [self.prompt])

    @property
    def wants_echo(self) -> bool:
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class GenerateRequest(Sampling):
    """The body of ``POST /generate``."""

    prompt: Prompt = Field(description="a string that is not empty, or a list of token ids")

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _check_prompt(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if _is_several(value):
            raise RequestError(
                f"'prompt' has {len(value)} prompts; /generate takes one, /v1/completions several", param="prompt"
            )
        return _check_one(value)

    @property
    def prompts(self) -> list[Prompt]:
        """The only one."""
        return [self.prompt]


def _is_several(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(item, str | list) for item in prompt)


def _check_one(prompt: Any) -> Any:
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(item) is int for item in prompt)):
        raise ValueError("it is neither")
    if not prompt:
        raise ValueError("it is empty")
    return prompt
