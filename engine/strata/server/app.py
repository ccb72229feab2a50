"""The HTTP surface: routes, bodies, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

import strata
from strata.errors import RequestError, StoppingError, StrataError
from strata.server.body import Body
from strata.server.envelope import ChatEnvelope, ChoicesEnvelope, PlainEnvelope, TextEnvelope
from strata.server.failures import RETRY_LOADING_SECONDS, error_body, error_response
from strata.server.job import Job
from strata.server.keys import ApiKeys, RequireKey
from strata.server.metrics import CONTENT_TYPE
from strata.server.middleware import AccessLog
from strata.server.origins import AllowOrigins
from strata.server.parse import parse
from strata.server.response_api.envelope import ResponseEnvelope
from strata.server.response_api.request import ResponseRequest
from strata.server.responses import StreamedAnswer, WholeAnswer
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from strata.server.service import Service

# A million tokens as ids, more as text. Reading JSON is one step of the interpreter even in a thread: 8 MiB of text
# keep other streams waiting for 15 ms, 8 MiB of ids for 105 ms (two Zen 4 cores, 2026-11-29).
MAX_BODY_BYTES = 8 << 20
LONG_BODY_BYTES = 64 << 10  # what is longer is checked in a thread

_Choices = TypeVar("_Choices", ChatRequest, CompletionRequest, GenerateRequest)
_Body = TypeVar("_Body", ChatRequest, CompletionRequest, GenerateRequest, ResponseRequest)


@dataclass(frozen=True)
class Access:
    """Who may use the server; by default everybody who reaches it, but no page of another origin."""

    api_keys: ApiKeys | None = None
    allowed_origins: tuple[str, ...] = ()


EVERYBODY = Access()


def create_app(service: Service, access: Access = EVERYBODY) -> FastAPI:
    """The ASGI application around a service; it starts the service, and closes it at its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    # The interactive pages load scripts from elsewhere; the description itself stays at /openapi.json.
    app = FastAPI(
        title="Strata",
        version=strata.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # clients do not repeat a POST for a redirect
    )
    # The last one added is the first that a request meets; a browser asks for leave without a key.
    if access.api_keys is not None:
        app.add_middleware(RequireKey, keys=access.api_keys)
    if access.allowed_origins:
        app.add_middleware(AllowOrigins, origins=access.allowed_origins)
    app.add_middleware(AccessLog)
    _add_generation(app, service)
    _add_models(app, service)
    _add_probes(app, service)
    _add_errors(app)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    async def admit(request: Request, schema: type[_Body]) -> tuple[_Body, Job]:
        arrived = time.perf_counter()
        try:
            raw = await _read(request)
            is_long = len(raw) > LONG_BODY_BYTES
            body = await asyncio.to_thread(parse, schema, raw) if is_long else parse(schema, raw)
            return body, await service.admit(body, arrived)
        except StrataError as error:
            service.count_refusal(error)
            raise

    async def answer(request: Request, schema: type[_Choices], envelope: type[ChoicesEnvelope]) -> Response:
        body, job = await admit(request, schema)
        if isinstance(body, GenerateRequest):
            return WholeAnswer(service, job, envelope(job))
        kind = StreamedAnswer if body.stream else WholeAnswer
        return kind(service, job, envelope(job, include_usage=body.include_usage))

    @app.post("/v1/chat/completions", openapi_extra=_describe_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation; OpenAI's chat completions."""
        return await answer(request, ChatRequest, ChatEnvelope)

    @app.post("/v1/responses", openapi_extra=_describe_body(ResponseRequest))
    async def responses(request: Request) -> Response:
        """Continue a conversation of items; OpenAI's responses, of which nothing is kept."""
        body, job = await admit(request, ResponseRequest)
        return (StreamedAnswer if body.stream else WholeAnswer)(service, job, ResponseEnvelope(job, body))

    @app.post("/v1/completions", openapi_extra=_describe_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a text; OpenAI's completions."""
        return await answer(request, CompletionRequest, TextEnvelope)

    @app.post("/generate", openapi_extra=_describe_body(GenerateRequest))
    async def generate(request: Request) -> Response:
        """Continue a text, with a plain answer."""
        return await answer(request, GenerateRequest, PlainEnvelope)


def _add_models(app: FastAPI, service: Service) -> None:
    def entry(name: str) -> dict[str, Any]:
        max_model_len = service.model().max_model_len
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "strata",
            "max_model_len": max_model_len,
        }

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The names that requests may use; all of them stand for one model."""
        return {"object": "list", "data": [entry(name) for name in service.model_names]}

    @app.get("/v1/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        """One of them."""
        return entry(service.check_name(name))


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 as long as a restart would not help: the engine loads or serves."""
        state = service.state
        if state in ("loading", "ready"):
            return JSONResponse({"status": "ok"})
        return JSONResponse(
            {"status": state, **error_body(_reason(service), "server_error", code="engine_failed")}, 503
        )

    @app.get("/ready")
    async def ready() -> Response:
        """200 when requests are served; before that how far loading has come."""
        state, progress = service.state, service.progress
        if service.stopping:
            return error_response(StoppingError("the server ends after the requests that it has"))
        if state == "ready":
            return JSONResponse({"status": "ready"})
        if state != "loading":
            error = error_body(_reason(service), "server_error", code="engine_failed")
            return JSONResponse({"status": state, **error}, 503)
        loading = {
            "phase": progress.phase if progress else "start",
            "bytes_done": progress.bytes_done if progress else 0,
            "bytes_total": progress.bytes_total if progress else 0,
        }
        error = error_body("the model is still loading", "service_unavailable_error", code="model_loading")
        headers = {"Retry-After": str(RETRY_LOADING_SECONDS)}
        return JSONResponse({"status": state, **loading, **error}, 503, headers)

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(StrataError)
    async def on_strata_error(_: Request, error: StrataError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        """What the router has to say: no such route, or not with this method."""
        path, kind = request.url.path, "invalid_request_error"
        if error.status_code == 404:
            known = ", ".join(sorted(route.path for route in app.routes if isinstance(route, Route)))
            return JSONResponse(
                error_body(f"there is no {path!r} here; there are: {known}", kind, code="not_found"), 404
            )
        if error.status_code == 405:
            allowed = ", ".join(sorted(_allowed_methods(app, request)))
            message = f"{path!r} does not take {request.method}; it takes {allowed}"
            return JSONResponse(error_body(message, kind, code="method_not_allowed"), 405, {"Allow": allowed})
        return JSONResponse(error_body(str(error.detail), kind), error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody is there to read it

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> Response:
        message = f"the server failed: {type(error).__name__}; its log has the details"
        return JSONResponse(error_body(message, "server_error", code="internal_error"), 500)


def _allowed_methods(app: FastAPI, request: Request) -> set[str]:
    matching = (
        route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE
    )
    return {method for route in matching for method in route.methods or ()}


def _reason(service: Service) -> str:
    return str(service.error or f"the engine is {service.state}")


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            message = f"the body is larger than {MAX_BODY_BYTES >> 20} MiB, the most that is read"
            raise RequestError(message, code="request_too_large")
    return bytes(body)


def _describe_body(schema: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
