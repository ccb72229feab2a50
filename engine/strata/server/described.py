"""What the routes answer, as ``/openapi.json`` describes it. ``envelope`` writes it; tests hold it to this."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


SOMETIMES = Field(default=None, json_schema_extra=_without_default)  # of a field that is not always there


class Answered(BaseModel):
    """A JSON object of an answer."""

    model_config = ConfigDict(extra="forbid")


class ErrorObject(Answered):
    """OpenAI's error object; the message says what was given, what is allowed and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answered):
    """Every error."""

    error: ErrorObject


class PromptDetails(Answered):
    """Of the prompt's tokens, those that the prefix cache had."""

    cached_tokens: int


class CompletionDetails(Answered):
    """Of the answer's tokens, those of reasoning."""

    reasoning_tokens: int


class Usage(Answered):
    """Token counts: each prompt once, the output of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: Annotated[CompletionDetails, SOMETIMES]


Warnings = list[str]
FinishReason = Literal["stop", "length", "timeout", "tool_calls"]


class TokenLogprob(Answered):
    """A token, and the logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenLogprob):
    """A token of a chat's answer."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answered):
    """``logprobs`` of a chat."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(Answered):
    """The function that is called; the arguments are JSON as text."""

    name: str
    arguments: str


class ToolCallAnswer(Answered):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Answered):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: Annotated[str, SOMETIMES]
    tool_calls: Annotated[list[ToolCallAnswer], SOMETIMES]


class ChatChoice(Answered):
    """One of the choices of a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Answered):
    """The answer to a chat that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    warnings: Annotated[Warnings, SOMETIMES]


class TextLogprobs(Answered):
    """``logprobs`` of a completion: an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Answered):
    """One of the choices of a completion."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class TextCompletion(Answered):
    """The answer to a completion that is not streamed."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    warnings: Annotated[Warnings, SOMETIMES]


class Generated(Answered):
    """The answer of ``/generate``."""

    id: str
    model: str
    text: str
    finish_reason: FinishReason
    usage: Usage
    warnings: Annotated[Warnings, SOMETIMES]


class Tokens(Answered):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Annotated[list[str], SOMETIMES]


class Text(Answered):
    """The answer of ``/detokenize``."""

    prompt: str


class ModelEntry(Answered):
    """A served name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answered):
    """All of them."""

    object: Literal["list"]
    data: list[ModelEntry]


class Healthy(Answered):
    """The engine loads or serves."""

    status: Literal["ok"]


class Ready(Answered):
    """Requests are served."""

    status: Literal["ready"]


class NotHealthy(ErrorAnswer):
    """The engine has failed, or was closed."""

    status: str


class NotReady(NotHealthy):
    """Requests are not served; while the model loads, how far that has come."""

    phase: Annotated[str, SOMETIMES]
    bytes_done: Annotated[int, SOMETIMES]
    bytes_total: Annotated[int, SOMETIMES]


ERRORS: dict[int, str] = {
    400: "The request cannot be served as it stands.",
    401: "The server asks for an API key, and there is none, or another one.",
    403: "The request comes from a page of an origin that may not use the server.",
    404: "The model, or the route, is not there.",
    413: "The body is too large.",
    429: "Too many requests wait; Retry-After says when to try again.",
    500: "The engine, or the server, failed.",
    503: "The model is still loading, or the server is about to end; Retry-After says when to try again.",
}


_EVENT = {  # what "stream": true sends, one after the other
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "description": "A chunk in JSON; a stream of choices ends with [DONE]."},
    },
    "required": ["data"],
}

# Told to FastAPI as a model, it would be prepared for every code of every route: half of the time that an app takes.
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}


def answers(answer: type[Answered], *codes: int, stream: bool = False) -> dict[int | str, dict[str, Any]]:
    """A route's answers for FastAPI: the one with the status 200, and its errors."""
    good: dict[str, Any] = {"model": answer, "description": answer.__doc__}
    if stream:
        good["content"] = {"text/event-stream": {"schema": _EVENT}}
    return {200: good, **{code: {"description": ERRORS[code], "content": _ERROR} for code in codes}}
