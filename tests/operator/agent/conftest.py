"""A node with fake cards and a fake host, and a cluster that is a table in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from strata_operator.agent.agent import Agent
from strata_operator.agent.fake import FakeDriver, SimulatedCard, gpus_of
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.mirror import Mirror
from strata_operator.api.errors import UnavailableError
from strata_operator.api.node import NODE_KIND
from strata_operator.cluster.client import Client
from tests.operator.cluster.fake import FakeClient

NODE = "gpu-1"
DOWN = UnavailableError("connection refused")


class World:
    """``turn`` is one turn of the agent; ``restart`` the end of its process and the next one's start."""

    def __init__(self, root: Path, *cards: SimulatedCard) -> None:
        self.cards = list(cards)
        self.driver = FakeDriver(cards)
        self.host = FakeSysfs(root)
        node = {"kind": "Node", "metadata": {"name": NODE, "uid": "uid-node", "resourceVersion": "1"}}
        self.client = FakeClient({**node, "spec": {}, "status": {"allocatable": {}}})
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        self.mirror = Mirror(cast("Client", self.client), NODE)
        self.agent = Agent(gpus_of(self.driver), self.host, self.mirror, monotonic=self.clock, wall=self.wall)

    def clock(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def turn(self, times: int = 1, *, seconds: float = 5.0) -> None:
        for _ in range(times):
            if not self.client.failing:
                self.mirror.refresh()
            self.seconds += seconds
            self.driver.advance(seconds)
            self.agent.turn()

    def outage(self, *, is_down: bool) -> None:
        """The API server answers nothing; what the watches told before is still known."""
        verbs = ("get", "list", "create", "merge", "apply", "delete")
        calls = [f"{verb} {kind}" for verb in verbs for kind in (NODE_KIND, "Node", "Event")]
        self.client.failing = dict.fromkeys(calls, DOWN) if is_down else {}

    def want(self, *wishes: dict[str, Any], **spec: Any) -> None:
        """As the operator writes it."""
        obj = self.client.objects[NODE_KIND, "", NODE]
        obj["spec"] = {"tuning": {"models": list(wishes)}, **spec}
        obj["metadata"]["generation"] += 1
        self.client._written((NODE_KIND, "", NODE), obj)

    @property
    def strata_node(self) -> dict[str, Any]:
        return self.client.objects[NODE_KIND, "", NODE]

    @property
    def node(self) -> dict[str, Any]:
        return self.client.objects["Node", "", NODE]

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.strata_node.get("status") or {})

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason, message."""
        (one,) = (condition for condition in self.status["conditions"] if condition["type"] == kind)
        return one["status"], one["reason"], one["message"]


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda *cards: World(tmp_path, *cards)
