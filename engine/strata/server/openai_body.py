"""What OpenAI's routes have in common: how an answer is sent, and fields that change nothing here."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from strata.errors import RequestError
from strata.server.body import Body, Unserved

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]  # of reasoning


class StreamOptions(Body):
    """``stream_options``."""

    place = "'stream_options'"

    include_obfuscation: bool = False  # OpenAI pads its chunks against eavesdroppers; here there is no padding


class OpenAIBody(Body):
    """Part of the body of a chat, a response or a completion."""

    unserved: ClassVar[Unserved] = {"store": (None, False)}

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
