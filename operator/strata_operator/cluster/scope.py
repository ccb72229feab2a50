"""One namespace of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strata_operator.cluster.cache import Cache


class Scope:
    """Where a watch that sees one namespace puts what it sees: what its list lacks is gone there alone."""

    def __init__(self, cache: Cache, namespace: str | None) -> None:
        self._cache = cache
        self._namespace = namespace

    def put(self, kind: str, obj: Mapping[str, Any]) -> None:
        self._cache.put(kind, obj)

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        self._cache.remove(kind, obj)

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None:
        self._cache.replace(kind, objects, namespace=self._namespace)
