"""Where a server of the OpenAI API is, and how it refuses: what `strata chat` and `strata bench serve` share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

from strata.errors import OptionError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
# The key for a server that asks for one: in a variable, since other users of the machine see options.
API_KEY = "STRATA_API_KEY"
# What reading an answer raises that is JSON, if at all, but not of this API.
FOREIGN = (ValueError, RecursionError, LookupError, TypeError, AttributeError)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_url(url: str) -> SplitResult:
    """The parts of a server's address. Raises OptionError for one that cannot be one."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it needs http:// or https:// and the name of a host")
        parts.port  # noqa: B018  raises for one that is no number, or too large
        url.encode("ascii")
        if any(character <= " " or character == "\x7f" for character in url):
            raise ValueError("it holds a space or a control character")
    except ValueError as error:
        message = f"--url {url!r} is no address of a server: {error}; give one like {DEFAULT_URL}"
        raise OptionError(message) from error
    return parts


def root(url: str) -> str:
    """The address without ``/v1``, with which it may be given."""
    return url.rstrip("/").removesuffix("/v1")


def is_local(url: str) -> bool:
    """Whether the server is on this machine. A proxy for the outside world cannot know what listens there."""
    return urlsplit(url).hostname in _LOOPBACK


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that shows the key, if there is one. Raises OptionError for one that no header may hold."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise OptionError("the API key holds characters that no header may hold; give it as the server has it")
    return {"Authorization": f"Bearer {api_key}"}


def error_message(body: Any, fallback: str, *, status: int | None = None) -> str:
    """The message of an OpenAI error object, if the body is one; and where a key is to be put, if the HTTP ``status``
    asks for one."""
    try:
        message = str(body["error"]["message"])
    except (LookupError, TypeError):
        message = fallback
    return f"{message} (the variable {API_KEY} holds the key)" if status == HTTPStatus.UNAUTHORIZED else message
