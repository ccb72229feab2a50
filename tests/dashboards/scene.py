"""Debian's Prometheus, which reads a real engine, a real agent on fake cards, and an operator over a fake cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import yaml

from dashboards.promql import RULES
from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.engine.client import EngineClient
from strata.engine.fake import FakeEngine
from strata_operator.api.errors import MissingError
from strata_operator.api.figures import Traffic
from strata_operator.cluster.cache import Key
from strata_operator.telemetry import Telemetry
from strata_operator.workers import Result, Workers
from strata_operator.workqueue import WorkQueue
from tests.experts.cached_engine import LOAD
from tests.experts.test_resident import made_store
from tests.operator.agent.test_main import NODE, Life
from tests.operator.cluster.server import ScriptedServer, refusal
from tests.operator.samples import NVIDIA, container, node_object
from tests.operator.test_main import free_port
from tests.operator.test_reconcile import KEY, World
from tests.server.conftest import run_live

VARIABLES = {"namespace": KEY[0], "model": KEY[1], "node": NODE, "__rate_interval": "30s"}
CARDS = "cards:\n- {kind: rtx3090, load: 1.0}\n- {kind: h200}\n"
FAULT = "xids: [{card: 0, code: 31}]\n"


@contextmanager
def again(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do it in a thread, over and over."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def engine(folder: Path) -> Iterator[int]:
    """A tiny model whose experts do not all fit: its port."""
    store = made_store(folder, "int4")
    layout = store.manifest.contents.experts
    assert layout is not None
    device = DeviceConfig(
        device="cpu", num_threads=1, expert_vram_bytes=4 * layout.blob_bytes, expert_placement="hybrid", prefetch="off"
    )
    config = EngineConfig(model=str(store.path), dtype="int4", device=device, cache=CacheConfig(num_kv_tokens=128))
    with run_live(cast("FakeEngine", EngineClient(config, load=LOAD))) as live:
        yield live.port


@contextmanager
def asked(port: int, *, clients: int = 1, seconds: float = 0.1) -> Iterator[None]:
    """Requests to an engine, of so many clients, each with a pause after an answer."""

    def ask() -> None:
        body = {"prompt": list(range(2, 22)), "max_tokens": 6, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{port}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    with ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(again(ask, seconds))
        yield


@contextmanager
def agent(folder: Path) -> Iterator[int]:
    """`strata-agent run --fake` on a node of which models want something, and where a fault happens: its port."""
    life = Life(folder)
    life.cards.write_text(CARDS)
    with life.cluster.served(folder / "kubeconfig"), life.running():
        life.until(lambda: life.status.get("gpus"))
        life.want({"model": "/".join(KEY), "powerLimitWatts": 280, "hugepages": [{"size": "2Mi", "pages": 4}]})
        life.cards.write_text(CARDS + FAULT)
        yield life.port


@contextmanager
def operator() -> Iterator[int]:
    """A reconciler of one model that serves, again and again; the operator's own workers and telemetry: its port."""
    world = World(hardware=NVIDIA)
    world.nodes.put("StrataNode", node_object(NODE))
    world.run()
    world.serve()
    world.put_pod(containerStatuses=container(ready=True, state={"running": {}}))
    world.told = {"traffic": Traffic(620, 1.0, ((0.2, 10.0), (float("inf"), 10.0)))}
    queue: WorkQueue[Key] = WorkQueue()
    telemetry = Telemetry(queue, list)
    telemetry.show_models(world.cache)
    telemetry.show_leader(lambda: True)
    with ScriptedServer(lambda request: refusal(404, "not there")) as server:
        client = server.client(on_request=telemetry.requested)

        def work(key: Key) -> Result:
            with suppress(MissingError):
                client.get("Pod", key[0], "m-2")
            return Result(world.reconcile(key).outcome)

        crew = Workers(queue, work, count=1, on_done=telemetry.reconciled)
        crew.start()
        with serving(telemetry) as port, again(lambda: queue.add(KEY), 0.2):
            yield port
        assert crew.stop(30)


@contextmanager
def serving(telemetry: Telemetry) -> Iterator[int]:
    """In a thread: its port."""
    port, loop = free_port(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(telemetry.serve("127.0.0.1", port), loop).result(30)
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Prometheus:
    """One that answers at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer."""
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def has(self, expression: str) -> bool:
        """Whether a dashboard's query returns any figure."""
        for name, value in VARIABLES.items():
            expression = expression.replace(f"${name}", value)
        found = self.get("/api/v1/query", query=expression)["result"]
        return any(one["value"][1] != "NaN" for one in found)


def target(port: int, **labels: str) -> Mapping[str, Any]:
    return {"targets": [f"127.0.0.1:{port}"], "labels": labels}


@contextmanager
def reading(prometheus: str, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> Iterator[Prometheus]:
    """One that scrapes those jobs every second, with the chart's rules; it may not answer yet."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": list(jobs),
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    options += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with subprocess.Popen([prometheus, *options], cwd=folder) as process:
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


@contextmanager
def scene(prometheus: str, folder: Path) -> Iterator[Prometheus]:
    """All of them, as they are in a cluster: the labels are those that Prometheus's operator and PodMonitors set."""
    with ExitStack() as stack:
        places = {name: folder / name for name in ("engine", "agent", "prometheus")}
        for place in places.values():
            place.mkdir()
        operators = stack.enter_context(operator())
        agents = stack.enter_context(agent(places["agent"]))
        engines = stack.enter_context(engine(places["engine"]))
        stack.enter_context(asked(engines))
        pod = {"namespace": KEY[0], "model": KEY[1], "node": NODE, "pod": "m-1"}
        jobs: list[Mapping[str, Any]] = [
            {"job_name": "engine", "static_configs": [target(engines, **pod)]},
            {"job_name": "agent", "static_configs": [target(agents, namespace="strata-system", pod="strata-agent-1")]},
            {
                "job_name": "operator",
                "honor_labels": True,
                "static_configs": [target(operators, namespace="strata-system", pod="strata-1")],
            },
        ]
        yield stack.enter_context(reading(prometheus, places["prometheus"], jobs))
