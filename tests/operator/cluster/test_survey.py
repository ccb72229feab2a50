from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from strata_operator.api.figures import Loading, Traffic
from strata_operator.api.pod import Pod
from strata_operator.cluster import survey as rooms
from strata_operator.cluster.survey import (
    LOADING_SECONDS,
    SERVING_A_TURN,
    SERVING_SECONDS,
    SILENT_SECONDS,
    WINDOW_SECONDS,
    Survey,
)
from tests.operator.cluster.server import Answer, Request, ScriptedServer
from tests.operator.samples import pod


def metrics(tokens: int, seconds: float, requests: int = 0) -> bytes:
    return (
        f"strata_generation_tokens_total {tokens}\nstrata_step_seconds_total {seconds}\n"
        f'strata_time_to_first_token_seconds_bucket{{le="+Inf"}} {requests}\n'
    ).encode()


def loading(done: int, total: int = 1000, phase: str = "download") -> bytes:
    return json.dumps({"status": "loading", "phase": phase, "bytes_done": done, "bytes_total": total}).encode()


class World:
    """One engine that answers what the test says, some pods that all have its address, and a clock."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.answer = Answer(200, b"")
        self.now = 0.0
        self.news: list[str] = []
        self.server = ScriptedServer(self._answered)

    def _answered(self, request: Request) -> Answer:
        return self.answer

    def start(self) -> None:
        self.server.__enter__()
        port = self.server._server.server_address[1]
        self.survey = Survey(
            lambda: self.pods, lambda one: self.news.append(one.name), port=int(port), clock=lambda: self.now
        )

    async def turn(self, body: bytes, status: int = 200) -> list[str]:
        """Paths that were asked for."""
        self.answer = Answer(status, body)
        before = len(self.server.requests)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            await self.survey.turn(session)
        return [request.path for request in self.server.requests[before:]]

    def look(self) -> Pod:
        return self.survey.look(self.pods[0])


@pytest.fixture
def world() -> Iterator[World]:
    made = World(pod(ready=True, address="127.0.0.1"))
    made.start()
    yield made
    made.server.__exit__()


async def test_a_window_with_traffic_is_told_once(world: World) -> None:
    assert await world.turn(metrics(1000, 5.0)) == ["/metrics"]
    assert world.look().traffic is None
    world.now = WINDOW_SECONDS
    await world.turn(metrics(1600, 7.0, 3))
    assert world.look().traffic == Traffic(600, 2.0, ((float("inf"), 3.0),))
    assert world.news == ["m-1"]


async def test_an_idle_engine_is_no_news(world: World) -> None:
    await world.turn(metrics(1000, 5.0))
    for number in range(1, 20):
        world.now = number * WINDOW_SECONDS
        await world.turn(metrics(1000 + number, 5.0))  # a health check's token, now and then
    assert world.news == []
    world.now += 1
    world.now += SERVING_SECONDS
    await world.turn(metrics(1600, 7.0))
    assert world.look().traffic == Traffic(600, 2.0, ((float("inf"), 0.0),))


async def test_an_engine_that_started_anew_begins_a_window(world: World) -> None:
    await world.turn(metrics(1000, 5.0))
    world.now = WINDOW_SECONDS
    await world.turn(metrics(100, 1.0))
    assert world.news == []
    world.now = 2 * WINDOW_SECONDS
    await world.turn(metrics(300, 3.0))
    assert world.look().traffic == Traffic(200, 2.0, ((float("inf"), 0.0),))


async def test_a_pod_is_not_asked_before_its_time(world: World) -> None:
    await world.turn(metrics(1, 1.0))
    world.now = SERVING_SECONDS - 1
    assert await world.turn(metrics(1, 1.0)) == []
    world.now = SERVING_SECONDS
    assert await world.turn(metrics(1, 1.0)) == ["/metrics"]


@pytest.mark.parametrize(
    "body",
    [b"<html>", metrics(1000, 5.0) + b"#" * (rooms.ANSWER_BYTES + 1)],
    ids=["another program", "without end"],
)
async def test_who_answers_nothing_of_use_is_asked_less_and_less(world: World, body: bytes) -> None:
    pauses = []
    for _ in range(8):
        assert len(await world.turn(body)) == 1
        due = world.survey._known["uid-m-1"].due
        pauses.append(due - world.now)
        world.now = due
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * SERVING_SECONDS, SILENT_SECONDS)
    assert world.look().traffic is None


async def test_a_start_is_told_by_tenths(world: World) -> None:
    world.pods[:] = [pod(running=True, address="127.0.0.1")]
    assert await world.turn(loading(0), 503) == ["/ready"]
    told = [world.look().loading]
    for done in (50, 120, 150, 990, 1000):
        world.now += LOADING_SECONDS
        await world.turn(loading(done), 503)
        told.append(world.look().loading)
    rates = [None if one is None else one.per_second for one in told]
    assert [one and one.tenths for one in told] == [0, 0, 1, 1, 9, 10]
    assert rates == [None, None, 15, 15, round(990 / 16), 50]
    assert len(world.news) == 4
    world.now += LOADING_SECONDS
    await world.turn(loading(0, phase="convert"), 503)
    assert world.look().loading == Loading("convert", 0, 1000)


async def test_a_pod_that_fetches_is_asked_how_far_it_is_though_it_counts_as_ready(world: World) -> None:
    world.pods[:] = [pod(ready=True, address="127.0.0.1", role="warm")]
    assert await world.turn(loading(0), 503) == ["/ready"]
    world.now += LOADING_SECONDS
    await world.turn(loading(400), 503)
    assert world.look().loading == Loading("download", 4, 1000, 100)


async def test_a_pod_that_got_ready_tells_of_no_start_any_more(world: World) -> None:
    world.pods[:] = [pod(running=True, address="127.0.0.1")]
    await world.turn(loading(100), 503)
    world.pods[:] = [pod(ready=True, address="127.0.0.1")]
    assert world.look().loading is None


@pytest.mark.parametrize(
    "other",
    [
        pod(ready=True),
        pod(address="127.0.0.1"),
        pod(ready=True, address="127.0.0.1", deleting=True),
    ],
    ids=["no address", "not running", "on its way out"],
)
async def test_who_cannot_answer_is_not_asked(world: World, other: Pod) -> None:
    world.pods[:] = [other]
    assert await world.turn(b"") == []


async def test_many_that_serve_are_asked_in_turns_and_a_start_comes_first(world: World) -> None:
    many = [pod(f"m-{n}", ready=True, address="127.0.0.1") for n in range(3 * SERVING_A_TURN)]
    world.pods[:] = [*many, pod("m-x", running=True, address="127.0.0.1")]
    assert sorted(await world.turn(metrics(1, 1.0))) == ["/metrics"] * SERVING_A_TURN + ["/ready"]
    assert await world.turn(metrics(1, 1.0)) == ["/metrics"] * SERVING_A_TURN
    assert len(world.survey._known) == 2 * SERVING_A_TURN + 1


async def test_a_pod_that_is_gone_is_forgotten(world: World) -> None:
    await world.turn(metrics(1, 1.0))
    world.pods.clear()
    await world.turn(b"")
    assert world.survey._known == {}


async def test_nobody_at_the_address_is_no_error(world: World) -> None:
    world.server.__exit__()
    assert await world.turn(b"") == []
    assert world.survey._known["uid-m-1"].failures == 1
    world.server.__enter__()


async def test_a_defect_does_not_end_the_survey(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rooms, "TURN_SECONDS", 0.0)
    asked, again = 0, asyncio.Event()

    def pods() -> list[Pod]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("unforeseen")
        again.set()
        return []

    task = asyncio.create_task(Survey(pods, lambda one: None, port=1).run())
    await asyncio.wait_for(again.wait(), 30)
    task.cancel()
    assert "unforeseen" in caplog.text


def test_any_pod_may_be_looked_at() -> None:
    survey = Survey(list, lambda one: None, port=1)
    unknown: Any = pod()
    assert survey.look(unknown) is unknown
