"""Every exporter with all of its series at once, over the fakes that engine and agent ship: none needs a card."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry

from strata.engine.fake import FakeEngine
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.native.pool import CpuWork
from strata.ngram.counts import TableCounts
from strata.server.metrics import Metrics
from strata_operator.agent.agent import Snapshot
from strata_operator.agent.exporter import Exporter, api_requests
from strata_operator.agent.fake import FakeDriver, gpus_of, h200
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.health import Health
from strata_operator.agent.observe import observe
from strata_operator.agent.report import Turn
from strata_operator.agent.wishes import CardWish, Limit
from strata_operator.api.conditions import ACCEPTED, CACHED, DEGRADED, FITS, NODE_TUNED, PROGRESSING, READY, ROUTED
from strata_operator.api.node import NodeSpec
from strata_operator.cluster.cache import Cache
from strata_operator.telemetry import Telemetry
from strata_operator.workqueue import WorkQueue

_CONDITIONS = (ACCEPTED, FITS, CACHED, NODE_TUNED, PROGRESSING, READY, DEGRADED, ROUTED)
_STATUS = {
    "conditions": [{"type": one, "status": "True"} for one in _CONDITIONS],
    "plan": {"upperBoundTokensPerSecond": 3, "expectedTokensPerSecond": 2},
    "measured": {"tokensPerSecond": 1},
}
# Some of its experts lie on disk, and the CPU computes others.
_EXPERTS = ExpertStats({0: ExpertCounts()}, 1, 1, 1, cpu=CpuWork(0, 0.0, 0.0), num_disk=1, disk_bytes=0)


def engine() -> CollectorRegistry:
    """Of `strata serve` with experts beyond VRAM, states of linear attention, and tables of n-grams."""
    fake = FakeEngine(experts=_EXPERTS, tables=TableCounts(), num_states=1)
    asyncio.run(fake.start())
    return Metrics(fake, model_name="m").registry


def operator() -> CollectorRegistry:
    """Of `strata-operator` with one model and a Lease."""
    cache = Cache(lambda key: None)
    metadata = {"namespace": "n", "name": "m", "uid": "u", "resourceVersion": "1"}
    cache.put_model({"metadata": metadata, "spec": {}, "status": _STATUS})
    telemetry = Telemetry(WorkQueue(), list)
    telemetry.show_models(cache)
    telemetry.show_leader(lambda: True)
    telemetry.reconciled("changed", 0.0)
    telemetry.requested("get", 200)
    return telemetry.registry


def agent() -> CollectorRegistry:
    """Of `strata-agent` on a node of one card, whose models want a lower power limit, and which heat holds down."""
    registry = CollectorRegistry()
    api_requests(registry).labels("get", "200").inc()
    card = h200()
    driver = FakeDriver([card])
    gpus = gpus_of(driver)
    gpus.find()
    driver.send_xid(card, 31)
    with TemporaryDirectory() as root:
        seen = observe(gpus, FakeSysfs(Path(root)), set())
    wishes = {card.uuid: CardWish(power_watts=Limit(1, "n/m"))}
    turn = Turn(1, NodeSpec(), seen, Health(), wishes=wishes, caps={card.uuid: 1})
    exporter = Exporter("node", lambda: Snapshot(turn, is_connected=True))
    exporter.count(turn)
    registry.register(exporter)
    return registry
