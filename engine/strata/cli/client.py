"""Just enough of an OpenAI client for the command line, without any package."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import IO, Any, NamedTuple

from strata.bench.serve.address import FOREIGN, bearer, check_url, error_message, is_local, root
from strata.errors import EngineError, OptionError

CONNECT_SECONDS = 10  # an address that drops packets; the system's own limit is minutes


class Piece(NamedTuple):
    """New text of an answer, or of the reasoning before it. ``finish_reason``: of the last piece, which has no text."""

    text: str
    is_reasoning: bool
    finish_reason: str | None = None


class Client:
    """``url``: where the server is, with or without ``/v1``. ``model``: None takes the server's first. ``api_key``: for
    a server that asks for one.

    Raises OptionError for an address that cannot be one.
    """

    def __init__(self, url: str, model: str | None, api_key: str | None = None) -> None:
        check_url(url)
        self._url = root(url)
        self._model = model
        self._headers = {"Content-Type": "application/json", **bearer(api_key)}
        direct = [urllib.request.ProxyHandler({})] if is_local(url) else []
        self._opener = urllib.request.build_opener(_HTTPHandler, _HTTPSHandler, *direct)

    def model(self) -> str:
        """The name to ask for. Raises as ``stream`` does."""
        if self._model is None:
            self._model = str(self._first_model["id"])
        return self._model

    def context(self) -> int | None:
        """Tokens of prompt and answer together, where the server tells them. Raises as ``stream`` does."""
        length = self._first_model.get("max_model_len")
        return length if isinstance(length, int) else None

    @cached_property
    def _first_model(self) -> dict[str, Any]:
        with self._open("/v1/models", None) as response:
            try:
                first = json.load(response)["data"][0]
                return {"id": first["id"], **first}
            except (*FOREIGN, http.client.HTTPException):
                raise OptionError(f"what answers at {self._url} is no server of the OpenAI API") from None

    def stream(
        self, messages: Sequence[dict[str, str]], *, max_tokens: int | None = None
    ) -> Generator[Piece, None, None]:
        """The pieces of an answer of at most ``max_tokens``; closing the generator ends it.

        Raises OptionError when no server is there or it refuses the request, EngineError when the server fails.
        """
        body: dict[str, Any] = {"model": self.model(), "messages": list(messages), "stream": True}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        with self._open("/v1/chat/completions", json.dumps(body).encode()) as response:
            try:
                for line in response:
                    if not line.startswith(b"data: "):
                        continue
                    data = line[len(b"data: ") :].strip()
                    if data == b"[DONE]":
                        return
                    yield from self._pieces(data)
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(f"the connection to {self._url} broke: {error}") from error
        raise EngineError(f"the server at {self._url} ended the answer before it was complete")

    def _pieces(self, data: bytes) -> list[Piece]:
        """The new texts of one event."""
        try:
            event: Any = json.loads(data)
            if "error" not in event:
                choices = event["choices"]
                texts = [
                    Piece(choice["delta"][field], field == "reasoning_content")
                    for choice in choices
                    for field in ("reasoning_content", "content")
                    if choice["delta"].get(field)
                ]
                ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
                return texts + [Piece("", False, reason) for reason in ends]
            message = str(event["error"]["message"])
        except FOREIGN as error:
            raise OptionError(f"what answers at {self._url} is no server of the OpenAI API: {data[:80]!r}") from error
        raise EngineError(message)

    def _open(self, path: str, body: bytes | None) -> IO[bytes]:
        request = urllib.request.Request(self._url + path, body, self._headers)  # noqa: S310  the URL was checked
        try:
            response: IO[bytes] = self._opener.open(request)
        except urllib.error.HTTPError as error:
            with error:
                message = error_message(_json(error.read()), f"HTTP status {error.code}", status=error.code)
            kind = OptionError if error.code < 500 else EngineError
            raise kind(f"{self._url}: {message}") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise OptionError(
                f"no server answers at {self._url} ({reason}); start one with 'strata serve MODEL', "
                "or name another with --url"
            ) from error
        except http.client.HTTPException as error:
            raise OptionError(f"what answers at {self._url} is no HTTP server ({error!r})") from error
        return response


class _HTTPConnection(http.client.HTTPConnection):
    """Bounds how long a connection takes to make, not how long an answer may be thought about."""

    def connect(self) -> None:
        self.timeout = CONNECT_SECONDS
        super().connect()
        self.sock.settimeout(None)


class _HTTPSConnection(_HTTPConnection, http.client.HTTPSConnection):
    """Likewise, the handshake included."""


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPConnection, request)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPSConnection, request)


def _json(body: bytes) -> Any:
    """None for what is none."""
    try:
        return json.loads(body)
    except FOREIGN:
        return None
