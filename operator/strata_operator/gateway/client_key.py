"""A client's key: a Secret with the label ``strata.ai/gateway-key`` in the gateway's namespace."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.errors import InvalidSpecError

KEY, MODELS, REQUESTS, TOKENS = "key", "models", "requests-per-minute", "tokens-per-minute"
LEAST_CHARACTERS = 16
_MOST = 10**12


@dataclass(frozen=True, slots=True)
class ClientKey:
    """Who may ask for what. The keys themselves are not kept, their hashes alone."""

    name: str  # of the Secret
    digests: tuple[str, ...]  # SHA-256, in hexadecimal; all of them share the limits
    models: tuple[str, ...]  # names, or patterns such as ``team-a/*``; empty: all
    requests_per_minute: int | None
    tokens_per_minute: int | None

    @classmethod
    def of(cls, secret: Mapping[str, Any]) -> ClientKey:
        """Raises InvalidSpecError, which names the entry and never what a key is."""
        name = secret["metadata"]["name"]
        data = secret.get("data") or {}
        unknown = sorted(set(data) - {KEY, MODELS, REQUESTS, TOKENS})
        if unknown:
            raise InvalidSpecError(
                f"the Secret {name} holds {unknown[0]!r}; known are {KEY}, {MODELS}, {REQUESTS} and {TOKENS}"
            )
        keys = lines(secret, KEY)
        if not keys:
            raise InvalidSpecError(f"the Secret {name} has no key; write one on each line of its entry {KEY!r}")
        if not all(re.fullmatch(rf"[!-~]{{{LEAST_CHARACTERS},}}", key) for key in keys):
            raise InvalidSpecError(
                f"the Secret {name} has a key that is too short or holds something else than visible ASCII; "
                f"{LEAST_CHARACTERS} characters are needed: openssl rand -hex 32 makes a good one"
            )
        return cls(
            name=name,
            digests=tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys),
            models=tuple(one for line in lines(secret, MODELS) for one in re.split(r"[\s,]+", line) if one),
            requests_per_minute=_limit(secret, REQUESTS),
            tokens_per_minute=_limit(secret, TOKENS),
        )


def lines(secret: Mapping[str, Any], entry: str) -> list[str]:
    """An entry's lines that say something, as the engine reads its file of API keys: comments begin with ``#``.

    Raises InvalidSpecError where it is no text.
    """
    try:
        text = base64.b64decode((secret.get("data") or {}).get(entry) or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidSpecError(f"{entry!r} of the Secret {secret['metadata']['name']} is not a text") from None
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def _limit(secret: Mapping[str, Any], entry: str) -> int | None:
    found = lines(secret, entry)
    if not found:
        return None
    if len(found) > 1 or not re.fullmatch("[0-9]{1,13}", found[0]) or not 1 <= int(found[0]) <= _MOST:
        raise InvalidSpecError(
            f"{entry!r} of the Secret {secret['metadata']['name']} is {' '.join(found)[:40]!r}; a whole number "
            "from 1 on is needed, or none for no limit"
        )
    return int(found[0])
