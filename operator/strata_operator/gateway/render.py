"""What LiteLLM's proxy is told: its own words for models, and who may use which of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from strata_operator.gateway.backend import Backend
from strata_operator.gateway.client_key import ClientKey

NO_KEY = "none"  # LiteLLM's client wants one, and an engine without keys does not look at it
NO_MODEL = "no-default-models"  # LiteLLM's word; an empty list would be all of them
_LIKE_A_LONG_NAME = re.compile(r"[a-z0-9-]+/")


def document(
    backends: Iterable[Backend], keys: Iterable[ClientKey], api_keys: Mapping[tuple[str, str, str], str]
) -> dict[str, Any]:
    """All of it. ``api_keys``: of models, by the Secret's namespace, name and entry.

    Models of one namespace with the same served name share the requests for it. ``NAMESPACE/SERVED-NAME`` is
    there for each. A served name alone belongs to the namespace that had it first, and to none where it begins as if
    with a namespace, so that nobody gets another's requests by a name.
    """
    groups: dict[str, list[Backend]] = defaultdict(list)  # by their long names
    names: dict[str, str] = {}  # what has a short name: from its long one
    taken: set[str] = set()
    for backend in sorted(backends):
        groups[backend.long_name].append(backend)
        if backend.endpoint.served_name not in taken and not _LIKE_A_LONG_NAME.match(backend.endpoint.served_name):
            taken.add(backend.endpoint.served_name)
            names[backend.long_name] = backend.endpoint.served_name
    return {
        "model_list": [
            _deployment(names.get(long_name, long_name), backend, api_keys)
            for long_name, group in groups.items()
            for backend in group
        ],
        "model_group_alias": {long: {"model": short, "hidden": True} for long, short in names.items()},
        "keys": {
            digest: _rights(key, {long_name: names.get(long_name) for long_name in groups})
            # Of Secrets with the same key, the first in the order of names counts.
            for key in sorted(keys, key=lambda one: one.name, reverse=True)
            for digest in key.digests
        },
    }


def _deployment(name: str, backend: Backend, api_keys: Mapping[tuple[str, str, str], str]) -> dict[str, Any]:
    """One of LiteLLM's ``model_list``; the id stays when the name changes."""
    endpoint, key = backend.endpoint, None
    if endpoint.api_keys is not None:
        key = api_keys.get((endpoint.namespace, endpoint.api_keys.name, endpoint.api_keys.key))
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"openai/{endpoint.served_name}",
            "api_base": endpoint.url,
            "api_key": key or NO_KEY,
        },
        "model_info": {"id": f"{endpoint.namespace}/{endpoint.name}"},
    }


def _rights(key: ClientKey, names: Mapping[str, str | None]) -> dict[str, Any]:
    """Fields of LiteLLM's ``UserAPIKeyAuth``. ``names``: the long ones, each with the short one that it has.

    Limits count by ``api_key``, which is the Secret's name here: its keys share them, and errors may name it.
    """
    may = [
        short or long
        for long, short in names.items()
        if any(fnmatchcase(name, pattern) for pattern in key.models for name in (long, short) if name)
    ]
    return {
        "api_key": key.name,
        "token": key.name,
        "key_alias": key.name,
        "models": sorted(may) or [NO_MODEL] if key.models else [],
        "rpm_limit": key.requests_per_minute,
        "tpm_limit": key.tokens_per_minute,
    }
