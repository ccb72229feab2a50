"""Request bodies in OpenAI's words, checked field by field.

A field that would change the answer is never dropped silently: it is served, or refused by name. OpenAI's fields that
change nothing here (``user``, ``metadata``, ...) are accepted; those that Strata does not serve yet are accepted only
with the value that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from strata.errors import RequestError

MAX_STOP_STRINGS = 4
MAX_CHOICES = 16  # of each prompt
MAX_SEQUENCES = 128  # of one request: prompts times choices
SEED_RANGE = (-(2**63), 2**63 - 1)

Temperature = Annotated[float | None, Field(ge=0, le=2, description="a number from 0 (greedy) to 2")]
TopP = Annotated[float | None, Field(gt=0, le=1, description="a number above 0, up to 1 (off)")]
TopK = Annotated[
    int | None, Field(ge=-1, le=2**31 - 1, description="a whole number of tokens up to 2147483647; 0 or -1 is off")
]
RepetitionPenalty = Annotated[float | None, Field(ge=0.01, le=100, description="a number from 0.01 to 100; 1 is off")]
Seed = Annotated[int | None, Field(ge=SEED_RANGE[0], le=SEED_RANGE[1], description="a 64-bit signed whole number")]
Stop = Annotated[
    str | list[str] | None,
    Field(description=f"a string, or a list of up to {MAX_STOP_STRINGS} strings, none of them empty"),
]
NumChoices = Annotated[
    int | None, Field(ge=1, le=MAX_CHOICES, description=f"a number of choices from 1 to {MAX_CHOICES}")
]
MaxTokens = Annotated[
    int | None, Field(ge=1, description="1 or more tokens (without it: what the context leaves after the prompt)")
]


def _same(value: Any, neutral: Any) -> bool:
    """Equality that tells 1 from true, as JSON does."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


class Body(BaseModel):
    """A JSON object whose fields are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    place: ClassVar[str] = "the request"  # how errors call this object
    # Fields that are not served yet, each with the values that ask for nothing.
    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, value in data.items():
            if name in cls.unserved:
                if not any(_same(value, neutral) for neutral in cls.unserved[name]):
                    raise RequestError(
                        f"{name!r} is not served yet; leave it out of {cls.place}",
                        param=name,
                        code="unsupported_parameter",
                    )
            elif name not in cls.model_fields:
                allowed = ", ".join(sorted(cls.model_fields))
                raise RequestError(
                    f"{name!r} is no known field of {cls.place}; the fields are: {allowed}",
                    param=name,
                    code="unknown_parameter",
                )
        return {name: value for name, value in data.items() if name not in cls.unserved}


class Sampling(Body):
    """What every kind of generation can set; None takes the model's default."""

    model: str | None = Field(None, description="a served name; left out: the first one")
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    repetition_penalty: RepetitionPenalty = None
    seed: Seed = None
    stop: Stop = None
    stop_token_ids: list[int] | None = Field(None, description="a list of token ids that end the answer")
    ignore_eos: bool = Field(False, description="true goes on behind the end-of-sequence token, for measurements")
    max_tokens: MaxTokens = None

    @field_validator("stop", mode="wrap")
    @classmethod
    def _check_stop(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        strings = [value] if isinstance(value, str) else value
        if strings is None:
            return None
        if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
            raise ValueError("it is not")
        if len(strings) > MAX_STOP_STRINGS:
            raise ValueError(f"it has {len(strings)} strings")
        return handler(value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def token_limit(self) -> int | None:
        """The limit that was asked for, whichever name it came under."""
        return self.max_tokens

    @property
    def num_choices(self) -> int:
        """How many answers each prompt gets."""
        return 1

    @property
    def wants_echo(self) -> bool:
        """Whether the prompt stands before its answer."""
        return False


class StreamOptions(Body):
    """``stream_options``."""

    place = "'stream_options'"

    include_usage: bool = False
    include_obfuscation: bool = False  # OpenAI pads its chunks against eavesdroppers; here there is no padding


class OpenAIRequest(Sampling):
    """What chat and text completions share."""

    unserved = {
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
        "logit_bias": (None, {}),
        "min_p": (None, 0),
        "store": (None, False),
    }

    n: NumChoices = None
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
    unserved = {
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

    unserved = {
        **OpenAIRequest.unserved,
        "tools": (None, []),
        "tool_choice": (None, "none", "auto"),
        "parallel_tool_calls": (None, True, False),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "response_format": (None, {"type": "text"}),
        "logprobs": (None, False),
        "top_logprobs": (None, 0),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "reasoning_effort": (None,),
        "verbosity": (None,),
        "web_search_options": (None,),
    }

    messages: list[ChatMessage] = Field(min_length=1, description="a list of at least one message")
    max_completion_tokens: MaxTokens = None
    prediction: dict[str, Any] | None = None  # a hint that only saves time

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                f"'max_tokens' is {self.max_tokens} and 'max_completion_tokens' is {self.max_completion_tokens}; "
                "they mean the same, give one",
                param="max_completion_tokens",
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Prompt = str | list[int]


class CompletionRequest(OpenAIRequest):
    """The body of ``POST /v1/completions``."""

    unserved = {
        **OpenAIRequest.unserved,
        "logprobs": (None,),
        "suffix": (None, ""),
    }

    prompt: Prompt | list[str] | list[list[int]] = Field(
        description="a string, a list of token ids, or a list of several of one of these; none of them empty"
    )
    echo: bool | None = Field(False, description="true puts the prompt before its answer")
    best_of: NumChoices = None

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
