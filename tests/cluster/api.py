"""A few requests to the API server over one connection: hundreds of pretend nodes take a second or two."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.errors import ApiError

Json = dict[str, Any]


class Api:
    """Use as a context manager. Not for several threads."""

    def __init__(self, kubeconfig: Path, timeout_seconds: float = 30) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        context = ssl.create_default_context(cadata=_pem(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile(suffix=".pem") as identity:  # ssl takes a client's key from files only
            identity.write((_pem(user["client-certificate-data"]) + _pem(user["client-key-data"])).encode())
            identity.flush()
            context.load_cert_chain(identity.name)
        self._connection = http.client.HTTPSConnection(host, int(port), timeout=timeout_seconds, context=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str) -> Json:
        return self._object("GET", path)

    def create(self, path: str, value: Json) -> Json:
        return self._object("POST", path, value)

    def delete(self, path: str) -> Json:
        return self._object("DELETE", path)

    def merge(self, path: str, change: Json) -> Json:
        """A JSON merge patch: null takes a field away."""
        return self._object("PATCH", path, change, "application/merge-patch+json")

    def is_ready(self) -> bool:
        try:
            return self._request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _object(self, method: str, path: str, value: Json | None = None, kind: str = "application/json") -> Json:
        try:
            status, body = self._request(method, path, value, kind)
        except OSError as error:
            raise ApiError(f"{method} {path}: the API server does not answer: {error}", 0) from error
        answer: Json = json.loads(body) if body.startswith(b"{") else {"message": body.decode(errors="replace")}
        if status >= 300:
            raise ApiError(f"{method} {path}: {status} {answer.get('message', '')}", status)
        return answer

    def _request(
        self, method: str, path: str, value: Json | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        body = None if value is None else json.dumps(value)
        try:
            self._connection.request(method, path, body, {"Content-Type": kind, "Accept": "application/json"})
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens a new one
            raise OSError(f"{type(error).__name__} {error}") from error


def _pem(data: str) -> str:
    return base64.b64decode(data).decode()
