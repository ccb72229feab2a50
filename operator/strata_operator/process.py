"""The operator's parts put together, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import kopf

from strata_operator import handlers, leader
from strata_operator.api.errors import ApiError, MissingError
from strata_operator.api.model import KIND
from strata_operator.api.node import NODE_KIND
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import RESOURCES, Client, configuration
from strata_operator.cluster.loop import Loop
from strata_operator.cluster.nodes import Nodes
from strata_operator.cluster.resync import Resync
from strata_operator.cluster.watch import OptionalWatch, Watch
from strata_operator.leader import Leader
from strata_operator.reconcile import Reconciler
from strata_operator.telemetry import Telemetry
from strata_operator.workers import Workers
from strata_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

WATCHED = (
    "ServiceAccount",
    "ConfigMap",
    "Service",
    "NetworkPolicy",
    "Deployment",
    "PodDisruptionBudget",
    "Pod",
)
STOP_SECONDS = 20.0  # for reconciles under way; the pod's grace period is longer


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    engine_image: str  # of model pods that name none
    address: str
    port: int
    workers: int  # models that are reconciled at the same time
    lease: tuple[str, str] | None = None  # namespace and name; None: no other operator runs


async def run(settings: Settings) -> None:
    """Raises ApiError where the cluster does not answer, or lacks the CRD."""
    config = configuration()
    queue: WorkQueue[Key] = WorkQueue()
    loops: list[Loop] = []
    telemetry = Telemetry(queue, lambda: loops)
    client = Client(config, on_request=telemetry.requested, threads=settings.workers + len(WATCHED) + 3)
    await asyncio.to_thread(check_crd, client)
    cache = Cache(queue.add)
    nodes = Nodes(lambda: queue.add_all(cache.gpu_models()), queue.add)
    resync = Resync(client, cache)
    monitors = OptionalWatch(client, "PodMonitor", cache, lambda: queue.add_all(cache.models()))
    loops += [resync, *(Watch(client, kind, cache) for kind in WATCHED), monitors]
    loops.append(Watch(client, NODE_KIND, nodes, select={}))
    reconciler = Reconciler(
        client, cache, nodes, engine_image=settings.engine_image, has_monitors=lambda: monitors.present
    )
    crew = Workers(queue, reconciler, count=settings.workers, on_done=telemetry.reconciled)
    site = await telemetry.serve(settings.address, settings.port)
    for loop in loops:
        loop.start()
    elected = _leader(settings.lease, telemetry) if settings.lease is not None else None
    starter = asyncio.create_task(_start_when_synced(loops, elected, crew))
    try:
        # Returns after SIGTERM or SIGINT; kopf sets the signals' handlers itself.
        await kopf.operator(
            registry=handlers.registry(cache, config, resync.heard),
            settings=handlers.settings(),
            clusterwide=True,
            standalone=True,
        )
    finally:
        starter.cancel()
        for loop in loops:
            loop.stop()
        if not await asyncio.to_thread(crew.stop, STOP_SECONDS):
            log.warning(
                "reconciles were still under way after %s s; they are done again at the next start", STOP_SECONDS
            )
        elif elected is not None:  # nothing is written any more
            await asyncio.to_thread(elected.stop)
        await site.cleanup()


def _leader(lease: tuple[str, str], telemetry: Telemetry) -> Leader:
    """With a client of its own, whose requests give up in time."""
    client = Client(configuration(), on_request=telemetry.requested, threads=1, read_seconds=leader.READ_SECONDS)
    made = Leader(client, *lease, f"{socket.gethostname()}_{uuid.uuid4()}", on_lost=_end_at_once)
    telemetry.show_leader(made.leading.is_set)
    made.start()
    return made


def _end_at_once() -> None:
    """Nothing orderly: requests under way would go on for seconds, and another operator writes by then."""
    log.error("the lease is lost, and another operator may lead: this one ends at once, to be started anew")
    logging.shutdown()
    os._exit(1)


def check_crd(client: Client) -> None:
    """Without the CRDs there is nothing to watch, and kopf would wait in silence."""
    for kind in (KIND, NODE_KIND):
        try:
            client.list(kind, limit="1")
        except MissingError as error:
            raise ApiError(
                f"the CRD {kind} is not installed ({RESOURCES[kind].path()} is not there); kubectl apply "
                "--server-side -f charts/strata/crds/, which helm does at the first install alone"
            ) from error


async def _start_when_synced(loops: Sequence[Loop], elected: Leader | None, crew: Workers[Key]) -> None:
    """Before every cache is full, a child that is there would look absent. Until then changes wait in the queue."""
    for event in [*(loop.synced for loop in loops), *([elected.leading] if elected is not None else [])]:
        while not await asyncio.to_thread(event.wait, 1.0):
            pass
    log.info("caches are in step with the cluster; reconciling")
    crew.start()
