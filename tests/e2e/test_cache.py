"""Weights on their way to a node: how far they are, and what a disk without room does to them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from images.catalogue import OPERATOR
from tests.cluster import Cluster
from tests.e2e.agents import installed
from tests.e2e.applied import applied, degraded, until
from tests.e2e.manifest import model
from tests.e2e.models import Object, conditions, is_true
from tests.e2e.target import Target
from tests.store.checkpoints import config, write_gguf

pytestmark = pytest.mark.cluster

# 67 MB as float32.
TABLE = config(
    hidden_size=256, intermediate_size=1024, num_hidden_layers=16, head_dim=64, vocab_size=261, torch_dtype="float32"
)
BYTES_PER_SECOND = 3_000_000  # as on a slow line: the operator asks every four seconds
PIECE = 1 << 18
DISK, DISK_MIB = "/run/strata-tests/disk", 100  # has room for the file and what is made of it
PROGRESS = r"download, \d+ % of [\d.]+ MiB at [\d.]+ MiB/s, about \d+ s left"


class Site:
    """A web server with one model, at the end of a slow line. ``ranges``: what was asked for of it."""

    def __init__(self, host: str, content: bytes) -> None:
        self.ranges: list[str | None] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                site.ranges.append(asked)
                begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.send_header("ETag", '"one"')
                self.end_headers()
                for start in range(begin, len(content), PIECE):
                    self.wfile.write(content[start : start + PIECE])
                    time.sleep(PIECE / BYTES_PER_SECOND)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_address[1]}/slow.gguf"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(str(cluster.network.host), write_gguf(tmp_path / "slow.gguf", TABLE).read_bytes())
    yield made
    made.close()


@contextmanager
def disk(cluster: Cluster) -> Iterator[None]:
    """A small one of the node's."""
    cluster.on_node("mkdir", "-p", DISK)
    cluster.on_node("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", DISK)
    try:
        yield
    finally:
        cluster.on_node("umount", DISK)


def cached(reason: str, pattern: str = "") -> Callable[[Object], bool]:
    def wanted(state: Object) -> bool:
        condition = conditions(state).get("Cached", {})
        return condition.get("reason") == reason and re.search(pattern, condition["message"]) is not None

    return wanted


def test_a_disk_that_fills_up_says_what_it_lacks_and_goes_on_once_there_is_room(
    target: Target, cluster: Cluster, site: Site
) -> None:
    name = "roomless"
    wanted = {"model.source": site.url, "engine.maxModelLen": 128, "cache.hostPath": DISK}
    with disk(cluster), applied(target, model(name, wanted), name):
        until(target, name, cached("Fetching", f"^{cluster.node}: {PROGRESS}"))
        cluster.on_node("sh", "-c", f"cat /dev/zero > {DISK}/filler || true")
        until(target, name, degraded("StorageFailed"))
        state = until(target, name, cached("StorageFailed", "GB free"))
        told = conditions(state)["Cached"]["message"]
        found = re.search(r"has ([\d.]+) GB free; ([\d.]+) GB more are needed", told)
        assert found is not None, told
        assert float(found[1]) < float(found[2])
        assert f"The cache is {DISK} of node {cluster.node}; once it has room" in told
        assert conditions(state)["Degraded"]["message"] == told
        whole = cluster.on_node("find", DISK, "-name", "*.gguf", "-o", "-name", "config.json")
        assert whole.split() == [], "half a file or store has no such name"
        cluster.on_node("rm", f"{DISK}/filler")
        state = until(target, name, lambda state: is_true(state, "Ready"))
        assert conditions(state)["Cached"]["reason"] == "Loaded"
        assert conditions(state)["Degraded"]["status"] == "False"
        assert re.fullmatch(r"bytes=[1-9]\d*-", site.ranges[-1] or ""), "it went on where it had ended"


def test_weights_that_are_brought_ahead_of_any_pod_say_how_far_they_are(
    target: Target, cluster: Cluster, images: dict[str, str], site: Site
) -> None:
    """``cache.keepWarm`` of a model that does not run, on a node with a card of the fake's."""
    name = "warm"
    wanted = {
        "model.source": site.url,
        "engine.maxModelLen": 128,
        "hardware.accelerator": "nvidia",
        "hardware.gpus": ["RTX3090"],
        "suspend": True,
        "cache": {"hostPath": "/run/strata-tests/warm", "keepWarm": True},
    }
    card = {"kind": "rtx3090"}
    with installed(cluster, images[OPERATOR.name], card) as agents, applied(target, model(name, wanted), name):
        agents.until(lambda: agents.condition("Healthy")[0] == "True")
        until(target, name, cached("Fetching", f"^{cluster.node}: a Job fetches and converts the weights: {PROGRESS}"))
        state = until(target, name, cached("Kept"))
        assert state["status"]["cache"]["nodes"] == [cluster.node]
        assert state["status"]["replicas"] == 0
