"""Servers to load: Strata's own over the fake engine, and one that knows less."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from tests.server.conftest import direct, encode, live, make_engine, store

__all__ = ["direct", "encode", "live", "make_engine", "other", "store"]

Encode = Callable[[str], list[int]]


class OtherServer:
    """A server of the API by another hand: no ``ignore_eos``, no usage, no /metrics; with ``has_tokenize`` a /tokenize
    as vLLM's. ``prompts``: what it was asked for. ``behaviour``: how an answer goes on after its first chunk."""

    def __init__(self, encode: Encode, *, has_tokenize: bool) -> None:
        self.prompts: list[str] = []
        self.behaviour = "well"
        self.url = ""
        self._encode = encode
        self._has_tokenize = has_tokenize

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        if self._has_tokenize:
            app.router.add_post("/tokenize", self._tokenize)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.behaviour == "close":
            assert request.transport is not None
            request.transport.close()
        tokens = self._encode((await request.json())["prompt"])
        return web.json_response({"count": len(tokens), "max_model_len": 4096, "tokens": tokens})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "ignore_eos" in body:
            error = {"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}
            return web.json_response(error, status=400)
        self.prompts.append(body["prompt"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            chunk = {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            if self.behaviour == "stop":
                return response
            if self.behaviour == "close":
                assert request.transport is not None
                request.transport.close()
                return response
            if self.behaviour == "hang":
                await asyncio.Event().wait()  # until the client goes
            if self.behaviour == "garble":
                await response.write(b"data: {\n\n")
            if self.behaviour == "list":
                await response.write(b"data: [1]\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@contextmanager
def run_other(server: OtherServer) -> Iterator[OtherServer]:
    """On a free port, in a thread of its own."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), handler_cancellation=True)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        server.url = f"http://127.0.0.1:{asyncio.run_coroutine_threadsafe(start(), loop).result(30)}"
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=[True, False], ids=["with /tokenize", "without /tokenize"])
def other(request: pytest.FixtureRequest, encode: Encode) -> Iterator[OtherServer]:
    with run_other(OtherServer(encode, has_tokenize=request.param)) as server:
        yield server
