from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_operator.gateway.book import Book
from tests.operator.gateway.objects import KEY, model, secret


@pytest.fixture
def changes() -> list[None]:
    return []


@pytest.fixture
def book(changes: list[None]) -> Book:
    return Book(lambda: changes.append(None))


Names = Callable[[], list[str]]


def models(book: Book) -> list[str]:
    return sorted(f"{one.endpoint.namespace}/{one.endpoint.name}" for one in book.backends())


def test_only_what_the_gateway_is_told_is_a_change(book: Book, changes: list[None]) -> None:
    book.put("StrataModel", model("m"))
    book.put("StrataModel", {**model("m"), "status": {"replicas": 1}})
    book.put("StrataModel", model("m", replicas=3))
    assert len(changes) == 1
    book.put("StrataModel", model("m", served="other"))
    assert len(changes) == 2


def test_a_model_that_is_being_deleted_is_gone(book: Book, changes: list[None]) -> None:
    book.put("StrataModel", model("m"))
    leaving = model("m")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    book.put("StrataModel", leaving)
    assert models(book) == []
    book.remove("StrataModel", leaving)
    assert len(changes) == 2


def test_a_list_of_a_namespace_says_nothing_of_others(book: Book) -> None:
    book.replace("StrataModel", [model("x", "a"), model("y", "a")], namespace="a")
    book.replace("StrataModel", [model("z", "b")], namespace="b")
    book.replace("StrataModel", [model("x", "a")], namespace="a")
    assert models(book) == ["a/x", "b/z"]
    book.replace("StrataModel", [])
    assert models(book) == []


def test_a_key_that_is_spoilt_lets_nobody_in(book: Book, changes: list[None], caplog: pytest.LogCaptureFixture) -> None:
    book.put("Secret", secret("team", key=KEY))
    assert [key.name for key in book.client_keys()] == ["team"]
    book.put("Secret", secret("team", key=KEY, requests_per_minute="lots"))
    assert book.client_keys() == []
    assert "gateway/team: 'requests-per-minute' of the Secret team is 'lots'" in caplog.text
    assert KEY not in caplog.text
    assert len(changes) == 2
