"""The operator's parts put together, and an orderly end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import kopf

from strata_operator import handlers, leader
from strata_operator.api.errors import MissingError, OperatorError, UnavailableError
from strata_operator.api.model import KIND
from strata_operator.api.node import NODE_KIND
from strata_operator.api.reach import ROUTE_KINDS
from strata_operator.api.route import RouteDefaults
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import RESOURCES, Client, configuration
from strata_operator.cluster.loop import Loop
from strata_operator.cluster.nodes import Nodes
from strata_operator.cluster.resync import Resync
from strata_operator.cluster.scope import Scope
from strata_operator.cluster.survey import Survey
from strata_operator.cluster.watch import OptionalWatch, Watch
from strata_operator.leader import Leader
from strata_operator.reconcile import Reconciler
from strata_operator.render import PORT, Monitors
from strata_operator.telemetry import Telemetry
from strata_operator.workers import Workers
from strata_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

WATCHED = (
    "ServiceAccount",
    "Service",
    "NetworkPolicy",
    "Deployment",
    "PodDisruptionBudget",
    "Pod",
)
GATHER_SECONDS = 0.2  # a model's children and pods change several at a time: one look at them all
SWITCH_SECONDS = 0.02  # for which a thread computes while others wait; those that wait for the network ask for less
M_ARENA_MAX = -8  # malloc.h
OUTAGE_SECONDS = 2.0  # between two looks for an API server that is away at the start
DENIED_SECONDS = 60.0  # an API server that starts up denies everything for a moment; who is denied longer lacks rights
STOP_SECONDS = 20.0  # for reconciles under way; the pod's grace period is longer


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    engine_image: str  # of model pods that name none
    address: str
    port: int
    workers: int  # models that are reconciled at the same time
    leases: tuple[tuple[str, str], ...] = ()  # namespace and name of each to hold; empty: no other operator runs
    namespaces: tuple[str, ...] = ()  # of the models; empty: all
    monitors: Monitors | None = None  # that models get, where the cluster knows their kind
    routes: RouteDefaults | None = None  # of models that ask for a route; None: they get none


async def run(settings: Settings) -> None:
    """Raises OperatorError where somebody has to mend something first: rights, the CRD, an address in use."""
    _be_thrifty()
    config = configuration()
    queue: WorkQueue[Key] = WorkQueue()
    served = frozenset(settings.namespaces)
    loops: list[Loop] = []
    telemetry = Telemetry(queue, lambda: loops)
    # Each watch and each resync has a connection, and so has each worker.
    routes = ROUTE_KINDS if settings.routes is not None else ()
    threads = settings.workers + (len(WATCHED) + 2 + len(routes)) * max(1, len(settings.namespaces)) + 1
    client = Client(config, on_request=telemetry.requested, threads=threads)
    cache = Cache(
        queue.add,
        lambda key: queue.add_after(key, GATHER_SECONDS),
        on_free=lambda: queue.add_all(reconciler.waiting()),
    )
    telemetry.show_models(cache)

    def tuned(key: Key) -> None:
        if not served or key[0] in served:  # else it is another operator's
            queue.add(key)

    def known() -> None:  # or no longer
        queue.add_all(cache.models())

    nodes = Nodes(lambda: queue.add_all(cache.models_of_nodes()), tuned)
    resyncs: list[Resync] = []
    optional: list[OptionalWatch] = []
    wanted = (*((settings.monitors.kind,) if settings.monitors is not None else ()), *routes)
    for namespace in settings.namespaces or (None,):
        scope = Scope(cache, namespace)
        resyncs.append(Resync(client, cache, namespace=namespace))
        optional += [OptionalWatch(client, kind, scope, known, namespace=namespace) for kind in wanted]
        loops += [Watch(client, kind, scope, namespace=namespace) for kind in WATCHED]
    loops += [*resyncs, *optional, Watch(client, NODE_KIND, nodes, select={})]

    def serves(kind: str) -> bool:
        return any(one.kind == kind and one.present for one in optional)

    survey = Survey(cache.pods, cache.told_of, port=PORT)
    reconciler = Reconciler(
        client,
        cache,
        nodes,
        engine_image=settings.engine_image,
        monitors=lambda: settings.monitors if settings.monitors and serves(settings.monitors.kind) else None,
        routes=settings.routes,
        serves=serves,
        look=survey.look,
    )

    def heard() -> None:
        for one in resyncs:
            one.heard()

    crew = Workers(queue, reconciler, count=settings.workers, on_done=telemetry.reconciled)
    try:
        site = await telemetry.serve(settings.address, settings.port)
    except OSError as error:
        raise OperatorError(
            f"--listen {settings.address}:{settings.port}: {error.strerror}; name a free one"
        ) from error
    try:
        await _until_it_answers(client, settings.namespaces)
    except BaseException:
        await site.cleanup()
        raise
    for loop in loops:
        loop.start()
    leaders = _leaders(settings.leases, telemetry)
    starter = asyncio.create_task(start_when_synced(loops, leaders, crew, survey))
    telemetry.watch_over(crew.ailment)
    telemetry.watch_over(lambda: "nobody asks the pods" if starter.done() else None)
    try:
        await _watch_models(client, settings.namespaces, lambda: handlers.registry(cache, config, heard))
    finally:
        starter.cancel()
        for loop in loops:
            loop.stop()
        if not await asyncio.to_thread(crew.stop, STOP_SECONDS):
            log.warning(
                "reconciles were still under way after %s s; they are done again at the next start", STOP_SECONDS
            )
        else:  # nothing is written any more
            for one in leaders:
                await asyncio.to_thread(one.stop)
        await site.cleanup()


def _be_thrifty() -> None:
    """Of a start with a thousand models, a quarter of the CPU time goes to hand-overs between threads that read lists,
    and to searches for cycles among objects that stay; and each thread's own heap keeps what its lists took."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with suppress(AttributeError):  # a C library that is not glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


async def _watch_models(
    client: Client, namespaces: Sequence[str], registry: Callable[[], kopf.OperatorRegistry]
) -> None:
    """Returns after SIGTERM or SIGINT; kopf sets the signals' handlers itself.

    Kopf ends at a CRD that was deleted, which may come back, and at a proxy's page. Raises ApiError where somebody has
    to mend something.
    """
    while True:
        try:
            return await kopf.operator(
                registry=registry(),
                settings=handlers.settings(),
                clusterwide=not namespaces,
                namespaces=namespaces,
                standalone=True,
            )
        except Exception as error:  # noqa: BLE001 - what it raises is no part of its interface
            log.warning("the watch of %s ended, and is begun anew: %s: %s", KIND, type(error).__name__, error)
        await _until_it_answers(client, namespaces, again=True)


def _leaders(leases: Sequence[tuple[str, str]], telemetry: Telemetry) -> list[Leader]:
    """One for each Lease, with a client of its own, whose requests give up in time. None of them has started."""
    if not leases:
        log.warning("--lease none: should another operator serve the same models, each undoes the other's work")
        return []
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    made = []
    for namespace, name in leases:
        client = Client(configuration(), on_request=telemetry.requested, threads=1, read_seconds=leader.READ_SECONDS)
        made.append(Leader(client, namespace, name, identity, on_lost=_end_at_once))
    telemetry.show_leader(lambda: all(one.leading.is_set() for one in made))
    return made


def _end_at_once() -> None:
    """Nothing orderly: requests under way would go on for seconds, and another operator writes by then."""
    log.error("the lease is lost, and another operator may lead: this one ends at once, to be started anew")
    logging.shutdown()
    os._exit(1)


async def _until_it_answers(client: Client, namespaces: Sequence[str], *, again: bool = False) -> None:
    """An outage is waited for: a process that ended would be started again after ever longer pauses.

    ``again``: it did before, so a CRD that is gone by now is waited for, too. Raises ApiError where somebody has to
    mend something, CancelledError after SIGTERM.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    denied_since: float | None = None
    told = ""
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # until kopf has its own
    try:
        while True:
            try:
                await asyncio.to_thread(check_crd, client, namespaces)
                if again:  # kopf asks the API server's discovery, which knows of a new CRD a moment later
                    await asyncio.sleep(OUTAGE_SECONDS)
                return
            except MissingError as error:
                if not again:
                    raise
                words = f"{error}; it is waited for"
            except UnavailableError as error:
                if error.status not in (401, 403):
                    denied_since = None
                elif denied_since is None:
                    denied_since = loop.time()
                elif loop.time() - denied_since > DENIED_SECONDS:
                    raise
                words = f"the API server does not serve us yet, and is waited for: {error}"
            if words != told:
                log.error(words)
                told = words
            await asyncio.sleep(OUTAGE_SECONDS)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def check_crd(client: Client, namespaces: Sequence[str] = ()) -> None:
    """Without the CRDs there is nothing to watch, and kopf would wait in silence."""
    for kind, namespace in ((KIND, namespaces[0] if namespaces else None), (NODE_KIND, None)):
        try:
            client.list(kind, namespace, limit="1")
        except MissingError as error:
            raise MissingError(
                f"the CRD {kind} is not installed ({RESOURCES[kind].path()} is not there); kubectl apply "
                "--server-side -f charts/strata/crds/, which helm does at the first install alone"
            ) from error


async def start_when_synced(
    loops: Sequence[Loop], leaders: Sequence[Leader], crew: Workers[Key], survey: Survey
) -> None:
    """Before every cache is full, a child that is there would look absent. Until then changes wait in the queue, and no
    engine is asked. One Lease after the other: who has the first waits for the next, and nobody has that and waits for
    the first."""
    for loop in loops:
        await _wait(loop.synced)
    log.info("caches are in step with the cluster")
    for one in leaders:
        one.start()
        await _wait(one.leading)
    log.info("reconciling")
    crew.start()
    await survey.run()


async def _wait(event: threading.Event) -> None:
    """In turns, so that a thread that waits does not outlive the process's end for long."""
    while not await asyncio.to_thread(event.wait, 1.0):
        pass
