"""The JSON around an answer. What does not change from token to token is written once for a request."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from strata.server.answer import Answer, Choice, MadeCall
from strata.server.job import Job, Piece
from strata.server.logprobs import ScoredToken, chat_logprobs, text_logprobs
from strata.server.output.deltas import Arguments, Call, Content, Delta, Reasoning

DONE = b"data: [DONE]\n\n"

_quote = json.JSONEncoder(ensure_ascii=False).encode  # of a string: one C call
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Envelope(Protocol):
    """What an answer is sent in: ``opening``, a ``chunk`` for every piece and ``closing``; or ``whole`` after each
    piece was given to ``add``."""

    def add(self, piece: Piece) -> None:
        """Take in a piece of the whole answer."""

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""

    def opening(self) -> bytes:
        """What comes before the first text."""

    def chunk(self, piece: Piece) -> bytes:
        """What a new piece adds."""

    def closing(self) -> bytes:
        """What comes behind the last piece."""

    def failure(self, body: dict[str, Any]) -> bytes:
        """What tells a client in mid-stream that its answer failed; ``body`` is OpenAI's error object."""


class ChoicesEnvelope(ABC):
    """Chunks, or the whole answer, of one job, choice by choice. Every piece is given to ``chunk``, or to ``add``.

    include_usage: the stream ends with a chunk of token counts. Subclasses say how a choice is written.
    """

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]
    around_text: ClassVar[tuple[str, str]]  # JSON before and after a new text in a chunk's choice

    def __init__(self, job: Job, *, include_usage: bool = False) -> None:
        self._job = job
        self._answer = Answer(job)
        self._include_usage = include_usage
        self._head = {
            "id": job.job_id,
            "object": self.object_name,
            "created": int(time.time()),
            "model": job.model_name,
        }
        self._chunk_head = f"data: {_encode({**self._head, 'object': self.chunk_name})[:-1]},"
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        before, after = self.around_text
        self._before_text = [
            f'{self._chunk_head}"choices":[{{"index":{choice.index},{before}' for choice in self._answer.choices
        ]
        self._after_text = f'{after},"logprobs":null,"finish_reason":null}}]{self._tail}'

    def add(self, piece: Piece) -> None:
        """Take in a piece of the whole answer."""
        self._answer.add(piece)

    # --- a stream

    def opening(self) -> bytes:
        """The chunks before the first text."""
        return b""

    def chunk(self, piece: Piece) -> bytes:
        """The chunk with new text, and the one with the reason for which a choice ends. Runs for every token."""
        self._answer.add(piece)
        chunk = b""
        if piece.tokens:
            chunk = self._chunk(piece.choice, self._delta(piece.text), logprobs=self._logprobs(piece.tokens))
        elif piece.text:
            chunk = self._text(piece.choice, piece.text)
        if piece.finish_reason is not None:
            chunk += self._end(piece.choice)
        return chunk

    def _text(self, index: int, text: str) -> bytes:
        return (self._before_text[index] + _quote(text) + self._after_text).encode()

    def _end(self, index: int) -> bytes:
        return self._chunk(index, self._delta(None), finish_reason=self._answer.choices[index].finish_reason)

    def closing(self) -> bytes:
        """The token counts if they were asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return f'{self._chunk_head}"choices":[],"usage":{_encode(self._answer.usage())}}}\n\n'.encode() + DONE

    def failure(self, body: dict[str, Any]) -> bytes:
        """The chunk that tells a client in mid-stream that its answer failed."""
        return f"data: {_encode(body)}\n\n".encode()

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
        warnings = f',"warnings":{_encode(self._job.warnings)}' if finish_reason and self._job.warnings else ""
        return f'{self._chunk_head}"choices":[{_encode(choice)}]{warnings}{self._tail}'.encode()

    # --- an answer in one piece

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [
            {
                "index": choice.index,
                **self._content(choice),
                "logprobs": self._logprobs(choice.tokens) if self._job.wants_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in self._answer.choices
        ]
        return _encode({**self._head, "choices": choices, **self._counts()}).encode()

    def _counts(self) -> dict[str, Any]:
        return {"usage": self._answer.usage()} | ({"warnings": self._job.warnings} if self._job.warnings else {})

    @abstractmethod
    def _delta(self, text: str | None) -> dict[str, Any]:
        """A chunk's new text; None: it has none."""

    @abstractmethod
    def _content(self, choice: Choice) -> dict[str, Any]:
        """What the choice says, in a whole answer."""

    @abstractmethod
    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """Of some tokens of a choice."""


class ChatEnvelope(ChoicesEnvelope):
    """``/v1/chat/completions``."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    around_text = '"delta":{"content":', "}"

    def opening(self) -> bytes:
        """Each choice names its speaker."""
        speaker = {"delta": {"role": "assistant", "content": ""}}
        return b"".join(self._chunk(choice.index, speaker) for choice in self._answer.choices)

    def chunk(self, piece: Piece) -> bytes:
        if self._job.reading is None:
            return super().chunk(piece)
        choice = self._answer.choices[piece.choice]
        num_calls = len(choice.calls)
        self._answer.add(piece)
        chunks = []
        logprobs = self._logprobs(piece.tokens) if piece.tokens else None
        if logprobs and not piece.deltas:  # the text is held back, and may turn out to be no content
            chunks.append(self._chunk(piece.choice, {"delta": {}}, logprobs=logprobs))
        for delta in piece.deltas:
            num_calls += isinstance(delta, Call)
            if isinstance(delta, Content) and logprobs is None:  # nearly every token's
                chunks.append(self._text(piece.choice, delta.text))
            else:
                said = {"delta": _say(delta, choice.calls, num_calls - 1)}
                chunks.append(self._chunk(piece.choice, said, logprobs=logprobs))
            logprobs = None  # the first chunk has those of the whole piece
        if piece.finish_reason is not None:
            chunks.append(self._end(piece.choice))
        return b"".join(chunks)

    def _delta(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None else {"content": text}}

    def _content(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        return {"message": message}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        return chat_logprobs(tokens)


def _say(delta: Delta, calls: Sequence[MadeCall], index: int) -> dict[str, Any]:
    """A delta as a chunk's; ``index`` is that of the call that it begins or goes on with."""
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case Call(name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": calls[index].call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case Arguments(text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class TextEnvelope(ChoicesEnvelope):
    """``/v1/completions``."""

    object_name = chunk_name = "text_completion"
    around_text = '"text":', ""

    def opening(self) -> bytes:
        """With ``echo``, the prompts."""
        return b"".join(self._chunk(index, {"text": text}) for index, text in enumerate(self._job.echo))

    def _delta(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def _content(self, choice: Choice) -> dict[str, Any]:
        return {"text": choice.text}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        return text_logprobs(tokens)


class PlainEnvelope(TextEnvelope):
    """``/generate``."""

    def whole(self) -> bytes:
        (choice,) = self._answer.choices
        head = {key: self._head[key] for key in ("id", "model")}
        return _encode({**head, "text": choice.text, "finish_reason": choice.finish_reason, **self._counts()}).encode()
