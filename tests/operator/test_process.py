from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest

from strata_operator import logs, process
from strata_operator.api.errors import ApiError
from strata_operator.api.model import KIND
from strata_operator.cluster.client import RESOURCES
from strata_operator.leader import Leader
from strata_operator.process import Settings, check_crd, run, start_when_synced
from tests.operator.cluster.server import Answer, Request, ScriptedServer, refusal
from tests.operator.live.harness import eventually
from tests.operator.test_main import free_port
from tests.operator.test_steady_hour import SteadyCluster


def test_a_missing_crd_says_what_to_install() -> None:
    refused = pytest.raises(ApiError, match="the CRD StrataModel is not installed")
    with ScriptedServer(lambda request: refusal(404, "the server could not find it")) as server, refused:
        check_crd(server.client())


def test_a_missing_right_is_told_in_the_server_s_words() -> None:
    refused = pytest.raises(ApiError, match="cannot list stratamodels")
    with ScriptedServer(lambda request: refusal(403, "cannot list stratamodels")) as server, refused:
        check_crd(server.client())


def test_with_the_rights_of_some_namespaces_no_more_is_asked_for() -> None:
    with ScriptedServer(lambda request: Answer(body={"metadata": {}, "items": []})) as server:
        check_crd(server.client(), ["a", "b"])
    assert [request.path for request in server.requests] == [
        "/apis/strata.ai/v1alpha1/namespaces/a/stratamodels",
        "/apis/strata.ai/v1alpha1/stratanodes",
    ]


class Start:
    """An operator that starts while the API server answers as ``answer`` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self.server = ScriptedServer(lambda request: self.answer(request))
        self.port = free_port()
        monkeypatch.setattr(process, "OUTAGE_SECONDS", 0.01)
        monkeypatch.setattr(process, "configuration", lambda: self.server.client().config)

    async def __aenter__(self) -> asyncio.Task[None]:
        self.server.__enter__()
        self.task = asyncio.create_task(run(Settings("e", "127.0.0.1", self.port, workers=1)))
        while len(self.server.requests) < 3:  # it asks again and again
            await asyncio.sleep(0.01)
            assert not self.task.done(), self.task.exception()
        return self.task

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.server.__exit__()

    async def probe(self, path: str) -> tuple[int, str]:
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}{path}")
            return answer.status_code, answer.text


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(monkeypatch, lambda request: refusal(503, "starting"))


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(start: Start) -> None:
    """One that ended would be started anew after up to five minutes, and the outage be so much longer."""
    async with start as task:
        assert (await start.probe("/healthz"))[0] == 200  # else it would be started anew, too
        status, waits = await start.probe("/readyz")
        assert status == 503
        assert "StrataModel" in waits
        start.answer = lambda request: refusal(404, "the server could not find it")
        with pytest.raises(ApiError, match="the CRD StrataModel is not installed"):
            await task


async def test_an_api_server_that_starts_up_denies_all_for_a_moment(start: Start) -> None:
    start.answer = lambda request: refusal(403, 'User "u" cannot list resource "stratamodels"')
    async with start as task:
        start.answer = lambda request: refusal(404, "the server could not find it")
        with pytest.raises(ApiError, match="the CRD StrataModel is not installed"):
            await task


async def test_who_is_denied_for_longer_lacks_rights(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "DENIED_SECONDS", 0.1)
    start.answer = lambda request: refusal(403, 'User "u" cannot list resource "stratamodels"')
    async with start as task:
        with pytest.raises(ApiError, match='User "u" cannot list resource "stratamodels"'):
            await task


async def test_it_ends_when_it_is_told_to_though_the_api_server_is_away(start: Start) -> None:
    async with start as task:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait([task])
        assert task.cancelled()


async def until_told(words: str, log: Callable[[], str]) -> None:
    await asyncio.to_thread(eventually, lambda: words in log(), 30, log)


@pytest.fixture
def told() -> Iterator[io.StringIO]:
    """The log as the command writes it."""
    logs.set_up("INFO")
    stream, root = io.StringIO(), logging.getLogger()
    writer = logs.handler(stream, is_debug=False)
    root.addHandler(writer)
    yield stream
    root.removeHandler(writer)


async def test_the_models_are_watched_again_after_a_proxy_s_page_and_once_their_crd_is_back(
    monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    """A process that ended would be started anew after up to five minutes."""
    cluster, path = SteadyCluster(bookmarks=True), RESOURCES[KIND].path()
    watches = iter([Answer(body=b"<html>log in</html>"), refusal(404, "the server could not find it")])
    is_gone, again = threading.Event(), threading.Event()

    def say(request: Request) -> Answer:
        if request.path != path:
            return cluster.answer(request)
        if "watch" in request.query:
            answer = next(watches, None)
            if answer is None:
                again.set()
                return cluster.answer(request)
            if answer.status == 404:
                is_gone.set()
            return answer
        return refusal(404, "the server could not find it") if is_gone.is_set() else cluster.answer(request)

    with ScriptedServer(say) as server:
        monkeypatch.setattr(process, "OUTAGE_SECONDS", 0.01)
        monkeypatch.setattr(process, "configuration", lambda: server.client().config)
        task = asyncio.create_task(run(Settings("e", "127.0.0.1", free_port(), workers=1)))
        assert await asyncio.to_thread(is_gone.wait, 30)
        await until_told("the CRD StrataModel is not installed", told.getvalue)
        is_gone.clear()
        assert await asyncio.to_thread(again.wait, 30)
        assert not task.done()
        cluster.end.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    lines = told.getvalue().splitlines()
    assert "Traceback (most recent call last):" not in lines
    (asked,) = [line for line in lines if "ERROR" in line]
    assert "kubectl apply --server-side -f charts/strata/crds/" in asked
    assert asked.endswith("; it is waited for")
    assert not [line for line in lines if " kopf" in line]


class Candidate:
    """Of a Lease that ``held`` says whether somebody else has it."""

    def __init__(self, held: bool = False) -> None:
        self.leading = threading.Event()
        self.has_started = threading.Event()
        self._held = held

    def start(self) -> None:
        self.has_started.set()
        if not self._held:
            self.leading.set()


async def test_one_lease_is_taken_after_the_other_and_nothing_is_done_before_all_are_held() -> None:
    """Two that each held one of two and waited for the other would wait for ever."""
    leaders = [Candidate(), Candidate(held=True), Candidate()]
    done: list[str] = []

    class Crew:
        def start(self) -> None:
            done.append("reconciles")

    class Survey:
        async def run(self) -> None:
            done.append("asks")

    start = start_when_synced([], cast("list[Leader]", leaders), cast("Any", Crew()), cast("Any", Survey()))
    task = asyncio.create_task(start)
    await asyncio.to_thread(leaders[1].has_started.wait, 10)
    assert [one.has_started.is_set() for one in leaders] == [True, True, False]
    assert done == []
    leaders[1].leading.set()
    await asyncio.wait_for(task, 10)
    assert [one.has_started.is_set() for one in leaders] == [True, True, True]
    assert done == ["reconciles", "asks"]


async def test_who_serves_without_a_lease_is_warned(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def say(request: Request) -> Answer:
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})

    async with start:
        start.answer = say
        await until_told("--lease none", lambda: caplog.text)
