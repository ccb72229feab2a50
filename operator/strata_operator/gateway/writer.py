"""The one writer of the file that LiteLLM's proxy reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from strata_operator.api.errors import ApiError, InvalidSpecError, MissingError
from strata_operator.cluster.client import Client
from strata_operator.gateway.backend import Backend
from strata_operator.gateway.book import KEYS, Book
from strata_operator.gateway.client_key import lines
from strata_operator.gateway.render import document

log = logging.getLogger(__name__)


class Writer:
    """Writes the book into a file, where it is another than the last time."""

    def __init__(self, client: Client, book: Book, path: Path) -> None:
        self._client = client
        self._book = book
        self._path = path
        self._written: str | None = None
        self._api_keys: dict[tuple[str, str, str], str] = {}  # of models, as they were read last
        self._told: dict[tuple[str, str, str], str] = {}  # what was wrong with them

    def write(self) -> bool:
        """Whether it wrote. Models' API keys are read from their Secrets anew. Raises OSError where the file's place is
        not writable."""
        backends = self._book.backends()
        self._read_api_keys(backends)
        made = document(backends, self._book.client_keys(), self._api_keys)
        text = json.dumps(made, sort_keys=True)
        if text == self._written:
            return False
        partial = self._path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(text)
        partial.rename(self._path)  # whoever reads sees the old one or the new one, never a part
        self._written = text
        log.info("the gateway has %d models, and %d clients' keys", len(made["model_list"]), len(made["keys"]))
        return True

    def _read_api_keys(self, backends: Iterable[Backend]) -> None:
        """The first key of each Secret's entry. One that cannot be read now stays as it was."""
        endpoints = [backend.endpoint for backend in backends]
        wanted = {(one.namespace, one.api_keys.name, one.api_keys.key) for one in endpoints if one.api_keys is not None}
        secrets: dict[tuple[str, str], dict[str, object] | ApiError] = {}
        for place in sorted(wanted):
            secret = place[:2]
            if secret not in secrets:
                try:
                    secrets[secret] = self._client.get(KEYS, *secret)
                except ApiError as error:
                    secrets[secret] = error
            self._take(place, secrets[secret])
        for gone in self._api_keys.keys() - wanted:
            del self._api_keys[gone]

    def _take(self, place: tuple[str, str, str], secret: dict[str, object] | ApiError) -> None:
        namespace, name, entry = place
        words = ""
        try:
            if isinstance(secret, ApiError):
                raise secret
            found = lines(secret, entry)
            if not found:
                raise InvalidSpecError(f"its entry {entry!r} holds no key")
            self._api_keys[place] = found[0]
        except (MissingError, InvalidSpecError) as error:
            self._api_keys.pop(place, None)
            words = str(error)
        except ApiError as error:
            words = str(error)
        if words and self._told.get(place) != words:
            log.error("the API key of models in the Secret %s/%s cannot be had: %s", namespace, name, words)
        self._told[place] = words
