"""Just enough of an OpenAI client for the command line, without any package."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Sequence
from typing import IO, Any, NamedTuple

from strata.errors import EngineError, OptionError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_url(url: str) -> urllib.parse.SplitResult:
    """The parts of a server's address. Raises OptionError for one that cannot be one."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it needs http:// or https:// and the name of a host")
        parts.port  # noqa: B018  raises for one that is no number, or too large
        url.encode("ascii")
        if any(character <= " " or character == "\x7f" for character in url):
            raise ValueError("it holds a space or a control character")
    except ValueError as error:
        message = f"--url {url!r} is no address of a server: {error}; give one like http://127.0.0.1:8000"
        raise OptionError(message) from error
    return parts


def check_api_key(api_key: str) -> str:
    """The key. Raises OptionError for one that no header may hold."""
    if not api_key.isascii() or not api_key.isprintable():
        raise OptionError("the API key holds characters that no header may hold; give it as the server has it")
    return api_key


class Piece(NamedTuple):
    """New text of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool


class Client:
    """``url``: where the server is, with or without ``/v1``. ``model``: None takes the server's first. ``api_key``: for
    a server that asks for one.

    Raises OptionError for an address that cannot be one.
    """

    def __init__(self, url: str, model: str | None, api_key: str | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {check_api_key(api_key)}"
        parts = check_url(url)
        # A proxy for the outside world cannot know what listens on this machine.
        local = parts.hostname in _LOOPBACK
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))

    def model(self) -> str:
        """The name to ask for. Raises as ``stream`` does."""
        if self._model is None:
            with self._open("/v1/models", None) as response:
                try:
                    self._model = str(json.load(response)["data"][0]["id"])
                except (ValueError, LookupError, TypeError, http.client.HTTPException):
                    raise OptionError(f"what answers at {self._url} is no server of the OpenAI API") from None
        return self._model

    def stream(self, messages: Sequence[dict[str, str]]) -> Generator[Piece, None, None]:
        """The pieces of an answer; closing the generator ends it.

        Raises OptionError when no server is there or it refuses the request, EngineError when the server fails.
        """
        body = {"model": self.model(), "messages": list(messages), "stream": True}
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
                deltas = [choice["delta"] for choice in event["choices"]]
                return [
                    Piece(delta[field], field == "reasoning_content")
                    for delta in deltas
                    for field in ("reasoning_content", "content")
                    if delta.get(field)
                ]
            message = str(event["error"]["message"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise OptionError(f"what answers at {self._url} is no server of the OpenAI API: {data[:80]!r}") from error
        raise EngineError(message)

    def _open(self, path: str, body: bytes | None) -> IO[bytes]:
        request = urllib.request.Request(self._url + path, body, self._headers)
        try:
            response: IO[bytes] = self._opener.open(request)
        except urllib.error.HTTPError as error:
            with error:
                message = _message(error.read(), f"HTTP status {error.code}")
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


def _message(body: bytes, fallback: str) -> str:
    """The message of an OpenAI error object, if the body is one."""
    try:
        error: Any = json.loads(body)["error"]
        return str(error["message"])
    except (ValueError, LookupError, TypeError):
        return fallback
