"""What the operator asks of the API server in an hour without a change, on a clock that runs 1,200 times as fast."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from strata_operator import process
from strata_operator.api.model import GROUP, KIND, PLURAL, VERSION
from strata_operator.api.node import NODE_PLURAL
from strata_operator.cluster import client, loop, watch
from strata_operator.cluster.client import RESOURCES
from strata_operator.cluster.resync import PERIOD_SECONDS, Resync
from strata_operator.process import Settings
from strata_operator.render import Monitors
from strata_operator.telemetry import Telemetry
from tests.operator.cluster.server import Answer, Request, ScriptedServer, refusal
from tests.operator.test_reconcile import World

SPEED = 1200
HOUR = 3600
PER_HOUR = HOUR // 300  # watches and resyncs last 300 s
WATCHED_PLURALS = [RESOURCES[kind].plural for kind in process.WATCHED]


class SteadyCluster:
    """One model that serves, with all that belongs to it; each watch is silent and ends when its time is over.

    ``bookmarks``: whether it sends some, as the API server does for kinds of which something has changed before.
    """

    def __init__(self, *, bookmarks: bool) -> None:
        self.bookmarks = bookmarks
        self.end = threading.Event()
        self.asked: Counter[str] = Counter()  # "verb plural"
        world = World()
        world.run()
        world.serve()
        world.run()
        self.objects = [obj for obj in world.client.objects.values() if obj["kind"] != "Event"]

    def answer(self, request: Request) -> Answer:
        if request.method != "GET":
            self.asked["write"] += 1
            return refusal(500, "nothing was to be written")
        parts = request.path.strip("/").split("/")
        if request.path in _DISCOVERY:
            return Answer(body=_DISCOVERY[request.path])
        kind = next((kind for kind, resource in RESOURCES.items() if request.path == resource.path()), None)
        if kind is None or kind == "PodMonitor":  # of which there is no CRD
            self.asked[f"list {parts[-1]}"] += 1
            return refusal(404, "the server could not find the requested resource")
        if request.query.get("watch"):
            self.asked[f"watch {parts[-1]}"] += 1
            return Answer(lines=self._silence(kind, float(request.query["timeoutSeconds"]) / SPEED))
        who = "resync" if kind == KIND and request.query.get("limit") == client.PAGE else "list"
        self.asked[f"{who} {parts[-1]}"] += 1
        items = [obj for obj in self.objects if obj["kind"] == kind]
        return Answer(body={"kind": f"{kind}List", "metadata": {"resourceVersion": "10000"}, "items": items})

    def _silence(self, kind: str, seconds: float) -> Iterator[Any]:
        bookmark = {"kind": kind, "metadata": {"resourceVersion": "10000"}}
        pause = 60 / SPEED if self.bookmarks else seconds
        while seconds > 0 and not self.end.wait(min(pause, seconds)):
            seconds -= pause
            if seconds > 0:
                yield {"type": "BOOKMARK", "object": bookmark}


def _resources(plural: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    one = {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": verbs}
    return {"kind": "APIResourceList", "resources": [one]}


def _group(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}


# What kopf looks for before it watches.
_DISCOVERY: dict[str, Any] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": _resources("namespaces", "Namespace", namespaced=False),
    "/apis": {"kind": "APIGroupList", "groups": [_group(GROUP, VERSION), _group("apiextensions.k8s.io", "v1")]},
    "/apis/apiextensions.k8s.io/v1": _resources(
        "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    ),
    f"/apis/{GROUP}/{VERSION}": _resources(PLURAL, "StrataModel", namespaced=True),
}


@pytest.mark.parametrize(
    ("bookmarks", "watches"),
    [pytest.param(True, PER_HOUR, id="bookmarks"), pytest.param(False, HOUR // 90, id="silence")],
)
async def test_a_steady_hour_writes_nothing_and_reads_little(
    bookmarks: bool, watches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SteadyCluster(bookmarks=bookmarks)
    monkeypatch.setattr(process, "Resync", partial(Resync, period=PERIOD_SECONDS / SPEED))
    monkeypatch.setattr(client, "WATCH_SILENCE_SECONDS", client.WATCH_SILENCE_SECONDS / SPEED)
    monkeypatch.setattr(watch, "_ABSENT_SECONDS", watch._ABSENT_SECONDS / SPEED)
    monkeypatch.setattr(loop, "_HASTY_SECONDS", loop._HASTY_SECONDS / SPEED)
    outcomes: set[str] = set()
    monkeypatch.setattr(Telemetry, "reconciled", lambda self, outcome, seconds: outcomes.add(outcome))
    with ScriptedServer(cluster.answer) as server:
        monkeypatch.setattr(process, "configuration", lambda: server.client().config)
        running = asyncio.create_task(process.run(Settings("engine:1", "127.0.0.1", 0, workers=2, monitors=Monitors())))
        while cluster.asked[f"resync {PLURAL}"] <= PER_HOUR:  # the operator's own hour
            await asyncio.sleep(0.02)
            assert not running.done(), running.exception()
        asked = Counter(cluster.asked)
        cluster.end.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (outcomes, asked.pop("write", 0)) == ({"unchanged"}, 0)
    assert asked.pop(f"resync {PLURAL}") == PER_HOUR + 1
    lists = {name.split()[1]: asked.pop(name) for name in list(asked) if name.startswith("list")}
    # What a slower turn of the resync lets others do more in its hour.
    assert lists.pop("podmonitors") <= 1.25 * HOUR / 60 + 2
    # Each kind once, at the start; the two of our own once more, to see whether their CRDs are there.
    assert lists == {**dict.fromkeys(WATCHED_PLURALS, 1), PLURAL: 2, NODE_PLURAL: 2}
    assert set(asked) == {f"watch {plural}" for plural in lists}
    assert all(PER_HOUR / 2 < number <= 1.25 * watches + 2 for number in asked.values()), asked
