"""The routes that need the model: generation, tokens, names."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from strata.errors import RequestError, StrataError
from strata.server.body import Body
from strata.server.described import (
    ChatCompletion,
    Generated,
    ModelEntry,
    ModelList,
    Text,
    TextCompletion,
    Tokens,
    answers,
)
from strata.server.description import takes
from strata.server.envelope import ChatEnvelope, ChoicesEnvelope, PlainEnvelope, TextEnvelope
from strata.server.job import Job
from strata.server.parse import parse
from strata.server.record import record_of
from strata.server.response_api.described import ResponseObject
from strata.server.response_api.envelope import ResponseEnvelope
from strata.server.response_api.request import ResponseRequest
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from strata.server.sending import StreamedAnswer, WholeAnswer
from strata.server.service import Service
from strata.server.tokens import DetokenizeRequest, TokenizeRequest

BODIES: list[type[BaseModel]] = [
    ChatRequest,
    CompletionRequest,
    ResponseRequest,
    GenerateRequest,
    TokenizeRequest,
    DetokenizeRequest,
]

# A million tokens as ids, more as text. Reading JSON is one step of the interpreter even in a thread: 8 MiB of text
# keep other streams waiting for 15 ms, 8 MiB of ids for 105 ms (two Zen 4 cores, 2026-11-29).
MAX_BODY_BYTES = 8 << 20
LONG_BODY_BYTES = 64 << 10  # what is longer is checked in a thread

_ACCESS = (401, 403)
_READING = (400, *_ACCESS, 404, 413, 500, 503)
_GENERATING = (*_READING, 429)

_Body = TypeVar("_Body", bound=Body)
_Generation = TypeVar("_Generation", ChatRequest, CompletionRequest, GenerateRequest, ResponseRequest)
_Choices = TypeVar("_Choices", ChatRequest, CompletionRequest, GenerateRequest)


def add_generation(app: FastAPI, service: Service) -> None:
    """Chats, responses, completions and ``/generate``."""

    async def admit(request: Request, schema: type[_Generation]) -> tuple[_Generation, Job]:
        record = record_of(request)
        record.ask("text_completion" if schema in (CompletionRequest, GenerateRequest) else "chat")
        try:
            body = await _body(request, schema)
            record.read(is_streamed=not isinstance(body, GenerateRequest) and bool(body.stream))
            return body, await service.admit(body, record)
        except StrataError as error:
            service.refuse(error, record)
            raise

    async def answer(request: Request, schema: type[_Choices], envelope: type[ChoicesEnvelope]) -> Response:
        body, job = await admit(request, schema)
        if isinstance(body, GenerateRequest):
            return WholeAnswer(service, job, envelope(job))
        kind = StreamedAnswer if body.stream else WholeAnswer
        return kind(service, job, envelope(job, include_usage=body.include_usage))

    @app.post(
        "/v1/chat/completions",
        openapi_extra=takes(ChatRequest),
        responses=answers(ChatCompletion, *_GENERATING, stream=True),
    )
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation; OpenAI's chat completions."""
        return await answer(request, ChatRequest, ChatEnvelope)

    @app.post(
        "/v1/responses",
        openapi_extra=takes(ResponseRequest),
        responses=answers(ResponseObject, *_GENERATING, stream=True),
    )
    async def responses(request: Request) -> Response:
        """Continue a conversation of items; OpenAI's responses, of which nothing is kept."""
        body, job = await admit(request, ResponseRequest)
        return (StreamedAnswer if body.stream else WholeAnswer)(service, job, ResponseEnvelope(job, body))

    @app.post(
        "/v1/completions",
        openapi_extra=takes(CompletionRequest),
        responses=answers(TextCompletion, *_GENERATING, stream=True),
    )
    async def completions(request: Request) -> Response:
        """Continue a text, or several; OpenAI's completions."""
        return await answer(request, CompletionRequest, TextEnvelope)

    @app.post("/generate", openapi_extra=takes(GenerateRequest), responses=answers(Generated, *_GENERATING))
    async def generate(request: Request) -> Response:
        """Continue a text, with a plain answer."""
        return await answer(request, GenerateRequest, PlainEnvelope)


def add_tokens(app: FastAPI, service: Service) -> None:
    """Texts to tokens and back."""

    @app.post("/tokenize", openapi_extra=takes(TokenizeRequest), responses=answers(Tokens, *_READING))
    async def tokenize(request: Request) -> Response:
        """The tokens of a text, or of the prompt that a conversation becomes."""
        return JSONResponse(await service.tokenize(await _body(request, TokenizeRequest)))

    @app.post("/detokenize", openapi_extra=takes(DetokenizeRequest), responses=answers(Text, *_READING))
    async def detokenize(request: Request) -> Response:
        """The text of some tokens."""
        return JSONResponse(await service.detokenize(await _body(request, DetokenizeRequest)))


def add_models(app: FastAPI, service: Service) -> None:
    """The served names."""

    def entry(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "strata",
            "max_model_len": service.backend.model().max_model_len,
        }

    @app.get("/v1/models", responses=answers(ModelList, *_ACCESS, 500, 503))
    async def list_models() -> Response:
        """The names that requests may use; all of them stand for one model."""
        return JSONResponse({"object": "list", "data": [entry(name) for name in service.model_names]})

    @app.get("/v1/models/{name:path}", responses=answers(ModelEntry, *_ACCESS, 404, 500, 503))
    async def show_model(name: str) -> Response:
        """One of them."""
        return JSONResponse(entry(service.check_name(name)))


async def _body(request: Request, schema: type[_Body]) -> _Body:
    """The request's body, read to its end and checked."""
    _check_size(int(request.headers.get("content-length", 0)))  # the protocol refuses what is no number
    raw = bytearray()
    async for part in request.stream():
        raw += part
        _check_size(len(raw))
    if len(raw) > LONG_BODY_BYTES:
        return await asyncio.to_thread(parse, schema, bytes(raw))
    return parse(schema, bytes(raw))


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BODY_BYTES:
        message = f"the body is larger than {MAX_BODY_BYTES >> 20} MiB, the most that is read"
        raise RequestError(message, code="request_too_large")
