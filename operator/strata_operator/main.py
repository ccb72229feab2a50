"""The operator's process: options, the parts put together, and an orderly end."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

import kopf

import strata_operator
from strata_operator import handlers
from strata_operator.api.errors import ApiError, MissingError
from strata_operator.cluster.cache import Cache, Key
from strata_operator.cluster.client import RESOURCES, Client, configuration
from strata_operator.cluster.watch import Watch
from strata_operator.reconcile import Reconciler
from strata_operator.telemetry import Telemetry
from strata_operator.workers import Workers
from strata_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

WATCHED = ("ServiceAccount", "ConfigMap", "Service", "Deployment", "Pod")
STOP_SECONDS = 20.0  # for reconciles under way; the pod's grace period is longer


def parser() -> argparse.ArgumentParser:
    """Options of ``strata-operator``."""
    made = argparse.ArgumentParser(
        prog="strata-operator",
        description="Turns StrataModel resources into pods that run the engine.",
        allow_abbrev=False,
    )
    made.add_argument("--engine-image", required=True, help="image of model pods that name none in spec.image")
    made.add_argument("--listen", default="0.0.0.0:8080", metavar="ADDRESS:PORT", help="of /healthz, /readyz, /metrics")
    made.add_argument("--workers", type=int, default=8, help="models that are reconciled at the same time (default: 8)")
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    made.add_argument("--version", action="version", version=strata_operator.__version__)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 2 for options or a cluster that somebody has to mend first."""
    options = parser().parse_args(argv)
    address, colon, port = options.listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        parser().error(f"--listen is {options.listen!r}; ADDRESS:PORT is needed, e.g. 0.0.0.0:8080")
    if options.workers < 1:
        parser().error(f"--workers is {options.workers}; at least 1 is needed")
    line = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=options.log_level, format=line, stream=sys.stdout)
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    try:
        asyncio.run(run(options.engine_image, address, int(port), options.workers))
    except ApiError as error:
        log.error("%s", error)
        return 2
    return 0


async def run(engine_image: str, address: str, port: int, workers: int) -> None:
    """Raises ApiError where the cluster does not answer, or lacks the CRD."""
    config = configuration()
    queue: WorkQueue[Key] = WorkQueue()
    watches: list[Watch] = []
    telemetry = Telemetry(queue, lambda: watches)
    client = Client(config, on_request=telemetry.requested, threads=workers + len(WATCHED))
    await asyncio.to_thread(check_crd, client)
    cache = Cache(queue.add)
    watches += [Watch(client, kind, cache) for kind in WATCHED]
    reconciler = Reconciler(client, cache, engine_image=engine_image)
    crew = Workers(queue, reconciler, count=workers, on_done=telemetry.reconciled)
    site = await telemetry.serve(address, port)
    for watch in watches:
        watch.start()
    starter = asyncio.create_task(_start_when_synced(watches, crew))
    try:
        # Returns after SIGTERM or SIGINT; kopf sets the signals' handlers itself.
        await kopf.operator(
            registry=handlers.registry(cache, config), settings=handlers.settings(), clusterwide=True, standalone=True
        )
    finally:
        starter.cancel()
        for watch in watches:
            watch.stop()
        if not await asyncio.to_thread(crew.stop, STOP_SECONDS):
            log.warning(
                "reconciles were still under way after %s s; they are done again at the next start", STOP_SECONDS
            )
        await site.cleanup()


def check_crd(client: Client) -> None:
    """Without the CRD there is nothing to watch, and kopf would wait in silence."""
    try:
        client.list("StrataModel", limit="1")
    except MissingError as error:
        raise ApiError(
            f"the CRD StrataModel is not installed ({RESOURCES['StrataModel'].path()} is not there); "
            "install the chart, or kubectl apply -f manifests/crds/"
        ) from error


async def _start_when_synced(watches: Sequence[Watch], crew: Workers[Key]) -> None:
    """Before every cache is full, a child that is there would look absent."""
    for watch in watches:
        while not await asyncio.to_thread(watch.synced.wait, 1.0):
            pass
    log.info("caches are in step with the cluster; reconciling")
    crew.start()


if __name__ == "__main__":
    sys.exit(main())
