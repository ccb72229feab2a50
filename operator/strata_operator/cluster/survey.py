"""Asks the engines themselves: how far a start is, and what a pod that serves has done. No right at the API server is
needed for that, and no key: ``/ready`` and ``/metrics`` are open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import aiohttp

from strata_operator.api.figures import Counters, Loading, Progress, Traffic
from strata_operator.api.pod import Pod

log = logging.getLogger(__name__)

# With a thousand pods that serve each is asked every ten minutes. A turn takes 8 ms of CPU then, 0.4 % of a core (EPYC,
# 2026-11-30).
TURN_SECONDS = 2.0
SERVING_A_TURN = 4
LOADING_A_TURN = 16
SERVING_SECONDS = 30.0  # between two questions to a pod
LOADING_SECONDS = 4.0
SILENT_SECONDS = 600.0  # the longest pause after questions without an answer
ANSWER_SECONDS = 3.0
ANSWER_BYTES = 1 << 20
# What a rate is made of: shorter or with less in it, it says little.
WINDOW_SECONDS = 60.0
WINDOW_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one pod. Times are of the survey's clock."""

    due: float = 0.0
    failures: int = 0
    began: tuple[float, Progress] | None = None  # the first look at the present phase
    loading: Loading | None = None
    window: tuple[float, Counters] | None = None  # the first look of the present window
    traffic: Traffic | None = None  # of the last window that is over


class Survey:
    """``pods()`` are those of all models, ``on_news(pod)`` is called where ``look`` brings something new of one.

    ``port``: of the engines.
    """

    def __init__(
        self,
        pods: Callable[[], Iterable[Pod]],
        on_news: Callable[[Pod], None],
        *,
        port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._on_news = on_news
        self._port = port
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by the pod's uid

    def look(self, pod: Pod) -> Pod:
        """The pod with what its engine told."""
        known = self._known.get(pod.uid)
        if known is None:
            return pod
        return replace(pod, traffic=known.traffic) if _serves(pod) else replace(pod, loading=known.loading)

    async def run(self) -> None:
        """Until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                try:
                    await self.turn(session)
                except Exception:  # a defect in the reading of one answer must not end the survey in silence
                    log.exception("the survey of the engines: starting over")
                await asyncio.sleep(TURN_SECONDS)

    async def turn(self, session: aiohttp.ClientSession) -> None:
        """Ask those whose time has come: a start that somebody waits for before what is only measured."""
        pods = [pod for pod in self._pods() if pod.address and pod.running and not pod.deleting]
        there = {pod.uid for pod in pods}
        self._known = {uid: known for uid, known in self._known.items() if uid in there}
        now = self._clock()
        due = sorted((known.due, pod.uid, pod) for pod in pods if (known := self._of(pod)).due <= now)
        serving = [pod for _, _, pod in due if _serves(pod)][:SERVING_A_TURN]
        loading = [pod for _, _, pod in due if not _serves(pod)][:LOADING_A_TURN]
        await asyncio.gather(*(self._ask(session, pod) for pod in [*loading, *serving]))

    def _of(self, pod: Pod) -> _Known:
        return self._known.get(pod.uid, _Known())

    async def _ask(self, session: aiohttp.ClientSession, pod: Pod) -> None:
        before = self._of(pod)
        body = await self._get(session, pod, "/metrics" if _serves(pod) else "/ready")
        now = self._clock()
        heard = None if body is None else _heard(before, pod, body, now)
        after, failures = (before, before.failures + 1) if heard is None else (heard, 0)
        pause = SERVING_SECONDS if _serves(pod) else LOADING_SECONDS
        due = now + min(pause * 2.0 ** min(failures, 16), SILENT_SECONDS)
        self._known[pod.uid] = replace(after, due=due, failures=failures)
        if (after.loading, after.traffic) != (before.loading, before.traffic):
            self._on_news(pod)

    async def _get(self, session: aiohttp.ClientSession, pod: Pod, path: str) -> bytes | None:
        """The body, whatever the status; None where none came in time. A pod may be anything: no redirect is
        followed, and no more is read than an engine would say."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            async with session.get(f"http://{host}:{self._port}{path}", allow_redirects=False) as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > ANSWER_BYTES:
                        return None
                return bytes(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.debug("%s/%s does not answer %s: %r", pod.namespace, pod.name, path, error)
            return None


def _serves(pod: Pod) -> bool:
    """A pod that only fetches weights is ready from the start, as Kubernetes has it."""
    return pod.ready and not pod.role


def _heard(before: _Known, pod: Pod, body: bytes, now: float) -> _Known | None:
    """None where the answer is no engine's."""
    if _serves(pod):
        counters = Counters.parse(body)
        return None if counters is None else _counted(before, counters, now)
    progress = Progress.parse(body)
    return None if progress is None else _progressed(before, progress, now)


def _progressed(before: _Known, progress: Progress, now: float) -> _Known:
    began = before.began
    if began is None or began[1].phase != progress.phase or began[1].done > progress.done:
        began = (now, progress)
    tenths = 10 * progress.done // progress.total if progress.total else 0
    held = before.loading
    if held is not None and (held.phase, held.tenths, held.total) == (progress.phase, tenths, progress.total):
        return replace(before, began=began)
    seconds, moved = now - began[0], progress.done - began[1].done
    rate = round(moved / seconds) if seconds > 0 and moved > 0 else None
    return replace(before, began=began, loading=Loading(progress.phase, tenths, progress.total, rate))


def _counted(before: _Known, counters: Counters, now: float) -> _Known:
    """A window goes on until it has lasted and something was done in it: an idle engine's figures stay."""
    since = None if before.window is None else counters.since(before.window[1])
    if before.window is None or since is None:
        return replace(before, window=(now, counters))
    if now - before.window[0] < WINDOW_SECONDS or since.tokens < WINDOW_TOKENS:
        return before
    return replace(before, window=(now, counters), traffic=since)
