from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from strata.store.reader import Store
from tests.experts.test_resident import Stores, made_store


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a start keeps its times: not in the cache of who runs the tests."""
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Each is made once, for tests that only read it."""

    @cache
    def store(*kind: str) -> Store:
        return made_store(tmp_path_factory.mktemp("store"), *kind)

    return store
