"""One namespace of a cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Scoped(Protocol):
    """What holds objects of several namespaces; ``cluster.cache.Cache`` is one."""

    def put(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def remove(self, kind: str, obj: Mapping[str, Any]) -> None: ...
    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]], *, namespace: str | None = None) -> None: ...


class Scope:
    """Where a watch that sees one namespace puts what it sees: what its list lacks is gone there alone."""

    def __init__(self, cache: Scoped, namespace: str | None) -> None:
        self._cache = cache
        self._namespace = namespace

    def put(self, kind: str, obj: Mapping[str, Any]) -> None:
        self._cache.put(kind, obj)

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        self._cache.remove(kind, obj)

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None:
        self._cache.replace(kind, objects, namespace=self._namespace)
