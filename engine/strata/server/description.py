"""``/openapi.json``: the bodies that the routes take beside the answers that FastAPI describes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from strata.server.described import ErrorAnswer
from strata.server.keys import OPEN_PATHS

_PLACE = "#/components/schemas/{model}"


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """A route's ``openapi_extra``: the body that it reads itself."""
    schema = {"$ref": _PLACE.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI, bodies: list[type[BaseModel]], *, needs_key: bool) -> None:
    """Give the application its description, with the schemas of ``bodies``. ``needs_key``: whether it asks for one."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app, bodies)
            if needs_key:
                _add_key(app.openapi_schema)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own guide does


def _build(app: FastAPI, bodies: list[type[BaseModel]]) -> dict[str, Any]:
    described = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = described["components"]["schemas"]
    beside = models_json_schema(
        [*((body, "validation") for body in bodies), (ErrorAnswer, "serialization")], ref_template=_PLACE
    )[1]["$defs"]
    assert all(schemas.get(name, schema) == schema for name, schema in beside.items()), "two schemas have one name"
    schemas |= beside
    # FastAPI answers 422 where it checks parameters; here none can be wrong.
    for operations in described["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return described


def _add_key(described: dict[str, Any]) -> None:
    described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"key": []}]
    for path in OPEN_PATHS:
        for operation in described["paths"][path].values():
            operation["security"] = []
