"""The page's files, as they lie in the package. They hold no secret: what they show comes from the API."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES = tuple(sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in _TYPES))
PAGE_PATHS = frozenset({"/", *(f"/page/{path.name}" for path in _FILES)})  # a browser opens them without a key

# A script in an answer could not run even if the page made elements of it: nothing inline, no HTML from strings.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked for each time: another version of Strata may have another page
}


class _File:
    """One of them with its headers, read once."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._etag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        self._headers = {**_HEADERS, "ETag": self._etag, "Content-Type": _TYPES[path.suffix]}

    def answer(self, request: Request) -> Response:
        """The file, or that the browser has it."""
        if self._etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, headers=self._headers)


def add_page(app: FastAPI) -> None:
    """``/`` and ``/page/...``."""
    files = {path.name: _File(path) for path in _FILES}

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return files[_INDEX].answer(request)

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name].answer(request)
