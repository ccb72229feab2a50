"""A StrataNode edited by hand, past the API server too: agent and operator answer, and do not fall over."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest

from strata_operator.agent.fake import h200, rtx3090
from strata_operator.api.node import NODE_KIND
from strata_operator.cluster.nodes import Nodes
from tests.operator.agent.conftest import NODE, World
from tests.operator.malformed import malformed
from tests.operator.samples import FULL_NODE_SPEC
from tests.operator.test_crd import NODE_SCHEMA, NODE_SPEC

Make = Callable[..., World]
STATUS = {**NODE_SCHEMA["status"], "properties": dict(NODE_SCHEMA["status"]["properties"])}
del STATUS["properties"]["conditions"]  # API machinery's own


def edits(schema: dict[str, Any], full: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Of fields: a spec or a status that is no table at all gets nowhere."""
    return [(what, one) for what, one in malformed(schema, full) if isinstance(one, dict)]


@pytest.fixture
def tuned(world: Make, caplog: pytest.LogCaptureFixture) -> World:
    """A node with all that a status may hold: a fault, a measured link, settings and pages in force, originals."""
    caplog.set_level(logging.CRITICAL)
    here = world(rtx3090(power_limit=300_000), h200())
    here.host.memory[0, "2Mi"].total = 2
    here.host.refresh()
    here.turn()
    here.cards[0].load = 0.5
    here.driver.send_xid(here.cards[1], 63)
    wish = {**FULL_NODE_SPEC["tuning"]["models"][0], "gpus": [here.cards[0].uuid]}
    here.want(wish, powerBudgetWatts=2000)
    here.turn(4)
    assert here.cards[0].power_limit == 280_000
    assert {*here.status} >= {"gpus", "host", "calibration", "enforced", "originals", "faults"}
    return here


def put(world: World, **fields: Any) -> None:
    obj = {**world.strata_node, **copy.deepcopy(fields)}
    obj["metadata"] = {**obj["metadata"], "generation": obj["metadata"]["generation"] + 1}
    world.client._written((NODE_KIND, "", NODE), obj)


def test_a_malformed_spec_changes_nothing_and_is_told(tuned: World) -> None:
    good, cases = tuned.strata_node["spec"], edits(NODE_SPEC, FULL_NODE_SPEC)
    told = 0
    for what, spec in cases:
        put(tuned, spec=spec)
        tuned.turn()
        status, reason, message = tuned.condition("Tuned")
        if reason == "InvalidSpec":
            told += 1
            assert (status, "nothing is changed" in message) == ("False", True), what
        Nodes(lambda: None, lambda key: None).put(NODE_KIND, tuned.strata_node)
        put(tuned, spec=good)
        tuned.turn()
        assert tuned.cards[0].power_limit == 280_000, what
    assert told > len(cases) / 2  # the others are for the API server to refuse: a text too long, a number too large


def test_a_malformed_status_is_written_again_and_nothing_is_lost(tuned: World) -> None:
    """While an agent runs. What it says is the truth, and not what somebody made of it."""
    true = tuned.status
    for what, status in edits(STATUS, true)[::4]:  # nothing of it is read
        put(tuned, status=status)
        Nodes(lambda: None, lambda key: None).put(NODE_KIND, tuned.strata_node)
        tuned.turn()
        assert tuned.status["originals"] == true["originals"], what
        assert tuned.status["faults"] == true["faults"], what
        assert tuned.condition("Tuned")[:2] != ("False", "InvalidSpec"), what


def test_an_agent_that_starts_with_a_malformed_status_reads_what_can_be_read(tuned: World) -> None:
    true = tuned.status
    for what, status in edits(STATUS, true):
        put(tuned, status=status)
        tuned.restart()
        tuned.turn()
        assert [gpu["uuid"] for gpu in tuned.status["gpus"]] == [gpu["uuid"] for gpu in true["gpus"]], what
        held, known = status.get("originals"), true["originals"]
        for part in ("gpus", "hugepages"):  # one that cannot be read does not take the other along
            if isinstance(held, dict) and held.get(part) == known[part]:
                assert tuned.status["originals"][part] == known[part], what
