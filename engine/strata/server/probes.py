"""The routes for those who watch the server: liveness, readiness, Prometheus."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from strata.errors import StoppingError
from strata.server.described import Healthy, NotHealthy, NotReady, Ready
from strata.server.failures import RETRY_LOADING_SECONDS, STOPPING_HEADERS, describe, error_body
from strata.server.metrics import CONTENT_TYPE
from strata.server.service import Service


def add_probes(app: FastAPI, service: Service) -> None:
    """``/health``, ``/ready`` and ``/metrics``."""

    @app.get(
        "/health",
        responses={
            200: {"model": Healthy, "description": Healthy.__doc__},
            503: {"model": NotHealthy, "description": NotHealthy.__doc__},
        },
    )
    async def health() -> Response:
        """200 as long as a restart would not help: the engine loads or serves."""
        state = service.backend.state
        if state in ("loading", "ready"):
            return JSONResponse({"status": "ok"})
        return _failed(service)

    @app.get(
        "/ready",
        responses={
            200: {"model": Ready, "description": Ready.__doc__},
            503: {"model": NotReady, "description": NotReady.__doc__},
        },
    )
    async def ready() -> Response:
        """200 when requests are served; before that how far loading has come."""
        state, progress = service.backend.state, service.backend.engine.progress
        if service.stopping:
            status, error = describe(StoppingError("the server ends after the requests that it has"))
            return JSONResponse({"status": "stopping", **error}, status, STOPPING_HEADERS)
        if state == "ready":
            return JSONResponse({"status": "ready"})
        if state != "loading":
            return _failed(service)
        loading = {
            "phase": progress.phase if progress else "start",
            "bytes_done": progress.bytes_done if progress else 0,
            "bytes_total": progress.bytes_total if progress else 0,
        }
        error = error_body("the model is still loading", "service_unavailable_error", code="model_loading")
        headers = {"Retry-After": str(RETRY_LOADING_SECONDS)}
        return JSONResponse({"status": state, **loading, **error}, 503, headers)

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"description": "Prometheus's text format.", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)


def _failed(service: Service) -> Response:
    state = service.backend.state
    reason = str(service.backend.error or f"the engine is {state}")
    return JSONResponse({"status": state, **error_body(reason, "server_error", code="engine_failed")}, 503)
