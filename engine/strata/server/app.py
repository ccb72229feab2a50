"""The HTTP application: who may use it, its routes, and what it says where none of them does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

import strata
from strata.errors import StrataError
from strata.server.access_log import log_access
from strata.server.description import describe
from strata.server.failures import describe as describe_error
from strata.server.failures import error_body, error_response
from strata.server.keys import ApiKeys, RequireKey
from strata.server.middleware import HeadAsGet, KeepRecord, Observer
from strata.server.origins import AllowOrigins
from strata.server.page.routes import add_page
from strata.server.probes import add_probes
from strata.server.record import record_of
from strata.server.routes import BODIES, add_generation, add_models, add_tokens
from strata.server.service import Service
from strata.server.status import add_status


@dataclass(frozen=True)
class Access:
    """Who may use the server; by default everybody who reaches it, but no page of another origin."""

    api_keys: ApiKeys | None = None
    allowed_origins: tuple[str, ...] = ()
    # Only this machine reaches the server: then the name of another host that leads here was pointed here for that by a
    # page (DNS rebinding).
    is_local: bool = False


EVERYBODY = Access()


def create_app(service: Service, access: Access = EVERYBODY, observers: Sequence[Observer] = (log_access,)) -> FastAPI:
    """The ASGI application around a service; it starts the service, and closes it at its end. ``observers`` see each
    request when it has ended."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.backend.start()
        try:
            yield
        finally:
            await service.backend.close()

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
    app.add_middleware(HeadAsGet)
    if access.api_keys is not None:
        app.add_middleware(RequireKey, keys=access.api_keys)
    app.add_middleware(AllowOrigins, origins=access.allowed_origins, is_local=access.is_local)
    app.add_middleware(KeepRecord, observers=observers)
    for add_routes in (add_generation, add_tokens, add_models, add_status, add_probes):
        add_routes(app, service)
    add_page(app)
    _add_errors(app)
    describe(app, BODIES, needs_key=access.api_keys is not None)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(StrataError)
    async def on_strata_error(request: Request, error: StrataError) -> Response:
        record_of(request).fail(describe_error(error)[1]["error"]["code"])
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
    async def on_disconnect(request: Request, _: ClientDisconnect) -> Response:
        record_of(request).end("abort")
        return Response(status_code=400)  # nobody is there to read it


def _allowed_methods(app: FastAPI, request: Request) -> set[str]:
    matching = (
        route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE
    )
    return {method for route in matching for method in route.methods or ()}
