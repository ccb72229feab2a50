"""Bodies of the routes that only count tokens, in vLLM's words."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from strata.errors import RequestError
from strata.server.body import Body
from strata.server.messages import ChatMessage
from strata.server.schemas import ChatRequest
from strata.server.tools import Tool


class TokenizeRequest(Body):
    """The body of ``POST /tokenize``: a text, or a conversation as for a chat."""

    model: str | None = Field(None, description="a served name; left out: the first one")
    prompt: str | None = Field(None, description="a string")
    messages: list[ChatMessage] | None = Field(None, min_length=1, description="a list of at least one message")
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object: variables of the chat template")
    add_special_tokens: bool = Field(True, description="true or false: whether a text gets what goes around a prompt")
    return_token_strs: bool | None = Field(False, description="true or false")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "neither" if self.prompt is None else "both"
            raise RequestError(f"{given} of 'prompt' and 'messages' is given; give one", param="prompt")
        return self

    @property
    def chat(self) -> ChatRequest:
        """The chat that has these messages."""
        return ChatRequest.model_construct(
            messages=self.messages or [], tools=self.tools, chat_template_kwargs=self.chat_template_kwargs
        )


class DetokenizeRequest(Body):
    """The body of ``POST /detokenize``."""

    model: str | None = Field(None, description="a served name; left out: the first one")
    tokens: list[int] = Field(description="a list of token ids")
