from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from strata_operator.cluster import loop as rooms
from strata_operator.cluster import watch as watches
from strata_operator.cluster.watch import OptionalWatch, Watch
from tests.operator.cluster.server import Answer, Request, ScriptedServer, refusal

SOON = 30.0


class Notes:
    """A sink that hands on what it is given."""

    def __init__(self) -> None:
        self.seen: queue.Queue[tuple[str, Any]] = queue.Queue()

    def put(self, kind: str, obj: Mapping[str, Any]) -> None:
        if obj["metadata"]["name"] == "poison":
            raise ValueError("cannot be read")
        self.seen.put(("put", obj["metadata"]["name"]))

    def remove(self, kind: str, obj: Mapping[str, Any]) -> None:
        self.seen.put(("remove", obj["metadata"]["name"]))

    def replace(self, kind: str, objects: Iterable[Mapping[str, Any]]) -> None:
        self.seen.put(("replace", [obj["metadata"]["name"] for obj in objects]))

    def next(self) -> tuple[str, Any]:
        return self.seen.get(timeout=SOON)


def obj(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)}}


def page(*names: str, version: int, after: str = "") -> Answer:
    items = [obj(name, version) for name in names] or None
    return Answer(body={"metadata": {"resourceVersion": str(version), "continue": after}, "items": items})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_RETRY_SECONDS", (0.001,))


class Script:
    """Answers in turn: lists from one pile, watches from another. An empty pile of watches blocks until the end."""

    def __init__(self, lists: list[Answer], watches: list[Answer]) -> None:
        self.lists, self.watches = iter(lists), iter(watches)
        self.end = threading.Event()

    def __call__(self, request: Request) -> Answer:
        if "watch" not in request.query:
            return next(self.lists)
        return next(self.watches, None) or Answer(lines=self._silence())

    def _silence(self) -> Iterator[Any]:
        self.end.wait(SOON)
        return
        yield


def run(script: Script, sink: Notes, expected: list[tuple[str, Any]]) -> tuple[ScriptedServer, Watch]:
    with ScriptedServer(script) as server:
        watch = Watch(server.client(), "Pod", sink)
        watch.start()
        found = [sink.next() for _ in expected]
        watch.stop()
        script.end.set()
    assert found == expected
    return server, watch


def test_a_list_then_what_changes() -> None:
    events = [
        {"type": "ADDED", "object": obj("b", 6)},
        {"type": "BOOKMARK", "object": obj("", 8)},
        {"type": "MODIFIED", "object": obj("a", 9)},
        {"type": "DELETED", "object": obj("b", 10)},
    ]
    script = Script([page("a", version=5)], [Answer(lines=iter(events))])
    server, watch = run(script, Notes(), [("replace", ["a"]), ("put", "b"), ("put", "a"), ("remove", "b")])
    assert watch.synced.is_set()
    assert server.requests[0].query["labelSelector"] == "strata.ai/model"
    assert server.requests[1].query["resourceVersion"] == "5"


def test_the_next_watch_goes_on_where_the_last_ended() -> None:
    first = [{"type": "BOOKMARK", "object": obj("", 8)}]
    second = [{"type": "ADDED", "object": obj("b", 9)}]
    script = Script([page(version=5)], [Answer(lines=iter(first)), Answer(lines=iter(second))])
    server, _ = run(script, Notes(), [("replace", []), ("put", "b")])
    assert [request.query.get("resourceVersion") for request in server.requests[:3]] == [None, "5", "8"]


def test_long_lists_come_in_pages() -> None:
    script = Script([page("a", version=5, after="token"), page("b", version=5)], [])
    server, _ = run(script, Notes(), [("replace", ["a", "b"])])
    assert server.requests[1].query["continue"] == "token"


GONE = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


@pytest.mark.parametrize(
    "answer", [Answer(lines=iter([GONE])), refusal(410, "too old")], ids=["as an event", "as the answer"]
)
@pytest.mark.usefixtures("quick")
def test_a_version_that_is_gone_is_listed_anew(answer: Answer) -> None:
    script = Script([page("a", version=5), page("b", version=50)], [answer])
    run(script, Notes(), [("replace", ["a"]), ("replace", ["b"])])


@pytest.mark.usefixtures("quick")
def test_a_broken_watch_goes_on_without_a_new_list() -> None:
    broken = Answer(lines=iter([{"type": "ADDED", "object": obj("b", 7)}]), broken=True)
    script = Script([page("a", version=5)], [broken, Answer(lines=iter([{"type": "ADDED", "object": obj("c", 8)}]))])
    server, _ = run(script, Notes(), [("replace", ["a"]), ("put", "b"), ("put", "c")])
    assert server.requests[2].query["resourceVersion"] == "7"


@pytest.mark.usefixtures("quick")
def test_a_list_that_fails_is_tried_again() -> None:
    script = Script([refusal(503, "starting"), refusal(403, "no right yet"), page("a", version=5)], [])
    run(script, Notes(), [("replace", ["a"])])


@pytest.mark.usefixtures("quick")
def test_an_object_that_cannot_be_read_does_not_end_the_watch() -> None:
    poison = Answer(lines=iter([{"type": "ADDED", "object": obj("poison", 7)}]))
    script = Script([page("a", version=5), page("b", version=9)], [poison])
    run(script, Notes(), [("replace", ["a"]), ("replace", ["b"])])


def test_a_watch_can_select_one_object() -> None:
    script, sink = Script([page("n", version=5)], []), Notes()
    with ScriptedServer(script) as server:
        watch = Watch(server.client(), "StrataNode", sink, {"fieldSelector": "metadata.name=n"})
        watch.start()
        assert sink.next() == ("replace", ["n"])
        deadline = threading.Event()
        while len(server.requests) < 2:
            deadline.wait(0.01)
        watch.stop()
        script.end.set()
    for request in server.requests[:2]:
        assert request.path == "/apis/strata.ai/v1alpha1/stratanodes"
        assert request.query["fieldSelector"] == "metadata.name=n"
        assert "labelSelector" not in request.query


def test_a_kind_that_is_not_installed_is_waited_for(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_ABSENT_SECONDS", 0.001)
    told: queue.Queue[bool] = queue.Queue()
    script = Script([Answer(404, {"message": "not found"}), page("a", version=5)], [])
    sink = Notes()
    with ScriptedServer(script) as server:
        watch = OptionalWatch(server.client(), "PodMonitor", sink, lambda: told.put(watch.present))
        watch.start()
        assert sink.next() == ("replace", [])  # and the operator may begin without it
        assert sink.next() == ("replace", ["a"])
        assert told.get(timeout=SOON) is True
        watch.stop()
        script.end.set()


def test_a_kind_that_is_taken_away_is_forgotten(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_ABSENT_SECONDS", SOON)
    told: queue.Queue[bool] = queue.Queue()
    missing = Answer(404, {"message": "not found"})
    script = Script([page("a", version=5), missing], [missing])
    sink = Notes()
    with ScriptedServer(script) as server:
        watch = OptionalWatch(server.client(), "PodMonitor", sink, lambda: told.put(watch.present))
        watch.start()
        assert [sink.next(), sink.next()] == [("replace", ["a"]), ("replace", [])]
        assert [told.get(timeout=SOON), told.get(timeout=SOON)] == [True, False]
        watch.stop()
        script.end.set()


def test_one_namespace_is_listed_and_watched_there() -> None:
    script = Script([page("a", version=5)], [Answer(lines=iter([{"type": "ADDED", "object": obj("b", 6)}]))])
    sink = Notes()
    with ScriptedServer(script) as server:
        watch = Watch(server.client(), "Pod", sink, namespace="ns")
        watch.start()
        assert [sink.next(), sink.next()] == [("replace", ["a"]), ("put", "b")]
        watch.stop()
        script.end.set()
    assert {request.path for request in server.requests[:2]} == {"/api/v1/namespaces/ns/pods"}
    assert watch.name == "watch of Pod in ns"
