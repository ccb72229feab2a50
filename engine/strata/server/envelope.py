"""The JSON around an answer. What does not change from token to token is written once for a request."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from strata.request import FinishReason
from strata.server.service import Job

Kind = Literal["chat", "text", "generate"]

DONE = b"data: [DONE]\n\n"

_quote = json.JSONEncoder(ensure_ascii=False).encode  # of a string: one C call
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Envelope:
    """Chunks and whole answers for one job. ``include_usage``: the stream ends with a chunk of token counts."""

    def __init__(self, kind: Kind, job: Job, *, include_usage: bool = False) -> None:
        self._kind = kind
        self._num_prompt_tokens = len(job.request.prompt_token_ids)
        self._include_usage = include_usage
        self._head = {
            "id": job.request.request_id,
            "object": "chat.completion" if kind == "chat" else "text_completion",
            "created": int(time.time()),
            "model": job.model_name,
        }
        chunk = self._head | ({"object": "chat.completion.chunk"} if kind == "chat" else {})
        self._chunk_head = f"data: {_encode(chunk)[:-1]},"
        tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        before = '"delta":{"content":' if kind == "chat" else '"text":'
        after = (
            '},"logprobs":null,"finish_reason":null}]' if kind == "chat" else ',"logprobs":null,"finish_reason":null}]'
        )
        self._before_text = f'{self._chunk_head}"choices":[{{"index":0,{before}'
        self._after_text = after + tail
        self._tail = tail

    # --- a stream

    def opening(self) -> bytes:
        """The chunk before the first text: a chat names its speaker."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self._kind == "chat" else b""

    def text(self, text: str) -> bytes:
        """A chunk with new text. Runs for every token."""
        return (self._before_text + _quote(text) + self._after_text).encode()

    def closing(self, text: str, finish_reason: FinishReason, num_tokens: int) -> bytes:
        """The last text, the finish reason, the token counts if they were asked for, and the end mark."""
        parts = [self.text(text)] if text else []
        parts.append(self._chunk({"delta": {}} if self._kind == "chat" else {"text": ""}, finish_reason))
        if self._include_usage:
            usage = _encode(self._usage(num_tokens))
            parts.append(f'{self._chunk_head}"choices":[],"usage":{usage}}}\n\n'.encode())
        return b"".join(parts) + DONE

    def _chunk(self, content: dict[str, Any], finish_reason: FinishReason | None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return f'{self._chunk_head}"choices":[{_encode(choice)}]{self._tail}'.encode()

    # --- an answer in one piece

    def whole(self, text: str, finish_reason: FinishReason, num_tokens: int) -> bytes:
        """The body of an answer that is not streamed."""
        usage = self._usage(num_tokens)
        if self._kind == "generate":
            head = {key: self._head[key] for key in ("id", "model")}
            return _encode({**head, "text": text, "finish_reason": finish_reason, "usage": usage}).encode()
        content: dict[str, Any] = {"text": text}
        if self._kind == "chat":
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return _encode({**self._head, "choices": [choice], "usage": usage}).encode()

    def _usage(self, num_tokens: int) -> dict[str, int]:
        prompt = self._num_prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": num_tokens, "total_tokens": prompt + num_tokens}


def failure(body: dict[str, Any]) -> bytes:
    """The chunk that tells a client in mid-stream that its answer failed."""
    return f"data: {_encode(body)}\n\n".encode()
