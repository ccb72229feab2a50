from __future__ import annotations

from typing import Any, cast

import pytest

from strata_operator.api.errors import UnavailableError
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import Client
from strata_operator.cluster.resync import Resync
from tests.operator.cluster.fake import FakeClient
from tests.operator.samples import model_object


def model(name: str, version: int = 1, **metadata: Any) -> dict[str, Any]:
    obj = model_object(name)
    obj["metadata"] |= {"resourceVersion": str(version), **metadata}
    return obj


class World:
    """A cluster, a cache, and kopf: it tells only what the test has it tell."""

    def __init__(self, *models: dict[str, Any]) -> None:
        self.client = FakeClient(*models)
        self.enqueued: list[Key] = []
        self.cache = Cache(self.enqueued.append)
        self.resync = Resync(cast("Client", self.client), self.cache, period=0)

    def kopf_tells(self, obj: dict[str, Any]) -> None:
        self.resync.heard()
        self.cache.put_model(obj)

    def version(self, name: str) -> str | None:
        held = self.cache.model(("ns", name))
        return held["metadata"]["resourceVersion"] if held else None


def test_the_first_list_fills_the_cache() -> None:
    world = World(model("a"), model("b"))
    assert not world.resync.synced.is_set()
    world.resync.turn()
    assert world.resync.synced.is_set()
    assert world.enqueued == [("ns", "a"), ("ns", "b")]


def test_what_was_missed_is_enqueued_and_nothing_else() -> None:
    world = World(model("a"), model("b"))
    world.resync.turn()
    world.enqueued.clear()
    world.resync.turn()
    assert world.enqueued == []
    world.client.keep(model("b", 7))
    world.client.keep(model("c", 8))
    world.resync.turn()
    assert world.enqueued == [("ns", "b"), ("ns", "c")]
    assert world.version("b") == "7"


def test_a_model_whose_deletion_nobody_told_is_forgotten() -> None:
    world = World(model("a"))
    world.kopf_tells(model("a"))
    world.kopf_tells(model("b"))
    world.resync.turn()
    assert (world.version("a"), world.version("b")) == ("1", None)


def test_another_model_of_the_same_name_takes_its_place() -> None:
    world = World(model("a", 9, uid="another"))
    world.kopf_tells(model("a"))
    world.resync.turn()
    held = world.cache.model(("ns", "a"))
    assert held is not None
    assert held["metadata"]["uid"] == "another"


def test_what_is_newer_than_the_list_stays() -> None:
    world = World()
    world.kopf_tells(model("a", world.client.version + 1))
    world.resync.turn()
    assert world.version("a") is not None


def test_a_list_that_fails_changes_nothing() -> None:
    world = World(model("a"))
    world.kopf_tells(model("a"))
    world.client.failing["list StrataModel"] = UnavailableError("503", status=503)
    with pytest.raises(UnavailableError):
        world.resync.turn()
    assert not world.resync.synced.is_set()
    assert world.version("a") == "1"


def test_kopf_s_watch_hangs_if_it_tells_nothing_after_a_list_that_had_news() -> None:
    world = World(model("a"))
    world.resync.turn()  # before kopf's own first list
    assert world.resync.ailment() is None
    world.resync.turn()
    assert world.resync.ailment() == "kopf's watch of StrataModel hangs"
    world.kopf_tells(model("a"))  # it was slow, or away with the API server
    assert world.resync.ailment() is None


def test_kopf_s_watch_does_not_hang_while_nothing_happens_or_it_tells_what_does() -> None:
    world = World(model("a"))
    world.kopf_tells(model("a"))
    for version in (2, 2, 3, 3):
        world.client.keep(model("a", version))
        world.resync.turn()  # the list was quicker than the event
        world.kopf_tells(model("a", version))
        assert world.resync.ailment() is None
    for _ in range(3):
        world.resync.turn()
    assert world.resync.ailment() is None
