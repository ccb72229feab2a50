"""One request after another to a server of the OpenAI API, with the times at which its answer comes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from strata.bench.serve.address import FOREIGN, bearer, error_message, is_local, root
from strata.bench.serve.prompts import Prompt
from strata.errors import EngineError, OptionError

_MAX_LINE = 1 << 20


@dataclass(slots=True)
class Answer:
    """Times in seconds of one clock. ``gaps``: between chunks of text. ``error``: why it is not whole, in short."""

    started: float
    first: float | None = None
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None  # as the server counted
    output_tokens: int = 0  # as the server counted; where it does not, chunks of text
    is_counted: bool = False
    error: str | None = None


class BenchClient:
    """``open_client`` makes one. ``num_chunks``: chunks of text of all requests so far, for progress."""

    def __init__(self, session: aiohttp.ClientSession, url: str, endpoint: str) -> None:
        self.url = url
        self.model = ""
        self.max_model_len: int | None = None
        self.takes_ignore_eos = True
        self.num_chunks = 0
        self._session = session
        self._is_chat = endpoint == "chat"
        self._path = "/v1/chat/completions" if self._is_chat else "/v1/completions"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return is_local(self.url)

    async def find_model(self, name: str | None) -> None:
        """Take the model called ``name``, or the server's first.

        Raises OptionError when nothing answers, or what answers is no server of this API or has no such model.
        """
        try:
            async with self._session.get(f"{self.url}/v1/models") as response:
                body = await response.json(content_type=None)
                if response.status != 200:
                    raise OptionError(
                        f"{self.url}: {error_message(body, f'HTTP {response.status}', status=response.status)}"
                    )
                models = {str(model["id"]): model for model in body["data"]}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OptionError(
                f"no server answers at {self.url} ({_reason(error)}); start one with 'strata serve MODEL', or name "
                "another with --url"
            ) from error
        except FOREIGN as error:
            raise OptionError(f"what answers at {self.url} is no server of the OpenAI API") from error
        if not models or (name is not None and name not in models):
            raise OptionError(f"model {name!r} is not served at {self.url}; served: {', '.join(models) or 'none'}")
        self.model = name if name is not None else next(iter(models))
        length = models[self.model].get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None

    async def count(self, text: str) -> int:
        """Tokens of ``text`` by ``/tokenize``, as vLLM and Strata have it.

        Raises LookupError where there is none, EngineError when the server does not answer.
        """
        body = {"model": self.model, "prompt": text}
        try:
            async with self._session.post(f"{self.url}/tokenize", json=body) as response:
                if response.status != 200:
                    raise LookupError(f"HTTP {response.status}")
                answer = await response.json(content_type=None)
                return int(answer["count"] if "count" in answer else len(answer["tokens"]))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"{self.url} has stopped to answer ({type(error).__name__})") from error

    async def metrics(self) -> str | None:
        """The text of ``/metrics``; None where there is none."""
        try:
            async with self._session.get(f"{self.url}/metrics") as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def generate(self, prompt: Prompt, output_tokens: int) -> Answer:
        """Send a request and read its answer to the end; what goes wrong is in the answer."""
        answer = Answer(started=time.perf_counter())
        try:
            await self._stream(self._body(prompt, output_tokens), answer)
        except TimeoutError:
            answer.error = "silent for too long"
        except aiohttp.ClientError as error:
            answer.error = f"the connection broke ({type(error).__name__})"
        except FOREIGN as error:
            answer.error = f"not an answer of this API ({type(error).__name__})"
        answer.ended = time.perf_counter()
        return answer

    def _body(self, prompt: Prompt, output_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.takes_ignore_eos:
            body["ignore_eos"] = True
        if self._is_chat:
            return {**body, "messages": [{"role": "user", "content": prompt.text}]}
        return {**body, "prompt": prompt.text}

    async def _stream(self, body: dict[str, Any], answer: Answer) -> None:
        async with self._session.post(self.url + self._path, json=body) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {error_message(await _json(response), response.reason or '')}"
                return
            last = 0.0
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[len(b"data:") :].strip()
                if data == b"[DONE]":
                    return
                now = time.perf_counter()
                event = json.loads(data)
                if "error" in event:
                    answer.error = error_message(event, "an error in mid-stream")
                    return
                if event.get("usage"):
                    answer.prompt_tokens = int(event["usage"]["prompt_tokens"])
                    answer.output_tokens = int(event["usage"]["completion_tokens"])
                    answer.is_counted = True
                if not any(_text(choice) for choice in event.get("choices", ())):
                    continue
                self.num_chunks += 1
                if answer.first is None:
                    answer.first = now
                else:
                    answer.gaps.append(now - last)
                last = now
                if not answer.is_counted:
                    answer.output_tokens += 1
        answer.error = "the stream ended before it was complete"


@asynccontextmanager
async def open_client(
    url: str, *, endpoint: str, api_key: str | None, timeout_seconds: float
) -> AsyncIterator[BenchClient]:
    """``url`` with or without ``/v1``. ``timeout_seconds``: the longest silence of the server. Raises OptionError for
    an ``api_key`` that no header may hold."""
    url = root(url)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # every stream has a connection of its own
        headers=bearer(api_key),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout_seconds),
        trust_env=not is_local(url),
        read_bufsize=_MAX_LINE,
    ) as session:
        yield BenchClient(session, url, endpoint)
        await asyncio.sleep(0)  # closed connections leave the loop


def _reason(error: Exception) -> str:
    """Why there is no connection, without aiohttp's settings around it."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    code = error.os_error.errno or 0
    return os.strerror(code) if code > 0 else str(error.os_error.strerror)  # below 0: names that are not found


def _text(choice: dict[str, Any]) -> Any:
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text")
    return delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except FOREIGN:
        return None
