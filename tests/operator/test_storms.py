"""An API server that is overloaded: any call may be throttled, come too late, or be done without its answer arriving.

Whatever is answered meanwhile, models come to what calm would have made of them, and then it is quiet.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from strata_operator.api.errors import UnavailableError
from strata_operator.api.names import HASH_ANNOTATION
from strata_operator.cluster.leaving import RESTORE_SECONDS
from tests.operator.test_reconcile import KEY, World, agent_acts, node_wishes, tuned_world

MOST_TRIES = 1000
ANSWERS = [
    (429, "too many requests, please try again later"),
    (409, "the object has been modified; please apply your changes to the latest version and try again"),
    (500, "etcdserver: request timed out"),
    (503, "apiserver is shutting down"),
    (0, "no answer"),
]


class Storm:
    """Of the world's calls every second one fails, half of them after they were carried out."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        for verb in ("get", "list", "create", "apply", "merge"):
            setattr(world.client, verb, self._stormy(getattr(world.client, verb)))
        self.is_on = True
        self.failed = 0
        self.deleted = copy.deepcopy(world.model)

    def _stormy(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stormy(*arguments: Any, **options: Any) -> Any:
            fails, before = self.is_on and self.dice.random() < 0.5, self.dice.random() < 0.5
            answer = call(*arguments, **options) if not (fails and before) else None
            if fails:
                self.failed += 1
                status, words = self.dice.choice(ANSWERS)
                raise UnavailableError(words, status=status)
            return answer

        return stormy

    def settle(self) -> None:
        """What the queue does: the key again, until nothing is left to do."""
        for _ in range(MOST_TRIES):
            try:
                if self.world.run().outcome in ("unchanged", "gone"):
                    return
            except UnavailableError:
                if ("StrataModel", *KEY) not in self.world.client.objects:
                    self.world.cache.remove_model(self.deleted)  # its watch tells
        raise AssertionError("it did not settle")


def made(world: World) -> dict[str, Any]:
    """All that the operator wrote, but for what differs from run to run."""
    objects = {key: obj for key, obj in world.client.objects.items() if key[0] not in ("Event", "StrataModel")}
    hashes = {key: obj["metadata"].get("annotations", {}).get(HASH_ANNOTATION) for key, obj in objects.items()}
    nodes = {key: obj["spec"] for key, obj in objects.items() if key[0] == "StrataNode"}
    metadata, status = world.model["metadata"], world.model["status"]
    return {"hashes": hashes, "nodes": nodes, "finalizers": metadata.get("finalizers"), "status": status}


def live(world: World, settle: Callable[[], None]) -> list[dict[str, Any]]:
    """A model comes to a node and is tuned, serves, gets another spec; what there is after each step."""
    found = []
    world.put_pod()
    settle()
    found.append(made(world))
    agent_acts(world)
    world.serve()
    settle()
    found.append(made(world))
    world.model["spec"]["power"] = {"limitWatts": 250}
    world.model["spec"]["service"] = {"port": 80}
    world.change(generation=2)
    settle()
    found.append(made(world))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_delays_and_changes_nothing(seed: int) -> None:
    calm, stormy = tuned_world(), tuned_world()
    storm = Storm(stormy, seed)
    quiet = Storm(calm, seed)
    quiet.is_on = False
    assert live(stormy, storm.settle) == live(calm, quiet.settle)
    assert storm.failed > 5
    stormy.client.writes()
    storm.is_on = False
    assert stormy.run().outcome == "unchanged"
    assert stormy.client.writes() == []


@pytest.mark.parametrize("seed", range(4))
def test_a_model_goes_in_a_storm_and_leaves_nothing(seed: int) -> None:
    world = tuned_world()
    storm = Storm(world, seed)
    gone = world.model
    world.change(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=gone["metadata"]["finalizers"])
    world.now += timedelta(seconds=RESTORE_SECONDS)
    storm.settle()
    assert ("StrataModel", *KEY) not in world.client.objects
    assert node_wishes(world) == []
