"""The response object, whole or as it grows, event by event."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from strata.server.answer import Answer
from strata.server.job import Job, Piece
from strata.server.output.deltas import Arguments, Call, Content, Delta, Reasoning
from strata.server.response_api.request import NamedChoice, ResponseRequest

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Event = dict[str, Any]


class ResponseEnvelope:
    """Of one job. Every piece is given to ``chunk``, or to ``add``."""

    def __init__(self, job: Job, request: ResponseRequest) -> None:
        self._job = job
        self._request = request
        self._answer = Answer(job)
        self._created_at = int(time.time())
        self._output: list[dict[str, Any]] = []  # items; the last one may still grow
        self._texts: list[str] = []  # of the one that grows
        self._num_events = 0

    def add(self, piece: Piece) -> None:
        """Take in a piece of the whole answer."""
        for _ in self._grow(piece):
            pass

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        return _encode(self._resource()).encode()

    # --- a stream

    def opening(self) -> bytes:
        """The events before the first text."""
        response = self._resource()
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._send({"type": kind, "response": response}) for kind in kinds)

    def chunk(self, piece: Piece) -> bytes:
        """The events of new text."""
        return b"".join(self._send(event) for event in self._grow(piece))

    def closing(self) -> bytes:
        """The event with the whole response."""
        response = self._resource()
        return self._send({"type": f"response.{response['status']}", "response": response})

    def failure(self, body: dict[str, Any]) -> bytes:
        """The event that tells a client in mid-stream that its answer failed."""
        error = body["error"]
        return self._send(
            {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
        )

    def _send(self, event: Event) -> bytes:
        event = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return f"event: {event['type']}\ndata: {_encode(event)}\n\n".encode()

    # --- items

    def _grow(self, piece: Piece) -> Iterator[Event]:
        """Take in a piece; gives the events that tell it."""
        self._answer.add(piece)
        deltas: tuple[Delta, ...] = piece.deltas
        if piece.text:
            deltas = (Content(piece.text),)
        num_calls = len(self._answer.choices[0].calls) - sum(isinstance(delta, Call) for delta in deltas)
        for delta in deltas:
            if isinstance(delta, Call):
                yield from self._close("completed")
                yield from self._open_call(num_calls)
                num_calls += 1
            elif isinstance(delta, Arguments):
                yield from self._extend("response.function_call_arguments.delta", delta.text)
            else:
                yield from self._say(delta)
        if piece.finish_reason is not None:
            yield from self._close("completed" if self._is_complete else "incomplete")

    def _open_call(self, index: int) -> Iterator[Event]:
        call = self._answer.choices[0].calls[index]
        item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": ""}
        yield self._open("fc", item)

    def _say(self, delta: Content | Reasoning) -> Iterator[Event]:
        """More of a message or of reasoning; another item ends where they change."""
        is_content = isinstance(delta, Content)
        kind = "message" if is_content else "reasoning"
        if not self._texts or self._output[-1]["type"] != kind:
            yield from self._close("completed")
            rest: dict[str, Any] = {"role": "assistant"} if is_content else {"summary": []}
            yield self._open("msg" if is_content else "rs", {"type": kind, "content": [], **rest})
            yield self._event("response.content_part.added", content_index=0, part=_part(kind, ""))
        logprobs: dict[str, Any] = {"logprobs": []} if is_content else {}
        name = "output_text" if is_content else "reasoning_text"
        yield from self._extend(f"response.{name}.delta", delta.text, content_index=0, **logprobs)

    def _open(self, prefix: str, item: dict[str, Any]) -> Event:
        self._output.append({"id": f"{prefix}_{uuid.uuid4().hex}", **item, "status": "in_progress"})
        self._texts = [""]
        return {
            "type": "response.output_item.added",
            "output_index": len(self._output) - 1,
            "item": dict(self._output[-1]),
        }

    def _extend(self, kind: str, text: str, **fields: Any) -> Iterator[Event]:
        self._texts.append(text)
        yield self._event(kind, delta=text, **fields)

    def _close(self, status: str) -> Iterator[Event]:
        """End the item that grows, if there is one."""
        if not self._texts:
            return
        item, text = self._output[-1], "".join(self._texts)
        self._texts = []
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event("response.function_call_arguments.done", name=item["name"], arguments=text)
        else:
            part = _part(item["type"], text)
            item["content"] = [part]
            logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=text, **logprobs)
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self._output) - 1, "item": item}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, **fields}

    # --- the object

    @property
    def _is_complete(self) -> bool:
        return self._answer.choices[0].finish_reason in ("stop", "tool_calls")

    def _resource(self) -> dict[str, Any]:
        request, reason = self._request, self._answer.choices[0].finish_reason
        sampling = self._job.requests[0].sampling
        choice: Any = request.tool_choice or "auto"
        if isinstance(choice, NamedChoice):
            choice = choice.model_dump()
        form = {"type": "text"}
        if request.text is not None and request.text.format is not None:
            form = request.text.format.model_dump(by_alias=True, exclude_none=True)
        status, details = "in_progress", None
        if reason is not None:
            status = "completed" if self._is_complete else "incomplete"
        if status == "incomplete":
            details = {"reason": "max_output_tokens" if reason == "length" else reason}
        resource = {
            "id": self._job.job_id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._job.model_name,
            "output": self._output,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": form},
            "tool_choice": choice,
            "tools": [tool.model_dump() for tool in request.tools or ()],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if reason is None else self._usage(),
            "user": request.user,
        }
        return resource | ({"warnings": self._job.warnings} if self._job.warnings else {})

    def _usage(self) -> dict[str, Any]:
        usage, choice = self._answer.usage(), self._answer.choices[0]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": choice.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": choice.num_reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
