"""The response object, as ``/openapi.json`` describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from strata.server.described import SOMETIMES, Answered, CompletionDetails

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answered):
    """A text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[str]
    logprobs: list[str]


class ReasoningText(Answered):
    """A text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class MessageItem(Answered):
    """Something that the assistant says."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]
    status: Status


class ReasoningOutput(Answered):
    """Something that it thinks."""

    id: str
    type: Literal["reasoning"]
    content: list[ReasoningText]
    summary: list[str]
    status: Status


class CallItem(Answered):
    """A call of a tool."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


class InputDetails(Answered):
    """Of the input's tokens, those that the prefix cache had."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(Answered):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int


class IncompleteDetails(Answered):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens", "timeout"]


class ResponseObject(Answered):
    """The answer to a request that is not streamed: what came out, and what the request asked."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    background: bool
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[MessageItem | ReasoningOutput | CallItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str
    usage: ResponseUsage
    user: str | None
    warnings: Annotated[list[str], SOMETIMES]
