"""The sidecar against an API server over real HTTP."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_operator.cluster import loop as loops
from strata_operator.gateway import process as rooms
from strata_operator.gateway.process import Process
from strata_operator.gateway.writer import Writer
from tests.operator.cluster.server import Answer, Request, ScriptedServer
from tests.operator.gateway.objects import KEY, model, secret

SOON = 30.0
MODELS = "/apis/strata.ai/v1alpha1/stratamodels"
KEYS = "/api/v1/namespaces/gateway/secrets"


class Scene:
    """What each path has, and what its watches tell next; ``written`` has each content of the file."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.events: dict[str, queue.Queue[tuple[str, dict[str, Any]] | None]] = {}
        self.written: queue.Queue[dict[str, Any]] = queue.Queue()
        self.queries: dict[str, dict[str, str]] = {}

    def answer(self, request: Request) -> Answer:
        if "watch" in request.query:
            return Answer(lines=self._watched(request.path))
        self.queries[request.path] = request.query
        return Answer(body={"metadata": {"resourceVersion": "5"}, "items": self.lists.get(request.path, [])})

    def tell(self, path: str, kind: str, obj: dict[str, Any]) -> None:
        self.events.setdefault(path, queue.Queue()).put((kind, obj))

    def next(self) -> tuple[list[str], list[str]]:
        """Names of models and of keys, as the file has them after its next change."""
        told = self.written.get(timeout=SOON)
        return [one["model_name"] for one in told["model_list"]], [one["key_alias"] for one in told["keys"].values()]

    def end(self) -> None:
        for path in (MODELS, KEYS):
            self.events.setdefault(path, queue.Queue()).put(None)

    def _watched(self, path: str) -> Iterator[Any]:
        events = self.events.setdefault(path, queue.Queue())
        while (event := events.get(timeout=SOON)) is not None:
            yield {"type": event[0], "object": event[1]}


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    write = Writer.write

    def written(self: Writer) -> bool:
        if changed := write(self):
            made.written.put(json.loads(self._path.read_text()))
        return changed

    monkeypatch.setattr(Writer, "write", written)
    monkeypatch.setattr(rooms, "GATHER_SECONDS", 0.01)
    return made


Start = Callable[..., Process]


@pytest.fixture
def start(scene: Scene, tmp_path: Path) -> Iterator[Start]:
    ended: list[Callable[[], None]] = []

    def run(*served: str) -> Process:
        server = ScriptedServer(scene.answer).__enter__()
        process = Process(server.client(), tmp_path / "gateway.json", "gateway", served)
        found: list[str | None] = []
        thread = threading.Thread(target=lambda: found.append(process.run()))
        thread.start()

        def end() -> None:
            process.stop()
            thread.join(SOON)
            scene.end()
            server.__exit__(None, None, None)
            assert found == [None]

        ended.append(end)
        return process

    yield run
    for end in ended:
        end()


def test_it_follows_models_and_keys(scene: Scene, start: Start) -> None:
    scene.lists = {MODELS: [model("m")], KEYS: [secret("team", key=KEY)]}
    start()
    assert scene.next() == (["m"], ["team"])
    assert scene.queries[KEYS]["labelSelector"] == "strata.ai/gateway-key"
    assert "labelSelector" not in scene.queries[MODELS]
    scene.tell(MODELS, "ADDED", model("n", created=1))
    assert scene.next() == (["m", "n"], ["team"])
    scene.tell(KEYS, "DELETED", secret("team", key=KEY))
    assert scene.next() == (["m", "n"], [])
    scene.tell(MODELS, "DELETED", model("m"))
    assert scene.next() == (["n"], [])


def test_nothing_is_written_before_all_is_known(scene: Scene, start: Start) -> None:
    """Else a proxy that starts anew would know of no key for a moment."""
    scene.lists = {MODELS: [model("m")], KEYS: [secret("team", key=KEY)]}
    start()
    assert scene.next() == (["m"], ["team"])
    assert scene.written.empty()


def test_namespaces_that_are_served(scene: Scene, start: Start) -> None:
    paths = [f"/apis/strata.ai/v1alpha1/namespaces/{one}/stratamodels" for one in ("a", "b")]
    scene.lists = {path: [model(path[-14], path[-14])] for path in paths}
    for path in paths:
        scene.events[path] = queue.Queue()
    process = start("a", "b")
    scene.next()
    assert set(scene.queries) == {*paths, KEYS}
    assert [loop.name for loop in process.loops] == [
        "watch of StrataModel in a",
        "watch of StrataModel in b",
        "watch of Secret in gateway",
    ]
    for path in paths:
        scene.events[path].put(None)


def test_a_watch_that_hangs_ends_it(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops.Loop, "ailment", lambda self: f"the {self.name} hangs")
    monkeypatch.setattr(rooms, "LOOK_SECONDS", 0.01)
    with ScriptedServer(scene.answer) as server:
        process = Process(server.client(), tmp_path / "gateway.json", "gateway", ())
        assert process.run() == "the watch of StrataModel hangs"
        process.stop()
        scene.end()
