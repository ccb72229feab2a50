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
from strata.server.body import Body
from strata.server.sampling import MaxTokens, Sampling
from strata.server.structured import ResponseFormat, grammar_of

MAX_CHOICES = 16  # of each prompt
MAX_SEQUENCES = 128  # of one request: prompts times choices
MAX_TOP_LOGPROBS = 20  # of chats; OpenAI's limits
MAX_TEXT_LOGPROBS = 5

NumChoices = Annotated[
    int | None, Field(ge=1, le=MAX_CHOICES, description=f"a number of choices from 1 to {MAX_CHOICES}")
]


class StreamOptions(Body):
    """``stream_options``."""

    place = "'stream_options'"

    include_usage: bool = False
    include_obfuscation: bool = False  # OpenAI pads its chunks against eavesdroppers; here there is no padding


class OpenAIRequest(Sampling):
    """What chat and text completions share."""

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "store": (None, False),
    }

    n: NumChoices = None
    response_format: ResponseFormat | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    # Accepted and without effect on the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RequestError("'stream_options' is allowed only with \"stream\": true", param="stream_options")
        return self

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


class TextPart(Body):
    """One text of a message's content."""

    place = "a part of 'content'"

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One message of a conversation."""

    place = "a message"
    # What clients send back from an answer that they got.
    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tool_calls": (None, []),
        "function_call": (None,),
        "refusal": (None,),
        "annotations": (None, []),
        "audio": (None,),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @field_validator("role", mode="before")
    @classmethod
    def _refuse_tools(cls, value: Any) -> Any:
        if value in ("tool", "function"):
            raise RequestError(f"messages of the role {value!r} are not served yet", param="messages")
        return value

    @field_validator("content", mode="wrap")
    @classmethod
    def _check_content(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("it must be a string or a list of text parts")
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"a part has the type {kind!r}; only 'text' parts are served")
        return handler(value)

    @property
    def text(self) -> str:
        """The content as one string; parts stand on lines of their own."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class ChatRequest(OpenAIRequest):
    """The body of ``POST /v1/chat/completions``."""

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OpenAIRequest.unserved,
        "tools": (None, []),
        "tool_choice": (None, "none", "auto"),
        "parallel_tool_calls": (None, True, False),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "reasoning_effort": (None,),
        "verbosity": (None,),
        "web_search_options": (None,),
    }

    messages: list[ChatMessage] = Field(min_length=1, description="a list of at least one message")
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = Field(False, description="true or false")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description=f"a whole number from 0 to {MAX_TOP_LOGPROBS}"
    )
    prediction: dict[str, Any] | None = None  # a hint that only saves time

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
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


Prompt = str | list[int]


class CompletionRequest(OpenAIRequest):
    """The body of ``POST /v1/completions``."""

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OpenAIRequest.unserved,
        "suffix": (None, ""),
    }

    prompt: Prompt | list[str] | list[list[int]] = Field(
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
