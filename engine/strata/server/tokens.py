"""Bodies of the routes that only count tokens, in vLLM's words."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from pydantic import Field, model_validator

from strata.errors import RequestError
from strata.server.body import Body, Items
from strata.server.messages import ChatMessage
from strata.server.schemas import ChatRequest, PromptOptions
from strata.server.structured import ResponseFormat, StructuredOutputs


class ChatPrompt(PromptOptions):
    """All of a chat's fields that its prompt depends on; a form of the answer leaves no room for thinking."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class TokenizeRequest(ChatPrompt):
    """The body of ``POST /tokenize``: a text, or a conversation as for a chat."""

    model: str | None = Field(None, description="a served name; left out: the first one")
    prompt: str | None = Field(None, description="a string")
    messages: Items[ChatMessage] | None = Field(None, min_length=1, description="a list of at least one message")
    add_special_tokens: bool = Field(True, description="true or false: whether a text gets what goes around a prompt")
    return_token_strs: bool | None = Field(False, description="true or false")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "neither" if self.prompt is None else "both"
            raise RequestError(f"{given} of 'prompt' and 'messages' is given; give one", param="prompt")
        if self.messages is not None:
            _ = self.chat
            return self
        for name in ChatPrompt.model_fields:
            if getattr(self, name) is not None:
                raise RequestError(f"{name!r} is of conversations; give 'messages', or leave it out", param=name)
        return self

    @cached_property
    def chat(self) -> ChatRequest:
        """The chat that has these messages, made once, while the body is checked."""
        return ChatRequest.model_validate(
            {name: getattr(self, name) for name in ("messages", *ChatPrompt.model_fields)}
        )


class DetokenizeRequest(Body):
    """The body of ``POST /detokenize``."""

    model: str | None = Field(None, description="a served name; left out: the first one")
    tokens: Items[int] = Field(description="a list of token ids")
